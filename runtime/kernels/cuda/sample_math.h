// The arithmetic of sampling, the same on hosts and devices to the bit: integers, and double operations that round on their own
// (no fused multiply-adds). So a device chooses the id that a host chooses, whatever the order of its sums.
//
// The probability of an id, up to a common factor, is the integer weight floor(2^shift * e^((logit - best) / temperature)), where
// shift leaves room for the sum of all weights in 62 bits: 2^44 for a vocabulary of 151936. What is less likely than 2^-shift of the
// best is never drawn.
#pragma once

#include <cstdint>

#include "runtime/formats/sample_row.h"
#include "runtime/kernels/cuda/pair_filter.h"

namespace ktc::gpu {

KTC_HOST_DEVICE inline double times(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
KTC_HOST_DEVICE inline double plus(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

KTC_HOST_DEVICE inline unsigned sample_shift(std::uint32_t columns) {
  unsigned bits = 0;
  while ((std::uint64_t{1} << bits) < columns) ++bits;
  return 62 - bits;
}

// 2^y for y = (logit - best) * scale, by y = n + f and the Taylor series of e^(f ln 2) of degree 11: off by less than 1e-14.
KTC_HOST_DEVICE inline std::uint64_t sample_weight(float logit, float best, double scale, unsigned shift) {
  const double y = times(plus(static_cast<double>(logit), -static_cast<double>(best)), scale);
  if (!(y > -64.0)) return 0;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double n = plus(plus(y, kRound), -kRound), f = plus(y, -n);
  double p = 4.44553827187081e-10;
  p = plus(times(p, f), 7.054911620801121e-09);
  p = plus(times(p, f), 1.0178086009239696e-07);
  p = plus(times(p, f), 1.3215486790144305e-06);
  p = plus(times(p, f), 1.5252733804059838e-05);
  p = plus(times(p, f), 0.00015403530393381606);
  p = plus(times(p, f), 0.0013333558146428441);
  p = plus(times(p, f), 0.009618129107628477);
  p = plus(times(p, f), 0.055504108664821576);
  p = plus(times(p, f), 0.2402265069591007);
  p = plus(times(p, f), 0.6931471805599453);
  p = plus(times(p, f), 1.0);
  const int power = static_cast<int>(n) + static_cast<int>(shift);
  return power < 0 ? 0 : static_cast<std::uint64_t>(times(p, static_cast<double>(std::uint64_t{1} << power)));
}

// How much of `total` top-p keeps at least, from 1 to total.
KTC_HOST_DEVICE inline std::uint64_t sample_wanted(std::uint64_t total, double top_p) {
  const double share = times(static_cast<double>(total), top_p);
  std::uint64_t wanted = static_cast<std::uint64_t>(share);
  if (static_cast<double>(wanted) < share) ++wanted;
  return wanted < 1 ? 1 : wanted > total ? total : wanted;
}

// Where the cumulative distribution is inverted: the first id whose sum exceeds this one. Below total.
KTC_HOST_DEVICE inline std::uint64_t sample_target(std::uint64_t draw, std::uint64_t total) {
#ifdef __CUDA_ARCH__
  return __umul64hi(draw, total);
#else
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(draw) * total >> 64);
#endif
}

KTC_HOST_DEVICE inline bool sample_min_p_keeps(float logit, float best, double margin) {
  return static_cast<double>(logit) >= plus(static_cast<double>(best), margin);
}

}  // namespace ktc::gpu
