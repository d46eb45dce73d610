// Left operands of panel kernels in a step's workspace: rows of int8 codes with scales and sums, or of bf16 values.
// runtime/formats/workspace.h has the sizes, runtime/kernels/cpu/panel_kernels.h what the numbers mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/formats/workspace.h"
#include "runtime/kernels/cpu/kernels.h"

namespace ktc::exec {

constexpr std::size_t kPiece = 64;  // elements of one piece of values

// An area of rows. A row lies plain (its pieces one behind the other) or in tile layout (16 rows piece by piece); its place
// is a position: in tile layout position 16 t + i is row i of tile t.
struct PanelOperands {
  bool bf16 = false;
  std::size_t columns = 0, padded = 0, granules = 0;
  std::uint32_t granule = 0;
  std::byte* values = nullptr;
  float* scales = nullptr;        // [rows, granules]
  std::int32_t* sums = nullptr;   // [rows, padded / 32]
  kernels::QuantiseRowFn quantise = nullptr;
  kernels::RoundRowFn round = nullptr;

  std::size_t element() const { return bf16 ? 2 : 1; }
  std::size_t piece_bytes() const { return kPiece * element(); }
  std::size_t kb_stride(bool tiled) const { return tiled ? kernels::kTileRows * piece_bytes() : piece_bytes(); }
  std::byte* at(std::byte* area, std::size_t position, bool tiled) const {
    if (!tiled) return area + position * padded * element();
    const std::size_t tile = position / kernels::kTileRows, row = position % kernels::kTileRows;
    return area + tile * kernels::kTileRows * padded * element() + row * piece_bytes();
  }

  // Row `row` of the area, whose values are at `position`.
  kernels::PanelRow row(std::size_t position, bool tiled, std::size_t row) const {
    return {at(values, position, tiled), bf16 ? nullptr : scales + row * granules, bf16 ? nullptr : sums + row * (padded / 32)};
  }

  // Converts one row of f32.
  void fill(const float* x, std::size_t position, bool tiled, std::size_t row) const {
    std::byte* to = at(values, position, tiled);
    if (bf16)
      round(x, columns, reinterpret_cast<std::uint16_t*>(to), kb_stride(tiled));
    else
      quantise(x, columns, granule, reinterpret_cast<std::int8_t*>(to), kb_stride(tiled), scales + row * granules,
               sums + row * (padded / 32));
  }

  // Converts the columns [first, first + count) of a row alone: whole granules or the end of the row, `first` a multiple of 64.
  // `x` points to column `first`. Not for the granule 0 with int8, which needs the whole row.
  void fill_part(const float* x, std::size_t first, std::size_t count, std::size_t position, bool tiled, std::size_t row) const {
    std::byte* to = at(values, position, tiled) + first / kPiece * kb_stride(tiled);
    if (bf16)
      round(x, count, reinterpret_cast<std::uint16_t*>(to), kb_stride(tiled));
    else
      quantise(x, count, granule, reinterpret_cast<std::int8_t*>(to), kb_stride(tiled), scales + row * granules + first / granule,
               sums + row * (padded / 32) + first / 32);
  }

  // Copies the values of a plain row to a tile position of another area of the same shape.
  void copy_to_tile(const std::byte* plain, std::byte* area, std::size_t position) const {
    std::byte* to = at(area, position, true);
    for (std::size_t piece = 0; piece < padded / kPiece; ++piece)
      std::memcpy(to + piece * kb_stride(true), plain + piece * piece_bytes(), piece_bytes());
  }
};

// The area at `at`, laid out as panel_rows_workspace says.
inline PanelOperands panel_operands(std::byte* at, const PanelRowsWorkspace& space, Format activations, std::size_t columns,
                                    std::uint32_t granule, const kernels::KernelSet& kernels) {
  PanelOperands area;
  area.bf16 = activations != Format::int8;
  area.columns = columns;
  area.padded = (columns + kPiece - 1) / kPiece * kPiece;
  area.granules = static_cast<std::size_t>(panel_granules(columns, granule));
  area.granule = granule;
  area.values = at;
  area.scales = reinterpret_cast<float*>(at + space.values);
  area.sums = reinterpret_cast<std::int32_t*>(at + space.values + space.scales);
  area.quantise = kernels.quantise_row;
  area.round = kernels.round_row;
  return area;
}

}  // namespace ktc::exec
