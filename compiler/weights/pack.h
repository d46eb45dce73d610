// Converts and packs one destination matrix of a WeightJob. Pure functions on memory; no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/model_desc.h"
#include "runtime/formats/formats.h"

namespace ktc::compiler {

// Element `index` of a checkpoint buffer as f32: exact for all types. FP8: the code alone, without its scale.
float load_element(models::TensorType type, const std::byte* data, std::uint64_t index);

// `count` elements from `data` on, `stride` elements apart, as f32.
void load_row(models::TensorType type, const std::byte* data, std::uint64_t stride, std::uint64_t count, float* out);

// Writes one packed row of row_major: `columns` elements starting at `source` (type `type`, `stride` elements apart), converted to
// `format` (f32 to bf16 rounds to nearest even), padded with zeros to packed_row_bytes. `out` has that size.
void pack_row(models::TensorType type, const std::byte* source, std::uint64_t stride, std::uint64_t columns, Format format,
              Packing packing, std::byte* out);

}  // namespace ktc::compiler
