// unpack: every code and scale of a panel arrives, to the bit.
#include "test/kernels_cuda/gpu_fixture.h"
#include "test/support/panel_pack.h"

namespace ktc::gpu {
namespace {

class Unpack : public SetTest {};
INSTANTIATE_TEST_SUITE_P(Sets, Unpack, both_sets(), set_name);

struct UnpackCase {
  Format format;
  std::uint32_t group;
  bool paired;
  std::uint32_t rows, columns;
};

TEST_P(Unpack, KeepsEveryValue) {
  const UnpackCase cases[] = {{Format::int8, 0, false, 40, 100},  {Format::int8, 0, true, 64, 256},  {Format::int4, 0, false, 33, 64},
                              {Format::int4, 32, true, 96, 320},  {Format::int4, 64, false, 50, 192}, {Format::int4, 128, true, 80, 384},
                              {Format::fp8, 0, true, 34, 130},    {Format::fp8, 128, false, 20, 300}, {Format::bf16, 0, true, 48, 70},
                              {Format::bf16, 0, false, 32, 128}};
  for (const UnpackCase& c : cases) {
    SCOPED_TRACE(std::string(to_string(c.format)) + "/" + std::to_string(c.group) + (c.paired ? " paired" : "") + " " + std::to_string(c.rows) +
                 " x " + std::to_string(c.columns));
    constexpr std::uint32_t kBatch = 4, kFirst = 1, kCount = 2;
    const auto layout = panel_layout(c.format, c.group, c.paired, c.rows, c.columns);
    ASSERT_TRUE(layout.has_value());
    std::vector<std::byte> panels(kBatch * layout->matrix_bytes);
    std::vector<test::PanelMatrix> matrices;
    for (std::size_t b = 0; b < kBatch; ++b) {
      test::PanelMatrix m;
      m.layout = *layout;
      for (std::size_t i = 0; i < std::size_t{c.rows} * c.columns; ++i) {
        std::int32_t code = static_cast<std::int32_t>(below(256));
        if (c.format == Format::int8) code = code % 255 - 127;
        if (c.format == Format::int4) code = code % 15 - 7;
        if (c.format == Format::fp8 && (code & 0x7f) == 0x7f) code ^= 1;
        if (c.format == Format::bf16) code = f32_to_bf16(floats(1)[0]);
        m.codes.push_back(code);
      }
      m.scales = floats(c.rows * m.scale_groups());
      if (layout->scale_bytes == 2)
        for (float& s : m.scales) s = bf16_to_f32(f32_to_bf16(s));
      for (std::size_t p = 0; p < layout->panels; ++p)
        test::pack_panel(m, p, panels.data() + b * layout->matrix_bytes + p * layout->panel_bytes);
      matrices.push_back(std::move(m));
    }
    Weight from;
    from.data = bytes(panels.data(), panels.size());
    from.format = c.format;
    from.packing = c.paired ? Packing::panel_paired : Packing::panel;
    from.group = c.group;
    from.batch = kBatch;
    from.rows = c.rows;
    from.columns = c.columns;
    from.matrix_bytes = layout->matrix_bytes;

    Weight plain = from;
    plain.format = Format::bf16;
    plain.group = 0;
    plain.packing = Packing::row_major;
    plain.batch = kCount;
    plain.row_bytes = packed_row_bytes(Format::bf16, Packing::row_major, c.columns);
    plain.matrix_bytes = plain.row_bytes * c.rows;
    plain.data = bytes(nullptr, kCount * plain.matrix_bytes);
    run(kernels().unpack, UnpackArgs{from, plain, kFirst, kCount});
    const auto values = get(plain.data, kCount * plain.matrix_bytes);
    for (std::size_t b = 0; b < kCount; ++b)
      for (std::size_t r = 0; r < c.rows; ++r)
        for (std::size_t k = 0; k < c.columns; ++k) {
          std::uint16_t bits;
          std::memcpy(&bits, values.data() + b * plain.matrix_bytes + r * plain.row_bytes + 2 * k, 2);
          ASSERT_EQ(bits, f32_to_bf16(static_cast<float>(matrices[kFirst + b].value(r, k)))) << r << ", " << k;
        }

    if (c.format == Format::bf16) continue;
    const auto rows = gpu_rows_layout(c.format, c.group, c.rows, c.columns);
    ASSERT_TRUE(rows.has_value());
    Weight to = plain;
    to.format = c.format;
    to.group = c.group;
    to.packing = Packing::gpu_rows;
    to.row_bytes = rows->row_bytes;
    to.matrix_bytes = rows->matrix_bytes;
    to.data = bytes(nullptr, kCount * to.matrix_bytes);
    run(kernels().unpack, UnpackArgs{from, to, kFirst, kCount});
    const auto packed = get(to.data, kCount * to.matrix_bytes);
    for (std::size_t b = 0; b < kCount; ++b) {
      const test::PanelMatrix& m = matrices[kFirst + b];
      const std::byte* matrix = packed.data() + b * to.matrix_bytes;
      for (std::size_t r = 0; r < c.rows; ++r) {
        for (std::size_t k = 0; k < c.columns; ++k) {
          const auto byte = static_cast<std::uint8_t>(matrix[r * to.row_bytes + (c.format == Format::int4 ? k / 2 : k)]);
          const std::int32_t code = c.format == Format::int8   ? static_cast<std::int8_t>(byte)
                                    : c.format == Format::int4 ? (k % 2 == 0 ? byte & 15 : byte >> 4) - 8
                                                               : byte;
          ASSERT_EQ(code, m.codes[r * c.columns + k]) << r << ", " << k;
        }
        if (c.format == Format::int4 && c.columns % 2 == 0 && to.row_bytes > c.columns / 2) {
          EXPECT_EQ(matrix[r * to.row_bytes + c.columns / 2], std::byte{0x88});  // padding is zero
        }
        for (std::size_t g = 0; g < rows->groups; ++g) {
          const std::byte* at = matrix + rows->scales_offset + (r * rows->groups + g) * rows->scale_bytes;
          float scale;
          if (rows->scale_bytes == 2) {
            std::uint16_t bits;
            std::memcpy(&bits, at, 2);
            scale = bf16_to_f32(bits);
          } else {
            std::memcpy(&scale, at, 4);
          }
          ASSERT_EQ(scale, m.scales[r * m.scale_groups() + g]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ktc::gpu
