// sample: against a sort of the whole row with the weights of sample_math.h, and those weights against the exponential.
#include <algorithm>
#include <limits>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/sample_math.h"
#include "test/kernels_cuda/gpu_fixture.h"

namespace ktc::gpu {
namespace {

std::int32_t expected_of(const float* logits, std::uint32_t columns, const SampleRow& row) {
  std::vector<std::uint32_t> order(columns);
  for (std::uint32_t c = 0; c < columns; ++c) {
    order[c] = c;
    if (!std::isfinite(logits[c])) return ~static_cast<std::int32_t>(c);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (row.greedy) return static_cast<std::int32_t>(order[0]);
  const float best = logits[order[0]];
  if (row.top_k > 0 && static_cast<std::uint32_t>(row.top_k) < columns) order.resize(static_cast<std::size_t>(row.top_k));
  const auto weight = [&](std::uint32_t c) { return sample_weight(logits[c], best, row.scale, sample_shift(columns)); };
  std::uint64_t total = 0;
  for (const std::uint32_t c : order) total += weight(c);
  if (row.top_p < 1) {
    const std::uint64_t wanted = sample_wanted(total, row.top_p);
    std::uint64_t mass = 0;
    std::size_t kept = 0;
    while (mass < wanted) mass += weight(order[kept++]);
    order.resize(kept);
  }
  std::erase_if(order, [&](std::uint32_t c) { return static_cast<double>(logits[c]) < static_cast<double>(best) + row.min_p_margin; });
  std::sort(order.begin(), order.end());
  total = 0;
  for (const std::uint32_t c : order) total += weight(c);
  const std::uint64_t target = sample_target(row.draw, total);
  total = 0;
  for (const std::uint32_t c : order)
    if ((total += weight(c)) > target) return static_cast<std::int32_t>(c);
  return -1;
}

class Sample : public SetTest {
 protected:
  SampleRow row(double temperature, std::int32_t top_k, double top_p, double min_p, bool greedy = false) {
    const double off = -std::numeric_limits<double>::infinity();
    return {(static_cast<std::uint64_t>(random()) << 32 | random()) >> 11 << 11, 1.4426950408889634 / temperature,
            min_p > 0 ? temperature * std::log(min_p) : off, top_p, top_k, greedy};
  }
  SampleRow any_row() {
    const auto unit = [&] { return static_cast<double>(below(1u << 20) + 1) / (1u << 20); };
    const std::int32_t counts[] = {0, 1, 2, 20, 64, 1000};
    return row(std::pow(2.0, 4 * unit() - 3), counts[below(6)], below(2) != 0 ? 1.0 : unit(), below(2) != 0 ? 0.0 : unit(), below(8) == 0);
  }
  void check(const std::vector<float>& logits, std::uint32_t columns, const std::vector<SampleRow>& rows) {
    const auto count = static_cast<std::uint32_t>(rows.size());
    const Ids out = ids(std::vector<std::int32_t>(count, -7), 1);
    // scratch full of something: nothing is expected of it
    const std::vector<std::uint8_t> dirty(gpu_sample_workspace(count), 0xa5);
    SampleArgs args = {matrix(logits, columns, 3), put(rows), out, count, false, {bytes(dirty.data(), dirty.size()), dirty.size()}};
    std::vector<std::int32_t> expected;
    for (std::uint32_t r = 0; r < count; ++r) expected.push_back(expected_of(logits.data() + std::size_t{r} * columns, columns, rows[r]));
    for (int repeat = 0; repeat < 2; ++repeat) {  // nothing is left behind for the next launch
      run(kernels().sample, args);
      EXPECT_EQ(get(out.data, count), expected) << columns;
    }
    args.greedy = std::all_of(rows.begin(), rows.end(), [](const SampleRow& row) { return row.greedy != 0; });
    if (!args.greedy) return;
    run(kernels().sample, args);
    EXPECT_EQ(get(out.data, count), expected) << columns;
  }
};
INSTANTIATE_TEST_SUITE_P(Sets, Sample, both_sets(), set_name);

TEST(SampleMath, WeightsAreTheExponential) {
  for (const double scale : {0.1, 1.0, 7.3})
    for (float x = 0; x > -60; x -= 0.37f) {
      const double expected = std::exp2(static_cast<double>(x) * scale + 44);
      EXPECT_NEAR(static_cast<double>(sample_weight(x + 3, 3, scale, 44)), expected, 1 + expected * 1e-6);  // x + 3 is rounded
      EXPECT_NEAR(static_cast<double>(sample_weight(x, 0, scale, 44)), expected, 1 + expected * 1e-12);
    }
  EXPECT_EQ(sample_weight(5, 5, 1e45, 44), std::uint64_t{1} << 44);
  EXPECT_EQ(sample_weight(-3e38f, 3e38f, 1e45, 44), 0u);
  for (const std::uint32_t columns : {1u, 2u, 3u, 32000u, 151936u, 262144u}) {
    EXPECT_LE(std::uint64_t{columns} << sample_shift(columns), std::uint64_t{1} << 62) << columns;
    EXPECT_GT(std::uint64_t{columns} << sample_shift(columns), std::uint64_t{1} << 61) << columns;
  }
}

TEST_P(Sample, GreedyTakesTheFirstOfTheLargestAndSaysWhatIsNotFinite) {
  for (const std::uint32_t columns : {1u, 2u, 31u, 1000u, 151936u}) {
    auto logits = floats(6 * columns, 30);
    std::fill_n(logits.data() + columns, columns, -0.0f);  // ties, and zeros of both signs
    logits[columns + columns / 2] = 0.0f;
    float* ties = logits.data() + 2 * columns;
    std::fill_n(ties, columns, -5.0f);
    ties[columns - 1] = ties[columns / 3] = -4.0f;
    logits[3 * columns + columns / 2] = NAN;
    logits[3 * columns + columns - 1] = INFINITY;
    logits[4 * columns + columns - 1] = -INFINITY;
    check(logits, columns, std::vector<SampleRow>(6, row(1, 0, 1, 0, true)));
  }
}

TEST_P(Sample, ChoosesAsASortOfTheRow) {
  for (const std::uint32_t columns : {1u, 2u, 31u, 1025u, 5000u})
    for (const float grid : {0.0f, 4.0f, 0.5f}) {  // as they come; some ties; many
      auto logits = floats(24 * columns, 12);
      if (grid != 0)
        for (float& l : logits) l = std::round(l * grid) / grid;
      std::vector<SampleRow> rows;
      for (int r = 0; r < 24; ++r) rows.push_back(any_row());
      check(logits, columns, rows);
    }
}

TEST_P(Sample, OneRowIsLikeAllOthersAndEveryParameterAlone) {
  const std::uint32_t columns = 3000;
  auto logits = floats(9 * columns, 8);
  std::fill_n(logits.data() + 5 * columns, 4 * columns, 2.5f);  // equal logits alone: counts and shares cut among ids
  check(logits, columns,
        {row(0.7, 0, 1, 0), row(0.7, 20, 1, 0), row(1, 0, 0.9, 0), row(1, 0, 1, 0.05), row(0.6, 20, 0.95, 0.02), row(1, 700, 1, 0),
         row(1, 0, 0.5, 0), row(1, 700, 0.25, 0), row(1e-30, 0, 0.999, 1)});
  logits[4 * columns + 77] = NAN;
  logits[columns + 2999] = -INFINITY;
  check(logits, columns, std::vector<SampleRow>(9, row(0.8, 50, 0.9, 0.01)));
}

TEST_P(Sample, LargeVocabularies) {
  const std::uint32_t columns = 151936;
  auto logits = floats(4 * columns, 10);
  for (std::uint32_t c = 0; c < columns; ++c) logits[2 * columns + c] = std::round(logits[2 * columns + c]);
  check(logits, columns, {row(1, 0, 1, 0), row(0.6, 20, 0.95, 0), row(2, 40000, 0.7, 0), row(1, 0, 0.95, 0.0001)});
}

}  // namespace
}  // namespace ktc::gpu
