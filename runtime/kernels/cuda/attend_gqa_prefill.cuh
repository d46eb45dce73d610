// GQA attention of many tokens, bf16 caches: a block takes 64 rows of queries, the tokens beside each other with all heads of one
// key head, and all keys that any of them sees; each warp keeps 16 rows. Rows of a tile may belong to several sequences: the tile
// is gone through once per sequence in it.
#pragma once

#include "runtime/kernels/cuda/attend_mma.cuh"

namespace ktc::gpu {
namespace {

template <unsigned kDim>
struct PrefillShape {
  static constexpr unsigned kWarps = 4;
  static constexpr unsigned kRows = kWarps * 16;
  static constexpr unsigned kTileKeys = kDim > 128 ? 32 : 64;
  static constexpr unsigned kStages = 2;
  static constexpr unsigned kRowBytes = kDim * 2;
  static constexpr unsigned kStageBytes = 2 * kTileKeys * kRowBytes;
  static constexpr unsigned kSharedBytes = kStages * kStageBytes;
};

template <unsigned kDim>
__global__ void __launch_bounds__(PrefillShape<kDim>::kWarps * kWarp) prefill_kernel(GqaAttendArgs a, unsigned group, unsigned page_shift) {
  wait_for_inputs();
  using Shape = PrefillShape<kDim>;
  constexpr unsigned kPieces = kDim / 8, kSteps = kDim / 16, kOutTiles = kDim / 8, kKeyTiles = Shape::kTileKeys / 8;
  constexpr unsigned kThreads = Shape::kWarps * kWarp;
  extern __shared__ __align__(128) std::byte shared[];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, kv = blockIdx.y;
  const unsigned tokens_each = Shape::kRows / group;
  const unsigned tile = gridDim.x - 1 - blockIdx.x;  // late tokens see most keys: they start first
  const unsigned token0 = tile * tokens_each;
  const unsigned tokens = a.batch.tokens - token0 < tokens_each ? a.batch.tokens - token0 : tokens_each;

  // this lane's two rows
  unsigned token[2], head[2];
  bool real[2];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = warp * 16 + lane / 4 + half * 8;
    token[half] = row / group;
    head[half] = kv * group + row % group;
    real[half] = token[half] < tokens;
    if (!real[half]) token[half] = 0;
  }
  std::uint32_t q[kSteps][4];
#pragma unroll
  for (unsigned step = 0; step < kSteps; ++step)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned half = i % 2, column = step * 16 + i / 2 * 8 + lane % 4 * 2;
      const float* from = row_at(a.query, token0 + token[half]) + std::size_t{head[half]} * kDim + column;
      q[step][i] = real[half] ? pack_bf16(from[0], from[1]) : 0;
    }

  const float factor = a.scale * kLog2E;
  float out[kOutTiles][4] = {};
  SoftmaxRows softmax;
  const std::uint32_t stages = shared_at(shared);
  for (unsigned run = 0; run < tokens;) {  // tokens [run, run_end) of one sequence
    const std::int32_t sequence = a.batch.sequence[token0 + run];
    unsigned run_end = run + 1;
    while (run_end < tokens && a.batch.sequence[token0 + run_end] == sequence) ++run_end;
    unsigned context = 0;
    for (unsigned i = run; i < run_end; ++i) {
      const auto own = static_cast<unsigned>(a.batch.positions[token0 + i]) + 1;
      context = own > context ? own : context;
    }
    unsigned own_context[2];  // keys that the lane's rows see; none when they are of another sequence
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
      own_context[half] = real[half] && token[half] >= run && token[half] < run_end
                              ? static_cast<unsigned>(a.batch.positions[token0 + token[half]]) + 1 : 0;
    const std::int32_t* pages = a.batch.pages + a.batch.page_first[sequence];
    const auto fetch = [&](unsigned key_tile, unsigned stage) {
      const std::uint32_t to = stages + stage * Shape::kStageBytes;
#pragma unroll
      for (unsigned i = 0; i < Shape::kTileKeys * kPieces / kThreads; ++i) {
        const unsigned at = i * kThreads + threadIdx.x, row = at / kPieces, piece = at % kPieces, j = key_tile * Shape::kTileKeys + row;
        const unsigned there = j < context ? j : context - 1;
        const unsigned index = page_index(page_shift, a.cache.page_tokens, there), slot = there - index * a.cache.page_tokens;
        const std::int32_t page = pages[index];
        const std::uint32_t where = to + swizzled<Shape::kRowBytes>(row, piece);
        copy16(where, slot_of<__nv_bfloat16>(a.cache.a, a.cache.page_tokens, page, kv, slot) + piece * 8, j < context);
        copy16(where + Shape::kTileKeys * Shape::kRowBytes, slot_of<__nv_bfloat16>(a.cache.b, a.cache.page_tokens, page, kv, slot) + piece * 8,
               j < context);
      }
    };
    const unsigned key_tiles = ceil_div(context, Shape::kTileKeys);
    fetch(0, 0);
    commit_copies();
    for (unsigned key_tile = 0; key_tile < key_tiles; ++key_tile) {
      if (key_tile + 1 < key_tiles) fetch(key_tile + 1, (key_tile + 1) % Shape::kStages);
      commit_copies();
      wait_copies<1>();
      __syncthreads();
      const std::uint32_t keys = stages + key_tile % Shape::kStages * Shape::kStageBytes, values = keys + Shape::kTileKeys * Shape::kRowBytes;
      float s[kKeyTiles][4] = {};
#pragma unroll
      for (unsigned step = 0; step < kSteps; ++step)
#pragma unroll
        for (unsigned n = 0; n < kKeyTiles; n += 2) {
          std::uint32_t b[4];
          load_fragments(b, keys + swizzled<Shape::kRowBytes>(n * 8 + (lane / 16) * 8 + lane % 8, step * 2 + lane / 8 % 2));
          multiply(s[n], q[step], b[0], b[1]);
          multiply(s[n + 1], q[step], b[2], b[3]);
        }
#pragma unroll
      for (unsigned n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned j = key_tile * Shape::kTileKeys + n * 8 + lane % 4 * 2 + i % 2;
          s[n][i] = j < own_context[i / 2] ? s[n][i] * factor : -INFINITY;
        }
      float shrink[2];
      if (softmax.update(s, shrink)) {
#pragma unroll
        for (unsigned n = 0; n < kOutTiles; ++n)
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) out[n][i] *= shrink[i / 2];
      }
#pragma unroll
      for (unsigned k = 0; k < kKeyTiles / 2; ++k) {
        const std::uint32_t p[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
                                    pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (unsigned n = 0; n < kOutTiles; n += 2) {
          std::uint32_t b[4];
          load_fragments_turned(b, values + swizzled<Shape::kRowBytes>(k * 16 + lane % 16, n + lane / 16));
          multiply(out[n], p, b[0], b[1]);
          multiply(out[n + 1], p, b[2], b[3]);
        }
      }
      __syncthreads();
    }
    run = run_end;
  }
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const float denominator = row_sum(softmax.sum[half]);
    if (!real[half]) continue;
    float* to = row_at(a.out, token0 + token[half]) + std::size_t{head[half]} * kDim + lane % 4 * 2;
#pragma unroll
    for (unsigned n = 0; n < kOutTiles; ++n) {
      to[n * 8] = out[n][2 * half] / denominator;
      to[n * 8 + 1] = out[n][2 * half + 1] / denominator;
    }
  }
}

// Tiles of at least 64 rows, of which less than half are of one token each: decode kernels are better at the others.
inline bool prefill_serves(const GqaAttendArgs& a) {
  const unsigned group = a.heads / a.kv_heads;
  return group <= 64 && a.batch.tokens >= 2 * (a.batch.sequences + 1) && a.batch.tokens * group >= 64;
}

template <unsigned kDim>
int prefill_as(const GqaAttendArgs& a, void* stream) {
  using Shape = PrefillShape<kDim>;
  if (const cudaError_t error = cudaFuncSetAttribute(prefill_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes))
    return error;
  const unsigned group = a.heads / a.kv_heads, tokens_each = Shape::kRows / group;
  launch_wide(prefill_kernel<kDim>, dim3(ceil_div(a.batch.tokens, tokens_each), a.kv_heads), Shape::kWarps * kWarp, Shape::kSharedBytes, stream,
         a, group, page_shift_of(a.cache.page_tokens));
  return launched();
}
inline int prefill(const GqaAttendArgs& a, void* stream) {
  switch (a.head_dim) {
    case 64: return prefill_as<64>(a, stream);
    case 128: return prefill_as<128>(a, stream);
    default: return prefill_as<256>(a, stream);
  }
}

}  // namespace
}  // namespace ktc::gpu
