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

// An area of rows. Its first rows may be tiles (kernels::PanelTiles), 16 rows each; the others are plain, their pieces one
// behind the other. A row's place in the area is its position.
struct PanelOperands {
  bool bf16 = false;
  std::size_t columns = 0, padded = 0, granules = 0;
  std::uint32_t granule = 0;
  std::byte* values = nullptr;
  float* scales = nullptr;        // of plain rows [rows, granules]
  std::int32_t* sums = nullptr;   // of plain rows [rows, padded / 32]
  kernels::QuantiseRowFn quantise = nullptr;
  kernels::RoundRowFn round = nullptr;
  kernels::QuantiseTileFn quantise_tile = nullptr;
  kernels::RoundTileFn round_tile = nullptr;

  std::size_t element() const { return bf16 ? 2 : 1; }
  std::size_t piece_bytes() const { return kPiece * element(); }
  std::byte* at(std::size_t position) const { return values + position * padded * element(); }

  // The plain row at a position.
  kernels::PanelRow row(std::size_t position) const {
    return {at(position), bf16 ? nullptr : scales + position * granules, bf16 ? nullptr : sums + position * (padded / 32)};
  }
  // Converts one row of f32 to the plain row at a position.
  void fill(const float* x, std::size_t position) const {
    if (bf16)
      round(x, columns, reinterpret_cast<std::uint16_t*>(at(position)), piece_bytes());
    else
      quantise(x, columns, granule, reinterpret_cast<std::int8_t*>(at(position)), piece_bytes(), scales + position * granules,
               sums + position * (padded / 32));
  }
  // Converts the columns [first, first + count) of a row alone: whole granules or the end of the row, `first` a multiple of 64.
  // `x` points to column `first`. Not for the granule 0 with int8, which needs the whole row.
  void fill_part(const float* x, std::size_t first, std::size_t count, std::size_t position) const {
    std::byte* to = at(position) + first / kPiece * piece_bytes();
    if (bf16)
      round(x, count, reinterpret_cast<std::uint16_t*>(to), piece_bytes());
    else
      quantise(x, count, granule, reinterpret_cast<std::int8_t*>(to), piece_bytes(), scales + position * granules + first / granule,
               sums + position * (padded / 32) + first / 32);
  }

  std::size_t tile_bytes() const { return kernels::kTileRows * padded * element(); }
  // The tiles from tile t on.
  kernels::PanelTiles tiles(std::size_t t) const {
    if (bf16) return {values + t * tile_bytes(), nullptr, nullptr};
    return {values + t * tile_bytes(), scales + t * granules * kernels::kTileRows, sums + t * kernels::kTileRows};
  }
  // Makes tile t of n <= 16 plain rows of another area of the same shape: rows position(0), position(1), ...
  template <typename Position>
  void gather_tile(const PanelOperands& from, std::size_t t, std::size_t n, const Position& position) const {
    constexpr std::size_t kRows = kernels::kTileRows;
    const std::byte* source[kRows];
    for (std::size_t i = 0; i < n; ++i) source[i] = from.at(position(i));
    std::byte* to = values + t * tile_bytes();
    for (std::size_t piece = 0; piece < padded / kPiece; ++piece, to += kRows * piece_bytes())
      for (std::size_t i = 0; i < n; ++i) {
        if (bf16)
          std::memcpy(to + i * 2 * kPiece, source[i] + piece * 2 * kPiece, 2 * kPiece);
        else
          std::memcpy(to + i * kPiece, source[i] + piece * kPiece, kPiece);
      }
    if (bf16) return;
    float* tile_scales = scales + t * granules * kRows;
    std::int32_t* tile_sums = sums + t * kRows;
    for (std::size_t i = 0; i < kRows; ++i) {
      std::int32_t total = 0;
      for (std::size_t k = 0; i < n && k < padded / 32; ++k) total += from.sums[position(i) * (padded / 32) + k];
      tile_sums[i] = total;
      for (std::size_t g = 0; g < granules; ++g) tile_scales[g * kRows + i] = i < n ? from.scales[position(i) * granules + g] : 0.0f;
    }
  }
  // Makes tile t of n <= 16 rows that a tile kernel left `gated` at x.
  void convert_tile(const float* x, std::size_t t, std::size_t n) const {
    std::byte* to = values + t * tile_bytes();
    if (bf16)
      round_tile(x, n, columns, reinterpret_cast<std::uint16_t*>(to));
    else
      quantise_tile(x, n, columns, granule, reinterpret_cast<std::int8_t*>(to), scales + t * granules * kernels::kTileRows,
                    sums + t * kernels::kTileRows);
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
  area.quantise_tile = kernels.quantise_tile;
  area.round_tile = kernels.round_tile;
  return area;
}

}  // namespace ktc::exec
