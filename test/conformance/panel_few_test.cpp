// Panel kernels for few rows: the scalar ones against double precision, every other against the scalar ones, to the bit.
#include "test/conformance/panel_fixture.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kColumns[] = {1, 31, 32, 63, 64, 65, 192, 768, 1408, 2048 + 17};
constexpr std::size_t kRows[] = {2, 16, 31, 32, 33, 192, 1536};

class PanelFew : public ::testing::TestWithParam<PanelKernel> {
 protected:
  void SetUp() override {
    if (!isa_level_available(GetParam().level, host_cpu_features()))
      GTEST_SKIP() << "this machine cannot run " << to_string(GetParam().level);
  }
  // Runs m rows on one panel and compares.
  void check(const PanelCase& c, const test::PanelMatrix& matrix, std::size_t panel, std::size_t m, std::size_t gap) {
    const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
    Guarded<std::byte> packed(matrix.layout.panel_bytes, edge);
    test::pack_panel(matrix, panel, packed.data());
    const Activations x(c, m, gap, random);
    PanelOut expected(m * 32), out(m * 32, edge);
    run_panel(scalar_panel(c.format), c, matrix.layout, packed.data(), nullptr, x, 0, m, expected.data());
    if (GetParam().level == IsaLevel::scalar) return expect_close(c, matrix, panel, x, 0, m, expected.data());
    run_panel(GetParam().function, c, matrix.layout, packed.data(), m % 2 == 0 ? packed.data() : nullptr, x, 0, m,
              out.data());
    for (std::size_t i = 0; i < m * 32; ++i)
      ASSERT_EQ(bits_of(out[i]), bits_of(expected[i]))
          << out[i] << " for " << expected[i] << ": " << c << ", panel " << panel << " m " << m << " row " << i / 32
          << " column " << i % 32;
  }
  std::mt19937 random{seed()};
  ::testing::ScopedTrace trace{__FILE__, __LINE__, seed_trace()};
};
INSTANTIATE_TEST_SUITE_P(All, PanelFew, ::testing::ValuesIn(panel_kernels()), panel_kernel_name<PanelFn>);

TEST_P(PanelFew, EveryShape) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (std::size_t columns : kColumns)
        for (std::size_t rows : kRows) {
          PanelCase c{GetParam().format, group, granule, rows, columns};
          c.paired = rows % 2 == 0 && random() % 2 == 0;
          const test::PanelMatrix matrix = make_matrix(c, random);
          const std::size_t last = matrix.layout.panels - 1;
          check(c, matrix, last, 1 + random() % kFewRows, 0);
          if (last != 0) check(c, matrix, random() % last, 1 + random() % 3, 64);
          if (HasFatalFailure()) return;
        }
}

TEST_P(PanelFew, EveryNumberOfRows) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (std::size_t columns : {65, 192, 640})
        for (std::size_t m = 1; m <= kFewRows; ++m) {
          const PanelCase c{GetParam().format, group, granule, 40, columns};
          const test::PanelMatrix matrix = make_matrix(c, random);
          for (std::size_t panel : {0, 1}) check(c, matrix, panel, m, m % 3 * 64);
          if (HasFatalFailure()) return;
        }
}

TEST_P(PanelFew, ExtremeCodesDoNotSaturate) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (Codes weights : {Codes::most, Codes::least, Codes::alternating})
        for (Codes activations : {Codes::most, Codes::least, Codes::alternating})
          for (std::size_t columns : {64, 7168})
            for (std::size_t m : {1, 4, 5, 8}) {
              const PanelCase c{GetParam().format, group, granule, 32, columns, false, weights, activations};
              const test::PanelMatrix matrix = make_matrix(c, random);
              check(c, matrix, 0, m, 0);
              if (HasFatalFailure()) return;
            }
}

TEST_P(PanelFew, ARowDependsOnItselfAlone) {
  for (std::uint32_t group : groups_of(GetParam().format)) {
    const PanelCase c{GetParam().format, group, granules_of(GetParam().format).back(), 32, 1408};
    const test::PanelMatrix matrix = make_matrix(c, random);
    Guarded<std::byte> packed(matrix.layout.panel_bytes);
    test::pack_panel(matrix, 0, packed.data());
    const Activations x(c, kFewRows, 0, random);
    PanelOut together(kFewRows * 32), alone(32);
    run_panel(GetParam().function, c, matrix.layout, packed.data(), nullptr, x, 0, kFewRows, together.data());
    for (std::size_t r = 0; r < kFewRows; ++r) {
      run_panel(GetParam().function, c, matrix.layout, packed.data(), nullptr, x, r, 1, alone.data());
      for (std::size_t i = 0; i < 32; ++i) ASSERT_EQ(bits_of(alone[i]), bits_of(together[r * 32 + i])) << "row " << r;
    }
  }
}

std::vector<PanelKernel> of_format(Format format) {
  std::vector<PanelKernel> found;
  for (const PanelKernel& kernel : panel_kernels())
    if (kernel.format == format) found.push_back(kernel);
  return found;
}

class PanelFp8 : public PanelFew {};
INSTANTIATE_TEST_SUITE_P(All, PanelFp8, ::testing::ValuesIn(of_format(Format::fp8)), panel_kernel_name<PanelFn>);

TEST_P(PanelFp8, EveryCodeIsExact) {
  const PanelCase c{Format::fp8, 0, 0, 32, 256};
  test::PanelMatrix matrix = make_matrix(c, random);
  for (float& s : matrix.scales) s = 1;
  Guarded<std::byte> packed(matrix.layout.panel_bytes);
  Guarded<std::uint16_t> x(256);
  const PanelRow row{reinterpret_cast<const std::byte*>(x.data()), nullptr, nullptr};
  PanelOut out(32);
  PanelArgs args{};
  args.panel = packed.data();
  args.layout = &matrix.layout;
  args.rows = &row;
  args.m = 1;
  args.kb_stride = 128;
  args.out = out.data();
  for (std::size_t k = 0; k < 256; ++k) {  // a row that is one at k alone reads the weights of k; the others are no NaN
    for (std::size_t i = 0; i < 256; ++i) x[i] = i == k ? 0x3f80 : 0;
    for (std::size_t lane = 0; lane < 32; ++lane)
      for (std::size_t i = 0; i < 256; ++i)
        matrix.codes[lane * 256 + i] = static_cast<std::int32_t>(i == k ? (lane * 8 + k) % 256 : lane * 4 + i % 2);
    test::pack_panel(matrix, 0, packed.data());
    GetParam().function(args);
    for (std::size_t lane = 0; lane < 32; ++lane) {
      const std::int32_t code = matrix.codes[lane * 256 + k];
      const double expected = test::e4m3_value(static_cast<std::uint8_t>(code));
      if (expected != expected) {
        ASSERT_NE(out[lane], out[lane]) << "code " << code;
      } else {
        ASSERT_EQ(out[lane], expected) << "code " << code;
      }
    }
  }
}

class PanelBf16 : public PanelFew {};
INSTANTIATE_TEST_SUITE_P(All, PanelBf16, ::testing::ValuesIn(of_format(Format::bf16)), panel_kernel_name<PanelFn>);

TEST_P(PanelBf16, SubnormalsAreNotFlushed) {
  const PanelCase c{Format::bf16, 0, 0, 32, 64};
  test::PanelMatrix matrix = make_matrix(c, random);
  for (std::int32_t& code : matrix.codes) code = 1;  // 2^-133
  Guarded<std::byte> packed(matrix.layout.panel_bytes);
  test::pack_panel(matrix, 0, packed.data());
  Guarded<std::uint16_t> x(64);
  x[3] = 0x3f80;
  const PanelRow row{reinterpret_cast<const std::byte*>(x.data()), nullptr, nullptr};
  PanelOut out(32);
  PanelArgs args{};
  args.panel = packed.data();
  args.layout = &matrix.layout;
  args.rows = &row;
  args.m = 1;
  args.kb_stride = 128;
  args.out = out.data();
  GetParam().function(args);
  for (float v : out) ASSERT_EQ(v, 0x1p-133f);
}

}  // namespace
}  // namespace ktc::kernels
