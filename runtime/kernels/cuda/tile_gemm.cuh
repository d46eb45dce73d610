// Products with many rows: C [m, n] = A [m, k] W [n, k]^T, A bf16 (scratch of the op, rows of a multiple of 64 columns, zero beyond
// the real ones) or f32 that is rounded on the way, W of any format, f32 sums in tensor cores. Blocks of 128 x 128, 64 columns at a
// time in three stages. Where warp groups multiply (warpgroup.cuh), both operands stay in shared memory and codes of the next stage
// are unpacked meanwhile; elsewhere warps multiply fragments of 16 x 8. A tile of 256 rows, one block on an SM, was 15 % faster for
// int4 and as much slower for int8 and for 2048 rows of bf16.
//
// One kernel serves a single matrix and a bank: a bank comes with a list of tiles, each at most 128 sorted rows of one matrix, and
// rows of A are gathered through `sources`. A batch of equal products (the heads of MLA) has one matrix per blockIdx.z. Codes become
// bf16 on the way into shared memory; scales per row are applied to the sums, scales per group to the bf16 values (which rounds the
// product of code and scale to 8 bits).
#pragma once

#include "runtime/kernels/cuda/dependent_launch.cuh"
#include "runtime/kernels/cuda/warpgroup.cuh"
#include "runtime/kernels/cuda/weight_words.cuh"

namespace ktc::gpu {

constexpr int kTileM = 128, kTileN = 128, kTileK = 64, kTileStages = 3, kTileThreads = 256;
constexpr int kTileBytes = kTileM * kTileK * 2;
constexpr int kTileShared = kTileStages * 2 * kTileBytes;

struct Tile {
  std::uint32_t matrix, first, count;  // sorted rows [first, first + count) of one matrix
};

struct GemmArgs {
  const __nv_bfloat16* a;
  const float* wide;               // A in f32 instead of `a`, real columns alone
  std::uint64_t a_stride;          // elements
  std::uint64_t a_batch, out_batch;  // elements from product to product of a batch, which is f32 to f32
  const std::uint32_t* sources;    // row of A behind each sorted row; null: the sorted row itself
  const Tile* tiles;               // null: one matrix, rows cut into tiles of 128
  const std::uint32_t* tile_count; // with `tiles`
  std::uint32_t rows;              // without
  Rows w;
  std::uint32_t columns;           // of W, real
  bool paired;                     // W is [gate; up]: h = silu(gate) * up, n counts features of h
  std::uint32_t n;
  std::uint32_t first_n;           // not paired: of W's rows the first; n counts from there
  // out: f32 [row][n] through `targets` (null: the sorted row), plus bias; or, paired, bf16 h [sorted row][h_stride]
  float* out;
  std::uint64_t out_stride;
  const float* bias;
  const std::uint32_t* targets;
  __nv_bfloat16* h;
  std::uint64_t h_stride;
};

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline void copy_async(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ inline void load_matrix(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from));
}
// Byte of 16-byte piece `piece` of row `row` in a stage: pieces of a row are exchanged so that eight rows lie in different banks.
__device__ inline int swizzled(int row, int piece) { return row * kTileK * 2 + ((piece ^ (row & 7)) << 4); }

// Which row of W is row `r` of the tile at feature n0. Paired: every 32 rows hold 16 of gate and the 16 of up beside them.
__device__ inline std::uint32_t weight_row(const GemmArgs& g, std::uint32_t n0, int r) {
  if (!g.paired) return g.first_n + n0 + r;
  const std::uint32_t feature = n0 + (r >> 5) * 16 + (r & 15);
  return (r & 16) ? g.n + feature : feature;
}

__device__ inline std::uint32_t pair_of(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The pieces of A that a thread brings into a stage: from bf16 by copies, from f32 through registers. Rows behind the last of a tile
// stay what they were in shared memory: they are multiplied, and nobody looks at their sums.
template <bool kWide>
struct RowTile {
  static constexpr int kPieces = kTileM * 8 / kTileThreads;
  const void* from[kPieces];  // null: behind the last

  __device__ RowTile(const GemmArgs& g, const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const std::uint32_t r = (threadIdx.x + i * kTileThreads) / 8, sorted = tile.first + r;
      from[i] = nullptr;
      if (r >= tile.count) continue;
      const std::uint64_t at = (g.sources != nullptr ? g.sources[sorted] : sorted) * g.a_stride + threadIdx.x % 8 * 8;
      if constexpr (kWide) from[i] = g.wide + blockIdx.z * g.a_batch + at;
      else from[i] = g.a + at;
    }
  }
  __device__ void fetch(const GemmArgs& g, std::uint32_t k0, std::byte* stage) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (from[i] == nullptr) continue;
      const int to = swizzled((threadIdx.x + i * kTileThreads) / 8, threadIdx.x % 8);
      if constexpr (!kWide) {
        copy_async(shared_address(stage) + to, static_cast<const __nv_bfloat16*>(from[i]) + k0, 16);
      } else {
        const float* x = static_cast<const float*>(from[i]) + k0;
        const std::uint32_t k = k0 + threadIdx.x % 8 * 8;
        float v[8];
        if (k + 8 <= g.columns && (reinterpret_cast<std::uintptr_t>(x) & 15) == 0) {
          const float4 a = reinterpret_cast<const float4*>(x)[0], b = reinterpret_cast<const float4*>(x)[1];
          v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        } else {
#pragma unroll
          for (int e = 0; e < 8; ++e) v[e] = k + e < g.columns ? x[e] : 0.0f;
        }
        *reinterpret_cast<uint4*>(stage + to) = make_uint4(pair_of(v[0], v[1]), pair_of(v[2], v[3]), pair_of(v[4], v[5]), pair_of(v[6], v[7]));
      }
    }
  }
};

template <Format F>
struct WeightTile {
  static constexpr int kPerRow = F == Format::bf16 ? 8 : F == Format::int4 ? 2 : 4;  // 16-byte pieces of a row in a stage
  static constexpr int kPieces = kTileN * kPerRow / kTileThreads;                    // of a thread
  static constexpr int kColumns = kTileK / kPerRow;                                  // of a piece
  const std::byte* from[kPieces];      // null: a row behind the last
  std::uint32_t first_scale[kPieces];  // of that row
  std::uint32_t shift = 0;             // columns per scale: a power of two
  // What a thread has of one stage.
  struct Held {
    uint4 codes[kPieces];
    float scales[kPieces];
  };

  static __device__ int row(int i) { return (threadIdx.x + i * kTileThreads) / kPerRow; }
  static __device__ int piece(int i) { return (threadIdx.x + i * kTileThreads) % kPerRow; }

  __device__ WeightTile(const GemmArgs& g, const std::byte* matrix, std::uint32_t n0) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int r = row(i);
      const bool inside = n0 + (g.paired ? (r >> 5) * 16 + (r & 15) : r) < g.n;
      const std::uint64_t at = weight_row(g, n0, r);
      from[i] = inside ? matrix + at * g.w.row_bytes : nullptr;
      first_scale[i] = static_cast<std::uint32_t>(at) * g.w.groups;
    }
    while ((g.w.group >> shift) > 1) ++shift;
  }

  // Columns from k0 on: bf16 to the stage, codes and their scales to registers.
  __device__ void fetch(const GemmArgs& g, const std::byte* matrix, std::uint32_t k0, std::uint32_t stage, Held& held) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int r = row(i), p = piece(i);
      const std::uint64_t byte = (k0 / kColumns + p) * 16;
      const bool there = from[i] != nullptr && byte + 16 <= g.w.row_bytes;
      if constexpr (F == Format::bf16) {
        copy_async(stage + swizzled(r, p), there ? from[i] + byte : matrix, there ? 16 : 0);
      } else {
        const std::uint32_t nothing = F == Format::int4 ? 0x88888888u : 0, k = k0 + p * kColumns;
        held.codes[i] = there ? *reinterpret_cast<const uint4*>(from[i] + byte) : make_uint4(nothing, nothing, nothing, nothing);
        held.scales[i] = 1;
        if (g.w.group != 0 && from[i] != nullptr && k < g.columns)
          held.scales[i] = scale_at<F>(matrix + g.w.scales_offset, true, first_scale[i] + (k >> shift));
      }
    }
  }

  // What fetch() left in registers, as bf16, to the stage.
  __device__ void put(const GemmArgs& g, std::byte* stage, const Held& held) const {
    if constexpr (F != Format::bf16) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int r = row(i), p = piece(i);
        const std::uint32_t words[4] = {held.codes[i].x, held.codes[i].y, held.codes[i].z, held.codes[i].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          std::uint32_t pairs[Codes<F>::kPerWord / 2];
          Codes<F>::pairs(words[w], pairs);
          if constexpr (F == Format::int4) {  // (0,4) (1,5) (2,6) (3,7) to natural order: one word is one 16-byte piece
            if (g.w.group != 0) {  // these scales are bf16: one rounding, as in f32
              const __nv_bfloat162 scale = __float2bfloat162_rn(held.scales[i]);
#pragma unroll
              for (int q = 0; q < 4; ++q) {
                const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pairs[q]), scale);
                pairs[q] = *reinterpret_cast<const std::uint32_t*>(&value);
              }
            }
            *reinterpret_cast<uint4*>(stage + swizzled(r, p * 4 + w)) =
                make_uint4(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
                           __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632));
          } else if (w % 2 == 1) {
            std::uint32_t before[2];
            Codes<F>::pairs(words[w - 1], before);
            const uint4 natural = make_uint4(before[0], before[1], pairs[0], pairs[1]);
            *reinterpret_cast<uint4*>(stage + swizzled(r, p * 2 + w / 2)) = scaled(natural, held.scales[i], g.w.group != 0);
          }
        }
      }
    }
  }

 private:
  static __device__ std::uint32_t scaled_pair(std::uint32_t pair, float scale) {
    return pair_of(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xFFFF0000u) * scale);
  }
  static __device__ uint4 scaled(uint4 v, float scale, bool apply) {
    if (!apply) return v;
    return make_uint4(scaled_pair(v.x, scale), scaled_pair(v.y, scale), scaled_pair(v.z, scale), scaled_pair(v.w, scale));
  }
};

// Sums of a thread to where they go. c[i][j]: rows m + i * 16 and 8 further, weight rows n + j * 8 and the next, of the tile; n a
// multiple of 32.
template <Format F, int I, int J>
__device__ void finish_tile(const GemmArgs& g, const Tile& tile, const std::byte* matrix, std::uint32_t n0, int m, int n,
                            const float (&c)[I][J][4]) {
  const int lane = threadIdx.x & 31;
  const bool row_scales = Codes<F>::kScaled && g.w.group == 0;
  const auto scale_of = [&](std::uint32_t row) {
    return row_scales ? scale_at<F>(matrix + g.w.scales_offset, false, row) : 1.0f;
  };
#pragma unroll
  for (int i = 0; i < I; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t r = m + i * 16 + half * 8 + (lane >> 2);
      if (r >= tile.count) continue;
      const std::uint32_t sorted = tile.first + r;
      if (g.paired) {
#pragma unroll
        for (int j = 0; j < J; ++j) {
          if (j % 4 >= 2) continue;  // up, with its gate
          const std::uint32_t feature = n0 + (n >> 1) + j / 4 * 16 + j % 4 * 8 + (lane & 3) * 2;
          if (feature >= g.h_stride) continue;
          float h[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {  // zeros behind the last: the next product reads whole pieces of 64
            const bool real = feature + e < g.n;
            const float gate = c[i][j][half * 2 + e] * (real ? scale_of(feature + e) : 0.0f);
            const float up = c[i][j + 2][half * 2 + e] * (real ? scale_of(g.n + feature + e) : 0.0f);
            h[e] = real ? silu(gate) * up : 0.0f;
          }
          *reinterpret_cast<std::uint32_t*>(g.h + sorted * g.h_stride + feature) = pair_of(h[0], h[1]);
        }
      } else {
        float* out = g.out + blockIdx.z * g.out_batch + (g.targets != nullptr ? g.targets[sorted] : sorted) * g.out_stride;
        const bool together = (reinterpret_cast<std::uintptr_t>(out) & 7) == 0;
#pragma unroll
        for (int j = 0; j < J; ++j) {
          const std::uint32_t feature = n0 + n + j * 8 + (lane & 3) * 2;
          if (feature >= g.n) continue;
          const bool both = feature + 1 < g.n;
          float v[2] = {c[i][j][half * 2] * scale_of(g.first_n + feature),
                        both ? c[i][j][half * 2 + 1] * scale_of(g.first_n + feature + 1) : 0.0f};
          if (g.bias != nullptr) {
            v[0] += g.bias[feature];
            if (both) v[1] += g.bias[feature + 1];
          }
          if (both && together) {
            *reinterpret_cast<float2*>(out + feature) = make_float2(v[0], v[1]);
          } else {
            out[feature] = v[0];
            if (both) out[feature + 1] = v[1];
          }
        }
      }
    }
}

// grid: (features / 128, or features of h / 64 where paired; tiles; products of a batch).
template <Format F, bool kWide>
__global__ void __launch_bounds__(kTileThreads, 2) tile_gemm(GemmArgs g) {
  extern __shared__ __align__(1024) std::byte shared[];
  wait_for_inputs();
  Tile tile = {blockIdx.z, blockIdx.y * kTileM, 0};
  if (g.tiles != nullptr) {
    if (blockIdx.y >= *g.tile_count) return;
    tile = g.tiles[blockIdx.y];
  } else {
    tile.count = min(g.rows - tile.first, static_cast<std::uint32_t>(kTileM));
  }
  const std::uint32_t n0 = blockIdx.x * (g.paired ? kTileN / 2 : kTileN);
  const std::byte* matrix = g.w.matrix(tile.matrix);
  const int steps = static_cast<int>((g.columns + kTileK - 1) / kTileK);
  const RowTile<kWide> rows(g, tile);
  const WeightTile<F> weights(g, matrix, n0);
  typename WeightTile<F>::Held held;
  const auto stage_of = [&](int s) { return shared + s % kTileStages * 2 * kTileBytes; };
  const auto fetch = [&](int s) {
    if (s < steps) {
      rows.fetch(g, s * kTileK, stage_of(s));
      weights.fetch(g, matrix, s * kTileK, shared_address(stage_of(s)) + kTileBytes, held);
    }
    asm volatile("cp.async.commit_group;");
  };
  const auto put = [&](int s) {
    if (s < steps) weights.put(g, stage_of(s) + kTileBytes, held);
  };
  const int warp = threadIdx.x / 32;

  fetch(0);
  put(0);
  fetch(1);
#ifdef KTC_WARP_GROUPS
  // Stage s + 1 is unpacked while stage s is multiplied; what was multiplied before the barrier is overwritten after it.
  const int group_m = warp / 4 * 64;
  float c[1][16][4] = {};
  for (int s = 0; s < steps; ++s) {
    asm volatile("cp.async.wait_group 1;");
    show_to_groups();
    __syncthreads();
    if (group_m < static_cast<int>(tile.count)) {
      const std::uint32_t stage = shared_address(stage_of(s));
      const std::uint64_t a = group_operand(stage + group_m * kTileK * 2), b = group_operand(stage + kTileBytes);
      begin_groups();
#pragma unroll
      for (int k = 0; k < kTileK / 16; ++k) multiply_groups(c[0], a + k * 2, b + k * 2);
      commit_groups();
    }
    put(s + 1);
    fetch(s + 2);
    wait_groups();
  }
  finish_tile<F>(g, tile, matrix, n0, group_m + warp % 4 * 16, 0, c);
#else
  const int lane = threadIdx.x & 31, warp_m = (warp & 1) * 64, warp_n = (warp >> 1) * 32;
  float c[4][4][4] = {};
  for (int s = 0; s < steps; ++s) {
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    put(s + 1);
    fetch(s + 2);
    if (warp_m >= static_cast<int>(tile.count)) continue;
    const std::uint32_t a = shared_address(stage_of(s)), b = a + kTileBytes;
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
      std::uint32_t fa[4][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrix(fa[i], a + swizzled(warp_m + i * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
      for (int j = 0; j < 2; ++j)
        load_matrix(fb[j], b + swizzled(warp_n + j * 16 + (lane & 7) + ((lane >> 4) << 3), k * 2 + ((lane >> 3) & 1)));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply(c[i][j], fa[i], {fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]});
    }
  }
  finish_tile<F>(g, tile, matrix, n0, warp_m, warp_n, c);
#endif
}

}  // namespace ktc::gpu
