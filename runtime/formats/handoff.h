// Sizes and places of the hand-off between a GPU and the CPU: one record up and one result down per MoE layer of a decode entry.
// Bytes in mapped pinned host memory; every area of one layer and entry is its own and never reused within a step.
// The protocol is described in docs/handoff.md; the numbers behind it are in docs/performance.md.
#pragma once

#include <cstdint>

#include "runtime/formats/formats.h"
#include "runtime/formats/workspace.h"

namespace ktc {

constexpr std::uint64_t kRecordHeaderBytes = 64;
constexpr std::uint64_t kCellBytes = 16;
constexpr std::uint64_t kCellPanelColumns = 32;

constexpr std::uint64_t element_bytes_of(Format format) { return format == Format::bf16 ? 2 : 4; }

// header | ids i32 [tokens, top_k] | weights f32 [tokens, top_k] | x [tokens, columns]; each area aligned to 64 bytes.
struct RecordLayout {
  std::uint64_t ids, weights, x;  // offsets
  std::uint64_t bytes;            // of the whole record
};
constexpr RecordLayout record_layout(std::uint64_t tokens, std::uint64_t top_k, std::uint64_t columns, Format format) {
  const std::uint64_t ids = kRecordHeaderBytes, weights = ids + align64(tokens * top_k * 4), x = weights + align64(tokens * top_k * 4);
  return {ids, weights, x, x + align64(tokens * columns * element_bytes_of(format))};
}

// A panel of 32 columns of one row: 6 cells of 6 bf16, or 11 cells of 3 f32, each with a u32 epoch behind 12 bytes of data.
// What is behind the last column is not read.
constexpr std::uint64_t cells_per_panel(Format format) { return format == Format::bf16 ? 6 : 11; }
constexpr std::uint64_t cell_values(Format format) { return format == Format::bf16 ? 6 : 3; }
constexpr std::uint64_t cell_panels(std::uint64_t columns) { return (columns + kCellPanelColumns - 1) / kCellPanelColumns; }
constexpr std::uint64_t result_bytes(std::uint64_t tokens, std::uint64_t columns, Format format) {
  return align64(tokens * cell_panels(columns) * cells_per_panel(format) * kCellBytes);
}

}  // namespace ktc
