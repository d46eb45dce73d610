// The packing of GPU kernels: the codes and scales of panels, in their own places, padding that decodes to zero; banks of some
// experts of a slot.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "compiler/weights/matrix_packer.h"
#include "compiler/weights/pack.h"
#include "compiler/weights/weight_writer.h"
#include "runtime/formats/gpu_rows.h"
#include "test/compiler/decode_panel.h"

namespace ktc::compiler {
namespace {

namespace fs = std::filesystem;
using models::TensorType;

// Reads one element from the description in runtime/formats/gpu_rows.h alone.
DecodedElement decode_gpu_rows(const GpuRowsLayout& layout, std::span<const std::byte> matrix, std::uint64_t row, std::uint64_t k) {
  const std::byte* codes = matrix.data() + row * layout.row_bytes;
  int code = 0;
  float value = 0;
  if (layout.format == Format::int4) {
    const int both = std::to_integer<int>(codes[k / 2]);
    code = (k % 2 == 0 ? both & 15 : both >> 4) - 8;
    value = static_cast<float>(code);
  } else if (layout.format == Format::int8) {
    code = static_cast<std::int8_t>(codes[k]);
    value = static_cast<float>(code);
  } else {
    code = std::to_integer<int>(codes[k]);
    value = load_element(TensorType::f8_e4m3, codes + k, 0);
  }
  if (k >= layout.columns) return {value, code, 0};
  const std::uint64_t scale = row * layout.groups + (layout.group == 0 ? 0 : k / layout.group);
  const std::byte* at = matrix.data() + layout.scales_offset + scale * layout.scale_bytes;
  float factor = 0;
  if (layout.scale_bytes == 4) {
    std::memcpy(&factor, at, 4);
  } else {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, 2);
    factor = bf16_to_f32(bits);
  }
  return {value * factor, code, factor};
}

std::vector<std::byte> packed(Format format, std::uint32_t group, Packing packing, std::uint64_t rows, std::uint64_t columns,
                              const std::vector<float>& weights) {
  WeightJob job{"w", 1, rows, columns, format, packing, {}, 0, *packed_bytes(format, packing, 1, rows, columns, group)};
  job.group = group;
  std::vector<std::byte> matrix(job.bytes, std::byte{0xee});
  MatrixPacker packer(job, matrix);
  packer.begin();
  packer.add({TensorType::f32, reinterpret_cast<const std::byte*>(weights.data()), columns, 1}, 0, rows);
  return matrix;
}

struct Case {
  Format format;
  std::uint32_t group;
};
constexpr Case kCases[] = {{Format::int8, 0}, {Format::int4, 0}, {Format::int4, 32}, {Format::int4, 64}, {Format::int4, 128}, {Format::fp8, 0}, {Format::fp8, 128}};

TEST(GpuRowsPacker, CodesAndScalesAreThoseOfPanels) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (const Case& one : kCases)
    for (const std::uint64_t columns : {1u, 63u, 64u, 130u, 257u}) {
      constexpr std::uint64_t kRows = 34;
      std::vector<float> weights(kRows * columns);
      for (float& w : weights) w = normal(random);
      std::fill_n(weights.begin(), columns, 0.0f);  // a row of zeros
      const auto panels = packed(one.format, one.group, Packing::panel, kRows, columns, weights);
      const auto rows = packed(one.format, one.group, Packing::gpu_rows, kRows, columns, weights);
      const auto panel = panel_layout(one.format, one.group, false, kRows, columns);
      const auto layout = gpu_rows_layout(one.format, one.group, kRows, columns);
      ASSERT_TRUE(panel && layout);
      ASSERT_EQ(rows.size(), layout->matrix_bytes);
      for (std::uint64_t r = 0; r < kRows; ++r)
        for (std::uint64_t k = 0; k < columns; ++k) {
          const DecodedElement a = decode_panel(*panel, panels, r, k), b = decode_gpu_rows(*layout, rows, r, k);
          ASSERT_EQ(a.code, b.code) << to_string(one.format) << "/" << one.group << " " << r << "," << k;
          ASSERT_EQ(a.scale, b.scale);
          ASSERT_EQ(a.value, b.value);
        }
      // padding: columns up to the next 128, and the bytes behind the scales
      for (std::uint64_t r = 0; r < kRows; ++r)
        for (std::uint64_t k = columns; k < (columns + 127) / 128 * 128; ++k)
          ASSERT_EQ(decode_gpu_rows(*layout, rows, r, k).value, 0.0f);
      for (std::uint64_t at = layout->scales_offset + kRows * layout->groups * layout->scale_bytes; at < rows.size(); ++at)
        ASSERT_EQ(rows[at], std::byte{0});
    }
}

// Expert e of the slot is filled with e + 1.
class BankTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ktc_gpu_rows_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    model_.shards = {folder_ / "a.safetensors"};
    std::vector<float> data;
    for (int e = 0; e < 5; ++e) data.insert(data.end(), kRows * kColumns, static_cast<float>(e + 1));
    std::ofstream(model_.shards[0], std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size() * 4));
    model_.tensors.push_back({"t", TensorType::f32, {5, kRows, kColumns}, 0, 0, data.size() * 4});
    model_.slots.push_back({"experts", 5, kRows, kColumns, TensorType::f32, {{0, 0, 0}}, {}});
  }
  void TearDown() override { fs::remove_all(folder_); }

  WeightJob bank(std::vector<std::uint32_t> matrices, Format format, Packing packing) const {
    WeightJob job{"bank", matrices.size(), kRows, kColumns, format, packing, {{.slot = 0, .rows = kRows}}, 0,
                  *packed_bytes(format, packing, matrices.size(), kRows, kColumns)};
    job.matrices = std::move(matrices);
    return job;
  }

  static constexpr std::uint64_t kRows = 3, kColumns = 5;
  fs::path folder_;
  models::ModelDesc model_;
};

TEST_F(BankTest, HasTheExpertsThatAreNamedInTheirOrder) {
  const std::vector<std::uint32_t> ids = {4, 0, 2};
  const WeightJob job = bank(ids, Format::int8, Packing::gpu_rows);
  const auto records = write_weights(folder_ / "out.weights", job.bytes, {job}, model_, {});
  ASSERT_TRUE(records.ok()) << records.status().message();
  std::vector<std::byte> file(job.bytes);
  std::ifstream(folder_ / "out.weights", std::ios::binary).read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(file.size()));
  const auto layout = gpu_rows_layout(Format::int8, 0, kRows, kColumns);
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::uint64_t r = 0; r < kRows; ++r)
      for (std::uint64_t k = 0; k < kColumns; ++k)
        EXPECT_NEAR(decode_gpu_rows(*layout, std::span(file).subspan(i * layout->matrix_bytes, layout->matrix_bytes), r, k).value,
                    static_cast<float>(ids[i] + 1), 1e-6);
}

TEST_F(BankTest, ExpertsThatAreNotThereAreErrors) {
  EXPECT_NE(check_job(bank({0, 5}, Format::bf16, Packing::row_major), model_).message().find("matrix of slot experts: found 5, expected below 5"),
            std::string::npos);
  WeightJob more = bank({0, 1, 2}, Format::bf16, Packing::row_major);
  more.batch = 2;
  more.bytes = *packed_bytes(Format::bf16, Packing::row_major, 2, kRows, kColumns);
  EXPECT_FALSE(check_job(more, model_).ok());
}

}  // namespace
}  // namespace ktc::compiler
