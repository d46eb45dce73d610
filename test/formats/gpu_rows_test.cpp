// The packing of GPU kernels: sizes against sums worked out by hand, and what it refuses.
#include "runtime/formats/gpu_rows.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace ktc {
namespace {

TEST(GpuRows, SizesByHand) {
  // 130 columns are padded to 256
  const auto int8 = gpu_rows_layout(Format::int8, 0, 5, 130);
  ASSERT_TRUE(int8);
  EXPECT_EQ(int8->row_bytes, 256u);
  EXPECT_EQ(int8->groups, 1u);
  EXPECT_EQ(int8->scale_bytes, 4u);
  EXPECT_EQ(int8->scales_offset, 5u * 256);
  EXPECT_EQ(int8->matrix_bytes, 1536u) << "1280 of codes, 20 of scales";
  const auto int4 = gpu_rows_layout(Format::int4, 32, 5, 130);
  ASSERT_TRUE(int4);
  EXPECT_EQ(int4->row_bytes, 128u);
  EXPECT_EQ(int4->groups, 5u) << "of 130 columns: the padding has no scales";
  EXPECT_EQ(int4->scale_bytes, 2u);
  EXPECT_EQ(int4->matrix_bytes, 768u) << "640 of codes, 50 of scales";
  EXPECT_EQ(gpu_rows_layout(Format::int4, 0, 5, 128)->row_bytes, 64u);
  EXPECT_EQ(gpu_rows_layout(Format::int4, 0, 5, 128)->scale_bytes, 4u);
  const auto fp8 = gpu_rows_layout(Format::fp8, 128, 3, 200);
  ASSERT_TRUE(fp8);
  EXPECT_EQ(fp8->groups, 2u);
  EXPECT_EQ(fp8->matrix_bytes, 1024u) << "768 of codes, 24 of scales";
  EXPECT_EQ(packed_bytes(Format::int8, Packing::gpu_rows, 7, 5, 130), 7u * 1536);
  EXPECT_EQ(packed_row_bytes(Format::int4, Packing::gpu_rows, 129), 128u);
}

TEST(GpuRows, RefusesWhatHasNoSuchLayout) {
  EXPECT_FALSE(gpu_rows_layout(Format::f32, 0, 5, 128));
  EXPECT_FALSE(gpu_rows_layout(Format::bf16, 0, 5, 128)) << "row_major on a GPU";
  EXPECT_FALSE(gpu_rows_layout(Format::int8, 32, 5, 128));
  EXPECT_FALSE(gpu_rows_layout(Format::int4, 48, 5, 128));
  EXPECT_FALSE(gpu_rows_layout(Format::int8, 0, 0, 128));
  EXPECT_FALSE(gpu_rows_layout(Format::int8, 0, 5, 0));
  EXPECT_FALSE(packed_bytes(Format::bf16, Packing::gpu_rows, 1, 5, 128));
}

TEST(GpuRows, OverflowIsAnswered) {
  EXPECT_FALSE(gpu_rows_layout(Format::int8, 0, UINT64_MAX, 128));
  EXPECT_FALSE(gpu_rows_layout(Format::int8, 0, 5, UINT64_MAX));
  EXPECT_FALSE(gpu_rows_layout(Format::int8, 0, std::uint64_t{1} << 40, std::uint64_t{1} << 40));
  EXPECT_FALSE(packed_bytes(Format::int8, Packing::gpu_rows, UINT64_MAX / 256, 5, 130));
}

}  // namespace
}  // namespace ktc
