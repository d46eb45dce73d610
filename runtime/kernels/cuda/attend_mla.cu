// MLA attention in absorbed form: all heads share one latent key per token, which is its own value. Caches in bf16 with the usual
// widths (512 and 64) go through tensor cores: a block takes 64 heads of one token and one split of its keys, so that prompts and
// decode are the same to it. Other caches go the plain way.
#include "runtime/kernels/cuda/attend_mma.cuh"
#include "runtime/kernels/cuda/attend_plain.cuh"
#include "runtime/kernels/cuda/flashinfer/attend.h"
#include "runtime/kernels/cuda/head_product.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
constexpr unsigned kHeads = kGpuMlaHeadTile;       // of a block: two groups of 32
constexpr unsigned kKeys = 32;                     // of a tile
constexpr unsigned kThreads = 256;                 // per group of heads four warps, which share the width in scores, then the values
constexpr unsigned kRowsOfWarp = kKeys / (kThreads / kWarp);
constexpr unsigned kRowBytes = kWidth * 2, kStageBytes = kKeys * kRowBytes;
constexpr unsigned kSteps = kWidth / 16 / 4;       // of 16 columns, of a warp
constexpr unsigned kOutTiles = kLatent / 4 / 8;    // of 8 columns, of a warp
constexpr unsigned kScoreStride = kKeys + 8;       // f32; the padding keeps the rows in different banks
constexpr unsigned kWeightBytes = kKeys * 2 + 16;  // of a row of bf16 weights
static_assert(kHeads == 64 && kStageBytes % 128 == 0);

struct MlaShared {
  float scores[4][kHeads][kScoreStride];           // by quarter of the width
  std::byte weights[kHeads][kWeightBytes];
  float shrink[kHeads], top[kHeads], sum[kHeads];
};
template <unsigned kStages>
constexpr unsigned kSharedBytes = kStages * kStageBytes + sizeof(MlaShared);

template <unsigned kStages>
__global__ void __launch_bounds__(kThreads, 1) mla_kernel(MlaAttendArgs a, unsigned splits, unsigned page_shift) {
  wait_for_inputs();
  extern __shared__ __align__(128) std::byte shared[];
  MlaShared& s = *reinterpret_cast<MlaShared*>(shared + kStages * kStageBytes);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = warp / 4, quarter = warp % 4;
  const unsigned split = blockIdx.x, first_head = blockIdx.y * kHeads, t = blockIdx.z;
  const unsigned context = static_cast<unsigned>(a.batch.positions[t]) + 1, chunk = chunk_of(context, splits), begin = split * chunk;
  if (begin >= context) return;
  const unsigned end = begin + chunk < context ? begin + chunk : context, tiles = ceil_div(end - begin, kKeys);

  const std::int32_t* pages = pages_of(a.batch, t);
  const std::uint32_t stages = shared_at(shared);
  // A warp copies four rows of a tile. Lane l knows the place of row l % 4; it is looked up one tile before it is needed.
  std::int32_t page = 0;
  unsigned slot = 0;
  const auto look_up = [&](unsigned tile) {
    const unsigned j = begin + tile * kKeys + warp * kRowsOfWarp + lane % kRowsOfWarp, there = j < end ? j : end - 1;
    const unsigned index = page_index(page_shift, a.cache.page_tokens, there);
    page = pages[index];
    slot = there - index * a.cache.page_tokens;
  };
  const auto fetch = [&](unsigned tile, unsigned stage) {
    const std::uint32_t to = stages + stage * kStageBytes;
#pragma unroll
    for (unsigned r = 0; r < kRowsOfWarp; ++r) {
      const unsigned row = warp * kRowsOfWarp + r, row_slot = __shfl_sync(kAllLanes, slot, r);
      const std::int32_t row_page = __shfl_sync(kAllLanes, page, r);
      const bool real = begin + tile * kKeys + row < end;
      const __nv_bfloat16* latent = slot_of<__nv_bfloat16>(a.cache.a, a.cache.page_tokens, row_page, 0, row_slot) + lane * 8;
#pragma unroll
      for (unsigned i = 0; i < kLatent / 8 / kWarp; ++i)
        copy16(to + swizzled<kRowBytes>(row, i * kWarp + lane), latent + i * kWarp * 8, real);
      if (lane < kRope / 8)
        copy16(to + swizzled<kRowBytes>(row, kLatent / 8 + lane),
               slot_of<__nv_bfloat16>(a.cache.b, a.cache.page_tokens, row_page, 0, row_slot) + lane * 8, real);
    }
  };
  look_up(0);
  if constexpr (kStages > 1) {
#pragma unroll
    for (unsigned i = 0; i < kStages - 1; ++i) {
      if (i < tiles) fetch(i, i);
      commit_copies();
      look_up(i + 1);
    }
  }

  // This warp's quarter of the queries of its 32 heads, scaled.
  std::uint32_t q[kSteps][2][4];
  const float factor = a.scale * kLog2E;
#pragma unroll
  for (unsigned step = 0; step < kSteps; ++step)
#pragma unroll
    for (unsigned m = 0; m < 2; ++m)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned h = first_head + group * 32 + m * 16 + lane / 4 + i % 2 * 8;
        const unsigned column = (quarter * kSteps + step) * 16 + i / 2 * 8 + lane % 4 * 2;
        float x = 0, y = 0;
        if (h < a.heads) {
          const float* from = row_at(a.query, t) + std::size_t{h} * kWidth + column;
          x = from[0] * factor;
          y = from[1] * factor;
        }
        q[step][m][i] = pack_bf16(x, y);
      }

  float out[2][kOutTiles][4] = {};
  float top = -INFINITY, sum = 0;  // of row threadIdx.x / 4, its keys shared by four threads
  const unsigned softmax_row = threadIdx.x / 4, softmax_part = threadIdx.x % 4;
  unsigned stage = 0;
  for (unsigned tile = 0; tile < tiles; ++tile) {
    if constexpr (kStages > 1) {
      wait_copies<kStages - 2>();
      __syncthreads();  // the tile is there, and everyone is done with the one before
      if (tile + kStages - 1 < tiles) fetch(tile + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      commit_copies();
      look_up(tile + kStages);
    } else {
      __syncthreads();
      fetch(tile, 0);
      commit_copies();
      look_up(tile + 1);
      wait_copies<0>();
      __syncthreads();
    }
    const std::uint32_t keys = stages + stage * kStageBytes;
    {
      float score[2][kKeys / 8][4] = {};
#pragma unroll
      for (unsigned step = 0; step < kSteps; ++step)
#pragma unroll
        for (unsigned n = 0; n < kKeys / 8; n += 2) {
          std::uint32_t b[4];
          load_fragments(b, keys + swizzled<kRowBytes>(n * 8 + (lane / 16) * 8 + lane % 8, (quarter * kSteps + step) * 2 + lane / 8 % 2));
#pragma unroll
          for (unsigned m = 0; m < 2; ++m) {
            multiply(score[m][n], q[step][m], b[0], b[1]);
            multiply(score[m][n + 1], q[step][m], b[2], b[3]);
          }
        }
#pragma unroll
      for (unsigned m = 0; m < 2; ++m)
#pragma unroll
        for (unsigned n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (unsigned half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(&s.scores[quarter][group * 32 + m * 16 + half * 8 + lane / 4][n * 8 + lane % 4 * 2]) =
                make_float2(score[m][n][2 * half], score[m][n][2 * half + 1]);
    }
    __syncthreads();
    {
      float score[8], most = -INFINITY;
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) {
        const unsigned k = softmax_part * 8 + i;
        score[i] = (s.scores[0][softmax_row][k] + s.scores[1][softmax_row][k]) + (s.scores[2][softmax_row][k] + s.scores[3][softmax_row][k]);
        if (begin + tile * kKeys + k >= end) score[i] = -INFINITY;
        most = fmaxf(most, score[i]);
      }
      most = fmaxf(top, row_max(most));  // the first key of a tile is always real: never minus infinity
      const float shrink = exp2f(top - most);
      top = most;
      float added = 0;
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) added += score[i] = exp2f(score[i] - most);
      sum = sum * shrink + added;
      *reinterpret_cast<uint4*>(&s.weights[softmax_row][softmax_part * 16]) =
          make_uint4(pack_bf16(score[0], score[1]), pack_bf16(score[2], score[3]), pack_bf16(score[4], score[5]), pack_bf16(score[6], score[7]));
      if (softmax_part == 0) s.shrink[softmax_row] = shrink;
    }
    __syncthreads();
    {
      float shrink[2][2];
      bool same = true;
#pragma unroll
      for (unsigned m = 0; m < 2; ++m)
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          shrink[m][half] = s.shrink[group * 32 + m * 16 + half * 8 + lane / 4];
          same = same && shrink[m][half] == 1.0f;
        }
      if (!__all_sync(kAllLanes, same)) {
#pragma unroll
        for (unsigned m = 0; m < 2; ++m)
#pragma unroll
          for (unsigned n = 0; n < kOutTiles; ++n)
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) out[m][n][i] *= shrink[m][i / 2];
      }
      const std::uint32_t weights = shared_at(s.weights);
#pragma unroll
      for (unsigned k = 0; k < kKeys / 16; ++k) {
        std::uint32_t p[2][4];
#pragma unroll
        for (unsigned m = 0; m < 2; ++m)
          load_fragments(p[m], weights + (group * 32 + m * 16 + lane % 16) * kWeightBytes + (k * 2 + lane / 16) * 16);
#pragma unroll
        for (unsigned n = 0; n < kOutTiles; n += 2) {
          std::uint32_t b[4];
          load_fragments_turned(b, keys + swizzled<kRowBytes>(k * 16 + lane % 16, quarter * kOutTiles + n + lane / 16));
#pragma unroll
          for (unsigned m = 0; m < 2; ++m) {
            multiply(out[m][n], p[m], b[0], b[1]);
            multiply(out[m][n + 1], p[m], b[2], b[3]);
          }
        }
      }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_copies<0>();
  sum = row_sum(sum);
  if (softmax_part == 0) {
    s.top[softmax_row] = top;
    s.sum[softmax_row] = sum;
  }
  __syncthreads();
  const bool only = context <= chunk;
  const Partials partials(a.scratch, a.batch.tokens * a.heads, splits, kLatent);
#pragma unroll
  for (unsigned m = 0; m < 2; ++m)
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = group * 32 + m * 16 + half * 8 + lane / 4, h = first_head + row;
      if (h >= a.heads) continue;
      const std::size_t place = (std::size_t{t} * a.heads + h) * splits + split;
      float* to = only ? row_at(a.context, t) + std::size_t{h} * kLatent : partials.sums + place * kLatent;
      const float scale = only ? 1.0f / s.sum[row] : 1.0f;
#pragma unroll
      for (unsigned n = 0; n < kOutTiles; ++n) {
        float* at = to + quarter * (kLatent / 4) + n * 8 + lane % 4 * 2;
        at[0] = out[m][n][2 * half] * scale;
        at[1] = out[m][n][2 * half + 1] * scale;
      }
      if (!only && quarter == 0 && lane % 4 == 0) partials.ends[place] = make_float2(s.top[row], s.sum[row]);
    }
}

template <unsigned kStages>
int attend_with(const MlaAttendArgs& a, unsigned splits, void* stream) {
  if (const cudaError_t error = cudaFuncSetAttribute(mla_kernel<kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kStages>))
    return error;
  const dim3 grid(splits, ceil_div(a.heads, kHeads), a.batch.tokens);
  launch_wide(mla_kernel<kStages>, grid, kThreads, kSharedBytes<kStages>, stream, a, splits, page_shift_of(a.cache.page_tokens));
  if (const int error = launched()) return error;
  return merge_splits<kLatent>(a.scratch, a.context, a.batch, a.heads, splits, stream);
}

int attend_mma(const MlaAttendArgs& a, void* stream) {
  int device = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return error;
  auto splits = static_cast<unsigned>(gpu_mla_splits(a.batch.tokens, a.heads));
  if (a.scratch.bytes < gpu_partial_bytes(a.batch.tokens, a.heads, splits, kLatent)) splits = 1;
  if (most >= static_cast<int>(kSharedBytes<4>)) return attend_with<4>(a, splits, stream);
  if (most >= static_cast<int>(kSharedBytes<3>)) return attend_with<3>(a, splits, stream);
  return attend_with<1>(a, splits, stream);
}

bool tensor_cores_serve(const MlaAttendArgs& a) {
  return a.cache.format == Format::bf16 && a.latent_dim == kLatent && a.rope_dim == kRope && a.cache.a.width == kLatent &&
         a.cache.b.width == kRope && aligned16(a.cache.a.base, a.cache.a.page_bytes) && aligned16(a.cache.b.base, a.cache.b.page_bytes);
}

int attend_any(const MlaAttendArgs& a, void* stream) {
  PlainAttention p = {};
  p.query = a.query;
  p.out = a.context;
  p.cache = a.cache;
  p.batch = a.batch;
  p.heads = a.heads;
  p.group = a.heads;
  p.width_a = p.value_width = a.latent_dim;
  p.width_b = a.rope_dim;
  p.value_is_a = true;
  p.scale = a.scale;
  return attend_plain(p, stream);
}

int attend_heads(const MlaAttendArgs& a, void* stream) {
#ifdef KTC_FLASHINFER
  if (flashinfer_serves(a)) return flashinfer_attend(a, stream);
#endif
  return tensor_cores_serve(a) ? attend_mma(a, stream) : attend_any(a, stream);
}

}  // namespace

int mla_attend_cuda(const MlaAttendArgs& a, void* stream) {
  if (a.batch.tokens == 0) return 0;
  if (const int error = attend_heads(a, stream)) return error;
  HeadProduct product = {};
  product.x = a.context.data;
  product.x_stride = a.context.stride;
  product.x_head = a.latent_dim;
  product.w = a.w_uv;
  product.out = a.out.data;
  product.out_stride = a.out.stride;
  product.out_head = a.v_dim;
  product.tokens = a.batch.tokens;
  product.rounded = a.activations == Format::bf16;
  return head_product(product, stream);
}

}  // namespace ktc::gpu
