// Reference: choosing the next token. Candidates are narrowed as the CUDA kernels do it, digit by digit of a logit's order.
#include <cmath>

#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"
#include "runtime/kernels/cuda/sample_math.h"

namespace ktc::gpu {

using namespace reference;

namespace {

// A float as an unsigned number of the same order; -0 and 0 are equal.
std::uint32_t ordered(float value) {
  value += 0.0f;
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Of a row: those above `threshold`, and those at it up to id `limit`.
struct Kept {
  std::uint32_t threshold = 0, limit = ~0u;
  bool has(std::uint32_t key, std::uint32_t id) const { return key > threshold || (key == threshold && id <= limit); }
};

// The fewest of the largest, the lower id first among equals, whose amounts reach `wanted`.
template <typename Amount>
void narrow(const float* logits, std::uint32_t columns, std::uint64_t wanted, Kept& kept, const Amount& amount) {
  std::uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::uint64_t sums[256] = {};
    for (std::uint32_t c = 0; c < columns; ++c) {
      const std::uint32_t key = ordered(logits[c]);
      if ((shift == 24 || key >> (shift + 8) == prefix) && kept.has(key, c)) sums[key >> shift & 255] += amount(logits[c]);
    }
    std::uint32_t digit = 255;
    for (; digit > 0 && sums[digit] < wanted; --digit) wanted -= sums[digit];
    prefix = prefix << 8 | digit;
  }
  Kept now = {prefix, ~0u};
  for (std::uint32_t c = 0; c < columns; ++c) {
    if (ordered(logits[c]) != prefix || !kept.has(prefix, c)) continue;
    now.limit = c;
    const std::uint64_t one = amount(logits[c]);
    if (one >= wanted) break;
    wanted -= one;
  }
  kept = now;
}

std::int32_t choose(const float* logits, std::uint32_t columns, const SampleRow& row) {
  std::uint32_t best_id = 0;
  for (std::uint32_t c = 0; c < columns; ++c) {
    if (!std::isfinite(logits[c])) return ~static_cast<std::int32_t>(c);
    if (logits[c] > logits[best_id]) best_id = c;
  }
  if (row.greedy != 0) return static_cast<std::int32_t>(best_id);
  const float best = logits[best_id];
  const unsigned shift = sample_shift(columns);
  const auto weight = [&](float logit) { return sample_weight(logit, best, row.scale, shift); };
  Kept kept;
  if (row.top_k > 0 && static_cast<std::uint32_t>(row.top_k) < columns)
    narrow(logits, columns, static_cast<std::uint64_t>(row.top_k), kept, [](float) { return std::uint64_t{1}; });
  const auto total = [&](bool last) {
    std::uint64_t sum = 0;
    for (std::uint32_t c = 0; c < columns; ++c)
      if (kept.has(ordered(logits[c]), c) && (!last || sample_min_p_keeps(logits[c], best, row.min_p_margin))) sum += weight(logits[c]);
    return sum;
  };
  if (row.top_p < 1) narrow(logits, columns, sample_wanted(total(false), row.top_p), kept, weight);
  const std::uint64_t target = sample_target(row.draw, total(true));
  std::uint64_t reached = 0;
  for (std::uint32_t c = 0; c < columns; ++c)
    if (kept.has(ordered(logits[c]), c) && sample_min_p_keeps(logits[c], best, row.min_p_margin) && (reached += weight(logits[c])) > target)
      return static_cast<std::int32_t>(c);
  return static_cast<std::int32_t>(best_id);
}

}  // namespace

int sample_reference(const SampleArgs& a, void*) {
  for (std::size_t r = 0; r < a.rows; ++r) *row_of(a.ids, r) = choose(row_of(a.logits, r), a.logits.columns, a.parameters[r]);
  return 0;
}

}  // namespace ktc::gpu
