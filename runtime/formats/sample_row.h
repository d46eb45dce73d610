// How a row of logits is sampled, as a device reads it: one record per row in the step block (step_block.h). The arithmetic is in
// runtime/kernels/cuda/sample_math.h.
#pragma once

#include <cstdint>

namespace ktc {

struct SampleRow {
  std::uint64_t draw;    // the number in [0, 1) that the distribution is inverted at, times 2^64; the lowest 11 bits are 0
  double scale;          // log2(e) / temperature
  double min_p_margin;   // temperature * ln(min_p), added to the best logit; minus infinity: off
  double top_p;          // 1: off
  std::int32_t top_k;    // 0: off
  std::int32_t greedy;   // not 0: the largest logit, all else is ignored
};
static_assert(sizeof(SampleRow) == 40);

}  // namespace ktc
