// Panels and the scratch of steps that multiply by them: sizes against sums worked out by hand, and properties.
#include "runtime/formats/panel.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "runtime/formats/workspace.h"

namespace ktc {
namespace {

TEST(Panel, SizesByHand) {
  // 130 features are 5 panels of 32, 100 input features 2 blocks of 64
  const auto int8 = panel_layout(Format::int8, 0, false, 130, 100);
  ASSERT_TRUE(int8);
  EXPECT_EQ(int8->panels, 5u);
  EXPECT_EQ(int8->panel_bytes, 128u + 2 * 2 * 1024);
  const auto int4 = panel_layout(Format::int4, 32, false, 130, 100);
  EXPECT_EQ(int4->groups, 4u) << "of the padded 128";
  EXPECT_EQ(int4->panel_bytes, 4u * 64 + 2 * 2 * 512);
  EXPECT_EQ(panel_layout(Format::int4, 128, false, 130, 100)->panel_bytes, 64u + 2 * 2 * 512);
  EXPECT_EQ(panel_layout(Format::fp8, 128, false, 32, 200)->panel_bytes, 2u * 128 + 4 * 2 * 1024);
  EXPECT_EQ(panel_layout(Format::bf16, 0, true, 66, 64)->matrix_bytes, 3u * 2 * 2048);
  EXPECT_FALSE(panel_layout(Format::int8, 64, false, 32, 64)) << "int8 has row scales";
  EXPECT_FALSE(panel_layout(Format::int8, 0, true, 33, 64)) << "gate and up have equally many rows";
  EXPECT_FALSE(panel_layout(Format::f32, 0, false, 32, 64));
  EXPECT_FALSE(panel_layout(Format::int8, 0, false, 0, 64));
  EXPECT_FALSE(packed_bytes(Format::int8, Packing::row_major, 1, 32, 64));
  EXPECT_FALSE(packed_bytes(Format::int8, Packing::panel, UINT64_MAX / 1024, 32, 64));
}

TEST(Panel, EveryFeatureHasAPlaceOfItsOwn) {
  for (const bool paired : {false, true})
    for (const std::uint64_t rows : {2u, 30u, 32u, 34u, 98u}) {
      const auto layout = panel_layout(Format::int8, 0, paired, rows, 64);
      std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> places;
      for (std::uint64_t r = 0; r < rows; ++r) {
        const auto place = layout->place_of(r);
        EXPECT_LT(place.panel, layout->panels);
        EXPECT_LT(place.block, 2u);
        EXPECT_LT(place.lane, 16u);
        places.emplace(place.panel, place.block, place.lane);
        if (paired && r < rows / 2) {
          const auto up = layout->place_of(r + rows / 2);
          EXPECT_EQ(std::tuple(up.panel, up.block, up.lane), std::tuple(place.panel, std::uint64_t{1}, place.lane));
        }
      }
      EXPECT_EQ(places.size(), rows);
    }
}

TEST(Panel, PairedPanelsHaveTheSizeOfPlainOnes) {
  for (std::uint64_t inner = 1; inner < 200; ++inner)
    EXPECT_EQ(packed_bytes(Format::int4, Packing::panel, 1, 2 * inner, 100, 32),
              packed_bytes(Format::int4, Packing::panel_paired, 1, 2 * inner, 100, 32));
}

TEST(PanelWorkspace, RowsByHand) {
  // 3 rows of 200 features: 256 codes, 4 scales of 64 or 2 of 128 or 1, 8 sums
  const auto fine = panel_rows_workspace(Format::int8, 3, 3, 200, 64);
  EXPECT_EQ(fine.values, 3u * 256);
  EXPECT_EQ(fine.scales, 64u) << "48 bytes";
  EXPECT_EQ(fine.sums, 128u) << "96 bytes";
  EXPECT_EQ(panel_granules(200, 128), 2u);
  EXPECT_EQ(panel_granules(200, 0), 1u);
  const auto bf16 = panel_rows_workspace(Format::bf16, 3, 16, 200, 64);
  EXPECT_EQ(bf16.total(), 16u * 512);
}

TEST(PanelWorkspace, TilesPadNoMoreMatricesThanCanHaveTheirRows) {
  EXPECT_EQ(tiled_rows(100, 32, 0), 100u);
  EXPECT_EQ(tiled_rows(8, 32, 9), 8u);
  EXPECT_EQ(tiled_rows(9, 32, 9), 9u + 15);
  EXPECT_EQ(tiled_rows(4096, 32, 9), 4096u + 32 * 15);
  // whatever the rows of each matrix: those with at least `tile_rows` are padded to 16
  for (std::uint64_t a = 0; a < 40; ++a)
    for (std::uint64_t b = 0; b < 40; ++b) {
      const auto padded = [](std::uint64_t n) { return n < 11 ? n : (n + 15) / 16 * 16; };
      EXPECT_GE(tiled_rows(a + b, 2, 11), padded(a) + padded(b)) << a << " and " << b;
    }
}

TEST(PanelWorkspace, AreasAddUpAndStayAligned) {
  const auto experts = panel_experts_workspace(Format::int8, 5, 2, 200, 70, 4, 64, 0, 9);
  EXPECT_EQ(experts.x_tiles.values, (10u + 15) * 256);
  EXPECT_EQ(experts.x_tiles.scales, align64((10u + 15) * 4 * 4));
  EXPECT_EQ(experts.hidden, (10u + 15) * 80 * 4) << "tiles of h are padded to 16 rows";
  EXPECT_EQ(experts.sixteens, 64u) << "10 pairs of 4 experts: at most 4 sixteens";
  EXPECT_EQ(experts.out_panels, 7u * 5 * 128);
  EXPECT_EQ(experts.turns, 7u * 64);
  EXPECT_EQ(experts.h.values, (10u + 15) * 128);
  EXPECT_EQ(experts.progress, 4u * 64);
  const auto plain = panel_experts_workspace(Format::int8, 5, 2, 200, 70, 4, 64, 0, 0);
  EXPECT_EQ(plain.x_tiles.total() + plain.sixteens + plain.out_panels + plain.turns, 0u);
  EXPECT_EQ(plain.hidden, 10u * 80 * 4);
  for (const std::uint64_t bytes : {experts.total(), experts.x.total(), experts.rows, experts.pairs, experts.offsets,
                                    panel_mlp_workspace(Format::int8, 7, 200, 70, 64, 128, 9).total(),
                                    panel_linear_workspace(Format::bf16, 7, 200, 64, 9).total()})
    EXPECT_EQ(bytes % 64, 0u);
  EXPECT_EQ(panel_linear_workspace(Format::int8, 7, 200, 64, 0).total(), quantised_rows_bytes(7, 200, 64) + 192);
}

}  // namespace
}  // namespace ktc
