// Where the declarations of model families are.
#pragma once

#include <filesystem>
#include <optional>

#include "runtime/base/status.h"

namespace ktc::tools {

// `flag`: --families; without it the folder that travels with the program. Error: it is not there.
Expected<std::filesystem::path> families_folder(const std::optional<std::filesystem::path>& flag);

}  // namespace ktc::tools
