#include "runtime/formats/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "runtime/formats/workspace.h"

namespace ktc {
namespace {

constexpr Format kAll[] = {
#define KTC_FORMAT(name, bits, kinds) Format::name,
#include "runtime/formats/formats.def"
};

TEST(Format, NamesRoundTrip) {
  for (Format format : kAll) {
    EXPECT_TRUE(is_valid(format));
    EXPECT_EQ(parse_format(to_string(format)), format);
    EXPECT_GT(format_bits(format), 0);
  }
  for (const char* name : {"", "F32", "float", "bf16 ", "invalid"}) EXPECT_FALSE(parse_format(name)) << name;
}

// Plans hold the numbers: they are for ever.
TEST(Format, NumbersInPlansDoNotChange) {
  EXPECT_EQ(static_cast<int>(Format::f32), 0);
  EXPECT_EQ(static_cast<int>(Format::bf16), 1);
  EXPECT_EQ(static_cast<int>(Format::i32), 2);
  EXPECT_EQ(static_cast<int>(Packing::row_major), 0);
  EXPECT_EQ(static_cast<int>(Packing::panel), 1);
  EXPECT_EQ(static_cast<int>(Packing::panel_paired), 2);
  EXPECT_EQ(static_cast<int>(Packing::gpu_rows), 3);
}

TEST(Format, ValuesFromAFileMayBeInvalid) {
  const Format bad = static_cast<Format>(std::size(kAll));
  EXPECT_FALSE(is_valid(bad));
  EXPECT_FALSE(is_valid(static_cast<Format>(255)));
  EXPECT_EQ(to_string(bad), "invalid");
  EXPECT_FALSE(format_serves(bad, FormatKind::weight));
  EXPECT_FALSE(is_valid(static_cast<Packing>(255)));
  EXPECT_EQ(to_string(static_cast<Packing>(255)), "invalid");
}

TEST(Format, KindsSayWhereAFormatMayStand) {
  EXPECT_TRUE(format_serves(Format::bf16, FormatKind::weight));
  EXPECT_TRUE(format_serves(Format::f32, FormatKind::cache));
  EXPECT_FALSE(format_serves(Format::i32, FormatKind::weight));
  EXPECT_FALSE(format_serves(Format::i32, FormatKind::cache));
  EXPECT_EQ(list_formats(FormatKind::cache), "f32, bf16");
}

TEST(Packing, NamesRoundTrip) {
  EXPECT_EQ(parse_packing(to_string(Packing::row_major)), Packing::row_major);
  EXPECT_TRUE(is_valid(Packing::row_major));
  EXPECT_FALSE(parse_packing("column_major"));
  EXPECT_FALSE(parse_packing(""));
}

TEST(PackedBytes, RowsArePaddedTo64Bytes) {
  EXPECT_EQ(packed_row_bytes(Format::f32, Packing::row_major, 0), 0u);
  EXPECT_EQ(packed_row_bytes(Format::f32, Packing::row_major, 1), 64u);
  EXPECT_EQ(packed_row_bytes(Format::f32, Packing::row_major, 16), 64u);
  EXPECT_EQ(packed_row_bytes(Format::f32, Packing::row_major, 17), 128u);
  EXPECT_EQ(packed_row_bytes(Format::bf16, Packing::row_major, 32), 64u);
  EXPECT_EQ(packed_row_bytes(Format::bf16, Packing::row_major, 33), 128u);
  EXPECT_EQ(packed_bytes(Format::bf16, Packing::row_major, 3, 5, 33), 3u * 5 * 128);
  EXPECT_EQ(packed_bytes(Format::bf16, Packing::row_major, 0, 5, 33), 0u);
  EXPECT_EQ(packed_bytes(Format::bf16, Packing::row_major, 128, 1536, 2048), 128ull * 1536 * 4096);
}

// Shapes come from files: an overflow must be an answer, not a small number.
TEST(PackedBytes, OverflowIsAnswered) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_FALSE(packed_bytes(Format::f32, Packing::row_major, 1, 1, kMax));
  EXPECT_FALSE(packed_bytes(Format::f32, Packing::row_major, 1, 1, (std::uint64_t{1} << 48) + 1));
  EXPECT_FALSE(packed_bytes(Format::f32, Packing::row_major, 1, kMax, 1));
  EXPECT_FALSE(packed_bytes(Format::f32, Packing::row_major, kMax, 1, 1));
  EXPECT_FALSE(packed_bytes(Format::f32, Packing::row_major, std::uint64_t{1} << 32, std::uint64_t{1} << 32, 1));
  EXPECT_FALSE(packed_bytes(Format::bf16, Packing::row_major, 1 << 20, 1 << 20, std::uint64_t{1} << 40));
  EXPECT_EQ(packed_bytes(Format::f32, Packing::row_major, 1, 1, std::uint64_t{1} << 48), std::uint64_t{1} << 50);
}

TEST(Bf16, WideningIsExactAndComesBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = bf16_to_f32(static_cast<std::uint16_t>(bits));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(wide))));
      EXPECT_EQ(f32_to_bf16(wide) | 0x40u, bits | 0x40u);  // quieted, sign and payload kept
    } else {
      ASSERT_EQ(f32_to_bf16(wide), bits);
    }
  }
}

std::uint16_t round_bits(std::uint32_t bits) {
  return f32_to_bf16(__builtin_bit_cast(float, bits));
}

TEST(Bf16, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(round_bits(0x3f808000u), 0x3f80u);  // between 1 and its successor: 1 is even
  EXPECT_EQ(round_bits(0x3f818000u), 0x3f82u);
  EXPECT_EQ(round_bits(0xbf808000u), 0xbf80u);
  EXPECT_EQ(round_bits(0x3f807fffu), 0x3f80u);
  EXPECT_EQ(round_bits(0x3f808001u), 0x3f81u);
  EXPECT_EQ(round_bits(0x3fffffffu), 0x4000u);  // a carry into the exponent
}

TEST(Bf16, EndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(inf)), inf);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(-inf)), -inf);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::max())),
            inf);  // nearer to infinity than to the last bf16
  EXPECT_EQ(round_bits(0x7f7f7fffu), 0x7f7fu);
  EXPECT_EQ(round_bits(0x80000000u), 0x8000u);
  EXPECT_EQ(round_bits(0x00000001u), 0x0000u);
  EXPECT_EQ(round_bits(0x00008001u), 0x0001u);  // subnormal
  for (std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xff80ffffu, 0x7fffffffu})
    EXPECT_TRUE(std::isnan(bf16_to_f32(round_bits(nan)))) << std::hex << nan;
}

TEST(Bf16, IsTheNearestOfTheTwoNeighbours) {
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) {
    const float value = __builtin_bit_cast(float, static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value) || std::abs(value) > 3.38e38f) continue;
    const std::uint16_t low = static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, value) >> 16);
    const double below = std::abs(static_cast<double>(value) - bf16_to_f32(low));
    const double above = std::abs(static_cast<double>(value) - bf16_to_f32(static_cast<std::uint16_t>(low + 1)));
    ASSERT_EQ(f32_to_bf16(value), below < above || (below == above && low % 2 == 0) ? low : low + 1) << value;
  }
}

TEST(Workspace, AreasAreAlignedAndLargeEnough) {
  for (std::uint64_t tokens : {1, 3, 17, 2048}) {
    const ExpertsWorkspace e = experts_workspace(tokens, 8, 96, 60);
    for (std::uint64_t area : {e.hidden, e.pairs, e.offsets, e.weights}) EXPECT_EQ(area % 64, 0u);
    EXPECT_GE(e.hidden, tokens * 8 * 96 * 4);
    EXPECT_GE(e.pairs, tokens * 8 * 8);
    EXPECT_GE(e.offsets, 61u * 4);
    EXPECT_EQ(e.total(), e.hidden + e.pairs + e.offsets + e.weights);
    const MlaWorkspace m = mla_workspace(tokens, 16, 512, 64);
    EXPECT_GE(m.query, tokens * 16 * 576 * 4);
    EXPECT_GE(m.context, tokens * 16 * 512 * 4);
    EXPECT_EQ(m.total(), m.query + m.context);
    EXPECT_EQ(gqa_workspace(tokens, 5, 7).total() % 64, 0u);
    EXPECT_GE(gqa_workspace(tokens, 5, 7).total(), tokens * 35 * 4);
    EXPECT_GE(route_workspace(tokens, 60).total(), tokens * 60 * 4);
    EXPECT_GE(mlp_workspace(tokens, 99).total(), tokens * 99 * 4);
  }
}

}  // namespace
}  // namespace ktc
