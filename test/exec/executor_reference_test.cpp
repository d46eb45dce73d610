// The executor against a double-precision forward pass of the same weights.
#include <algorithm>
#include <cmath>

#include "runtime/kernels/cpu/kernels.h"
#include "test/exec/executor_fixture.h"
#include "test/exec/reference_forward.h"

namespace ktc::test {
namespace {

struct Case {
  bool mla;
  Format weights, cache;
  std::uint32_t page_tokens;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::string(c.mla ? "mla" : "gqa") + "_weights_" + std::string(to_string(c.weights)) + "_cache_" +
         std::string(to_string(c.cache)) + "_pages_of_" + std::to_string(c.page_tokens);
}

class ExecutorReference : public testing::TestWithParam<Case> {};

TEST_P(ExecutorReference, LogitsOfEveryTokenAgree) {
  const Case& c = GetParam();
  TinyOptions options;
  options.mla = c.mla;
  options.weights = c.weights;
  options.cache = c.cache;
  options.page_tokens = c.page_tokens;
  const OnDisk tiny(options);
  const std::vector<std::int32_t> ids = random_ids(41, 7);
  const auto expected = reference_logits(tiny.model, ids);
  double low = 1e30, high = -1e30;
  for (const auto& row : expected)
    for (const double v : row) {
      low = std::min(low, v);
      high = std::max(high, v);
    }
  ASSERT_GT(high - low, 1.0);
  // f32: sums of up to 100 terms through two layers. bf16: a value near the middle of two neighbours may round the other way
  // than in the reference, which moves it by 2^-8 of itself.
  const double tolerance = (c.cache == Format::f32 ? 5e-6 : 2e-3) * (high - low);
  for (const IsaLevel isa : kernels::available_levels(host_cpu_features())) {
    const auto executor = tiny.open(2, isa);
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(executor->isa(), isa);
    const Logits logits = run_alone(*executor, ids, {20, 13});
    ASSERT_EQ(logits.size(), ids.size());
    double worst = 0;
    for (std::size_t r = 0; r < logits.size(); ++r)
      for (std::size_t v = 0; v < logits[r].size(); ++v)
        worst = std::max(worst, std::abs(static_cast<double>(logits[r][v]) - expected[r][v]));
    EXPECT_LE(worst, tolerance) << to_string(isa);
    RecordProperty("worst_" + std::string(to_string(isa)), std::to_string(worst / (high - low)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorReference,
                         testing::Values(Case{false, Format::f32, Format::f32, 16}, Case{false, Format::bf16, Format::f32, 1},
                                         Case{false, Format::f32, Format::bf16, 16}, Case{false, Format::bf16, Format::bf16, 1},
                                         Case{true, Format::f32, Format::f32, 16}, Case{true, Format::bf16, Format::f32, 1},
                                         Case{true, Format::f32, Format::bf16, 1}, Case{true, Format::bf16, Format::bf16, 16}),
                         name_of);

}  // namespace
}  // namespace ktc::test
