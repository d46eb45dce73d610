// Choosing the next token of each row. Many blocks share a row; what the last one of a kernel learns, the next kernel starts from.
//
//   best      the largest logit; ends here for greedy rows and for rows that are not finite
//   narrow    four kernels for top-k, four for top-p, a digit of 8 bits each: how many, or how much weight, the logits with each digit
//             have among those that share the digits so far; the digit in which the wanted amount is reached is the next one
//   draw      weights of what is left, in order of ids, up to the target
//
// Counts and weights are integers (sample_math.h), so the order in which they are added does not matter.
#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/device_common.cuh"
#include "runtime/kernels/cuda/sample_math.h"

namespace ktc::gpu {
namespace {

using Number = unsigned long long;

constexpr unsigned kThreads = 256, kWarps = kThreads / kWarp, kMostBlocks = 64;
constexpr unsigned kDigits = 256;  // one per thread
constexpr unsigned kCopies = 8;    // of a block's sums, by lane: most logits have one of few digits
CounterPool pool;
__device__ unsigned counters[kCounters];

// Of a row, in scratch.
struct RowState {
  Number partial[kMostBlocks];  // of each block
  Number sums[kDigits];         // zero between kernels
  Number wanted;
  std::uint32_t done;
  float best;
  std::uint32_t prefix;            // digits so far
  std::uint32_t threshold, limit;  // kept are logits of a higher order, and those of this order up to this id
};
static_assert(sizeof(RowState) <= kGpuSampleRowBytes);

__device__ inline RowState& state_of(const SampleArgs& a, unsigned r) {
  return *reinterpret_cast<RowState*>(a.scratch.data + std::size_t{r} * kGpuSampleRowBytes);
}
__device__ inline bool kept(const RowState& s, std::uint32_t key, unsigned c) {
  return key > s.threshold || (key == s.threshold && c <= s.limit);
}
__device__ inline float value_of(std::uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// This block's columns: neighbours, so that blocks are in the order of ids.
struct Part {
  unsigned first, end;
};
__device__ inline Part part_of(unsigned columns, unsigned block, unsigned blocks) {
  const unsigned each = ceil_div(columns, blocks), first = block * each;
  return {first < columns ? first : columns, first + each < columns ? first + each : columns};
}

// Sums of the values of all threads up to each. shared: [kWarps]; free again after the next barrier.
__device__ inline Number sum_up_to(Number value, Number* shared) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (unsigned offset = 1; offset < kWarp; offset *= 2) {
    const Number other = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += other;
  }
  if (lane == kWarp - 1) shared[warp] = value;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) value += shared[w];
  return value;
}

// A row's best as one number: the logit's order, then the lower id. The largest of all: a logit that is not finite.
__global__ void __launch_bounds__(kThreads) sample_best_kernel(SampleArgs a, unsigned counter) {
  wait_for_inputs();
  __shared__ Number shared[kWarps];
  const unsigned r = blockIdx.y;
  const float* logits = row_at(a.logits, r);
  RowState& s = state_of(a, r);
  if (blockIdx.x == 0) s.sums[threadIdx.x] = 0;
  Number best = 0;
  for (unsigned c = blockIdx.x * kThreads + threadIdx.x; c < a.logits.columns; c += gridDim.x * kThreads) {
    const float value = logits[c];
    const Number order = isfinite(value) ? ordered_bits(value) : 0xffffffffu, key = order << 32 | (0xffffffffu - c);
    best = key > best ? key : best;
  }
  const auto largest = [](Number value) {
    for (unsigned offset = 16; offset > 0; offset /= 2) {
      const Number other = __shfl_xor_sync(kAllLanes, value, offset);
      value = other > value ? other : value;
    }
    return value;
  };
  best = largest(best);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned i = 1; i < kWarps; ++i) best = shared[i] > best ? shared[i] : best;
    s.partial[blockIdx.x] = best;
  }
  if (!last_block(&counters[counter + r], gridDim.x)) return;
  if (threadIdx.x >= kWarp) return;
  best = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += kWarp) {
    const Number other = __ldcg(&s.partial[b]);
    best = other > best ? other : best;
  }
  best = largest(best);
  if (threadIdx.x != 0) return;
  const std::uint32_t order = static_cast<std::uint32_t>(best >> 32);
  const auto id = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
  const bool finite = order != 0xffffffffu;
  s.done = !finite || a.parameters[r].greedy != 0;
  if (s.done) *row_at(a.ids, r) = finite ? id : ~id;
  s.best = value_of(order);
  s.threshold = 0;
  s.limit = 0xffffffffu;
}

// The id of the n-th kept logit of order `key`, by all threads of the block.
__device__ inline void limit_ties(const float* logits, unsigned columns, RowState& s, std::uint32_t key, Number n) {
  __shared__ unsigned warps[kWarps];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Number seen = 0;
  for (unsigned base = 0; base < columns && seen < n; base += kThreads) {
    const unsigned c = base + threadIdx.x;
    const bool mine = c < columns && ordered_bits(logits[c]) == key;
    const unsigned votes = __ballot_sync(kAllLanes, mine);
    if (lane == 0) warps[warp] = __popc(votes);
    __syncthreads();
    Number before = seen + __popc(votes & ((1u << lane) - 1));
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w < warp) before += warps[w];
      seen += warps[w];
    }
    if (mine && before + 1 == n) s.limit = c;
    __syncthreads();
  }
}

template <bool kWeights>
__global__ void __launch_bounds__(kThreads) sample_narrow_kernel(SampleArgs a, unsigned counter, unsigned stage) {
  wait_for_inputs();
  __shared__ Number sums[kDigits][kCopies];
  __shared__ Number shared[kWarps], found[2];  // wanted of the next digit, sum of the digit
  __shared__ unsigned digit_found;
  const unsigned r = blockIdx.y, columns = a.logits.columns;
  const SampleRow& row = a.parameters[r];
  RowState& s = state_of(a, r);
  if (s.done != 0) return;
  if (kWeights ? row.top_p >= 1.0 : row.top_k <= 0 || static_cast<unsigned>(row.top_k) >= columns) return;
  const float* logits = row_at(a.logits, r);
  const unsigned shift = 24 - 8 * stage, precision = sample_shift(columns);
  for (unsigned i = 0; i < kCopies; ++i) sums[threadIdx.x][i] = 0;
  __syncthreads();
  const Part part = part_of(columns, blockIdx.x, gridDim.x);
  for (unsigned c = part.first + threadIdx.x; c < part.end; c += kThreads) {
    const float logit = logits[c];
    const std::uint32_t key = ordered_bits(logit);
    if ((stage > 0 && key >> (shift + 8) != s.prefix) || !kept(s, key, c)) continue;
    const Number amount = kWeights ? sample_weight(logit, s.best, row.scale, precision) : 1;
    if (amount != 0) atomicAdd(&sums[key >> shift & 255][threadIdx.x % kCopies], amount);
  }
  __syncthreads();
  Number sum = 0;
  for (unsigned i = 0; i < kCopies; ++i) sum += sums[threadIdx.x][i];
  if (sum != 0) atomicAdd(&s.sums[threadIdx.x], sum);
  if (!last_block(&counters[counter + r], gridDim.x)) return;

  const unsigned digit = kDigits - 1 - threadIdx.x;  // from the largest on
  const Number mine = __ldcg(&s.sums[digit]);
  s.sums[digit] = 0;
  const Number reached = sum_up_to(mine, shared);
  Number wanted = s.wanted;
  if (stage == 0) {
    if (threadIdx.x == kThreads - 1) found[0] = reached;  // all of it
    __syncthreads();
    wanted = kWeights ? sample_wanted(found[0], row.top_p) : static_cast<Number>(row.top_k);
    __syncthreads();
  }
  if (reached >= wanted && reached - mine < wanted) {
    digit_found = digit;
    found[0] = wanted - (reached - mine);
    found[1] = mine;
  }
  __syncthreads();
  const std::uint32_t prefix = (stage > 0 ? s.prefix << 8 : 0) | digit_found;
  __syncthreads();
  if (stage < 3) {
    if (threadIdx.x != 0) return;
    s.prefix = prefix;
    s.wanted = found[0];
    return;
  }
  // all that is left has one value
  const Number one = kWeights ? sample_weight(value_of(prefix), s.best, row.scale, precision) : 1;
  const Number needed = (found[0] + one - 1) / one, there = found[1] / one;
  const bool same = s.threshold == prefix;
  __syncthreads();
  if (threadIdx.x == 0) {
    s.threshold = prefix;
    if (!same) s.limit = 0xffffffffu;
  }
  __syncthreads();
  if (needed < there) limit_ties(logits, columns, s, prefix, needed);
}

__global__ void __launch_bounds__(kThreads) sample_draw_kernel(SampleArgs a, unsigned counter) {
  wait_for_inputs();
  __shared__ Number shared[kWarps], rest;
  __shared__ unsigned block_found;
  const unsigned r = blockIdx.y, columns = a.logits.columns;
  const SampleRow& row = a.parameters[r];
  RowState& s = state_of(a, r);
  if (s.done != 0) return;
  const float* logits = row_at(a.logits, r);
  const unsigned precision = sample_shift(columns);
  const auto weight = [&](unsigned c) -> Number {
    const float logit = logits[c];
    if (!kept(s, ordered_bits(logit), c) || !sample_min_p_keeps(logit, s.best, row.min_p_margin)) return 0;
    return sample_weight(logit, s.best, row.scale, precision);
  };
  const Part part = part_of(columns, blockIdx.x, gridDim.x);
  Number sum = 0;
  for (unsigned c = part.first + threadIdx.x; c < part.end; c += kThreads) sum += weight(c);
  sum = sum_up_to(sum, shared);
  if (threadIdx.x == kThreads - 1) s.partial[blockIdx.x] = sum;
  if (!last_block(&counters[counter + r], gridDim.x)) return;

  if (threadIdx.x == 0) {
    Number total = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) total += __ldcg(&s.partial[b]);
    Number target = sample_target(row.draw, total);
    unsigned b = 0;
    for (; b + 1 < gridDim.x && __ldcg(&s.partial[b]) <= target; ++b) target -= __ldcg(&s.partial[b]);
    block_found = b;
    rest = target;
  }
  __syncthreads();
  // that block's columns again, each thread some neighbours
  const Part of = part_of(columns, block_found, gridDim.x);
  const unsigned each = ceil_div(of.end - of.first, kThreads), first = of.first + threadIdx.x * each;
  const unsigned end = first + each < of.end ? first + each : of.end;
  sum = 0;
  for (unsigned c = first; c < end; ++c) sum += weight(c);
  const Number reached = sum_up_to(sum, shared);
  Number before = reached - sum;
  if (rest < before || rest >= reached) return;
  for (unsigned c = first; c < end; ++c) {
    before += weight(c);
    if (before <= rest) continue;
    *row_at(a.ids, r) = static_cast<std::int32_t>(c);
    return;
  }
}

}  // namespace

int sample_cuda(const SampleArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  if (a.rows > kCounters || a.logits.columns == 0) return cudaErrorInvalidValue;
  const unsigned wanted = ceil_div(a.logits.columns, 4 * kThreads), blocks = wanted < kMostBlocks ? wanted : kMostBlocks;
  const dim3 grid(blocks, a.rows);
  launch(sample_best_kernel, grid, kThreads, 0, stream, a, pool.take(a.rows));
  if (a.greedy) return launched();
  for (unsigned stage = 0; stage < 4; ++stage) launch(sample_narrow_kernel<false>, grid, kThreads, 0, stream, a, pool.take(a.rows), stage);
  for (unsigned stage = 0; stage < 4; ++stage) launch(sample_narrow_kernel<true>, grid, kThreads, 0, stream, a, pool.take(a.rows), stage);
  launch(sample_draw_kernel, grid, kThreads, 0, stream, a, pool.take(a.rows));
  return launched();
}

}  // namespace ktc::gpu
