// Shapes come from files: sums and products stop at the largest number instead of wrapping.
#pragma once

#include <cstdint>

namespace ktc::placement {

inline std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
inline std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
template <typename... Rest>
std::uint64_t times(std::uint64_t a, std::uint64_t b, Rest... rest) {
  return times(times(a, b), rest...);
}

}  // namespace ktc::placement
