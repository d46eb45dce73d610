// A warp's ring of stages in shared memory: weights in bf16 on their way long before what they are multiplied with is there, and few
// instructions for each byte. A stage is 256 bytes of 16 rows: four steps of a product of 16 rows (dot_tile.cuh), 16 bytes a lane. Copies
// and uses are the warp's own affair; no other warp has to be waited for.
#pragma once

#include "runtime/kernels/cuda/dot_tile.cuh"
#include "runtime/kernels/cuda/tile_gemm.cuh"

namespace ktc::gpu {

constexpr int kPieceBytes = 256;                  // of a row in a stage
constexpr int kStageSteps = 4, kStageColumns = kPieceBytes / 2;
constexpr int kStageBytes = kDotRows * kPieceBytes;
// Of a block with rings, its x included: what the carve-out of all decode kernels leaves beside a few small blocks (dependent_launch.cuh).
constexpr std::size_t kMostRingBytes = 148 * 1024;

// Weights are read once in a step and must not drive out of the card's cache what the next kernels need: activations, norms, their code.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void copy_once(std::uint32_t to, const void* from, int bytes, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes), "l"(policy) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// The rows of a tile: eight from `low` on, eight from `high` on; behind the last of either that there is, the last again.
struct TileRows {
  const std::byte *low, *high;
  std::uint64_t row_bytes;
  std::uint32_t lows, highs;      // 1 to 8: that there are
};
// Sixteen neighbours.
__device__ inline TileRows tile_rows(const Rows& w, const std::byte* matrix, std::uint32_t tile) {
  const std::uint32_t first = tile * kDotRows, left = w.rows - first;
  return {matrix + first * w.row_bytes, matrix + min(first + 8, w.rows - 1) * w.row_bytes, w.row_bytes, min(left, 8u), left > 8 ? min(left - 8, 8u) : 1u};
}

template <int kStages>
class WarpRing {
 public:
  // memory: kStages * kStageBytes, this warp's own, 16-byte aligned.
  __device__ explicit WarpRing(std::byte* memory) : memory_(memory), policy_(read_once()) {
    const int lane = threadIdx.x & 31, n = lane >> 2, t = lane & 3, half = lane >> 4, piece = lane & 15;
    to_ = shared_address(memory) + half * kPieceBytes + ((piece ^ half << 2) << 4);
    // steps 0 and 2 of this lane's low row, and steps 1 and 3 from there on: pieces of odd rows are exchanged in fours
    even_ = n * kPieceBytes + t * 16 + (n & 1) * 64;
    odd_ = n * kPieceBytes + t * 16 - (n & 1) * 64;
  }

  // Asks for stage `stage` of the tile, into the slot that was used last, or never.
  __device__ void ask(const TileRows& rows, int stage) {
    const int lane = threadIdx.x & 31, half = lane >> 4;
    const std::uint64_t column = static_cast<std::uint64_t>(stage) * kPieceBytes + (lane & 15) * 16;
    const int bytes = column < rows.row_bytes ? 16 : 0;
    const std::uint64_t at = bytes != 0 ? column : 0, two = rows.row_bytes * 2;
    const std::uint32_t to = to_ + asked_ * kStageBytes;
    if (rows.lows == 8 && rows.highs == 8) {
      const std::byte *low = rows.low + half * rows.row_bytes + at, *high = rows.high + half * rows.row_bytes + at;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        copy_once(to + i * 2 * kPieceBytes, low, bytes, policy_);
        copy_once(to + (i * 2 + 8) * kPieceBytes, high, bytes, policy_);
        low += two, high += two;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t r = i * 2 + half;
        copy_once(to + i * 2 * kPieceBytes, rows.low + min(r, rows.lows - 1) * rows.row_bytes + at, bytes, policy_);
        copy_once(to + (i * 2 + 8) * kPieceBytes, rows.high + min(r, rows.highs - 1) * rows.row_bytes + at, bytes, policy_);
      }
    }
  }
  // Every slot has one ask() or none, then this.
  __device__ void asked() {
    commit_copies();
    asked_ = asked_ + 1 == kStages ? 0 : asked_ + 1;
  }

  // The stage that was asked for first of those not used yet, number `stage` of its rows, times x: staged, of the token of this lane
  // (lane / 4) where `there`. Sums of steps 0 and 2 go to c, of 1 and 3 to d. steps: of the whole row. Behind it, ask() and asked().
  __device__ void use(const __nv_bfloat16* x, bool there, int stage, int steps, float (&c)[4], float (&d)[4]) {
    wait_copies<kStages - 1>();
    __syncwarp();
    const std::byte* const from = memory_ + asked_ * kStageBytes;  // the oldest is where the next one goes
    const __nv_bfloat16* const column = x + (stage * kStageSteps * 4 + (threadIdx.x & 3)) * 8;
#pragma unroll
    for (int s = 0; s < kStageSteps; ++s) {
      if (stage * kStageSteps + s >= steps) break;
      const std::byte* const row = from + (s % 2 == 0 ? even_ : odd_) + s * 64;
      const uint4 low = *reinterpret_cast<const uint4*>(row), high = *reinterpret_cast<const uint4*>(row + 8 * kPieceBytes);
      multiply_pieces<Format::bf16>(low, high, column + s * 4 * 8, there, s % 2 == 0 ? c : d);
    }
    __syncwarp();  // all lanes have read what is filled now
  }

 private:
  std::byte* memory_;
  std::uint64_t policy_;
  std::uint32_t to_;
  int even_, odd_, asked_ = 0;
};

// Stages and steps of a row.
__device__ inline int stages_of(std::uint32_t columns) { return (static_cast<int>(columns) + kStageColumns - 1) / kStageColumns; }
__device__ inline int steps_of(std::uint32_t columns) { return (static_cast<int>(columns) + 31) / 32; }

// fn(std::integral_constant) with the stages of a warp's ring in a block with kDotWarps of them and `bytes` of shared memory beside;
// cudaErrorNotSupported where that would be fewer than two on this card.
template <typename Fn>
int for_ring_stages(std::size_t bytes, const Fn& fn) {
  int device = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return error;
  const std::size_t room = static_cast<std::size_t>(most) < kMostRingBytes ? static_cast<std::size_t>(most) : kMostRingBytes;
  const auto fits = [&](int stages) { return std::size_t{kDotWarps} * stages * kStageBytes + bytes <= room; };
  if (fits(4)) return fn(std::integral_constant<int, 4>());
  if (fits(3)) return fn(std::integral_constant<int, 3>());
  if (fits(2)) return fn(std::integral_constant<int, 2>());
  return cudaErrorNotSupported;
}

}  // namespace ktc::gpu
