#include "compiler/weights/pack.h"

#include <bit>
#include <cstring>

namespace ktc::compiler {
namespace {

float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

// 1 sign, 4 exponent (bias 7), 3 mantissa; no infinities, all ones is no number.
float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t exponent = (code >> 3) & 0xfu, mantissa = code & 0x7u;
  if (exponent == 0xf && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

}  // namespace

float load_element(models::TensorType type, const std::byte* data, std::uint64_t index) {
  if (type == models::TensorType::f32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  if (type == models::TensorType::f8_e4m3) return e4m3_to_f32(std::to_integer<std::uint8_t>(data[index]));
  std::uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return type == models::TensorType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void load_row(models::TensorType type, const std::byte* data, std::uint64_t stride, std::uint64_t count, float* out) {
  if (type == models::TensorType::bf16) {  // the common one, without a branch per element
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, data + i * stride * 2, 2);
      out[i] = bf16_to_f32(bits);
    }
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) out[i] = load_element(type, data, i * stride);
}

void pack_row(models::TensorType type, const std::byte* source, std::uint64_t stride, std::uint64_t columns, Format format,
              Packing packing, std::byte* out) {
  const std::uint64_t bytes = packed_row_bytes(format, packing, columns);
  const std::uint64_t used = columns * static_cast<std::uint64_t>(format_bits(format)) / 8;
  const bool same = (type == models::TensorType::bf16 && format == Format::bf16) ||
                    (type == models::TensorType::f32 && format == Format::f32);
  if (same && stride == 1) {
    std::memcpy(out, source, used);
  } else if (format == Format::bf16) {
    for (std::uint64_t c = 0; c < columns; ++c) {
      const std::uint16_t bits = f32_to_bf16(load_element(type, source, c * stride));
      std::memcpy(out + c * 2, &bits, 2);
    }
  } else {
    for (std::uint64_t c = 0; c < columns; ++c) {
      const float value = load_element(type, source, c * stride);
      std::memcpy(out + c * 4, &value, 4);
    }
  }
  std::memset(out + used, 0, bytes - used);
}

}  // namespace ktc::compiler
