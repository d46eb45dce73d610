// GQA attention. Decode over caches in bf16: the keys of a token are cut into splits, a block serves one split of one key head and
// up to 16 of its query heads; each warp works through 16 keys at a time on its own, so the only barrier is at the end. f32 caches
// and unusual head sizes go the plain way.
#include "runtime/kernels/cuda/attend_gqa_prefill.cuh"
#include "runtime/kernels/cuda/attend_mma.cuh"
#include "runtime/kernels/cuda/attend_plain.cuh"
#include "runtime/kernels/cuda/flashinfer/attend.h"

namespace ktc::gpu {
namespace {

constexpr unsigned kKeys = 16;         // of a warp at a time
constexpr unsigned kQueryRows = 16;    // query heads of a block

template <unsigned kDim>
struct DecodeShape {
  static constexpr unsigned kWarps = kDim > 128 ? 2 : 4;
  static constexpr unsigned kStages = 3;
  static constexpr unsigned kRowBytes = kDim * 2;
  static constexpr unsigned kStageBytes = 2 * kKeys * kRowBytes;  // keys, then values
  static constexpr unsigned kSharedBytes = kWarps * kStages * kStageBytes;
  static constexpr unsigned kMergeStride = kDim + 4;
  static constexpr bool kSplitQuery = kDim <= 128;  // q in two bf16 operands; more would not fit into registers
  static_assert(kSharedBytes >= kWarps * kQueryRows * (kMergeStride + 2) * 4, "the sums of the warps are merged in the same memory");
};

struct DecodeArgs {
  GqaAttendArgs a;
  unsigned splits, group, head_tiles;
  unsigned page_shift;
};

template <unsigned kDim>
__global__ void __launch_bounds__(DecodeShape<kDim>::kWarps * kWarp) decode_kernel(DecodeArgs d) {
  wait_for_inputs();
  using Shape = DecodeShape<kDim>;
  constexpr unsigned kPieces = kDim / 8, kSteps = kDim / 16, kOutTiles = kDim / 8;
  extern __shared__ __align__(128) std::byte shared[];
  const GqaAttendArgs& a = d.a;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned split = blockIdx.x, kv = blockIdx.y / d.head_tiles, tile = blockIdx.y % d.head_tiles, t = blockIdx.z;
  const unsigned context = static_cast<unsigned>(a.batch.positions[t]) + 1, chunk = chunk_of(context, d.splits);
  const unsigned begin = split * chunk;
  if (begin >= context) return;
  const unsigned end = begin + chunk < context ? begin + chunk : context;
  const unsigned first_head = kv * d.group + tile * kQueryRows;
  const unsigned rows = d.group - tile * kQueryRows < kQueryRows ? d.group - tile * kQueryRows : kQueryRows;

  const std::int32_t* pages = pages_of(a.batch, t);
  std::byte* const stages = shared + warp * Shape::kStages * Shape::kStageBytes;
  const std::uint32_t stages_at = shared_at(stages);
  const unsigned key_tiles = ceil_div(end - begin, kKeys);
  const auto page_ahead = [&](unsigned key_tile) {  // lane l < 16: the page of key l of a tile
    const unsigned j = begin + key_tile * kKeys + lane % kKeys;
    return pages[page_index(d.page_shift, a.cache.page_tokens, j < end ? j : end - 1)];
  };
  const auto fetch = [&](unsigned key_tile, unsigned stage, std::int32_t page) {
    const std::uint32_t to = stages_at + stage * Shape::kStageBytes;
#pragma unroll
    for (unsigned i = 0; i < kKeys * kPieces / kWarp; ++i) {
      const unsigned at = i * kWarp + lane, row = at / kPieces, piece = at % kPieces, j = begin + key_tile * kKeys + row;
      const unsigned there = j < end ? j : end - 1, slot = there - page_index(d.page_shift, a.cache.page_tokens, there) * a.cache.page_tokens;
      const std::int32_t row_page = __shfl_sync(kAllLanes, page, row);
      const std::byte* key = reinterpret_cast<const std::byte*>(
          slot_of<__nv_bfloat16>(a.cache.a, a.cache.page_tokens, row_page, kv, slot));
      const std::byte* value = reinterpret_cast<const std::byte*>(
          slot_of<__nv_bfloat16>(a.cache.b, a.cache.page_tokens, row_page, kv, slot));
      const std::uint32_t where = to + swizzled<Shape::kRowBytes>(row, piece);
      copy16(where, key + piece * 16, j < end);
      copy16(where + kKeys * Shape::kRowBytes, value + piece * 16, j < end);
    }
  };

  // The pipeline: tiles warp, warp + kWarps, ...; pages one tile ahead of their keys.
  unsigned ahead = warp;
  std::int32_t page = page_ahead(ahead);
#pragma unroll
  for (unsigned s = 0; s < Shape::kStages - 1; ++s) {
    if (ahead < key_tiles) fetch(ahead, s, page);
    commit_copies();
    ahead += Shape::kWarps;
    page = page_ahead(ahead);
  }

  // rows beyond the heads are zero
  std::uint32_t high[kSteps][4], low[Shape::kSplitQuery ? kSteps : 1][4];
  {
    const float* q = row_at(a.query, t) + std::size_t{first_head} * kDim;
    const float factor = a.scale * kLog2E;
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i % 2 * 8, column = step * 16 + i / 2 * 8 + lane % 4 * 2;
        float x = 0, y = 0;
        if (row < rows) {
          x = q[row * kDim + column] * factor;
          y = q[row * kDim + column + 1] * factor;
        }
        const SplitPair pair = split_bf16(x, y);
        high[step][i] = pair.high;
        if constexpr (Shape::kSplitQuery) low[step][i] = pair.low;
      }
  }

  float out[kOutTiles][4] = {};
  SoftmaxRows softmax;
  unsigned stage = 0;
  for (unsigned key_tile = warp; key_tile < key_tiles; key_tile += Shape::kWarps) {
    wait_copies<Shape::kStages - 2>();
    __syncwarp();
    {
      const unsigned free_stage = stage == 0 ? Shape::kStages - 1 : stage - 1;
      if (ahead < key_tiles) fetch(ahead, free_stage, page);
      commit_copies();
      ahead += Shape::kWarps;
      page = page_ahead(ahead);
    }
    const std::uint32_t keys = stages_at + stage * Shape::kStageBytes, values = keys + kKeys * Shape::kRowBytes;
    float s[2][4] = {};
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step) {
      std::uint32_t b[4];  // keys 0..7 and 8..15, two halves of 16 dimensions each
      load_fragments(b, keys + swizzled<Shape::kRowBytes>((lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
      multiply(s[0], high[step], b[0], b[1]);
      multiply(s[1], high[step], b[2], b[3]);
      if constexpr (Shape::kSplitQuery) {
        multiply(s[0], low[step], b[0], b[1]);
        multiply(s[1], low[step], b[2], b[3]);
      }
    }
    const unsigned left = end - begin - key_tile * kKeys;  // keys from here on
    if (left < kKeys) {
#pragma unroll
      for (unsigned n = 0; n < 2; ++n)
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          if (n * 8 + lane % 4 * 2 + i % 2 >= left) s[n][i] = -INFINITY;
    }
    float shrink[2];
    if (softmax.update(s, shrink)) {
#pragma unroll
      for (unsigned n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) out[n][i] *= shrink[i / 2];
    }
    std::uint32_t p_high[4], p_low[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const SplitPair pair = split_bf16(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
      p_high[i] = pair.high;
      p_low[i] = pair.low;
    }
#pragma unroll
    for (unsigned n = 0; n < kOutTiles; n += 2) {
      std::uint32_t b[4];  // keys 0..7, 8..15 of dimensions n * 8 .., then of the next eight
      load_fragments_turned(b, values + swizzled<Shape::kRowBytes>(lane % 16, n + lane / 16));
      multiply(out[n], p_high, b[0], b[1]);
      multiply(out[n + 1], p_high, b[2], b[3]);
      multiply(out[n], p_low, b[0], b[1]);
      multiply(out[n + 1], p_low, b[2], b[3]);
    }
    __syncwarp();  // all lanes have read the stage that the next round fills
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }
  wait_copies<0>();
  __syncthreads();

  // The warps' sums become the block's.
  float* sums = reinterpret_cast<float*>(shared);                                    // [warps][16][kMergeStride]
  float* tops = sums + Shape::kWarps * kQueryRows * Shape::kMergeStride;             // [warps][16]
  float* denominators = tops + Shape::kWarps * kQueryRows;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = lane / 4 + half * 8;
    const float denominator = row_sum(softmax.sum[half]);
    if (lane % 4 == 0) {
      tops[warp * kQueryRows + row] = softmax.top[half];
      denominators[warp * kQueryRows + row] = denominator;
    }
#pragma unroll
    for (unsigned n = 0; n < kOutTiles; ++n) {
      float* at = sums + (warp * kQueryRows + row) * Shape::kMergeStride + n * 8 + lane % 4 * 2;
      at[0] = out[n][2 * half];
      at[1] = out[n][2 * half + 1];
    }
  }
  __syncthreads();
  const bool only = context <= chunk;
  for (unsigned i = threadIdx.x; i < rows * kDim; i += blockDim.x) {
    const unsigned row = i / kDim, c = i % kDim, h = first_head + row;
    float top = -INFINITY, value = 0, denominator = 0;
#pragma unroll
    for (unsigned w = 0; w < Shape::kWarps; ++w) top = fmaxf(top, tops[w * kQueryRows + row]);
#pragma unroll
    for (unsigned w = 0; w < Shape::kWarps; ++w) {
      const float factor = exp2f(tops[w * kQueryRows + row] - top);
      value += factor * sums[(w * kQueryRows + row) * Shape::kMergeStride + c];
      denominator += factor * denominators[w * kQueryRows + row];
    }
    if (only) {
      row_at(a.out, t)[std::size_t{h} * kDim + c] = value / denominator;
      continue;
    }
    float* at = partial_of<kDim>(a.scratch, t, h, a.heads, split, d.splits);
    at[c] = value;
    if (c == 0) {
      at[kDim] = top;
      at[kDim + 1] = denominator;
    }
  }
}

template <unsigned kDim>
int decode(const GqaAttendArgs& a, unsigned splits, void* stream) {
  using Shape = DecodeShape<kDim>;
  if (const cudaError_t error = cudaFuncSetAttribute(decode_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes))
    return error;
  DecodeArgs d = {a, splits, a.heads / a.kv_heads, 0, page_shift_of(a.cache.page_tokens)};
  d.head_tiles = ceil_div(d.group, kQueryRows);
  const dim3 grid(splits, a.kv_heads * d.head_tiles, a.batch.tokens);
  launch(decode_kernel<kDim>, grid, Shape::kWarps * kWarp, Shape::kSharedBytes, stream, d);
  if (const int error = launched()) return error;
  return merge_splits<kDim>(a.scratch, a.out, a.batch, a.heads, splits, stream);
}

// Whether keys and values may be copied 16 bytes at a time.
bool pieces_of_16(const GqaAttendArgs& a) {
  return a.cache.format == Format::bf16 && aligned16(a.cache.a.base, a.cache.a.page_bytes) &&
         aligned16(a.cache.b.base, a.cache.b.page_bytes) && a.cache.a.width == a.head_dim && a.cache.b.width == a.head_dim;
}

}  // namespace

int gqa_attend_cuda(const GqaAttendArgs& a, void* stream) {
  if (a.batch.tokens == 0) return 0;
  const bool known = a.head_dim == 64 || a.head_dim == 128 || a.head_dim == 256;
  if (known && pieces_of_16(a)) {
#ifdef KTC_FLASHINFER
    if (flashinfer_serves(a)) return flashinfer_attend(a, stream);
#endif
    if (prefill_serves(a)) return prefill(a, stream);
    auto splits = static_cast<unsigned>(gpu_gqa_splits(a.batch.tokens, a.kv_heads));
    if (a.scratch.bytes < gpu_partial_bytes(a.batch.tokens, a.heads, splits, a.head_dim)) splits = 1;
    switch (a.head_dim) {
      case 64: return decode<64>(a, splits, stream);
      case 128: return decode<128>(a, splits, stream);
      default: return decode<256>(a, splits, stream);
    }
  }
  PlainAttention p = {};
  p.query = a.query;
  p.out = a.out;
  p.cache = a.cache;
  p.batch = a.batch;
  p.heads = a.heads;
  p.group = a.heads / a.kv_heads;
  p.width_a = p.value_width = a.head_dim;
  p.scale = a.scale;
  return attend_plain(p, stream);
}

}  // namespace ktc::gpu
