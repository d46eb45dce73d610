// linear, mlp, experts over every format of weights and both kinds of activations, and which pairs an experts op takes.
#include <algorithm>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/large_product.h"
#include "test/kernels_cuda/gpu_fixture.h"

namespace ktc::gpu {
namespace {

struct Kind {
  Format format;
  std::uint32_t group;
};
constexpr Kind kKinds[] = {{Format::f32, 0},   {Format::bf16, 0},  {Format::int8, 0},  {Format::int4, 0},  {Format::int4, 32},
                           {Format::int4, 64}, {Format::int4, 128}, {Format::fp8, 0}, {Format::fp8, 128}};

class Products : public SetTest {
 protected:
  Weight weight(const Kind& kind, std::uint32_t batch, std::uint32_t rows, std::uint32_t columns, std::vector<double>& values) {
    PackedWeight packed = random_weight(random, kind.format, kind.group, batch, rows, columns);
    packed.weight.data = bytes(packed.data.data(), packed.data.size());
    values = std::move(packed.values);
    return packed.weight;
  }
  // Of a sum of products: f32 rounding, and on a GPU what tensor cores may do to grouped scales (tile_gemm.cuh).
  double tolerance(const Kind& kind, Format activations, double size) const {
    const bool scaled = cuda() && activations == Format::bf16 && kind.group != 0;
    return 1e-6 + size * (scaled ? 1.0 / 256 : 3e-6);
  }
};
INSTANTIATE_TEST_SUITE_P(Sets, Products, both_sets(), set_name);

// y and the sum of the products' sizes.
struct Sum {
  double value = 0, size = 0;
};
Sum dot(const double* x, const double* w, std::size_t columns, Format activations) {
  Sum s;
  for (std::size_t c = 0; c < columns; ++c) {
    const double product = rounded(x[c], activations) * w[c];
    s.value += product;
    s.size += std::fabs(product);
  }
  return s;
}

TEST_P(Products, Linear) {
  const struct { std::uint32_t rows, n, k; } shapes[] = {{1, 1, 1}, {1, 65, 100}, {3, 40, 384}, {8, 130, 256}, {9, 33, 64}, {1, 2200, 1100}, {5, 70, 2304}, {17, 200, 1000}, {130, 129, 192}};
  for (const Kind& kind : kKinds)
    for (const Format activations : {Format::f32, Format::bf16})
      for (const auto& shape : shapes) {
        SCOPED_TRACE(std::string(to_string(kind.format)) + "/" + std::to_string(kind.group) + " x " + std::string(to_string(activations)) + ", " +
                     std::to_string(shape.rows) + " rows, " + std::to_string(shape.n) + " x " + std::to_string(shape.k));
        std::vector<double> w;
        const Weight packed = weight(kind, 1, shape.n, shape.k, w);
        const auto x = floats(shape.rows * shape.k), bias = floats(shape.n);
        const bool with_bias = shape.rows % 2 == 1;
        const Matrix out = output(shape.rows, shape.n, shape.rows % 3);
        run(kernels().linear, LinearArgs{matrix(x, shape.k, shape.rows % 2 == 0 ? 0 : 4), packed, with_bias ? put(bias) : nullptr, out, shape.rows,
                                         activations, scratch(gpu_linear_workspace(activations, shape.rows, shape.k).total())});
        const auto got = get(out, shape.rows);
        const std::vector<double> wide(x.begin(), x.end());
        for (std::size_t r = 0; r < shape.rows; ++r)
          for (std::size_t n = 0; n < shape.n; ++n) {
            const Sum s = dot(wide.data() + r * shape.k, w.data() + n * shape.k, shape.k, activations);
            ASSERT_NEAR(got[r * shape.n + n], s.value + (with_bias ? bias[n] : 0), tolerance(kind, activations, s.size)) << "row " << r << ", " << n;
          }
      }
}

// On a GPU with cuBLASLt: one algorithm for any number of rows, so that a row's bits are those that it gets among others.
TEST_P(Products, LinearByTheLibrary) {
  if (device_->info().emulated) GTEST_SKIP() << "a library for GPUs";
  const struct { std::uint32_t n, k; bool bias; } shapes[] = {{136, 200, true}, {2048, 512, false}, {64, 1024, false}};
  for (const auto& s : shapes) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    std::vector<double> w;
    const Weight packed = weight({Format::bf16, 0}, 1, s.n, s.k, w);
    const std::uint32_t most = 1000;
    const auto product = open_large_product(0, {s.n, s.k, (s.k + 63ull) / 64 * 64, packed.row_bytes / 2, s.n + 4, s.bias, most});
    if (!large_products_version().ok()) GTEST_SKIP() << product.status().message();
    ASSERT_TRUE(product.ok()) << product.status().message();
    const auto x = floats(most * s.k), bias = floats(s.n);
    const std::vector<double> wide(x.begin(), x.end());
    std::vector<float> all;
    for (const std::uint32_t rows : {most, 256u, 999u, 31u}) {
      const Matrix out = output(rows, s.n, 4);
      LinearArgs a = {matrix(x, s.k), packed, s.bias ? put(bias) : nullptr, out, rows, Format::bf16,
                      scratch(gpu_linear_workspace(Format::bf16, rows, s.k).total())};
      a.large = product->get();
      run(kernels().linear, a);
      const auto got = get(out, rows);
      if (rows == most) all = got;
      if (rows >= kLargeProductRows) EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << rows << " rows";
      for (std::size_t r = 0; r < rows; r += 17)
        for (std::size_t n = 0; n < s.n; ++n) {
          const Sum sum = dot(wide.data() + r * s.k, w.data() + n * s.k, s.k, Format::bf16);
          ASSERT_NEAR(got[r * s.n + n], sum.value + (s.bias ? bias[n] : 0), 1e-6 + sum.size * 3e-6) << "row " << r << ", " << n;
        }
    }
  }
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// h and out of one row through gate_up [2 I, K] and down [N, I]; slack: sum of the sizes of the terms; flip: what two elements of h,
// as large as the largest term, change when they round to the other side (bf16 has steps of up to 1/128 of a value).
struct Swiglu {
  std::vector<double> out, slack, flip;
};
Swiglu swiglu(const double* x, const double* gate_up, const double* down, std::size_t k, std::size_t intermediate, std::size_t n,
              Format activations) {
  std::vector<double> h(intermediate);
  for (std::size_t i = 0; i < intermediate; ++i)
    h[i] = silu(dot(x, gate_up + i * k, k, activations).value) * dot(x, gate_up + (intermediate + i) * k, k, activations).value;
  Swiglu s;
  for (std::size_t c = 0; c < n; ++c) {
    const Sum sum = dot(h.data(), down + c * intermediate, intermediate, activations);
    s.out.push_back(sum.value);
    s.slack.push_back(sum.size);
    double largest = 0;
    for (std::size_t i = 0; i < intermediate; ++i) largest = std::max(largest, std::abs(h[i] * down[c * intermediate + i]));
    s.flip.push_back(2 * largest / 128);
  }
  return s;
}
// An element of h beside a rounding boundary may round the other way: two of the largest, or a share of many small ones.
double swiglu_tolerance(bool cuda, const Kind& kind, Format activations, double slack, double flip) {
  const bool rounded = activations == Format::bf16;
  return 1e-5 + slack * (1e-5 + (rounded ? 1.0 / 1024 : 0) + (cuda && rounded && kind.group != 0 ? 1.0 / 64 : 0)) + (rounded ? flip : 0);
}

TEST_P(Products, Mlp) {
  const struct { std::uint32_t rows, k, intermediate, n; } shapes[] = {{1, 64, 32, 64}, {3, 100, 70, 90}, {8, 256, 128, 256}, {40, 128, 96, 130}};
  for (const Kind& kind : kKinds)
    for (const Format activations : {Format::f32, Format::bf16})
      for (const auto& s : shapes) {
        SCOPED_TRACE(std::string(to_string(kind.format)) + "/" + std::to_string(kind.group) + " x " + std::string(to_string(activations)) + ", " +
                     std::to_string(s.rows) + " rows, " + std::to_string(s.k) + " -> " + std::to_string(s.intermediate));
        std::vector<double> gu, d;
        const Weight gate_up = weight(kind, 1, 2 * s.intermediate, s.k, gu), down = weight(kind, 1, s.n, s.intermediate, d);
        const auto x = floats(s.rows * s.k, 0.3f);
        const Matrix out = output(s.rows, s.n, 4);
        run(kernels().mlp, MlpArgs{matrix(x, s.k, 4), gate_up, down, out, s.rows, activations,
                                   scratch(gpu_mlp_workspace(activations, s.rows, s.k, s.intermediate).total())});
        const auto got = get(out, s.rows);
        const std::vector<double> wide(x.begin(), x.end());
        for (std::size_t r = 0; r < s.rows; ++r) {
          const Swiglu e = swiglu(wide.data() + r * s.k, gu.data(), d.data(), s.k, s.intermediate, s.n, activations);
          for (std::size_t c = 0; c < s.n; ++c)
            ASSERT_NEAR(got[r * s.n + c], e.out[c], swiglu_tolerance(cuda(), kind, activations, e.slack[c], e.flip[c])) << "row " << r << ", " << c;
        }
      }
}

// The pairs of an op, from the definition: sort this token's eligible pairs, the lowest `late` are late.
std::vector<std::int32_t> slots_of_pairs(const std::vector<std::int32_t>& ids, const std::vector<float>& weights,
                                         const std::vector<std::int32_t>* slots, bool deferred, std::uint32_t late, std::uint32_t part,
                                         bool among_all) {
  const std::size_t top_k = ids.size();
  std::vector<std::int32_t> slot(top_k);
  std::vector<std::size_t> eligible;
  for (std::size_t k = 0; k < top_k; ++k) {
    slot[k] = ids[k] < 0 ? -1 : slots != nullptr ? (*slots)[static_cast<std::size_t>(ids[k])] : ids[k];
    if (ids[k] >= 0 && (among_all || slot[k] >= 0)) eligible.push_back(k);
  }
  std::sort(eligible.begin(), eligible.end(), [&](std::size_t a, std::size_t b) {
    return weights[a] != weights[b] ? weights[a] < weights[b] : ids[a] > ids[b];
  });
  std::vector<bool> is_late(top_k);
  if (deferred)
    for (std::size_t i = 0; i < eligible.size() && i < late; ++i) is_late[eligible[i]] = true;
  for (std::size_t k = 0; k < top_k; ++k)
    if (part != 0 && is_late[k] != (part == 2)) slot[k] = -1;
  return slot;
}

struct ExpertsCase {
  Kind kind;
  Format activations;
  std::uint32_t rows, experts, top_k, k, intermediate;
  bool slots;
  std::uint32_t late, part;
  bool among_all;
};

TEST_P(Products, Experts) {
  std::vector<ExpertsCase> cases;
  for (const Kind& kind : kKinds)
    for (const Format activations : {Format::f32, Format::bf16}) {
      cases.push_back({kind, activations, 1, 8, 2, 128, 64, false, 0, 0, false});
      cases.push_back({kind, activations, 5, 12, 4, 100, 70, true, 0, 0, false});
      cases.push_back({kind, activations, 70, 6, 3, 128, 96, false, 0, 0, false});
    }
  for (const std::uint32_t part : {1u, 2u})
    for (const bool among_all : {false, true})
      for (const bool slots : {false, true}) {
        cases.push_back({{Format::f32, 0}, Format::f32, 9, 10, 5, 64, 32, slots, 2, part, among_all});
        cases.push_back({{Format::bf16, 0}, Format::bf16, 33, 10, 5, 64, 32, slots, 5, part, among_all});
        cases.push_back({{Format::bf16, 0}, Format::bf16, 6, 20, 10, 320, 200, slots, 2, part, among_all});
      }
  // a layer of Qwen3-30B-A3B; several turns of every block, and less than a warp's share of columns
  cases.push_back({{Format::bf16, 0}, Format::bf16, 1, 16, 8, 2048, 768, false, 0, 0, false});
  cases.push_back({{Format::int8, 0}, Format::bf16, 3, 12, 4, 1280, 264, true, 0, 0, false});
  cases.push_back({{Format::bf16, 0}, Format::bf16, 8, 9, 8, 96, 24, false, 0, 0, false});
  for (const ExpertsCase& c : cases) {
    SCOPED_TRACE(std::string(to_string(c.kind.format)) + "/" + std::to_string(c.kind.group) + " x " + std::string(to_string(c.activations)) + ", " +
                 std::to_string(c.rows) + " rows, top " + std::to_string(c.top_k) + " of " + std::to_string(c.experts) + ", part " +
                 std::to_string(c.part) + (c.slots ? ", slots" : "") + (c.among_all ? ", among all" : ""));
    std::vector<std::int32_t> slots(c.experts, -1);
    std::uint32_t matrices = c.experts;
    if (c.slots) {
      matrices = 0;
      for (std::uint32_t e = 0; e < c.experts; e += 2) slots[c.experts - 1 - e] = static_cast<std::int32_t>(matrices++);
    }
    std::vector<double> gu, d;
    const Weight gate_up = weight(c.kind, matrices, 2 * c.intermediate, c.k, gu), down = weight(c.kind, matrices, c.k, c.intermediate, d);
    const auto x = floats(c.rows * c.k, 0.3f);
    std::vector<std::int32_t> chosen, deferred;
    std::vector<float> weights;
    for (std::uint32_t t = 0; t < c.rows; ++t) {
      std::vector<std::int32_t> all(c.experts);
      for (std::uint32_t e = 0; e < c.experts; ++e) all[e] = static_cast<std::int32_t>(e);
      std::shuffle(all.begin(), all.end(), random);
      for (std::uint32_t k = 0; k < c.top_k; ++k) {
        chosen.push_back(t % 4 == 3 && k == 1 ? -1 : all[k]);
        weights.push_back(static_cast<float>(1 + below(3)) / 4);  // ties are common
      }
      deferred.push_back(t % 3 != 0);
    }
    const Matrix out = output(c.rows, c.k, 4);
    ExpertsArgs a = {matrix(x, c.k, 4), ids(chosen, c.top_k), matrix(weights, c.top_k), {c.slots ? put(slots) : nullptr, put(deferred), c.late, c.part, c.among_all},
                     gate_up, down, out, c.rows, c.top_k, c.experts, c.activations,
                     scratch(gpu_experts_workspace(c.activations, c.rows, c.top_k, c.k, c.intermediate, c.experts).total())};
    run(kernels().experts, a);
    const auto got = get(out, c.rows);
    run(kernels().experts, a);
    ASSERT_EQ(got, get(out, c.rows));  // sums have an order
    // a bank in groups of three, in place of the whole: the sums of a token are added in another order
    const Matrix again = output(c.rows, c.k, 4);
    for (std::uint32_t first = 0; first < matrices; first += 3) {
      ExpertsArgs group = a;
      group.first = first;
      group.accumulate = first != 0;
      for (Weight* w : {&group.gate_up, &group.down}) w->data += first * w->matrix_bytes, w->batch = std::min(3u, matrices - first);
      group.out = again;
      run(kernels().experts, group);
    }
    const auto in_groups = get(again, c.rows);
    const std::vector<double> wide(x.begin(), x.end());
    for (std::size_t t = 0; t < c.rows; ++t) {
      const std::vector<std::int32_t> own(chosen.begin() + static_cast<long>(t * c.top_k), chosen.begin() + static_cast<long>((t + 1) * c.top_k));
      const std::vector<float> w(weights.begin() + static_cast<long>(t * c.top_k), weights.begin() + static_cast<long>((t + 1) * c.top_k));
      const auto slot = slots_of_pairs(own, w, c.slots ? &slots : nullptr, deferred[t] != 0, c.late, c.part, c.among_all);
      std::vector<double> expected(c.k), slack(c.k), flip(c.k);
      for (std::size_t k = 0; k < c.top_k; ++k) {
        if (slot[k] < 0) continue;
        const auto m = static_cast<std::size_t>(slot[k]);
        const Swiglu e = swiglu(wide.data() + t * c.k, gu.data() + m * 2 * c.intermediate * c.k, d.data() + m * c.k * c.intermediate, c.k,
                                c.intermediate, c.k, c.activations);
        for (std::size_t i = 0; i < c.k; ++i) {
          expected[i] += w[k] * e.out[i];
          slack[i] += w[k] * e.slack[i];
          flip[i] += w[k] * e.flip[i];
        }
      }
      for (std::size_t i = 0; i < c.k; ++i) {
        ASSERT_NEAR(got[t * c.k + i], expected[i], swiglu_tolerance(cuda(), c.kind, c.activations, slack[i], flip[i])) << "token " << t << ", " << i;
        ASSERT_NEAR(in_groups[t * c.k + i], expected[i], swiglu_tolerance(cuda(), c.kind, c.activations, slack[i], flip[i])) << "token " << t << ", " << i;
      }
    }
  }
}

// So many pairs that the down products of all columns would not fit: a token gets the bits that it gets among few.
TEST_P(Products, ColumnsOfExpertsInTurn) {
  constexpr std::uint32_t kMany = 9000, kSome = 300, kTopK = 8, kExperts = 16, kHidden = 1152, kIntermediate = 64;
  static_assert(gpu_experts_columns(kMany * kTopK, kHidden) < kHidden && gpu_experts_columns(kSome * kTopK, kHidden) == kHidden);
  if (device_->info().emulated) GTEST_SKIP() << "takes minutes";
  std::vector<double> values;
  const Weight gate_up = weight({Format::bf16, 0}, kExperts, 2 * kIntermediate, kHidden, values);
  const Weight down = weight({Format::bf16, 0}, kExperts, kHidden, kIntermediate, values);
  std::vector<std::int32_t> chosen;
  for (std::uint32_t t = 0; t < kMany; ++t)
    for (std::uint32_t k = 0; k < kTopK; ++k) chosen.push_back(static_cast<std::int32_t>(2 * k + below(2)));
  ExpertsArgs a = {matrix(floats(kMany * kHidden, 0.3f), kHidden), ids(chosen, kTopK), matrix(floats(kMany * kTopK), kTopK), {}, gate_up, down,
                   output(kMany, kHidden), kMany, kTopK, kExperts, Format::bf16,
                   scratch(gpu_experts_workspace(Format::bf16, kMany, kTopK, kHidden, kIntermediate, kExperts).total())};
  run(kernels().experts, a);
  const auto many = get(a.out, kMany);
  a.out = output(kSome, kHidden);
  a.rows = kSome;
  run(kernels().experts, a);
  const auto some = get(a.out, kSome);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), many.begin()));
  EXPECT_GT(*std::max_element(some.begin(), some.end()), 0.0f);
}

}  // namespace
}  // namespace ktc::gpu
