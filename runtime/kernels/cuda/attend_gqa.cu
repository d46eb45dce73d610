// GQA attention. Decode over caches in bf16: the keys of a token are cut into splits, a block serves one split of one key head and
// up to 16 of its query heads; each warp works through 16 keys at a time on its own, so the only barrier is at the end. f32 caches
// and unusual head sizes go the plain way. In a step with one token per sequence the same kernel prepares the queries and appends the
// key and the value (gqa_decode): so it may ask for the keys of earlier steps while the product that makes its queries still runs.
#include "runtime/kernels/cuda/attend_gqa_prefill.cuh"
#include "runtime/kernels/cuda/attend_mma.cuh"
#include "runtime/kernels/cuda/attend_plain.cuh"
#include "runtime/kernels/cuda/flashinfer/attend.h"

namespace ktc::gpu {
namespace {

constexpr unsigned kKeys = 16;         // of a warp at a time
constexpr unsigned kQueryRows = 16;    // query heads of a block
constexpr unsigned kLeastKeys = 128;   // of a split: two rounds of four warps, which are in flight together

template <unsigned kDim>
struct DecodeShape {
  static constexpr unsigned kWarps = kDim > 128 ? 2 : 4;
  static constexpr unsigned kStages = kDim == 128 ? 2 : 3;  // of each warp; two blocks of heads of 128 fit on an SM beside its cache (dependent_launch.cuh)
  static constexpr unsigned kRowBytes = kDim * 2;
  static constexpr unsigned kStageBytes = 2 * kKeys * kRowBytes;  // keys, then values
  static constexpr unsigned kSharedBytes = kWarps * kStages * kStageBytes;
  static constexpr unsigned kMergeStride = kDim + 4;
  static constexpr unsigned kQueryStride = kDim > 128 ? kDim : kDim + 8;  // two blocks fit on an SM
  // and where the kernel appends: queries in f32, then the new key and value
  static constexpr unsigned kAppendBytes = kSharedBytes + kQueryRows * kQueryStride * 4 + 2 * kRowBytes;
  static constexpr bool kSplitQuery = kDim <= 128;  // q in two bf16 operands; more would not fit into registers
  static_assert(kSharedBytes >= kWarps * kQueryRows * (kMergeStride + 2) * 4, "the sums of the warps are merged in the same memory");
};

struct DecodeArgs {
  GqaAttendArgs a;
  GqaAppendArgs append;  // of kernels that append
  unsigned splits, group, head_tiles;
  unsigned page_shift;
};

// Heads k * step of `from`, k < count <= kMost, normed and turned by rope, by one warp. `heads`: their place in shared memory, head k at
// k * stride. All loads come first: they are most of the time that this takes.
template <unsigned kDim, unsigned kMost>
__device__ void prepare_heads(const GqaAppendArgs& a, unsigned token, const float* from, std::size_t step, unsigned count,
                              const float* norm, float* heads, unsigned stride) {
  constexpr unsigned kEach = kDim / kWarp;
  const unsigned lane = threadIdx.x % kWarp, half = a.rope.dim / 2;
  float value[kMost][kEach], cos[kEach], sin[kEach], scale[kEach];
  unsigned other[kEach];
  bool second[kEach];
#pragma unroll
  for (unsigned k = 0; k < kMost; ++k)
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) value[k][i] = k < count ? from[k * step + lane + i * kWarp] : 0.0f;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    const unsigned c = lane + i * kWarp;
    const bool turns = c < a.rope.dim;
    second[i] = a.rope.interleaved ? c % 2 != 0 : c >= half;
    const unsigned pair = a.rope.interleaved ? c / 2 : second[i] ? c - half : c;
    other[i] = !turns ? c : a.rope.interleaved ? c ^ 1 : second[i] ? c - half : c + half;
    cos[i] = turns ? a.rope.cos[std::size_t{token} * half + pair] : 1.0f;
    sin[i] = turns ? a.rope.sin[std::size_t{token} * half + pair] : 0.0f;
    scale[i] = norm != nullptr ? norm[c] : 1.0f;
  }
#pragma unroll
  for (unsigned k = 0; k < kMost; ++k) {
    if (k >= count) break;
    float squares = 0;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) squares += value[k][i] * value[k][i];
    const float factor = norm != nullptr ? 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(kDim) + a.norm_eps) : 1.0f;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) heads[k * stride + lane + i * kWarp] = value[k][i] = value[k][i] * factor * scale[i];
  }
  __syncwarp();
#pragma unroll
  for (unsigned k = 0; k < kMost; ++k) {
    if (k >= count) break;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      const float partner = heads[k * stride + other[i]] * sin[i];
      value[k][i] = second[i] ? value[k][i] * cos[i] + partner : value[k][i] * cos[i] - partner;
    }
  }
  __syncwarp();
#pragma unroll
  for (unsigned k = 0; k < kMost; ++k) {
    if (k >= count) break;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) heads[k * stride + lane + i * kWarp] = value[k][i];
  }
  __syncwarp();
}

// kAppend: the last key is this step's, and is not in the cache yet. Before the wait nothing is read but the step block and what
// earlier steps left in the cache.
template <unsigned kDim, bool kAppend>
__global__ void __launch_bounds__(DecodeShape<kDim>::kWarps * kWarp) decode_kernel(DecodeArgs d) {
  using Shape = DecodeShape<kDim>;
  constexpr unsigned kPieces = kDim / 8, kSteps = kDim / 16, kOutTiles = kDim / 8;
  extern __shared__ __align__(128) std::byte shared[];
  const GqaAttendArgs& a = d.a;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned split = blockIdx.x, kv = blockIdx.y / d.head_tiles, tile = blockIdx.y % d.head_tiles, t = blockIdx.z;
  const unsigned context = static_cast<unsigned>(a.batch.positions[t]) + 1, chunk = chunk_of(context, d.splits, kLeastKeys);
  const unsigned begin = split * chunk;
  if (begin >= context) return;  // the first split waits
  if (!kAppend) wait_for_inputs();
  const unsigned end = begin + chunk < context ? begin + chunk : context;
  const unsigned cached = kAppend && end == context ? end - 1 : end;  // keys before it are in the cache
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
      copy16(where, key + piece * 16, j < cached);
      copy16(where + kKeys * Shape::kRowBytes, value + piece * 16, j < cached);
    }
  };

  // The pipeline: tiles warp, warp + kWarps, ...; pages one tile ahead of their keys.
  unsigned ahead = warp;
  std::int32_t page = page_ahead(ahead);
#pragma unroll
  for (unsigned s = 0; s < Shape::kStages; ++s) {
    if (ahead < key_tiles) fetch(ahead, s, page);
    commit_copies();
    ahead += Shape::kWarps;
    page = page_ahead(ahead);
  }

  float* const queries = reinterpret_cast<float*>(shared + Shape::kSharedBytes);  // [kQueryRows][kQueryStride]
  auto* const fresh = reinterpret_cast<__nv_bfloat16*>(queries + kQueryRows * Shape::kQueryStride);  // key, value
  if constexpr (kAppend) {
    wait_for_inputs();
    // Warp w has the heads w, w + kWarps, ...; where there are several tiles of heads, all need the new key and one writes it.
    float* const own = queries + warp * Shape::kQueryStride;
    if (end == context && warp == Shape::kWarps - 1) {
      prepare_heads<kDim, 1>(d.append, t, row_at(d.append.k, t) + std::size_t{kv} * kDim, 0, 1, d.append.k_norm, own, 0);
      const auto position = static_cast<unsigned>(a.batch.positions[t]);
      const float* v = row_at(d.append.v, t) + std::size_t{kv} * kDim;
      for (unsigned i = lane; i < kDim; i += kWarp) {
        fresh[i] = narrow<__nv_bfloat16>(own[i]);
        fresh[kDim + i] = narrow<__nv_bfloat16>(v[i]);
        if (tile == 0) {
          slot_of<__nv_bfloat16>(a.cache, a.cache.a, pages, kv, position)[i] = fresh[i];
          slot_of<__nv_bfloat16>(a.cache, a.cache.b, pages, kv, position)[i] = fresh[kDim + i];
        }
      }
    }
    constexpr unsigned kHeads = kDim > 128 ? 2 : kQueryRows / Shape::kWarps;
    for (unsigned row = warp; row < rows; row += kHeads * Shape::kWarps)
      prepare_heads<kDim, kHeads>(d.append, t, row_at(d.append.q, t) + std::size_t{first_head + row} * kDim, Shape::kWarps * kDim,
                                  min(kHeads, ceil_div(rows - row, Shape::kWarps)), d.append.q_norm, queries + row * Shape::kQueryStride,
                                  Shape::kWarps * Shape::kQueryStride);
    __syncthreads();
  }

  // rows beyond the heads are zero
  std::uint32_t high[kSteps][4], low[Shape::kSplitQuery ? kSteps : 1][4];
  {
    const float* q = kAppend ? queries : row_at(a.query, t) + std::size_t{first_head} * kDim;
    constexpr unsigned kStride = kAppend ? Shape::kQueryStride : kDim;
    const float factor = a.scale * kLog2E;
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i % 2 * 8, column = step * 16 + i / 2 * 8 + lane % 4 * 2;
        float x = 0, y = 0;
        if (row < rows) {
          x = q[row * kStride + column] * factor;
          y = q[row * kStride + column + 1] * factor;
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
    wait_copies<Shape::kStages - 1>();
    __syncwarp();
    const std::uint32_t keys = stages_at + stage * Shape::kStageBytes, values = keys + kKeys * Shape::kRowBytes;
    if (kAppend && end == context && key_tile == key_tiles - 1) {  // into the place that the copies left empty
      std::byte* const there = stages + stage * Shape::kStageBytes;
      const unsigned row = (cached - begin) % kKeys;
      for (unsigned i = lane; i < 2 * kPieces; i += kWarp)
        *reinterpret_cast<uint4*>(there + i / kPieces * kKeys * Shape::kRowBytes + swizzled<Shape::kRowBytes>(row, i % kPieces)) =
            reinterpret_cast<const uint4*>(fresh)[i];
      __syncwarp();
    }
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
    __syncwarp();  // all lanes have read the stage that is filled now
    if (ahead < key_tiles) fetch(ahead, stage, page);
    commit_copies();
    ahead += Shape::kWarps;
    page = page_ahead(ahead);
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
  const Partials partials(a.scratch, a.batch.tokens * a.heads, d.splits, kDim);
  constexpr unsigned kVectors = kDim / 4;
  for (unsigned i = threadIdx.x; i < rows * kVectors; i += blockDim.x) {
    const unsigned row = i / kVectors, c = i % kVectors * 4, h = first_head + row;
    float top = -INFINITY, denominator = 0;
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (unsigned w = 0; w < Shape::kWarps; ++w) top = fmaxf(top, tops[w * kQueryRows + row]);
#pragma unroll
    for (unsigned w = 0; w < Shape::kWarps; ++w) {
      const float factor = exp2f(tops[w * kQueryRows + row] - top);
      const float4 sum = *reinterpret_cast<const float4*>(sums + (w * kQueryRows + row) * Shape::kMergeStride + c);
      value.x += factor * sum.x, value.y += factor * sum.y, value.z += factor * sum.z, value.w += factor * sum.w;
      denominator += factor * denominators[w * kQueryRows + row];
    }
    if (only) {
      float* const to = row_at(a.out, t) + std::size_t{h} * kDim + c;  // rows of the output lie anywhere
      to[0] = value.x / denominator, to[1] = value.y / denominator, to[2] = value.z / denominator, to[3] = value.w / denominator;
      continue;
    }
    const std::size_t place = (std::size_t{t} * a.heads + h) * d.splits + split;
    *reinterpret_cast<float4*>(partials.sums + place * kDim + c) = value;
    if (c == 0) partials.ends[place] = make_float2(top, denominator);
  }
}

template <unsigned kDim, bool kAppend>
int decode(const GqaAttendArgs& a, const GqaAppendArgs& append, void* stream) {
  using Shape = DecodeShape<kDim>;
  constexpr unsigned kBytes = kAppend ? Shape::kAppendBytes : Shape::kSharedBytes;
  if (const cudaError_t error = cudaFuncSetAttribute(decode_kernel<kDim, kAppend>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes))
    return error;
  auto splits = static_cast<unsigned>(gpu_gqa_splits(a.batch.tokens, a.kv_heads));
  if (a.scratch.bytes < gpu_partial_bytes(a.batch.tokens, a.heads, splits, a.head_dim)) splits = 1;
  DecodeArgs d = {a, append, splits, a.heads / a.kv_heads, 0, page_shift_of(a.cache.page_tokens)};
  d.head_tiles = ceil_div(d.group, kQueryRows);
  const dim3 grid(splits, a.kv_heads * d.head_tiles, a.batch.tokens);
  launch(decode_kernel<kDim, kAppend>, grid, Shape::kWarps * kWarp, kBytes, stream, d);
  if (const int error = launched()) return error;
  return merge_splits<kDim>(a.scratch, a.out, a.batch, a.heads, splits, stream, kLeastKeys);
}

template <bool kAppend>
int decode(const GqaAttendArgs& a, const GqaAppendArgs& append, void* stream) {
  switch (a.head_dim) {
    case 64: return decode<64, kAppend>(a, append, stream);
    case 128: return decode<128, kAppend>(a, append, stream);
    default: return decode<256, kAppend>(a, append, stream);
  }
}

// Whether tensor cores take the shape, and keys and values may be copied 16 bytes at a time.
bool pieces_of_16(const GqaAttendArgs& a) {
  return (a.head_dim == 64 || a.head_dim == 128 || a.head_dim == 256) && a.cache.format == Format::bf16 && aligned16(a.cache.a.base, a.cache.a.page_bytes) &&
         aligned16(a.cache.b.base, a.cache.b.page_bytes) && a.cache.a.width == a.head_dim && a.cache.b.width == a.head_dim;
}

}  // namespace

int gqa_attend_cuda(const GqaAttendArgs& a, void* stream) {
  if (a.batch.tokens == 0) return 0;
  if (pieces_of_16(a)) {
#ifdef KTC_FLASHINFER
    if (flashinfer_serves(a)) return flashinfer_attend(a, stream);
#endif
    if (prefill_serves(a)) return prefill(a, stream);
    return decode<false>(a, {}, stream);
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

int gqa_decode_cuda(const GqaDecodeArgs& a, void* stream) {
  if (a.attend.batch.tokens == 0) return 0;
  int device = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return error;
  const unsigned bytes = a.attend.head_dim == 64 ? DecodeShape<64>::kAppendBytes : a.attend.head_dim == 128 ? DecodeShape<128>::kAppendBytes : DecodeShape<256>::kAppendBytes;
  if (pieces_of_16(a.attend) && most >= static_cast<int>(bytes)) return decode<true>(a.attend, a.append, stream);
  if (const int error = gqa_append_cuda(a.append, stream)) return error;
  return gqa_attend_cuda(a.attend, stream);
}

}  // namespace ktc::gpu
