#include "tools/ktc/bench_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ktc::bench {

Status compare(const std::string& place, std::span<const float> expected, std::span<const float> found, double tolerance) {
  const auto wrong = [&](std::string what, std::string value, std::string wanted) {
    return make_error(StatusCode::internal, {place, std::move(what), std::move(value), std::move(wanted),
                                             "report this with the command and the processor's name"});
  };
  if (expected.size() != found.size())
    return wrong("another number of columns", std::to_string(found.size()), std::to_string(expected.size()));
  double largest = 0;
  for (const float value : expected) {
    if (!std::isfinite(value)) return wrong("the scalar kernels' result is not finite", fmt::format("{}", value), "numbers");
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  if (largest == 0) return wrong("the scalar kernels' result is zero everywhere", "", "");
  for (std::size_t c = 0; c < expected.size(); ++c) {
    const bool same = tolerance == 0 ? std::bit_cast<std::uint32_t>(expected[c]) == std::bit_cast<std::uint32_t>(found[c])
                                     : std::fabs(static_cast<double>(expected[c]) - found[c]) <= tolerance * largest;
    if (!same)  // a NaN is never within a tolerance
      return wrong(fmt::format("column {} differs from the scalar kernels' result", c), fmt::format("{:.9g}", found[c]),
                   fmt::format("{:.9g}", expected[c]));
  }
  return {};
}

}  // namespace ktc::bench
