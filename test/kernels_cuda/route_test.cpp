// route: the choice and the weights of every router, against a plain computation in double precision.
#include <algorithm>
#include <numeric>

#include "runtime/formats/gpu_workspace.h"
#include "test/kernels_cuda/gpu_fixture.h"

namespace ktc::gpu {
namespace {

struct Router {
  std::uint32_t experts, top_k, groups, topk_groups;
  bool sigmoid, bias, normalise;
  float scale;
};
constexpr Router kRouters[] = {
    {128, 8, 0, 0, false, false, true, 1.0f},    // Qwen3
    {512, 10, 1, 1, false, false, true, 1.0f},   // Qwen3-Next
    {256, 8, 8, 4, true, true, true, 2.5f},      // DeepSeek-V3
    {64, 6, 1, 1, false, false, false, 1.0f},    // DeepSeek-V2-Lite
    {160, 6, 8, 3, false, false, false, 16.0f},  // DeepSeek-V2
    {256, 8, 0, 0, true, true, true, 1.0f},      // MiniMax-M2
    {4, 4, 2, 1, true, false, true, 1.0f},       // chooses from a group that is left out
    {1, 1, 0, 0, false, false, true, 1.0f},
    {2000, 3, 40, 7, true, true, false, 1.0f},
};

// Ids in order, their weights, and how clear the choice was.
struct Choice {
  std::vector<std::size_t> ids;
  std::vector<double> weights;
  double margin = INFINITY;
};
Choice choose(const Router& r, const std::vector<double>& logits, const std::vector<float>& bias) {
  std::vector<double> score(r.experts), choice(r.experts);
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (std::size_t e = 0; e < r.experts; ++e) sum += std::exp(logits[e] - top);
  for (std::size_t e = 0; e < r.experts; ++e) {
    score[e] = r.sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e] - top) / sum;
    choice[e] = score[e] + (r.bias ? bias[e] : 0);
  }
  Choice out;
  if (r.groups > 1 && r.topk_groups < r.groups) {
    const std::size_t size = r.experts / r.groups;
    std::vector<double> group(r.groups);
    for (std::size_t g = 0; g < r.groups; ++g) {
      std::vector<double> in(choice.begin() + static_cast<long>(g * size), choice.begin() + static_cast<long>((g + 1) * size));
      std::sort(in.rbegin(), in.rend());
      group[g] = in[0] + (r.sigmoid && size > 1 ? in[1] : 0);
    }
    std::vector<std::size_t> order(r.groups);
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return group[a] != group[b] ? group[a] > group[b] : a < b; });
    out.margin = group[order[r.topk_groups - 1]] - group[order[r.topk_groups]];
    for (std::size_t g = r.topk_groups; g < r.groups; ++g)
      std::fill_n(choice.begin() + static_cast<long>(order[g] * size), size, -INFINITY);
  }
  std::vector<std::size_t> order(r.experts);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return choice[a] != choice[b] ? choice[a] > choice[b] : a < b; });
  for (std::size_t k = 0; k < r.top_k && k + 1 < r.experts; ++k)
    if (choice[order[k + 1]] != -INFINITY) out.margin = std::min(out.margin, choice[order[k]] - choice[order[k + 1]]);
  double total = 1e-20;
  for (std::size_t k = 0; k < r.top_k; ++k) total += score[order[k]];
  for (std::size_t k = 0; k < r.top_k; ++k) {
    out.ids.push_back(order[k]);
    out.weights.push_back((r.normalise ? score[order[k]] / total : score[order[k]]) * r.scale);
  }
  return out;
}

class Route : public SetTest {};
INSTANTIATE_TEST_SUITE_P(Sets, Route, both_sets(), set_name);

TEST_P(Route, ChoosesAsTheFormulasSay) {
  std::size_t checked = 0, all = 0;
  for (const Router& r : kRouters)
    for (const std::uint32_t rows : {1u, 3u, 16u, 17u, 70u})
      for (const Format format : {Format::f32, Format::bf16}) {
        const std::uint32_t hidden = rows == 3 ? 100 : 256;
        SCOPED_TRACE(std::to_string(r.experts) + " experts, " + std::to_string(rows) + " rows, " + std::string(to_string(format)));
        PackedWeight packed = random_weight(random, format, 0, 1, r.experts, hidden);
        packed.weight.data = bytes(packed.data.data(), packed.data.size());
        const auto x = floats(rows * hidden, 0.5f), bias = floats(r.experts, 0.2f);
        const Matrix weights = output(rows, r.top_k, 1);
        const Ids chosen = ids(std::vector<std::int32_t>(rows * r.top_k, -9), r.top_k);
        RouteArgs a = {matrix(x, hidden, rows == 3 ? 1 : 4), packed.weight, r.bias ? put(bias) : nullptr, chosen, weights, rows, r.experts,
                       r.top_k, r.groups, r.topk_groups, r.sigmoid, r.normalise, r.scale,
                       scratch(gpu_route_workspace(rows, r.experts).total())};
        for (int repeat = 0; repeat < 2; ++repeat) run(kernels().route, a);
        const auto got_ids = get(chosen.data, rows * r.top_k);
        const auto got_weights = get(weights, rows);
        for (std::size_t t = 0; t < rows; ++t) {
          std::vector<double> logits(r.experts);
          for (std::size_t e = 0; e < r.experts; ++e)
            for (std::size_t c = 0; c < hidden; ++c) logits[e] += x[t * hidden + c] * packed.values[e * hidden + c];
          const Choice expected = choose(r, logits, bias);
          ++all;
          if (expected.margin < 1e-6 * (r.sigmoid ? 1 : 1.0 / r.experts) * 10) continue;  // too close to call in f32
          ++checked;
          for (std::size_t k = 0; k < r.top_k; ++k) {
            ASSERT_EQ(got_ids[t * r.top_k + k], static_cast<std::int32_t>(expected.ids[k])) << "row " << t << ", place " << k;
            ASSERT_NEAR(got_weights[t * r.top_k + k], expected.weights[k], 2e-5 * std::fabs(expected.weights[k]) + 1e-9);
          }
        }
      }
  EXPECT_GT(checked, all * 9 / 10);
}

TEST_P(Route, TiesGoToTheLowerIdAndNaNLast) {
  // all logits equal; then one expert with a NaN
  const std::uint32_t experts = 40, hidden = 64;
  PackedWeight packed = random_weight(random, Format::f32, 0, 1, experts, hidden);
  std::fill(packed.data.begin(), packed.data.end(), std::byte{0});
  for (const bool with_nan : {false, true}) {
    if (with_nan) {
      const float nan = NAN;
      std::memcpy(packed.data.data(), &nan, 4);  // expert 0
    }
    packed.weight.data = bytes(packed.data.data(), packed.data.size());
    const Ids chosen = ids(std::vector<std::int32_t>(experts, -9), experts);
    const Matrix weights = output(1, experts);
    RouteArgs a = {matrix(floats(hidden), hidden), packed.weight, nullptr, chosen, weights, 1, experts, experts, 0, 0, true, false, 1.0f,
                   scratch(gpu_route_workspace(1, experts).total())};
    run(kernels().route, a);
    const auto got = get(chosen.data, experts);
    for (std::size_t k = 0; k < experts; ++k)
      EXPECT_EQ(got[k], static_cast<std::int32_t>(with_nan ? (k + 1) % experts : k));
  }
}

}  // namespace
}  // namespace ktc::gpu
