// Whether a measured layer computed what it should.
#pragma once

#include <span>
#include <string>

#include "runtime/base/status.h"

namespace ktc::bench {

// Ok when `found` equals `expected` to the bit, or, with a tolerance above 0, within `tolerance` of the largest expected
// magnitude. Values that are not finite, and rows of zeros only, are refused too: nothing could be learnt from them.
// `place`: which result, for the message.
Status compare(const std::string& place, std::span<const float> expected, std::span<const float> found, double tolerance);

}  // namespace ktc::bench
