// Formats and packings: names, sizes and legality, shared by placement, compiler, plan and runtime.
// Everything here is a pure function of the tables formats.def and packings.def.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ktc {

enum class Format : std::uint8_t {
#define KTC_FORMAT(name, bits, kinds) name,
#include "runtime/formats/formats.def"
};

enum class Packing : std::uint8_t {
#define KTC_PACKING(name, row_alignment) name,
#include "runtime/formats/packings.def"
};

// Roles in which a format may appear.
enum class FormatKind : std::uint8_t { weight = 1, activation = 2, cache = 4 };

std::string_view to_string(Format format);
std::string_view to_string(Packing packing);
std::optional<Format> parse_format(std::string_view name);
std::optional<Packing> parse_packing(std::string_view name);
bool format_serves(Format format, FormatKind kind);
bool is_valid(Format format);    // for values read from a file
bool is_valid(Packing packing);  // for values read from a file

// "f32, bf16": for diagnostics, in table order.
std::string list_formats(FormatKind kind);

// Stored bits per element, without scales.
int format_bits(Format format);

// Bytes of one packed row of `columns` elements, padding included.
std::uint64_t packed_row_bytes(Format format, Packing packing, std::uint64_t columns);

// Bytes of a packed [batch, rows, columns] weight; `group`: input features per scale, 0 for one scale per row or none.
// nullopt on 64-bit overflow, and for a format, packing and group that do not go together.
std::optional<std::uint64_t> packed_bytes(Format format, Packing packing, std::uint64_t batch, std::uint64_t rows,
                                          std::uint64_t columns, std::uint32_t group = 0);

// Whether weights of a format may have one scale per `group` input features: 0 (per row, or no scale) always; int4 also 32,
// 64, 128; fp8 also 128.
bool has_group(Format format, std::uint32_t group);

// Whether a weight of `format` may have `packing`: row_major takes f32 and bf16, panels take bf16, int8, int4 and fp8,
// gpu_rows takes int8, int4 and fp8.
bool takes_packing(Format format, Packing packing);

// bf16 <-> f32: round to nearest even; NaN stays NaN.
inline float bf16_to_f32(std::uint16_t value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
}
inline std::uint16_t f32_to_bf16(float value) {
  std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>(bits >> 16);
}

}  // namespace ktc
