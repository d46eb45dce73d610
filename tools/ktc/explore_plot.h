// Throughput against GPU memory as a picture.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "placement/explore.h"

namespace ktc::tools {

// SVG 1.1 without scripts, fonts or links: predicted tokens/s of the first decode bucket over GiB on GPUs, one line per strategy
// (and format and deferral where those vary); points of the Pareto front are filled. Equal rows give equal text.
std::string explore_svg(const std::vector<placement::SweepRow>& rows, std::string_view title);

}  // namespace ktc::tools
