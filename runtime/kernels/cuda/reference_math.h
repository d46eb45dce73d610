// What the reference kernels share: sums in the order of the CPU's scalar level, rounding of left operands, rows of packed weights
// as f32. exp, sigmoid and silu as the CPU's (runtime/kernels/cpu/scalar_math.h; no edge leads there): both halves of a plan in
// exact mode then differ by nothing but the order of sums.
#pragma once

#include <cstring>

#include "runtime/kernels/cuda/gpu_kernels.h"
#include "runtime/kernels/cuda/gpu_math.h"

namespace ktc::gpu::reference {

// Eight interleaved sums, added as a tree.
struct Lanes {
  static constexpr std::size_t kCount = 8;
  float lane[kCount] = {};

  void add_products(const float* x, const float* w, std::size_t k) {
    std::size_t i = 0;
    for (; i + kCount <= k; i += kCount)
      for (std::size_t l = 0; l < kCount; ++l) lane[l] += x[i + l] * w[i + l];
    for (std::size_t l = 0; i + l < k; ++l) lane[l] += x[i + l] * w[i + l];
  }
  float sum() const { return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])); }
};

inline float dot(const float* x, const float* w, std::size_t k) {
  Lanes lanes;
  lanes.add_products(x, w, k);
  return lanes.sum();
}

inline float load(const std::byte* data, Format format, std::size_t i) {  // f32 or bf16
  if (format == Format::bf16) {
    std::uint16_t bits;
    std::memcpy(&bits, data + 2 * i, 2);
    return bf16_to_f32(bits);
  }
  float value;
  std::memcpy(&value, data + 4 * i, 4);
  return value;
}
inline void store(std::byte* data, Format format, std::size_t i, float value) {
  if (format == Format::bf16) {
    const std::uint16_t bits = f32_to_bf16(value);
    std::memcpy(data + 2 * i, &bits, 2);
  } else {
    std::memcpy(data + 4 * i, &value, 4);
  }
}

// out[i] = the left operand of a product as its activations say.
inline void round_operand(const float* x, std::size_t count, Format activations, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = activations == Format::bf16 ? bf16_to_f32(f32_to_bf16(x[i])) : x[i];
}

// The code of a quantised element in gpu_rows, without its scale.
inline float gpu_rows_code(const std::byte* codes, Format format, std::size_t column) {
  const auto byte = static_cast<std::uint8_t>(codes[format == Format::int4 ? column / 2 : column]);
  if (format == Format::int8) return static_cast<std::int8_t>(byte);
  if (format == Format::fp8) return e4m3_to_f32(byte);
  return static_cast<float>((column % 2 == 0 ? byte & 15 : byte >> 4) - 8);
}
inline float gpu_rows_scale(const Weight& w, const std::byte* matrix, std::size_t row, std::size_t group) {
  const std::size_t groups = w.group == 0 ? 1 : (w.columns + w.group - 1) / w.group;
  const std::byte* scales = matrix + w.rows * w.row_bytes;
  return load(scales, w.format == Format::int4 && w.group != 0 ? Format::bf16 : Format::f32, row * groups + group);
}

// out[0 .. count) = columns [first, first + count) of a row of a matrix in row_major or gpu_rows.
void decode_row(const Weight& w, const std::byte* matrix, std::size_t row, std::size_t first, std::size_t count, float* out);

// y(m)[n] = x(m) . w[n] for m in [0, rows), n in [0, w.rows): `x_row(m)` gives a row of f32, `put(m, n, sum)` takes the sum.
// Every row of weights is decoded once per 16 rows of x.
template <typename XRow, typename Put>
void product(const Weight& w, const std::byte* matrix, std::size_t rows, Format activations, const XRow& x_row, const Put& put) {
  constexpr std::size_t kRows = 16, kColumns = 2048;  // kColumns is a multiple of the lanes: the order stays that of a whole row
  float decoded[kColumns], x[kColumns];
  for (std::size_t m = 0; m < rows; m += kRows) {
    const std::size_t count = rows - m < kRows ? rows - m : kRows;
    for (std::size_t n = 0; n < w.rows; ++n) {
      Lanes lanes[kRows];
      for (std::size_t k = 0; k < w.columns; k += kColumns) {
        const std::size_t columns = w.columns - k < kColumns ? w.columns - k : kColumns;
        decode_row(w, matrix, n, k, columns, decoded);
        for (std::size_t r = 0; r < count; ++r) {
          const float* from = x_row(m + r) + k;
          if (activations == Format::bf16) {
            round_operand(from, columns, activations, x);
            from = x;
          }
          lanes[r].add_products(from, decoded, columns);
        }
      }
      for (std::size_t r = 0; r < count; ++r) put(m + r, n, lanes[r].sum());
    }
  }
}

inline const std::byte* matrix_of(const Weight& w, std::size_t index) { return w.data + index * w.matrix_bytes; }
inline float* row_of(const Matrix& m, std::size_t r) { return m.data + r * m.stride; }
inline std::int32_t* row_of(const Ids& m, std::size_t r) { return m.data + r * m.stride; }

}  // namespace ktc::gpu::reference
