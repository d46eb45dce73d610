// Products with many rows: C [m, n] = A [m, k] W [n, k]^T, A bf16 (scratch of the op, rows of a multiple of 64 columns, zero beyond
// the real ones), W of any format, f32 sums in tensor cores. Blocks of 128 x 128, 64 columns at a time in three stages.
//
// One kernel serves a single matrix and a bank: a bank comes with a list of tiles, each at most 128 sorted rows of one matrix, and
// rows of A are gathered through `sources`. Codes become bf16 on the way into shared memory; scales per row are applied to the
// sums, scales per group to the bf16 values (which rounds the product of code and scale to 8 bits).
#pragma once

#include "runtime/kernels/cuda/dependent_launch.cuh"
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
  std::uint64_t a_stride;          // elements
  const std::uint32_t* sources;    // row of A behind each sorted row; null: the sorted row itself
  const Tile* tiles;               // null: one matrix, rows cut into tiles of 128
  const std::uint32_t* tile_count; // with `tiles`
  std::uint32_t rows;              // without
  Rows w;
  std::uint32_t columns;           // of W, real
  bool paired;                     // W is [gate; up]: h = silu(gate) * up, n counts features of h
  std::uint32_t n;
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
  if (!g.paired) return n0 + r;
  const std::uint32_t feature = n0 + (r >> 5) * 16 + (r & 15);
  return (r & 16) ? g.n + feature : feature;
}

template <Format F>
struct WeightTile {
  static constexpr int kPieces = F == Format::bf16 ? 4 : F == Format::int4 ? 1 : 2;  // 16-byte loads of a thread per stage
  uint4 held[kPieces];

  static __device__ int row(int i) { return (threadIdx.x + i * kTileThreads) / (F == Format::bf16 ? 8 : F == Format::int4 ? 2 : 4); }
  static __device__ int piece(int i) { return (threadIdx.x + i * kTileThreads) % (F == Format::bf16 ? 8 : F == Format::int4 ? 2 : 4); }

  __device__ void fetch(const GemmArgs& g, const std::byte* matrix, std::uint32_t n0, std::uint32_t k0, std::uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int r = row(i), p = piece(i);
      const bool inside = n0 + (g.paired ? (r >> 5) * 16 + (r & 15) : r) < g.n;
      const std::uint64_t byte = static_cast<std::uint64_t>(k0) * (F == Format::bf16 ? 4 : F == Format::int4 ? 1 : 2) / 2 + p * 16;
      const std::byte* from = matrix + (inside ? weight_row(g, n0, r) : 0) * g.w.row_bytes + byte;
      const bool there = inside && byte + 16 <= g.w.row_bytes;
      if constexpr (F == Format::bf16) {
        copy_async(stage + swizzled(r, p), there ? from : matrix, there ? 16 : 0);
      } else {
        const std::uint32_t nothing = F == Format::int4 ? 0x88888888u : 0;
        held[i] = there ? *reinterpret_cast<const uint4*>(from) : make_uint4(nothing, nothing, nothing, nothing);
      }
    }
  }

  // What fetch() left in registers, as bf16, to the stage.
  __device__ void put(const GemmArgs& g, const std::byte* matrix, std::uint32_t n0, std::uint32_t k0, std::byte* stage) const {
    if constexpr (F != Format::bf16) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int r = row(i), p = piece(i);
        const std::uint32_t words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
        constexpr int kLane = 4 * Codes<F>::kPerWord;
        float scale = 1;
        if (g.w.group != 0) {
          const std::uint32_t k = k0 + p * kLane;
          const bool inside = n0 + (g.paired ? (r >> 5) * 16 + (r & 15) : r) < g.n && k < g.columns;
          if (inside)
            scale = scale_at<F>(matrix + g.w.scales_offset, true,
                                static_cast<std::uint64_t>(weight_row(g, n0, r)) * g.w.groups + k / g.w.group);
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          std::uint32_t pairs[Codes<F>::kPerWord / 2];
          Codes<F>::pairs(words[w], pairs);
          if constexpr (F == Format::int4) {  // (0,4) (1,5) (2,6) (3,7) to natural order: one word is one 16-byte piece
            const uint4 natural = make_uint4(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
                                             __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632));
            *reinterpret_cast<uint4*>(stage + swizzled(r, p * 4 + w)) = scaled(natural, scale, g.w.group != 0);
          } else if (w % 2 == 1) {
            std::uint32_t before[2];
            Codes<F>::pairs(words[w - 1], before);
            const uint4 natural = make_uint4(before[0], before[1], pairs[0], pairs[1]);
            *reinterpret_cast<uint4*>(stage + swizzled(r, p * 2 + w / 2)) = scaled(natural, scale, g.w.group != 0);
          }
        }
      }
    }
  }

 private:
  static __device__ std::uint32_t scaled_pair(std::uint32_t pair, float scale) {
    const float lo = __uint_as_float(pair << 16) * scale, hi = __uint_as_float(pair & 0xFFFF0000u) * scale;
    const __nv_bfloat162 both = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  }
  static __device__ uint4 scaled(uint4 v, float scale, bool apply) {
    if (!apply) return v;
    return make_uint4(scaled_pair(v.x, scale), scaled_pair(v.y, scale), scaled_pair(v.z, scale), scaled_pair(v.w, scale));
  }
};

// grid: (features / 128, or features of h / 64 where paired; tiles).
template <Format F>
__global__ void __launch_bounds__(kTileThreads) tile_gemm(GemmArgs g) {
  extern __shared__ __align__(128) std::byte shared[];
  wait_for_inputs();
  Tile tile = {0, blockIdx.y * kTileM, 0};
  if (g.tiles != nullptr) {
    if (blockIdx.y >= *g.tile_count) return;
    tile = g.tiles[blockIdx.y];
  } else {
    tile.count = min(g.rows - tile.first, static_cast<std::uint32_t>(kTileM));
  }
  const std::uint32_t n0 = blockIdx.x * (g.paired ? kTileN / 2 : kTileN);
  const std::byte* matrix = g.w.matrix(tile.matrix);
  const int steps = static_cast<int>((g.columns + kTileK - 1) / kTileK);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, warp_m = (warp & 1) * 64, warp_n = (warp >> 1) * 32;

  const __nv_bfloat16* sources[4];  // the A rows whose pieces this thread copies
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t r = (threadIdx.x + i * kTileThreads) / 8;
    const std::uint32_t sorted = tile.first + min(r, tile.count - 1);
    sources[i] = g.a + (g.sources != nullptr ? g.sources[sorted] : sorted) * g.a_stride + threadIdx.x % 8 * 8;
  }
  WeightTile<F> weights;
  const auto stage_a = [&](int s) { return shared + s % kTileStages * 2 * kTileBytes; };
  const auto fetch = [&](int s) {
    if (s < steps) {
      const std::uint32_t a = shared_address(stage_a(s));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_async(a + swizzled((threadIdx.x + i * kTileThreads) / 8, threadIdx.x % 8), sources[i] + s * kTileK, 16);
      weights.fetch(g, matrix, n0, s * kTileK, a + kTileBytes);
    }
    asm volatile("cp.async.commit_group;");
  };
  const auto put = [&](int s) {
    if (s < steps) weights.put(g, matrix, n0, s * kTileK, stage_a(s) + kTileBytes);
  };

  float c[4][4][4] = {};
  fetch(0);
  put(0);
  fetch(1);
  put(1);
  for (int s = 0; s < steps; ++s) {
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    fetch(s + 2);
    const std::uint32_t a = shared_address(stage_a(s)), b = a + kTileBytes;
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
    put(s + 2);
  }

  const bool row_scales = Codes<F>::kScaled && g.w.group == 0;
  const auto scale_of = [&](std::uint32_t row) {
    return row_scales ? scale_at<F>(matrix + g.w.scales_offset, false, row) : 1.0f;
  };
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t r = warp_m + i * 16 + half * 8 + (lane >> 2);
      if (r >= tile.count) continue;
      const std::uint32_t sorted = tile.first + r;
      if (g.paired) {
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const std::uint32_t feature = n0 + (warp_n >> 1) + j * 8 + (lane & 3) * 2 + e;
            if (feature >= g.h_stride) continue;
            if (feature >= g.n) {  // the next product reads whole pieces of 64
              g.h[sorted * g.h_stride + feature] = __float2bfloat16_rn(0.0f);
              continue;
            }
            const float gate = c[i][j][half * 2 + e] * scale_of(feature), up = c[i][j + 2][half * 2 + e] * scale_of(g.n + feature);
            g.h[sorted * g.h_stride + feature] = __float2bfloat16_rn(silu(gate) * up);
          }
      } else {
        float* out = g.out + (g.targets != nullptr ? g.targets[sorted] : sorted) * g.out_stride;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const std::uint32_t feature = n0 + warp_n + j * 8 + (lane & 3) * 2 + e;
            if (feature < g.n) out[feature] = c[i][j][half * 2 + e] * scale_of(feature) + (g.bias != nullptr ? g.bias[feature] : 0.0f);
          }
      }
    }
}

}  // namespace ktc::gpu
