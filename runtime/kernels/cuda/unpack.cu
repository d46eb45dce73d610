// unpack: matrices in the CPU's panels (runtime/formats/panel.h) to what GPU products read: gpu_rows of the same format, or rows of
// bf16. A thread makes 16 bytes of one row; 16 neighbouring threads read neighbouring features of a block.
#include "runtime/formats/panel.h"
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

struct Panels {
  const std::byte* data;
  std::uint64_t matrix_bytes, panel_bytes, head_bytes, block_bytes, scale_bytes;
  std::uint32_t rows, columns, k_blocks, groups;
  bool paired;
};

struct Spot {
  std::uint64_t panel;
  std::uint32_t block, lane;
};
__device__ inline Spot spot_of(const Panels& p, std::uint32_t row) {
  if (!p.paired) return {row / 32, (row / 16) & 1, row & 15};
  const std::uint32_t half = p.rows / 2, feature = row < half ? row : row - half;
  return {feature / 16, row < half ? 0u : 1u, feature & 15};
}

// Four codes of one feature, k = 4 q .. 4 q + 3 of a block of 64: of one byte each as they lie (int8: plus 128).
__device__ inline std::uint32_t four_codes(const std::byte* block, std::uint32_t lane, std::uint32_t q) {
  return *reinterpret_cast<const std::uint32_t*>(block + (q * 16 + lane) * 4);
}

// grid: (pieces of 16 bytes of a row, features / 16, matrices); 256 threads: 16 features x 16 pieces.
template <Format F>
__global__ void codes_kernel(Panels from, Rows to, std::uint32_t first) {
  const std::uint32_t lane = threadIdx.x & 15, piece = blockIdx.x * 16 + threadIdx.x / 16, row = blockIdx.y * 16 + lane;
  if (row >= from.rows || piece * 16 >= to.row_bytes) return;
  const Spot spot = spot_of(from, row);
  const std::byte* panel = from.data + (first + blockIdx.z) * from.matrix_bytes + spot.panel * from.panel_bytes + from.head_bytes;
  std::uint32_t words[4];
  constexpr std::uint32_t kColumns = F == Format::int4 ? 32 : 16;  // of a piece
  const std::uint32_t k0 = piece * kColumns, kb = k0 / 64;
  const std::byte* block = panel + (static_cast<std::uint64_t>(kb) * 2 + spot.block) * from.block_bytes;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (kb >= from.k_blocks) {
      words[w] = F == Format::int4 ? 0x88888888u : 0;
    } else if constexpr (F == Format::int4) {
      // low nibbles are k < 32 of the block, high nibbles the rest; eight codes to one word
      const int shift = (k0 & 32) ? 4 : 0;
      std::uint32_t word = 0;
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t codes = (four_codes(block, spot.lane, w * 2 + half) >> shift) & 0x0F0F0F0Fu;
        word |= ((codes & 0xFu) | ((codes >> 4) & 0xF0u) | ((codes >> 8) & 0xF00u) | ((codes >> 12) & 0xF000u)) << (16 * half);
      }
      words[w] = word;
    } else {
      const std::uint32_t codes = four_codes(block, spot.lane, (k0 % 64) / 4 + w);
      words[w] = F == Format::int8 ? codes ^ 0x80808080u : codes;
    }
  }
  std::byte* out = const_cast<std::byte*>(to.matrix(blockIdx.z)) + row * to.row_bytes + piece * 16;
  *reinterpret_cast<uint4*>(out) = make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void scales_kernel(Panels from, Rows to, std::uint32_t first) {
  const std::uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= from.rows) return;
  const Spot spot = spot_of(from, row);
  const std::byte* head = from.data + (first + blockIdx.z) * from.matrix_bytes + spot.panel * from.panel_bytes;
  std::byte* out = const_cast<std::byte*>(to.matrix(blockIdx.z)) + to.scales_offset + static_cast<std::uint64_t>(row) * to.groups * from.scale_bytes;
  for (std::uint32_t g = 0; g < to.groups; ++g) {
    const std::byte* scale = head + ((static_cast<std::uint64_t>(g) * 2 + spot.block) * 16 + spot.lane) * from.scale_bytes;
    if (from.scale_bytes == 2)
      reinterpret_cast<std::uint16_t*>(out)[g] = *reinterpret_cast<const std::uint16_t*>(scale);
    else
      reinterpret_cast<float*>(out)[g] = *reinterpret_cast<const float*>(scale);
  }
}

// To rows of bf16: one thread, one value.
template <Format F>
__global__ void values_kernel(Panels from, Rows to, std::uint32_t group, std::uint32_t first) {
  const std::uint32_t lane = threadIdx.x & 15, k = blockIdx.x * 16 + threadIdx.x / 16, row = blockIdx.y * 16 + lane;
  if (row >= from.rows || k >= to.row_bytes / 2) return;
  auto* out = reinterpret_cast<__nv_bfloat16*>(const_cast<std::byte*>(to.matrix(blockIdx.z)) + row * to.row_bytes) + k;
  if (k >= from.columns) {
    *out = __float2bfloat16_rn(0.0f);
    return;
  }
  const Spot spot = spot_of(from, row);
  const std::byte* panel = from.data + (first + blockIdx.z) * from.matrix_bytes + spot.panel * from.panel_bytes;
  const std::byte* block = panel + from.head_bytes + (static_cast<std::uint64_t>(k / 64) * 2 + spot.block) * from.block_bytes;
  const std::uint32_t kk = k % 64;
  if constexpr (F == Format::bf16) {
    *out = reinterpret_cast<const __nv_bfloat16*>(block)[(kk / 2 * 16 + spot.lane) * 2 + kk % 2];
  } else {
    const std::uint32_t g = group != 0 ? k / group : 0;
    const std::byte* at = panel + (static_cast<std::uint64_t>(g) * 2 + spot.block) * 16 * from.scale_bytes;
    const float scale = from.scale_bytes == 2 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(at)[spot.lane])
                                              : reinterpret_cast<const float*>(at)[spot.lane];
    float value;
    if constexpr (F == Format::int4) {
      const int byte = static_cast<int>(block[((kk % 32) / 4 * 16 + spot.lane) * 4 + kk % 4]);
      value = static_cast<float>((kk < 32 ? byte & 15 : byte >> 4) - 8);
    } else {
      const std::uint32_t byte = static_cast<std::uint32_t>(block[(kk / 4 * 16 + spot.lane) * 4 + kk % 4]);
      value = F == Format::int8 ? static_cast<float>(static_cast<int>(byte) - 128)
                                : __uint_as_float(((byte & 0x80u) << 24) | ((byte & 0x7Fu) << 20)) * 1.329227995784916e36f;
    }
    *out = __float2bfloat16_rn(value * scale);
  }
}

}  // namespace

int unpack_cuda(const UnpackArgs& a, void* stream) {
  if (a.count == 0) return 0;
  const bool paired = a.from.packing == Packing::panel_paired;
  const auto layout = panel_layout(a.from.format, a.from.group, paired, a.from.rows, a.from.columns);
  if (!layout) return cudaErrorInvalidValue;
  const Panels from = {a.from.data, layout->matrix_bytes, layout->panel_bytes, layout->head_bytes, layout->block_bytes, layout->scale_bytes,
                       a.from.rows, a.from.columns, static_cast<std::uint32_t>(layout->k_blocks), static_cast<std::uint32_t>(layout->groups), paired};
  const Rows to = rows_of(a.to);
  const unsigned features = ceil_div(a.from.rows, 16);
  return for_format(a.from.format, [&](auto f) -> int {
    constexpr Format F = decltype(f)::value;
    if (a.to.packing == Packing::row_major) {
      values_kernel<F><<<dim3(ceil_div(to.row_bytes / 2, 16), features, a.count), 256, 0, stream_of(stream)>>>(from, to, a.from.group, a.first);
      return cudaGetLastError();
    }
    if constexpr (F == Format::bf16) {
      return cudaErrorInvalidValue;
    } else {
      codes_kernel<F><<<dim3(ceil_div(to.row_bytes, 256), features, a.count), 256, 0, stream_of(stream)>>>(from, to, a.first);
      if (const int error = cudaGetLastError()) return error;
      scales_kernel<<<dim3(ceil_div(a.from.rows, 256), 1, a.count), 256, 0, stream_of(stream)>>>(from, to, a.first);
      return cudaGetLastError();
    }
  });
}

}  // namespace ktc::gpu
