// The rows of kernels.def as data: every suite runs over all rows of its contract, so a new row is tested by being
// there.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {

template <typename Fn>
struct Row {
  const char* name;
  IsaLevel level;
  Format format;
  Packing packing;
  Fn function;
  bool f32() const { return format == Format::f32; }
};

template <typename Fn>
std::vector<Row<Fn>> rows() {
  std::vector<Row<Fn>> found;
#define KTC_KERNEL(slot, level, format, packing, function)     \
  if constexpr (std::is_same_v<Fn, decltype(KernelSet::slot)>) \
    found.push_back({#function, IsaLevel::level, Format::format, Packing::packing, function});
#include "runtime/kernels/cpu/kernels.def"
  return found;
}

template <typename Fn>
std::string row_name(const ::testing::TestParamInfo<Row<Fn>>& info) {
  return info.param.name;
}

// gtest prints the parameter of a failing test.
template <typename Fn>
void PrintTo(const Row<Fn>& row, std::ostream* out) {
  *out << row.name;
}

// Chosen anew in every run unless --gtest_random_seed fixes it; every failure prints it.
unsigned seed();
inline std::string seed_trace() {
  return "repeat with --gtest_random_seed=" + std::to_string(seed());
}

template <typename Fn>
class RowTest : public ::testing::TestWithParam<Row<Fn>> {
 protected:
  void SetUp() override {
    const Row<Fn>& row = this->GetParam();
    ASSERT_EQ(row.packing, Packing::row_major) << "the suites lay operands out as rows; teach them this packing";
    if (!isa_level_available(row.level, host_cpu_features()))
      GTEST_SKIP() << "this machine cannot run " << to_string(row.level)
                   << ", it has: " << list_cpu_features(host_cpu_features());
  }
  const Row<Fn>& row() const { return this->GetParam(); }
  std::mt19937 random{seed()};
  ::testing::ScopedTrace trace{__FILE__, __LINE__, seed_trace()};
};

}  // namespace ktc::kernels
