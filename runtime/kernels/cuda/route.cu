// The router: logits by many blocks; for few tokens the last block to finish chooses the experts of all of them in the same launch.
// The formulas and the ties are those of runtime/kernels/cpu/route.cpp.
#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kFewRows = 16;           // up to here one launch does both
constexpr unsigned kWarps = 4;
constexpr unsigned kMostExperts = 4096;
constexpr unsigned kSharedBytes = 48 * 1024;
constexpr unsigned kRowsAtOnce = 4;         // rows of x that share one pass over a row of the weight

CounterPool route_pool;
__device__ unsigned route_counters[kCounters];

// Floats of shared memory that choose() takes.
__host__ __device__ inline unsigned choice_floats(unsigned experts, unsigned groups) { return 2 * experts + groups; }

// The top_k of one token, by one warp. scratch: choice_floats() of this warp. Logits were perhaps written by other blocks; they are
// read once, and every score is made once: a choice is a chain of dependent steps, and each look into memory would lengthen it.
__device__ void choose(const RouteArgs& a, unsigned row, const float* logits, float* scratch) {
  const unsigned lane = threadIdx.x % kWarp, experts = a.experts;
  float* scores = scratch;
  float* choice = scratch + experts;
  float top = -INFINITY, sum = 0;
  for (unsigned e = lane; e < experts; e += kWarp) {
    const float logit = __ldcg(logits + e);
    scores[e] = a.sigmoid ? sigmoid_plain(logit) : logit;
    top = fmaxf(top, logit);
  }
  if (!a.sigmoid) {
    top = warp_max(top);
    for (unsigned e = lane; e < experts; e += kWarp) sum += scores[e] = exp_plain(scores[e] - top);
    sum = warp_sum(sum);
    for (unsigned e = lane; e < experts; e += kWarp) scores[e] /= sum;
  }
  for (unsigned e = lane; e < experts; e += kWarp) {
    const float value = a.bias != nullptr ? scores[e] + a.bias[e] : scores[e];
    choice[e] = value == value ? value : -INFINITY;
  }
  __syncwarp();
  if (a.groups > 1 && a.topk_groups < a.groups) {
    const unsigned size = experts / a.groups;
    float* groups = choice + experts;
    for (unsigned g = lane; g < a.groups; g += kWarp) {
      float first = -INFINITY, second = -INFINITY;
      for (unsigned i = 0; i < size; ++i) {
        const float value = choice[g * size + i];
        if (value > first) {
          second = first;
          first = value;
        } else if (value > second) {
          second = value;
        }
      }
      groups[g] = a.sigmoid && size > 1 ? first + second : first;
    }
    __syncwarp();
    for (unsigned g = 0; g < a.groups; ++g) {
      unsigned better = 0;
      for (unsigned h = lane; h < a.groups; h += kWarp) better += groups[h] > groups[g] || (groups[h] == groups[g] && h < g);
      if (__reduce_add_sync(kAllLanes, better) < a.topk_groups) continue;
      for (unsigned i = lane; i < size; i += kWarp) choice[g * size + i] = -INFINITY;
    }
    __syncwarp();
  }
  // What is taken gets NaN: even minus infinity may have to be chosen.
  std::int32_t* ids = row_at(a.ids, row);
  float* weights = row_at(a.weights, row);
  float total = 1e-20f;
  for (unsigned k = 0; k < a.top_k; ++k) {
    std::uint32_t best = 0, at = 0xffffffffu;
    for (unsigned e = lane; e < experts; e += kWarp) {
      const float value = choice[e];
      const std::uint32_t key = value == value ? ordered_bits(value) : 0;
      if (key > best) {
        best = key;
        at = e;
      }
    }
    const std::uint32_t most = __reduce_max_sync(kAllLanes, best);
    const std::uint32_t id = __reduce_min_sync(kAllLanes, best == most ? at : 0xffffffffu);
    const float weight = scores[id];
    total += weight;
    if (lane == 0) {
      ids[k] = static_cast<std::int32_t>(id);
      weights[k] = weight;
      choice[id] = NAN;
    }
    __syncwarp();
  }
  for (unsigned k = lane; k < a.top_k; k += kWarp) weights[k] = (a.normalise ? weights[k] / total : weights[k]) * a.scale;
  __syncwarp();
}

// logits of one expert per warp, then the choice.
template <Format kFormat>
__global__ void __launch_bounds__(kWarps * kWarp) few_kernel(RouteArgs a, float* logits, unsigned counter, unsigned choosers, bool vectors) {
  wait_for_inputs();
  extern __shared__ float choice[];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, e = blockIdx.x * kWarps + warp;
  if (e < a.experts) {
    for (unsigned first = 0; first < a.rows; first += kRowsAtOnce) {
      float sums[kRowsAtOnce] = {};
#pragma unroll 4
      for (unsigned c = lane * 8; c < a.w.columns; c += kWarp * 8) {
        float w[8];
        decode8<kFormat>(a.w, a.w.data, e, c, w);
#pragma unroll
        for (unsigned r = 0; r < kRowsAtOnce; ++r) {
          if (first + r >= a.rows) break;
          const float* x = row_at(a.x, first + r) + c;
          if (vectors) {  // columns are a multiple of 8
            const float4 p = *reinterpret_cast<const float4*>(x), q = *reinterpret_cast<const float4*>(x + 4);
            sums[r] += p.x * w[0] + p.y * w[1] + p.z * w[2] + p.w * w[3] + q.x * w[4] + q.y * w[5] + q.z * w[6] + q.w * w[7];
          } else if (c + 8 <= a.w.columns) {
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) sums[r] += x[i] * w[i];
          } else {
            for (unsigned i = 0; c + i < a.w.columns; ++i) sums[r] += x[i] * w[i];
          }
        }
      }
#pragma unroll
      for (unsigned r = 0; r < kRowsAtOnce; ++r) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0 && first + r < a.rows) logits[std::size_t{first + r} * a.experts + e] = sum;
      }
    }
  }
  if (!last_block(&route_counters[counter], gridDim.x)) return;
  if (warp >= choosers) return;
  for (unsigned r = warp; r < a.rows; r += choosers)
    choose(a, r, logits + std::size_t{r} * a.experts, choice + warp * choice_floats(a.experts, a.groups));
}

__global__ void __launch_bounds__(kWarps * kWarp) choose_kernel(RouteArgs a, const float* logits) {
  wait_for_inputs();
  extern __shared__ float choice[];
  const unsigned warp = threadIdx.x / kWarp, r = blockIdx.x * (blockDim.x / kWarp) + warp;
  if (r < a.rows) choose(a, r, logits + std::size_t{r} * a.experts, choice + warp * choice_floats(a.experts, a.groups));
}

// logits = x w^T in f32 for many rows: tiles of 64 x 64, 16 columns at a time, 4 x 4 sums per thread.
constexpr unsigned kTile = 64, kDepth = 16, kTileThreads = 256;
template <Format kFormat>
__global__ void __launch_bounds__(kTileThreads) many_kernel(RouteArgs a, float* logits) {
  wait_for_inputs();
  __shared__ float xs[kDepth][kTile + 4], ws[kDepth][kTile + 4];
  const unsigned row0 = blockIdx.x * kTile, expert0 = blockIdx.y * kTile;
  const unsigned tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sums[4][4] = {};
  const unsigned load_row = threadIdx.x / 4, load_column = threadIdx.x % 4 * 4;  // 64 rows, 4 columns each
  for (unsigned k = 0; k < a.w.columns; k += kDepth) {
    const unsigned row = row0 + load_row;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned c = k + load_column + i;
      xs[load_column + i][load_row] = row < a.rows && c < a.w.columns ? row_at(a.x, row)[c] : 0.0f;
    }
    if (threadIdx.x < kTile * 2) {
      const unsigned e = expert0 + threadIdx.x / 2, c = k + threadIdx.x % 2 * 8;
      float w[8] = {};
      if (e < a.experts && c < a.w.columns) decode8<kFormat>(a.w, a.w.data, e, c, w);
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) ws[threadIdx.x % 2 * 8 + i][threadIdx.x / 2] = c + i < a.w.columns ? w[i] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (unsigned d = 0; d < kDepth; ++d) {
      const float4 x = *reinterpret_cast<const float4*>(&xs[d][ty * 4]), w = *reinterpret_cast<const float4*>(&ws[d][tx * 4]);
      const float xv[4] = {x.x, x.y, x.z, x.w}, wv[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) sums[i][j] += xv[i] * wv[j];
    }
    __syncthreads();
  }
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned row = row0 + ty * 4 + i, e = expert0 + tx * 4 + j;
      if (row < a.rows && e < a.experts) logits[std::size_t{row} * a.experts + e] = sums[i][j];
    }
}

}  // namespace

int route_cuda(const RouteArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  if (a.experts > kMostExperts || a.scratch.bytes < std::uint64_t{a.rows} * a.experts * 4) return cudaErrorInvalidValue;
  float* logits = reinterpret_cast<float*>(a.scratch.data);
  const unsigned each = choice_floats(a.experts, a.groups) * 4, fitting = kSharedBytes / each, choosers = fitting < kWarps ? fitting : kWarps;
  const bool vectors = vector_rows(a.x) && a.w.columns % 8 == 0;
  const bool known = for_format(a.w.format, [&]<Format kFormat>() {
    if (a.rows <= kFewRows) {
      launch(few_kernel<kFormat>, ceil_div(a.experts, kWarps), kWarps * kWarp, choosers * each, stream, a, logits, route_pool.take(1), choosers, vectors);
    } else {
      launch(many_kernel<kFormat>, dim3(ceil_div(a.rows, kTile), ceil_div(a.experts, kTile)), kTileThreads, 0, stream, a, logits);
      launch(choose_kernel, ceil_div(a.rows, choosers), choosers * kWarp, choosers * each, stream, a, logits);
    }
  });
  return known ? launched() : cudaErrorInvalidValue;
}

}  // namespace ktc::gpu
