// Panel kernels for many rows, on tiles and on emulated tiles: the bits of the scalar kernels, and of swiglu and accumulate.
#include <numeric>

#include "runtime/kernels/cpu/panel_tiles.h"
#include "test/conformance/panel_fixture.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kColumns[] = {1, 31, 32, 63, 64, 65, 192, 768, 1408, 2048 + 17};
constexpr std::size_t kRows[] = {2, 16, 31, 32, 33, 192, 1536};
constexpr std::size_t kMany[] = {1, 15, 16, 17, 31, 32, 33, 100};
constexpr TileResult kResults[] = {TileResult::rows, TileResult::gated, TileResult::sums};

struct Cut {
  std::size_t outer = 0, inner = 0;
};
constexpr Cut kCuts[] = {{0, 0}, {0, 2}, {0, 8}, {4, 4}, {4, 2}, {24, 12}};

std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  return out << "K cut to " << cut.outer << " and " << cut.inner;
}

class PanelMany : public ::testing::TestWithParam<TileKernel> {
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

  // `count` panels from `panel` on, m rows, against the scalar kernels.
  void check(const PanelCase& c, const test::PanelMatrix& matrix, std::size_t panel, std::size_t count, std::size_t m, Cut cut,
             TileResult result) {
    const PanelLayout& layout = matrix.layout;
    const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
    Guarded<std::byte> packed(count * layout.panel_bytes, edge);
    for (std::size_t p = 0; p < count; ++p) test::pack_panel(matrix, panel + p, packed.data() + p * layout.panel_bytes);
    const Activations x(c, m, 0, random);
    const Tiles tiles(x);
    PanelOut f(count * m * 32);
    for (std::size_t p = 0; p < count; ++p)
      for (std::size_t r = 0; r < m; r += kFewRows)
        run_panel(scalar_panel(c.format), c, layout, packed.data() + p * layout.panel_bytes, nullptr, x, r,
                  std::min(kFewRows, m - r), f.data() + (p * m + r) * 32);

    Guarded<std::byte> scratch(panel_scratch_bytes(layout));
    for (std::byte& b : scratch) b = static_cast<std::byte>(0x5b);
    TileArgs args{};
    args.panels = packed.data();
    args.count = count;
    args.layout = &layout;
    args.x = tiles.view();
    args.m = m;
    args.x_granule = c.granule;
    args.k_outer = cut.outer;
    args.k_inner = cut.inner;
    args.next_panel = m % 2 == 0 ? packed.data() : nullptr;
    args.next_values = m % 3 == 0 ? tiles.view().values : nullptr;
    args.next_value_bytes = tiles.value_bytes();
    args.result = result;
    args.scratch = scratch.data();
    const std::string title = ::testing::PrintToString(c) + ", panel " + std::to_string(panel) + ", " + std::to_string(count) +
                              " panels, m " + std::to_string(m) + ", " + ::testing::PrintToString(cut) + ", result " +
                              std::to_string(static_cast<int>(result));
    SCOPED_TRACE(title);
    if (result == TileResult::rows) check_rows(args, f, edge);
    if (result == TileResult::gated) check_gated(args, f, edge);
    if (result == TileResult::sums) check_sums(args, f, edge);
  }

  void check_rows(TileArgs args, const PanelOut& f, Edge edge) {
    const std::size_t most = args.count * 32;
    args.columns = most - random() % 32;
    args.out_stride = args.columns + random() % 3;
    Guarded<float> out((args.m - 1) * args.out_stride + args.columns, edge), bias(args.columns, edge);
    for (float& v : out) v = 77.0f;
    for (float& v : bias) v = static_cast<float>(random() % 100) / 7.0f;
    args.bias = random() % 2 == 0 ? bias.data() : nullptr;
    args.out = out.data();
    GetParam().function(args);
    for (std::size_t r = 0; r < args.m; ++r)
      for (std::size_t c = 0; c < args.out_stride && r * args.out_stride + c < out.size(); ++c) {
        float expected = 77.0f;
        if (c < args.columns) {
          expected = f[(c / 32 * args.m + r) * 32 + c % 32];
          if (args.bias != nullptr) expected += args.bias[c];
        }
        ASSERT_EQ(bits_of(out[r * args.out_stride + c]), bits_of(expected)) << "row " << r << " column " << c;
      }
  }

  void check_gated(TileArgs args, const PanelOut& f, Edge edge) {
    const std::size_t tiles = (args.m + 15) / 16;
    args.out_stride = args.count * 256 + 16 * (random() % 2);
    Guarded<float> out((tiles - 1) * args.out_stride + args.count * 256, edge);
    for (float& v : out) v = 77.0f;
    args.out = out.data();
    GetParam().function(args);
    const SwigluFn swiglu = select_kernels(CpuFeatures{}).swiglu;
    for (std::size_t p = 0; p < args.count; ++p)
      for (std::size_t r = 0; r < tiles * 16; ++r) {
        float expected[16];
        std::fill_n(expected, 16, 77.0f);
        if (r < args.m) swiglu(f.data() + (p * args.m + r) * 32, expected);
        for (std::size_t c = 0; c < 16; ++c)
          ASSERT_EQ(bits_of(out[r / 16 * args.out_stride + (p * 16 + r % 16) * 16 + c]), bits_of(expected[c]))
              << "row " << r << " panel " << p << " column " << c;
      }
  }

  void check_sums(TileArgs args, const PanelOut& f, Edge edge) {
    const std::size_t places = args.m + 3;
    args.out_stride = places * 32;
    Guarded<float> out(args.count * args.out_stride, edge);
    std::vector<std::uint32_t> row(args.m);
    std::vector<float> scale(args.m), expected(out.size());
    for (std::size_t r = 0; r < args.m; ++r) {
      row[r] = static_cast<std::uint32_t>((r * 7 + 2) % places);
      scale[r] = static_cast<float>(random() % 1000) / 500.0f - 1.0f;
    }
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = expected[i] = static_cast<float>(random() % 1000) / 50.0f;
    if (places % 7 == 0) std::iota(row.begin(), row.end(), 1u);
    args.out = out.data();
    args.out_row = row.data();
    args.out_scale = scale.data();
    GetParam().function(args);
    const AccumulateFn accumulate = select_kernels(CpuFeatures{}).accumulate;
    for (std::size_t p = 0; p < args.count; ++p)
      for (std::size_t r = 0; r < args.m; ++r)
        accumulate(f.data() + (p * args.m + r) * 32, scale[r], 32, false, expected.data() + p * args.out_stride + row[r] * 32);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(bits_of(out[i]), bits_of(expected[i])) << "element " << i;
  }

  TileResult any_result() { return kResults[random() % std::size(kResults)]; }
  Cut any_cut() { return kCuts[random() % std::size(kCuts)]; }

  KernelSet set_{};
  std::mt19937 random{seed()};
  ::testing::ScopedTrace trace{__FILE__, __LINE__, seed_trace()};
};
INSTANTIATE_TEST_SUITE_P(All, PanelMany, ::testing::ValuesIn(tile_kernels()), panel_kernel_name<TileFn>);

TEST_P(PanelMany, EveryShape) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (std::size_t columns : kColumns)
        for (std::size_t rows : kRows) {
          PanelCase c{GetParam().format, group, granule, rows, columns};
          c.paired = rows % 2 == 0 && random() % 2 == 0;
          const test::PanelMatrix matrix = make_matrix(c, random);
          const std::size_t panel = random() % matrix.layout.panels;
          const std::size_t count = 1 + random() % std::min<std::size_t>(3, matrix.layout.panels - panel);
          check(c, matrix, panel, count, kMany[random() % std::size(kMany)], any_cut(), any_result());
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
          check(c, matrix, m % 2, 1, m, any_cut(), any_result());
          if (HasFatalFailure()) return;
        }
}

// Sums wait in memory between pieces of K; the last rows of one panel wait during the next.
TEST_P(PanelMany, EveryCutAndResult) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (const Cut cut : kCuts)
        for (const TileResult result : kResults)
          for (std::size_t m : {16, 33, 48}) {
            const PanelCase c{GetParam().format, group, granule, 96, 64 * (4 + random() % 9) - 5};
            const test::PanelMatrix matrix = make_matrix(c, random);
            check(c, matrix, 0, 3, m, cut, result);
            if (HasFatalFailure()) return;
          }
}

TEST_P(PanelMany, MostPanelsAndRows) {
  const PanelCase c{GetParam().format, GetParam().format == Format::int4 ? 64u : 0u, 0, 32 * kMostTilePanels, 200};
  const test::PanelMatrix matrix = make_matrix(c, random);
  check(c, matrix, 0, kMostTilePanels, kMostTileRows, {2, 2}, TileResult::sums);
}

TEST_P(PanelMany, ExtremeCodesDoNotSaturate) {
  for (std::uint32_t group : groups_of(GetParam().format))
    for (std::uint32_t granule : granules_of(GetParam().format))
      for (Codes weights : {Codes::most, Codes::least, Codes::alternating})
        for (Codes activations : {Codes::most, Codes::least, Codes::alternating}) {
          const PanelCase c{GetParam().format, group, granule, 32, 7168, false, weights, activations};
          const test::PanelMatrix matrix = make_matrix(c, random);
          check(c, matrix, 0, 1, 17, {56, 8}, TileResult::rows);
          if (HasFatalFailure()) return;
        }
}

TEST(TileShape, CanBeChosen) {
  KernelSet set = select_kernels(host_cpu_features());
  const bool tiles = isa_level_available(IsaLevel::amx, host_cpu_features());
  const TileShapes shapes = probe_tile_shapes(2);
  if (!tiles) EXPECT_EQ(to_string(shapes), "2x1");
  EXPECT_EQ(to_string(TileShapes{TileShape::two_by_two, TileShape::one_by_two}), "2x2 (floats 1x2)");
  EXPECT_EQ(to_string(TileShape::two_by_one), "2x1");
  set_tile_shapes(set, {TileShape::two_by_two, TileShape::one_by_two});
  EXPECT_EQ(set.panel_int8.many != nullptr, tiles);
#if defined(__x86_64__)
  if (tiles) {
    EXPECT_EQ(set.panel_int4.many, panel_int4_many_amx_2x2);
    EXPECT_EQ(set.panel_bf16.many, panel_bf16_many_amx_1x2);
    set_tile_shapes(set, {});
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

TEST(PanelScratch, HoldsSumsAndTheUnpackedPanel) {
  const std::size_t sums = kMostTilePanels * kMostTileRows * 128;
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::bf16, 0, false, 32, 2048).value()), sums);
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::int8, 0, false, 32, 2048).value()), sums + (64u << 10));
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::int4, 64, false, 32, 2048).value()), sums + (64u << 10));
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::fp8, 128, false, 32, 2048).value()), sums + (128u << 10));
  EXPECT_EQ(panel_scratch_bytes(panel_layout(Format::int4, 0, true, 32, 65).value()), sums + 4096u);
}

}  // namespace
}  // namespace ktc::kernels
