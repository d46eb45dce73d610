// Layers of experts, MLPs and linear steps on panels, without a plan: equal to the bit to one token at a time through the scalar kernels, whole rows at
// once, whatever the number of workers, of tokens and of experts that some token wants.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/base/cpu_features.h"
#include "runtime/exec/panel_steps.h"
#include "runtime/formats/workspace.h"
#include "runtime/weights/host_memory.h"
#include "test/support/simulated_nodes.h"

namespace ktc::exec {
namespace {

struct Case {
  Format format;
  std::uint32_t group, granule;
};

constexpr std::size_t kExperts = 7, kTopK = 3, kMostRows = 40, kHidden = 330, kIntermediate = 408;

class Random {
 public:
  explicit Random(std::uint64_t seed) : x_(seed * 2654435761u + 88172645463325252u) {}
  std::uint64_t next() {
    x_ ^= x_ << 13;
    x_ ^= x_ >> 7;
    x_ ^= x_ << 17;
    return x_;
  }
  float unit() { return static_cast<float>(next() >> 40) / static_cast<float>(1 << 24) - 0.5f; }

 private:
  std::uint64_t x_;
};

weights::HostBlock block(std::uint64_t bytes) {
  auto made = weights::HostBlock::allocate(bytes, "test");
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

// Panels of any codes that a quantiser may write, also in the padding.
weights::HostBlock random_panels(const PanelLayout& layout, std::size_t matrices, std::uint64_t seed) {
  weights::HostBlock memory = block(matrices * layout.matrix_bytes);
  Random random(seed);
  for (std::size_t p = 0; p < matrices * layout.panels; ++p) {
    std::byte* panel = memory.data() + p * layout.panel_bytes;
    for (std::size_t at = 0; at < layout.head_bytes; at += layout.scale_bytes) {
      const float scale = (0.75f + random.unit()) / (layout.format == Format::int8 ? 640.0f : 40.0f);
      const auto bf16 = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale) >> 16);
      std::memcpy(panel + at, layout.scale_bytes == 4 ? static_cast<const void*>(&scale) : &bf16, layout.scale_bytes);
    }
    for (std::size_t at = layout.head_bytes; at < layout.panel_bytes; at += 2) {
      std::uint16_t code = static_cast<std::uint16_t>(random.next() >> 20);
      if (layout.format == Format::bf16) code = static_cast<std::uint16_t>((code & 0x807f) | 0x3d00);
      if (layout.format == Format::int8) code = static_cast<std::uint16_t>(code | 0x0101);  // no -128
      if (layout.format == Format::int4) code = static_cast<std::uint16_t>(code | 0x1111);  // no -8
      std::memcpy(panel + at, &code, 2);
    }
  }
  return memory;
}

// Where weights are split over nodes; null: they are in one piece.
struct Splits {
  const weights::PanelSplit *gate_up = nullptr, *down = nullptr;
};

class PanelExperts : public testing::TestWithParam<Case> {
 protected:
  PanelExperts() {
    const Case& c = GetParam();
    gate_up_ = *panel_layout(c.format, c.group, true, 2 * kIntermediate, kHidden);
    down_ = *panel_layout(c.format, c.group, false, kHidden, kIntermediate);
    gate_up_weights_ = random_panels(gate_up_, kExperts, 1);
    down_weights_ = random_panels(down_, kExperts, 2);
    activations_ = c.format == Format::bf16 ? Format::bf16 : Format::int8;
    Random random(3);
    x_.resize(kMostRows * kHidden);
    for (float& v : x_) v = random.unit();
    std::fill_n(x_.begin(), kHidden, 0.0f);  // a token of zeros
    ids_.resize(kMostRows * kTopK);
    routing_.resize(kMostRows * kTopK);
    // Expert 4 has no token; every fifth token has an id outside the bank, one has nothing else.
    const std::int32_t wanted[] = {0, 1, 2, 3, 5, 6};
    for (std::size_t t = 0; t < kMostRows; ++t)
      for (std::size_t k = 0; k < kTopK; ++k) {
        ids_[t * kTopK + k] = wanted[(t * t + t / 2 + k * (1 + t % 2)) % 6];
        if (t % 5 == 2 && k == 1) ids_[t * kTopK + k] = t % 2 == 0 ? -1 : 1 << 20;
        if (t == 6) ids_[t * kTopK + k] = static_cast<std::int32_t>(kExperts + k);
        routing_[t * kTopK + k] = 0.1f + 0.3f * random.unit();
      }
  }

  // One row through whole matrices by the scalar kernels.
  std::vector<float> product(const kernels::KernelSet& scalar, const PanelLayout& layout, const std::byte* matrix,
                             const std::vector<float>& x) const {
    const std::uint32_t granule = activations_ == Format::int8 ? GetParam().granule : 0;
    const auto space = panel_rows_workspace(activations_, 1, 1, x.size(), granule);
    weights::HostBlock memory = block(space.total());
    const PanelOperands operands = panel_operands(memory.data(), space, activations_, x.size(), granule, scalar);
    operands.fill(x.data(), 0);
    const kernels::PanelRow row = operands.row(0);
    std::vector<float> all;
    for (std::size_t p = 0; p < layout.panels; ++p) {
      alignas(64) float out[32];
      kernels::PanelArgs args = {};
      args.panel = matrix + p * layout.panel_bytes;
      args.layout = &layout;
      args.rows = &row;
      args.m = 1;
      args.kb_stride = operands.piece_bytes();
      args.x_granule = granule;
      args.out = out;
      scalar.panel(layout.format).few(args);
      all.insert(all.end(), out, out + 32);
    }
    return all;
  }

  std::vector<float> expected(std::size_t token) const {
    const kernels::KernelSet scalar = kernels::select_kernels(host_cpu_features(), IsaLevel::scalar);
    std::vector<float> y(kHidden, 0.0f);
    const std::vector<float> x(x_.begin() + static_cast<std::ptrdiff_t>(token * kHidden),
                               x_.begin() + static_cast<std::ptrdiff_t>((token + 1) * kHidden));
    for (std::size_t e = 0; e < kExperts; ++e)
      for (std::size_t k = 0; k < kTopK; ++k) {
        if (ids_[token * kTopK + k] != static_cast<std::int32_t>(e)) continue;
        const std::vector<float> both = product(scalar, gate_up_, gate_up_weights_.data() + e * gate_up_.matrix_bytes, x);
        std::vector<float> h(gate_up_.panels * 16);
        for (std::size_t p = 0; p < gate_up_.panels; ++p) scalar.swiglu(both.data() + p * 32, h.data() + p * 16);
        h.resize(kIntermediate);
        const std::vector<float> z = product(scalar, down_, down_weights_.data() + e * down_.matrix_bytes, h);
        scalar.accumulate(z.data(), routing_[token * kTopK + k], kHidden, false, y.data());
      }
    return y;
  }

  // The first `rows` tokens as a step of the executor, `repeats` times.
  void check(Workers& workers, IsaLevel level, std::size_t rows, int repeats, const Splits& splits = {}) {
    const std::uint32_t granule = activations_ == Format::int8 ? GetParam().granule : 0;
    const kernels::KernelSet kernels = kernels::select_kernels(host_cpu_features(), level);
    const std::size_t pairs = rows * kTopK;
    const auto space = panel_experts_workspace(activations_, rows, kTopK, kHidden, kIntermediate, kExperts, granule, granule, 0);
    weights::HostBlock workspace = block(space.total());
    std::memset(workspace.data(), 0xff, space.total());  // whatever an earlier step left there
    std::byte* at = workspace.data();
    const auto take = [&at](std::uint64_t bytes) { return std::exchange(at, at + bytes); };
    PanelExpertsStep s = {};
    s.gate_up = {splits.gate_up ? nullptr : gate_up_weights_.data(), gate_up_, kernels.panel(gate_up_.format), splits.gate_up};
    s.down = {splits.down ? nullptr : down_weights_.data(), down_, kernels.panel(down_.format), splits.down};
    s.swiglu = kernels.swiglu;
    s.accumulate = kernels.accumulate;
    s.tile_rows = SIZE_MAX;
    s.most_pairs = pairs;
    s.x_operands = panel_operands(take(space.x.total()), space.x, activations_, kHidden, granule, kernels);
    take(space.x_tiles.total());
    s.hidden = {reinterpret_cast<float*>(take(space.hidden)), padded16(kIntermediate), padded16(kIntermediate)};
    s.h_operands = panel_operands(take(space.h.total()), space.h, activations_, kIntermediate, granule, kernels);
    s.rows = reinterpret_cast<kernels::PanelRow*>(take(space.rows));
    std::vector<float> out(rows * kHidden, -1.0f);
    s.routed.x = {x_.data(), kHidden, kHidden};
    s.routed.out = {out.data(), kHidden, kHidden};
    s.routed.weights = {routing_.data(), kTopK, kTopK};
    s.routed.ids = {ids_.data(), kTopK, kTopK};
    s.routed.experts = kExperts;
    s.routed.filter.ids = kExperts;
    s.routed.top_k = kTopK;
    s.routed.intermediate = kIntermediate;
    s.routed.pair_row = reinterpret_cast<std::uint32_t*>(take(space.pairs));
    s.routed.active = s.routed.pair_row + pairs;
    s.routed.first = reinterpret_cast<std::uint32_t*>(take(space.offsets));
    s.routed.pair_weight = reinterpret_cast<float*>(take(space.weights));
    s.places = reinterpret_cast<ExpertPlace*>(take(space.progress));
    std::vector<std::uint32_t> busy(kExperts);
    StepState state;
    state.workers = &workers;
    state.tokens = state.rows = rows;
    state.busy_experts = busy.data();
    for (int i = 0; i < repeats; ++i) {
      std::fill(out.begin(), out.end(), -1.0f);
      workers.enter([&] { run_step(s, state); });
      for (std::size_t t = 0; t < rows; ++t)
        ASSERT_EQ(std::memcmp(out.data() + t * kHidden, expected_[t].data(), kHidden * sizeof(float)), 0)
            << "token " << t << " of " << rows << ", " << workers.threads() << " workers, " << to_string(level);
    }
  }

  void SetUp() override {
    for (std::size_t t = 0; t < kMostRows; ++t) expected_.push_back(expected(t));
  }

  PanelLayout gate_up_, down_;
  weights::HostBlock gate_up_weights_, down_weights_;
  Format activations_ = Format::int8;
  std::vector<float> x_, routing_;
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<float>> expected_;
};

TEST_P(PanelExperts, AnyNumberOfWorkersAndTokens) {
  for (const int threads : {1, 2, 3, 7, 16}) {
    auto workers = Workers::create(threads);
    ASSERT_TRUE(workers.ok()) << workers.status().message();
    for (std::size_t rows = 1; rows <= 9 && !HasFatalFailure(); ++rows) check(**workers, IsaLevel::best, rows, 3);
    if (!HasFatalFailure()) check(**workers, IsaLevel::best, kMostRows, 2);
  }
}

TEST_P(PanelExperts, AnyNumberOfNodes) {
  for (const auto& [threads, nodes] : {std::pair{2, 2}, {3, 2}, {7, 2}, {3, 3}, {7, 3}}) {
    const auto dealt = test::simulated_nodes(threads, nodes);
    const auto workers = test::simulated_workers(threads, nodes);
    ASSERT_EQ(workers->nodes(), static_cast<std::size_t>(nodes));
    test::PlacedPanels placed;
    const Splits splits = {placed.place(dealt, gate_up_, kExperts, gate_up_weights_.data()),
                           placed.place(dealt, down_, kExperts, down_weights_.data())};
    for (const std::size_t rows : {1, 2, 5, 8, 9, 40}) {
      if (HasFatalFailure()) return;
      check(*workers, IsaLevel::best, rows, 2, splits);
      if (rows == 2 && !HasFatalFailure()) check(*workers, IsaLevel::best, rows, 1);  // weights in one piece
    }
  }
}

TEST_P(PanelExperts, EveryLevel) {
  auto workers = Workers::create(2);
  ASSERT_TRUE(workers.ok()) << workers.status().message();
  for (const IsaLevel level : kernels::available_levels(host_cpu_features()))
    for (const std::size_t rows : {1, 4, 9})
      if (!HasFatalFailure()) check(**workers, level, rows, 1);
}

TEST_P(PanelExperts, MlpAndLinear) {
  const kernels::KernelSet kernels = kernels::select_kernels(host_cpu_features(), IsaLevel::best);
  const kernels::KernelSet scalar = kernels::select_kernels(host_cpu_features(), IsaLevel::scalar);
  const std::uint32_t granule = activations_ == Format::int8 ? GetParam().granule : 0;
  constexpr std::size_t kRows = 10;
  const std::byte* const gate_up = gate_up_weights_.data() + gate_up_.matrix_bytes;
  const std::byte* const down = down_weights_.data() + 2 * down_.matrix_bytes;
  std::vector<float> bias(kHidden);
  for (std::size_t c = 0; c < kHidden; ++c) bias[c] = 0.01f * static_cast<float>(c % 7);
  std::vector<std::vector<float>> mlp, linear;
  for (std::size_t r = 0; r < kRows; ++r) {
    const float* x = x_.data() + r * kHidden;
    const std::vector<float> both = product(scalar, gate_up_, gate_up, {x, x + kHidden});
    std::vector<float> h(gate_up_.panels * 16);
    for (std::size_t p = 0; p < gate_up_.panels; ++p) scalar.swiglu(both.data() + p * 32, h.data() + p * 16);
    h.resize(kIntermediate);
    mlp.push_back(product(scalar, down_, down, h));
    x = x_.data() + r * kIntermediate;
    linear.push_back(product(scalar, down_, down, {x, x + kIntermediate}));
    for (std::size_t c = 0; c < kHidden; ++c) linear.back()[c] += bias[c];
  }
  for (const auto& [threads, nodes] : {std::pair{1, 1}, {2, 1}, {3, 1}, {7, 1}, {16, 1}, {2, 2}, {7, 2}, {7, 3}}) {
    const auto dealt = test::simulated_nodes(threads, nodes);
    const auto workers = test::simulated_workers(threads, nodes);
    test::PlacedPanels placed;
    const auto* gate_up_split = placed.place(dealt, gate_up_, 1, gate_up);
    const auto* down_split = placed.place(dealt, down_, 1, down);
    StepState state;
    state.workers = workers.get();
    for (std::size_t rows = 1; rows <= kRows; ++rows) {
      state.tokens = rows;
      std::vector<float> out(rows * kHidden, -1.0f);
      const Matrix to = {out.data(), kHidden, kHidden};
      const auto same = [&](const std::vector<std::vector<float>>& wanted) {
        for (std::size_t r = 0; r < rows; ++r)
          if (std::memcmp(out.data() + r * kHidden, wanted[r].data(), kHidden * sizeof(float)) != 0) return false;
        return true;
      };
      const auto mlp_space = panel_mlp_workspace(activations_, rows, kHidden, kIntermediate, granule, granule, 0);
      const auto space = panel_linear_workspace(activations_, rows, kIntermediate, granule, 0);
      weights::HostBlock workspace = block(mlp_space.total() + space.total());
      std::byte* at = workspace.data();
      const auto take = [&at](std::uint64_t bytes) { return std::exchange(at, at + bytes); };
      PanelMlpStep m = {};
      m.x = {x_.data(), kHidden, kHidden};
      m.out = to;
      m.gate_up = {gate_up, gate_up_, kernels.panel(gate_up_.format), gate_up_split};
      m.down = {down, down_, kernels.panel(down_.format), down_split};
      m.x_operands = panel_operands(take(mlp_space.x.total()), mlp_space.x, activations_, kHidden, granule, kernels);
      m.hidden = {reinterpret_cast<float*>(take(mlp_space.hidden)), padded16(kIntermediate), padded16(kIntermediate)};
      m.h_operands = panel_operands(take(mlp_space.h.total()), mlp_space.h, activations_, kIntermediate, granule, kernels);
      m.rows = reinterpret_cast<kernels::PanelRow*>(take(mlp_space.rows));
      m.swiglu = kernels.swiglu;
      m.tile_rows = SIZE_MAX;
      workers->enter([&] { run_step(m, state); });
      ASSERT_TRUE(same(mlp)) << "mlp of " << rows << " rows, " << threads << " workers on " << nodes << " nodes";
      PanelLinearStep l = {};
      l.x = {x_.data(), kIntermediate, kIntermediate};
      l.out = to;
      l.w = m.down;
      l.bias = bias.data();
      l.operands = panel_operands(take(space.x.total()), space.x, activations_, kIntermediate, granule, kernels);
      l.rows = reinterpret_cast<kernels::PanelRow*>(take(space.rows));
      l.tile_rows = SIZE_MAX;
      workers->enter([&] { run_step(l, state); });
      ASSERT_TRUE(same(linear)) << "linear of " << rows << " rows, " << threads << " workers on " << nodes << " nodes";
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all = {{Format::bf16, 0, 0}};
  for (const std::uint32_t granule : {64, 128, 0}) {
    all.push_back({Format::int8, 0, granule});
    for (const std::uint32_t group : {0, 32, 64, 128}) all.push_back({Format::int4, group, granule});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, PanelExperts, testing::ValuesIn(cases()), [](const testing::TestParamInfo<Case>& info) {
  return std::string(to_string(info.param.format)) + "_group" + std::to_string(info.param.group) + "_granule" +
         std::to_string(info.param.granule);
});

}  // namespace
}  // namespace ktc::exec
