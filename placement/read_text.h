// Whole small text files, bounded.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace ktc::placement {

// Errors name the path, `what` ("policy", "target") and the reason; a file above 1 MiB is refused unread.
Expected<std::string> read_text(const std::filesystem::path& path, std::string_view what);

}  // namespace ktc::placement
