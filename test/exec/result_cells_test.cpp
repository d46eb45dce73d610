// Cells as the CPU writes them, panel by panel.
#include "runtime/exec/result_cells.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/formats/formats.h"
#include "runtime/formats/handoff_cells.h"

namespace ktc::exec {
namespace {

TEST(ResultCells, HoldEveryValueOnceAndTheEpoch) {
  for (const Format format : {Format::f32, Format::bf16})
    for (const std::size_t columns : {1u, 31u, 32u, 70u, 192u}) {
      constexpr std::size_t kRows = 2;
      std::vector<std::byte> memory(result_bytes(kRows, columns, format) + 16, std::byte{0x55});
      auto* const cells = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 15) / 16 * 16);
      std::vector<float> values(kRows * columns + kCellPanelColumns);  // a panel is read to its end at most where there are columns
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 100;
      values[0] = NAN;
      const ResultCells result = {cells, format, 77, columns};
      const std::size_t panels = cell_panels(columns), per_panel = cells_per_panel(format), each = cell_values(format);
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t p = panels; p-- > 0;) result.write(r, p, values.data() + r * columns + p * kCellPanelColumns);
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t c = 0; c < columns; ++c) {
          const std::size_t in_panel = c % kCellPanelColumns;
          const std::byte* cell = cells + ((r * panels + c / kCellPanelColumns) * per_panel + in_panel / each) * kCellBytes;
          std::byte data[12];
          ASSERT_FALSE(read_cell(cell, 76, data));
          ASSERT_TRUE(read_cell(cell, 77, data)) << "row " << r << ", column " << c;
          float got;
          if (format == Format::bf16) {
            std::uint16_t bits;
            std::memcpy(&bits, data + in_panel % each * 2, 2);
            got = bf16_to_f32(bits);
          } else {
            std::memcpy(&got, data + in_panel % each * 4, 4);
          }
          const float value = values[r * columns + c];
          if (std::isnan(value))
            ASSERT_TRUE(std::isnan(got));
          else
            ASSERT_EQ(got, format == Format::bf16 ? bf16_to_f32(f32_to_bf16(value)) : value) << "row " << r << ", column " << c;
        }
    }
}

}  // namespace
}  // namespace ktc::exec
