// The cells of one hand-off's result (runtime/formats/handoff.h) as the CPU writes them: by whoever ends a panel of 32 columns, so
// that the first cells are there while the last columns are still summed, or in a pass of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/formats/handoff.h"

namespace ktc::exec {

struct ResultCells {
  std::byte* cells = nullptr;        // of row 0
  Format format = Format::f32;       // f32 or bf16
  std::uint32_t epoch = 0;
  std::size_t columns = 0;           // of a row
  bool written = false;              // an op has written all cells of all rows: nothing is left to do

  // Panel `panel` of row `row`: values[0, min(32, columns left)), rounded to the format. Any thread, each panel once.
  void write(std::size_t row, std::size_t panel, const float* values) const;
};

}  // namespace ktc::exec
