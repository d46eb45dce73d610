#include "runtime/formats/gpu_stream.h"

#include <gtest/gtest.h>

namespace ktc {
namespace {

TEST(GpuStream, GroupsAreWholeExpertsOfAboutOneSize) {
  // int4 in groups of 64: a quarter of a byte more than half per weight; 128 experts of 2048 x 768 pass at once
  const auto qwen = gpu_stream(Format::int4, 64, Packing::panel_paired, 128, 2048, 768);
  ASSERT_TRUE(qwen);
  EXPECT_EQ(qwen->group, 128u);
  EXPECT_GE(qwen->gate_up, 2u * 768 * 2048 / 2);
  EXPECT_LE(qwen->staging(), kGpuStreamBytes);
  // 256 experts of 7168 x 2048 do not
  const auto large = gpu_stream(Format::int4, 64, Packing::panel, 256, 7168, 2048);
  ASSERT_TRUE(large);
  EXPECT_LT(large->group, 32u);
  EXPECT_GE(large->group, 8u);
  EXPECT_LE(large->staging(), kGpuStreamBytes);
  const std::uint64_t groups = (256 + large->group - 1) / large->group;
  EXPECT_LT(groups * large->group - 256, groups);  // the last one is not much smaller
}

TEST(GpuStream, RowsNeedNoOtherRows) {
  const auto bf16 = gpu_stream(Format::bf16, 0, Packing::row_major, 4, 96, 32);
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->unpacked(), 0u);
  EXPECT_EQ(bf16->gate_up, 64u * 192);
  EXPECT_EQ(bf16->staging(), 4 * 64 * 192u + 4 * 96 * 64u);
  EXPECT_EQ(gpu_stream(Format::bf16, 0, Packing::row_major, 4, 96, 32, 2)->staging(), bf16->staging() / 2);
  GpuStreamAreas areas;
  areas.add(*bf16);
  areas.add(*gpu_stream(Format::int8, 0, Packing::panel, 4, 96, 32));
  EXPECT_EQ(areas.staging, bf16->staging());
  EXPECT_EQ(areas.unpacked, gpu_stream(Format::int8, 0, Packing::panel, 4, 96, 32)->unpacked());
  EXPECT_EQ(areas.total(), 2 * areas.staging + areas.unpacked);
}

TEST(GpuStream, PanelsOfBf16BecomeRows) {
  const auto bf16 = gpu_stream(Format::bf16, 0, Packing::panel_paired, 4, 96, 32);
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->gate_up, 2u * 2 * 4096);  // 32 features of gate and up are 2 panels of K padded to 128
  EXPECT_EQ(bf16->down, 3u * 4096);         // 96 features are 3 of K padded to 64
  EXPECT_EQ(bf16->gate_up_rows, 64u * 192);
  EXPECT_EQ(bf16->down_rows, 96u * 64);
  EXPECT_EQ(unpacked_packing(Format::bf16), Packing::row_major);
  EXPECT_EQ(unpacked_packing(Format::fp8), Packing::gpu_rows);
}

TEST(GpuStream, OneExpertIsTakenHoweverLarge) {
  const auto huge = gpu_stream(Format::bf16, 0, Packing::row_major, 3, 65536, 65536);
  ASSERT_TRUE(huge);
  EXPECT_EQ(huge->group, 1u);
}

TEST(GpuStream, RefusesWhatHasNoSize) {
  EXPECT_FALSE(gpu_stream(Format::bf16, 0, Packing::row_major, 0, 8, 8));
  EXPECT_FALSE(gpu_stream(Format::int8, 0, Packing::row_major, 4, 96, 32));
  EXPECT_FALSE(gpu_stream(Format::int4, 48, Packing::panel, 4, 96, 32));
  EXPECT_FALSE(gpu_stream(Format::bf16, 0, Packing::row_major, 4, 96, 32, 5));
  EXPECT_FALSE(gpu_stream(Format::bf16, 0, Packing::row_major, 4, std::uint64_t{1} << 50, std::uint64_t{1} << 50));
  EXPECT_FALSE(gpu_stream(Format::bf16, 0, Packing::row_major, 4, 8, UINT64_MAX));
}

}  // namespace
}  // namespace ktc
