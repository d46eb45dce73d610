// Reads whole text files that a command line names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace ktc::tools {

// At most 256 MiB; a pipe may be named too. flag: stands before the path in messages; empty: the path alone. Errors:
// one line, not_found for a file that is not there.
Expected<std::string> read_text_file(std::string_view flag, const std::filesystem::path& path);

}  // namespace ktc::tools
