// Kernels of both sets run over the device layer: the reference set on the emulated device (anywhere), the CUDA set on a GPU (skipped
// where none can be opened). Every suite computes what it expects itself, in double precision.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/formats/gpu_rows.h"

namespace ktc::gpu {

enum class Set { reference, cuda };
inline std::string set_name(const ::testing::TestParamInfo<Set>& info) { return info.param == Set::cuda ? "cuda" : "reference"; }
inline auto both_sets() { return ::testing::Values(Set::reference, Set::cuda); }

// One device of each kind per process.
device::Device* open_once(Set set, std::string& why_not);
unsigned seed();  // of this run: --gtest_random_seed, else chosen

class SetTest : public ::testing::TestWithParam<Set> {
 protected:
  void SetUp() override {
    std::string why_not;
    device_ = open_once(GetParam(), why_not);
    if (device_ == nullptr) GTEST_SKIP() << why_not;
  }
  bool cuda() const { return GetParam() == Set::cuda; }
  const KernelSet& kernels() const { return device_->kernels(); }

  // Device memory that lives as long as the test. Emulated memory ends at a page that faults.
  std::byte* bytes(const void* data, std::size_t count) {
    auto block = device_->allocate(count, "test");
    EXPECT_TRUE(block.ok()) << block.status().message();
    std::byte* at = block->data();
    if (data != nullptr && count != 0) {
      EXPECT_TRUE(device_->compute().copy_to_device(at, static_cast<const std::byte*>(data), count).ok());
      EXPECT_TRUE(device_->compute().wait().ok());
    }
    blocks_.push_back(std::move(*block));
    return at;
  }
  template <typename T>
  T* put(const std::vector<T>& values) { return reinterpret_cast<T*>(bytes(values.data(), values.size() * sizeof(T))); }
  template <typename T>
  std::vector<T> get(const T* from, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(device_->compute().copy_to_host(reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<const std::byte*>(from),
                                                count * sizeof(T)).ok());
    const Status status = device_->compute().wait();
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }
  Scratch scratch(std::uint64_t count) { return {bytes(nullptr, count), count}; }

  // A matrix with `gap` floats between its rows, which no kernel may touch.
  static constexpr float kGap = 12345.5f;
  Matrix matrix(const std::vector<float>& values, std::uint32_t columns, std::uint64_t gap = 0) {
    const std::size_t rows = values.size() / columns;
    std::vector<float> padded(rows * (columns + gap), kGap);
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(values.data() + r * columns, columns, padded.data() + r * (columns + gap));
    return {put(padded), columns + gap, columns};
  }
  Matrix output(std::size_t rows, std::uint32_t columns, std::uint64_t gap = 0) {
    return matrix(std::vector<float>(rows * columns, kGap), columns, gap);
  }
  std::vector<float> get(const Matrix& m, std::size_t rows) {
    const std::vector<float> padded = get(m.data, rows * m.stride);
    std::vector<float> values;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < m.stride; ++c) {
        if (c < m.columns) values.push_back(padded[r * m.stride + c]);
        else EXPECT_EQ(padded[r * m.stride + c], kGap) << "row " << r << " was written behind its end";
      }
    return values;
  }
  Ids ids(const std::vector<std::int32_t>& values, std::uint32_t columns) { return {put(values), columns, columns}; }

  template <typename Args>
  void run(int (*fn)(const Args&, void*), const Args& args) {
    ASSERT_NE(fn, nullptr) << "the set lacks this kernel";
    const Status launched = device_->compute().launch(fn, args);
    ASSERT_TRUE(launched.ok()) << launched.message();
    const Status done = device_->compute().wait();
    ASSERT_TRUE(done.ok()) << done.message();
  }

  std::vector<float> floats(std::size_t count, float scale = 1.0f) {
    std::uniform_real_distribution<float> value(-scale, scale);
    std::vector<float> out(count);
    for (float& v : out) v = value(random);
    return out;
  }
  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random); }

  device::Device* device_ = nullptr;
  std::vector<device::Block> blocks_;
  std::mt19937 random{seed()};
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "repeat with --gtest_random_seed=" + std::to_string(seed())};
};

// A packed weight on the device and what it decodes to, [batch * rows * columns].
struct TestWeight {
  Weight weight;
  std::vector<double> values;
  double at(std::size_t matrix, std::size_t row, std::size_t column) const {
    return values[(matrix * weight.rows + row) * weight.columns + column];
  }
};

// Bytes of random codes in row_major (f32, bf16) or gpu_rows (int8, int4, fp8), put on the device by the caller.
struct PackedWeight {
  Weight weight;  // without data
  std::vector<std::byte> data;
  std::vector<double> values;
};
PackedWeight random_weight(std::mt19937& random, Format format, std::uint32_t group, std::uint32_t batch, std::uint32_t rows,
                           std::uint32_t columns);

inline double rounded(double value, Format activations) {
  return activations == Format::bf16 ? bf16_to_f32(f32_to_bf16(static_cast<float>(value))) : value;
}

}  // namespace ktc::gpu
