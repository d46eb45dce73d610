// Panel kernels for many rows, on tiles and on emulated tiles: the bits of the scalar kernels.
#include "runtime/kernels/cpu/panel_tiles.h"
#include "test/conformance/panel_fixture.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kColumns[] = {1, 31, 32, 63, 64, 65, 192, 768, 1408, 2048 + 17};
constexpr std::size_t kRows[] = {2, 16, 31, 32, 33, 192, 1536};
constexpr std::size_t kMany[] = {1, 15, 16, 17, 31, 32, 33, 100};

// The rows of panel_kernels.def, their other shape, and both on emulated tiles.
std::vector<PanelKernel> kernels() {
  std::vector<PanelKernel> found = panel_kernels(true);
#if defined(__x86_64__)
#define KTC_ADD(suffix, level)                                                                       \
  found.push_back({"panel_int8_many_" #suffix, level, Format::int8, panel_int8_many_##suffix}); \
  found.push_back({"panel_int4_many_" #suffix, level, Format::int4, panel_int4_many_##suffix}); \
  found.push_back({"panel_fp8_many_" #suffix, level, Format::fp8, panel_fp8_many_##suffix});    \
  found.push_back({"panel_bf16_many_" #suffix, level, Format::bf16, panel_bf16_many_##suffix})
  KTC_ADD(amx_2x2, IsaLevel::amx);
  KTC_ADD(emulated, IsaLevel::avx512);
  KTC_ADD(emulated_2x2, IsaLevel::avx512);
#endif
  return found;
}

class PanelMany : public ::testing::TestWithParam<PanelKernel> {
 protected:
  void SetUp() override {
    if (!isa_level_available(GetParam().level, host_cpu_features()))
      GTEST_SKIP() << "this machine cannot run " << to_string(GetParam().level);
    set_ = select_kernels(host_cpu_features());
    set_.enter_tiles();
    set_.enter_tiles();  // nests
    set_.leave_tiles();
  }
  void TearDown() override {
    if (!IsSkipped()) set_.leave_tiles();
  }
  void check(const PanelCase& c, const test::PanelMatrix& matrix, std::size_t panel, std::size_t m) {
    const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
    Guarded<std::byte> packed(matrix.layout.panel_bytes, edge);
    test::pack_panel(matrix, panel, packed.data());
    const Activations x(c, m, true, 0, random);
    PanelOut expected(m * 32), out(m * 32, edge);
    run_panel(scalar_panel(c.format), c, matrix.layout, packed.data(), nullptr, x, 0, m, expected.data());
    run_panel(GetParam().function, c, matrix.layout, packed.data(), m % 2 == 0 ? packed.data() : nullptr, x, 0, m,
              out.data());
    for (std::size_t i = 0; i < m * 32; ++i)
      ASSERT_EQ(bits_of(out[i]), bits_of(expected[i]))
          << out[i] << " for " << expected[i] << ": " << c << ", panel " << panel << " m " << m << " row " << i / 32
          << " column " << i % 32;
  }
  KernelSet set_{};
  std::mt19937 random{seed()};
  ::testing::ScopedTrace trace{__FILE__, __LINE__, seed_trace()};
};
INSTANTIATE_TEST_SUITE_P(All, PanelMany, ::testing::ValuesIn(kernels()), panel_kernel_name);

TEST_P(PanelMany, EveryShape) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (std::size_t columns : kColumns)
        for (std::size_t rows : kRows) {
          PanelCase c{GetParam().format, group, granule, rows, columns};
          c.paired = rows % 2 == 0 && random() % 2 == 0;
          const test::PanelMatrix matrix = make_matrix(c, random);
          check(c, matrix, random() % matrix.layout.panels, kMany[random() % std::size(kMany)]);
          if (HasFatalFailure()) return;
        }
}

TEST_P(PanelMany, EveryNumberOfRows) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (std::size_t columns : {64, 192, 300})
        for (std::size_t m : {1, 2, 8, 15, 16, 17, 24, 31, 32, 33, 48, 49, 64, 100}) {
          const PanelCase c{GetParam().format, group, granule, 40, columns};
          const test::PanelMatrix matrix = make_matrix(c, random);
          check(c, matrix, m % 2, m);
          if (HasFatalFailure()) return;
        }
}

TEST_P(PanelMany, ExtremeCodesDoNotSaturate) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (Codes weights : {Codes::most, Codes::least, Codes::alternating})
        for (Codes activations : {Codes::most, Codes::least, Codes::alternating}) {
          const PanelCase c{GetParam().format, group, granule, 32, 7168, false, weights, activations};
          const test::PanelMatrix matrix = make_matrix(c, random);
          check(c, matrix, 0, 33);
          if (HasFatalFailure()) return;
        }
}

// The choice between the two kernels is by the number of rows, so a row must not notice it.
TEST_P(PanelMany, AgreesWithFewToTheBit) {
  const PanelFn few = set_.panel(GetParam().format).few;
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format)) {
      const PanelCase c{GetParam().format, group, granule, 32, 2048};
      const test::PanelMatrix matrix = make_matrix(c, random);
      Guarded<std::byte> packed(matrix.layout.panel_bytes);
      test::pack_panel(matrix, 0, packed.data());
      const Activations x(c, 40, true, 0, random);
      PanelOut together(40 * 32), some(kFewRows * 32);
      run_panel(GetParam().function, c, matrix.layout, packed.data(), nullptr, x, 0, 40, together.data());
      for (std::size_t first = 0; first < 40; first += kFewRows) {
        run_panel(few, c, matrix.layout, packed.data(), nullptr, x, first, kFewRows, some.data());
        for (std::size_t i = 0; i < kFewRows * 32; ++i)
          ASSERT_EQ(bits_of(some[i]), bits_of(together[first * 32 + i])) << c << " row " << first + i / 32;
      }
    }
}

TEST(TileShape, CanBeChosen) {
  KernelSet set = select_kernels(host_cpu_features());
  const bool tiles = isa_level_available(IsaLevel::amx, host_cpu_features());
  const TileShape shape = probe_tile_shape();
  if (!tiles) EXPECT_EQ(shape, TileShape::two_by_one);
  set_tile_shape(set, TileShape::two_by_two);
  EXPECT_EQ(set.panel_int8.many != nullptr, tiles);
#if defined(__x86_64__)
  if (tiles) {
    EXPECT_EQ(set.panel_int4.many, panel_int4_many_amx_2x2);
    set_tile_shape(set, TileShape::two_by_one);
    EXPECT_EQ(set.panel_int4.many, select_kernels(host_cpu_features()).panel_int4.many);
  }
  emulate_tiles(set, TileShape::two_by_two);
  EXPECT_EQ(set.panel_fp8.many, panel_fp8_many_emulated_2x2);
  emulate_tiles(set, TileShape::two_by_one);
  EXPECT_EQ(set.panel_bf16.many, panel_bf16_many_emulated);
  set.enter_tiles();
  set.leave_tiles();
#endif
}

TEST(PanelScratch, HoldsTheUnpackedPanel) {
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::int8, 0, false, 32, 2048).value()), 0u);
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::bf16, 0, false, 32, 2048).value()), 0u);
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::int4, 64, false, 32, 2048).value()), 64u << 10);
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::fp8, 128, false, 32, 2048).value()), 128u << 10);
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::int4, 0, true, 32, 65).value()), 4096u);
}

}  // namespace
}  // namespace ktc::kernels
