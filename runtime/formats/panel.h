// The packing `panel`: one layout that AMX tiles, AVX-512 VNNI, AVX2 and scalar kernels all read. Sizes and places only.
//
// A weight matrix has `rows` output features and `columns` input features (K). K is padded to a multiple of 64, the features
// to a multiple of 32. A panel holds 32 features as two blocks of 16 side by side per 64 K, all K contiguous:
//
//   panel = head | kb 0: block 0, block 1 | kb 1: block 0, block 1 | ...
//
// plain   panel p: block b = features [32 p + 16 b, 32 p + 16 b + 16)
// paired  the matrix is [gate; up] of 2 I rows: panel p: block 0 = gate features [16 p, 16 p + 16), block 1 = the same of up,
//         so that gate, up and their product need nothing from elsewhere
//
// block, by format (feature c in 0..15, k in 0..63):
//   int8  1024 B: byte [k / 4][c][k % 4], unsigned, w + 128
//   fp8   1024 B: byte [k / 4][c][k % 4], the E4M3 code
//   int4   512 B: byte [(k % 32) / 4][c][k % 4], low nibble for k < 32, high nibble for k >= 32, unsigned, q + 8, q in -7..7
//   bf16  2048 B: [k / 32][(k % 32) / 2][c][k % 2]
// head, by scales:
//   row scales (int8, int4, fp8 with group 0)   f32 [2][16]
//   int4 groups                                 bf16 [groups][2][16]
//   fp8 groups (128)                            f32 [groups][2][16]
//   bf16                                        none
// Padding decodes to zero; its scales are zero. Every panel starts and ends on 64 bytes.
// Source of the design: measurements of prototypes, docs/kernels.md.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/formats/formats.h"

namespace ktc {

constexpr std::uint64_t kPanelFeatures = 32;
constexpr std::uint64_t kBlockFeatures = 16;
constexpr std::uint64_t kBlockColumns = 64;

struct PanelLayout {
  Format format = Format::bf16;
  std::uint32_t group = 0;          // K per scale; 0: one scale per feature (or none, bf16)
  bool paired = false;
  std::uint64_t rows = 0, columns = 0;

  std::uint64_t k_blocks = 0;       // ceil(columns / 64)
  std::uint64_t panels = 0;
  std::uint64_t groups = 0;         // scale groups along K; 0 with row scales
  std::uint64_t scale_bytes = 4;    // of one scale: 4 (f32) or 2 (bf16)
  std::uint64_t head_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint64_t panel_bytes = 0;
  std::uint64_t matrix_bytes = 0;   // panels * panel_bytes

  std::uint64_t scale_offset(std::uint64_t g, std::uint64_t block) const {       // of 16 scales, in the panel; g 0 with row scales
    return (g * 2 + block) * kBlockFeatures * scale_bytes;
  }
  std::uint64_t block_offset(std::uint64_t kb, std::uint64_t block) const {      // in the panel
    return head_bytes + (kb * 2 + block) * block_bytes;
  }
  // Where feature `row` lies.
  struct Place { std::uint64_t panel, block, lane; };
  Place place_of(std::uint64_t row) const;
};

// nullopt: a format without panels, a group that it does not have, no rows or columns, an odd number of rows for `paired`,
// or 64-bit overflow.
std::optional<PanelLayout> panel_layout(Format format, std::uint32_t group, bool paired, std::uint64_t rows,
                                        std::uint64_t columns);

}  // namespace ktc
