// A target as a file that parse_target reads back to the same values: what `ktc probe` writes.
#pragma once

#include <string>

#include "placement/target.h"

namespace ktc::placement {

// Unknown values are left out. `comment`: lines for the top, each of which gets a '#'. Rates have four digits.
std::string target_text(const Target& target, const std::string& comment = {});

}  // namespace ktc::placement
