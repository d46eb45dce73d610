// Products with panels on (emulated) tiles: the bits of the scalar kernels, whatever the routing, the workers and the cuts.
#include "runtime/exec/panel_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/formats/workspace.h"
#include "runtime/kernels/cpu/panel_tiles.h"
#include "runtime/weights/host_memory.h"
#include "test/support/panel_pack.h"
#include "test/support/simulated_nodes.h"

namespace ktc::exec {
namespace {

using weights::HostBlock;

struct Shape {
  Format format = Format::int8;
  std::uint32_t group = 0, granule = 0;
  std::size_t columns = 96, intermediate = 80, experts = 5, top_k = 2;
  Format activations() const { return format == Format::int8 || format == Format::int4 ? Format::int8 : Format::bf16; }
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << to_string(s.format) << "/" << s.group << " granule " << s.granule << ", " << s.columns << " x " << s.intermediate;
}

HostBlock allocate(std::uint64_t bytes) { return *HostBlock::allocate(std::max<std::uint64_t>(bytes, 64), "test"); }

// `batch` random matrices in panels.
struct Panels {
  Panels(const Shape& shape, bool paired, std::size_t batch, std::size_t rows, std::size_t columns, std::mt19937& random)
      : layout(*panel_layout(shape.format, shape.group, paired, rows, columns)),
        matrices(batch),
        memory(allocate(batch * layout.matrix_bytes)) {
    for (std::size_t b = 0; b < batch; ++b) {
      test::PanelMatrix matrix;
      matrix.layout = layout;
      matrix.codes.resize(rows * columns);
      for (std::int32_t& code : matrix.codes) {
        const auto bits = static_cast<std::int32_t>(random() & 0xffff);
        code = shape.format == Format::int8   ? bits % 255 - 127
               : shape.format == Format::int4 ? bits % 15 - 7
               : shape.format == Format::fp8  ? bits % 0x60 | (bits & 0x80)
                                              : (bits & 0x80ff) | 0x3d00;
      }
      if (shape.format != Format::bf16) {
        matrix.scales.resize(rows * matrix.scale_groups());
        const float base = shape.format == Format::int8 ? 0.002f : shape.format == Format::int4 ? 0.03f : 0.05f;
        for (float& s : matrix.scales) s = bf16_to_f32(f32_to_bf16(base * (1.0f + static_cast<float>(random() % 8) / 8.0f)));
      }
      for (std::size_t p = 0; p < layout.panels; ++p)
        test::pack_panel(matrix, p, memory.data() + b * layout.matrix_bytes + p * layout.panel_bytes);
    }
  }
  PanelLayout layout;
  std::size_t matrices;
  HostBlock memory;
};

// Kernels, workers and scratch.
struct Engine {
  Engine(const kernels::KernelSet& kernels, int threads, const std::vector<PanelLayout>& layouts, int node_count = 1)
      : set(kernels), nodes(test::simulated_nodes(threads, node_count)), workers(*Workers::create(nodes)) {
    std::size_t each = 64;
    for (const PanelLayout& layout : layouts) each = std::max(each, kernels::panel_scratch_bytes(layout));
    scratch = allocate(each * static_cast<std::size_t>(threads));
    busy.resize(64);
    state.workers = workers.get();
    state.busy_experts = busy.data();
    state.tile_scratch = scratch.data();
    state.tile_scratch_each = each;
    state.enter_tiles = set.enter_tiles;
    state.leave_tiles = set.leave_tiles;
  }
  PanelWeight weight(const Panels& panels) {
    const auto* split = placed.place(nodes, panels.layout, panels.matrices, panels.memory.data());
    return {split == nullptr ? panels.memory.data() : nullptr, panels.layout, set.panel(panels.layout.format), split};
  }
  kernels::KernelSet set;
  std::vector<WorkerNode> nodes;
  test::PlacedPanels placed;
  std::unique_ptr<Workers> workers;
  HostBlock scratch = allocate(64);
  std::vector<std::uint32_t> busy;
  StepState state;
};

class PanelSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::emulated_tiles_available(host_cpu_features())) GTEST_SKIP() << "needs AVX-512";
    plain_ = kernels::select_kernels(CpuFeatures{});
  }
  kernels::KernelSet tiled(kernels::TileShape shape) const {
    kernels::KernelSet set = kernels::select_kernels(host_cpu_features());
    kernels::emulate_tiles(set, shape);
    return set;
  }

  std::vector<float> inputs(std::size_t count) {
    std::vector<float> x(count);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random_);
    return x;
  }

  // What any workspace may hold before: NaN in floats, garbage in integers.
  static std::byte* dirty(HostBlock& block) {
    std::memset(block.data(), 0xff, block.bytes());
    return block.data();
  }

  struct Routed {
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
  };

  // The layer's output [tokens, columns].
  std::vector<float> experts(const Shape& shape, const Panels& gate_up, const Panels& down, Engine& engine, std::uint32_t tile_rows,
                             const TileTuning& tuning, std::vector<float> x, Routed routed) {
    const std::size_t tokens = x.size() / shape.columns, pairs = tokens * shape.top_k;
    const auto space = panel_experts_workspace(shape.activations(), tokens, shape.top_k, shape.columns, shape.intermediate,
                                               shape.experts, shape.granule, shape.granule, tile_rows);
    HostBlock memory = allocate(space.total());
    std::byte* at = dirty(memory);
    const auto take = [&at](std::uint64_t bytes) { return std::exchange(at, at + bytes); };
    const auto operands = [&](const PanelRowsWorkspace& area, std::size_t columns) {
      return panel_operands(take(area.total()), area, shape.activations(), columns, shape.granule, engine.set);
    };
    std::vector<float> out(tokens * shape.columns, std::nanf(""));
    PanelExpertsStep s = {};
    s.gate_up = engine.weight(gate_up);
    s.down = engine.weight(down);
    s.swiglu = engine.set.swiglu;
    s.accumulate = engine.set.accumulate;
    s.tile_rows = tile_rows == 0 ? SIZE_MAX : tile_rows;
    s.tuning = tuning;
    s.most_pairs = pairs;
    s.x_operands = operands(space.x, shape.columns);
    s.x_tiles = operands(space.x_tiles, shape.columns);
    s.hidden = {reinterpret_cast<float*>(take(space.hidden)), padded16(shape.intermediate), padded16(shape.intermediate)};
    s.h_operands = operands(space.h, shape.intermediate);
    s.rows = reinterpret_cast<kernels::PanelRow*>(take(space.rows));
    ExpertsStep& r = s.routed;
    r.x = {x.data(), shape.columns, shape.columns};
    r.out = {out.data(), shape.columns, shape.columns};
    r.weights = {routed.weights.data(), shape.top_k, shape.top_k};
    r.ids = {routed.ids.data(), shape.top_k, shape.top_k};
    r.experts = shape.experts;
    r.filter.ids = shape.experts;
    r.top_k = shape.top_k;
    r.intermediate = shape.intermediate;
    r.pair_row = reinterpret_cast<std::uint32_t*>(take(space.pairs));
    r.active = r.pair_row + pairs;
    r.first = reinterpret_cast<std::uint32_t*>(take(space.offsets));
    r.pair_weight = reinterpret_cast<float*>(take(space.weights));
    s.places = reinterpret_cast<ExpertPlace*>(take(space.progress));
    s.sixteens = reinterpret_cast<std::uint32_t*>(take(space.sixteens));
    s.out_panels = reinterpret_cast<float*>(take(space.out_panels));
    s.turns = reinterpret_cast<ExpertTurn*>(take(space.turns));
    EXPECT_EQ(at, memory.data() + space.total());
    engine.state.tokens = engine.state.rows = tokens;
    engine.workers->enter([&] { run_step(s, engine.state); });
    return out;
  }

  std::vector<float> linear(const Shape& shape, const Panels& w, Engine& engine, std::uint32_t tile_rows, const TileTuning& tuning,
                            std::vector<float> x, const float* bias) {
    const std::size_t rows = x.size() / shape.columns, columns = w.layout.rows;
    const auto space = panel_linear_workspace(shape.activations(), rows, shape.columns, shape.granule, tile_rows);
    HostBlock memory = allocate(space.total());
    std::byte* at = dirty(memory);
    std::vector<float> out(rows * columns, std::nanf(""));
    PanelLinearStep s = {};
    s.x = {x.data(), shape.columns, shape.columns};
    s.out = {out.data(), columns, columns};
    s.w = engine.weight(w);
    s.bias = bias;
    s.operands = panel_operands(at, space.x, shape.activations(), shape.columns, shape.granule, engine.set);
    s.tiles = panel_operands(at + space.x.total(), space.x_tiles, shape.activations(), shape.columns, shape.granule, engine.set);
    s.rows = reinterpret_cast<kernels::PanelRow*>(at + space.x.total() + space.x_tiles.total());
    s.tile_rows = tile_rows == 0 ? SIZE_MAX : tile_rows;
    s.tuning = tuning;
    engine.state.tokens = engine.state.rows = rows;
    engine.workers->enter([&] { run_step(s, engine.state); });
    return out;
  }

  std::vector<float> mlp(const Shape& shape, const Panels& gate_up, const Panels& down, Engine& engine, std::uint32_t tile_rows,
                         const TileTuning& tuning, std::vector<float> x) {
    const std::size_t rows = x.size() / shape.columns;
    const auto space = panel_mlp_workspace(shape.activations(), rows, shape.columns, shape.intermediate, shape.granule, shape.granule,
                                           tile_rows);
    HostBlock memory = allocate(space.total());
    std::byte* at = dirty(memory);
    const auto take = [&at](std::uint64_t bytes) { return std::exchange(at, at + bytes); };
    std::vector<float> out(x.size(), std::nanf(""));
    PanelMlpStep s = {};
    s.x = {x.data(), shape.columns, shape.columns};
    s.out = {out.data(), shape.columns, shape.columns};
    s.gate_up = engine.weight(gate_up);
    s.down = engine.weight(down);
    s.x_operands = panel_operands(take(space.x.total()), space.x, shape.activations(), shape.columns, shape.granule, engine.set);
    s.x_tiles = panel_operands(take(space.x_tiles.total()), space.x_tiles, shape.activations(), shape.columns, shape.granule, engine.set);
    s.hidden = {reinterpret_cast<float*>(take(space.hidden)), padded16(shape.intermediate), padded16(shape.intermediate)};
    s.h_operands = panel_operands(take(space.h.total()), space.h, shape.activations(), shape.intermediate, shape.granule, engine.set);
    s.rows = reinterpret_cast<kernels::PanelRow*>(take(space.rows));
    s.swiglu = engine.set.swiglu;
    s.tile_rows = tile_rows == 0 ? SIZE_MAX : tile_rows;
    s.tuning = tuning;
    engine.state.tokens = engine.state.rows = rows;
    engine.workers->enter([&] { run_step(s, engine.state); });
    return out;
  }

  static void expect_bits(const std::vector<float>& expected, const std::vector<float>& found, std::size_t columns) {
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(__builtin_bit_cast(std::uint32_t, expected[i]), __builtin_bit_cast(std::uint32_t, found[i]))
          << "row " << i / columns << " column " << i % columns << ": " << found[i] << " for " << expected[i];
  }

  // Tokens choose experts with odds that make some busy, some rare; now and then an id that no expert has.
  Routed route(const Shape& shape, std::size_t tokens) {
    Routed r;
    for (std::size_t t = 0; t < tokens; ++t) {
      std::vector<std::int32_t> chosen;
      while (chosen.size() < shape.top_k) {
        std::int32_t id = static_cast<std::int32_t>(random_() % shape.experts);
        if (random_() % 2 == 0) id = static_cast<std::int32_t>(random_() % 2);
        if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) chosen.push_back(id);
      }
      if (random_() % 20 == 0) chosen[0] = -1;
      for (const std::int32_t id : chosen) {
        r.ids.push_back(id);
        r.weights.push_back(0.1f + static_cast<float>(random_() % 100) / 100.0f);
      }
    }
    return r;
  }

  static std::vector<TileTuning> tunings() {
    TileTuning small;
    small.inner = 2;
    small.outer_bytes = 4096;
    small.rows = 32;
    small.up_panels = 2;
    small.down_panels = 1;
    small.sum_bytes = 1;
    small.fetch_values = false;
    TileTuning whole;
    whole.inner = 0;
    return {TileTuning{}, small, whole};
  }
  static std::vector<Shape> shapes() {
    return {{Format::int8, 0, 0, 96, 80},    {Format::int8, 0, 64, 320, 48},  {Format::int8, 0, 128, 129, 80},
            {Format::int4, 0, 0, 200, 96},   {Format::int4, 64, 0, 320, 160}, {Format::int4, 32, 64, 96, 80},
            {Format::int4, 128, 0, 300, 48}, {Format::bf16, 0, 0, 96, 80},    {Format::fp8, 128, 0, 300, 80},
            {Format::fp8, 0, 0, 96, 48}};
  }

  kernels::KernelSet plain_{};
  std::mt19937 random_{20261129};
};

TEST_F(PanelSteps, ExpertsOnTilesGiveTheBitsOfTheScalarKernels) {
  for (const Shape& shape : shapes()) {
    const Panels gate_up(shape, true, shape.experts, 2 * shape.intermediate, shape.columns, random_);
    const Panels down(shape, false, shape.experts, shape.columns, shape.intermediate, random_);
    Engine scalar(plain_, 1, {});
    for (std::size_t tokens : {5, 33, 100}) {
      const std::vector<float> x = inputs(tokens * shape.columns);
      const Routed routed = route(shape, tokens);
      const auto expected = experts(shape, gate_up, down, scalar, 0, {}, x, routed);
      std::size_t zeros = 0;
      for (const float v : expected) {
        ASSERT_TRUE(std::isfinite(v));
        zeros += v == 0.0f;
      }
      ASSERT_LT(zeros, expected.size() / 2) << shape;
      for (const auto& [threads, nodes] : {std::pair{1, 1}, {3, 1}, {2, 2}, {7, 3}})
        for (const TileTuning& tuning : tunings()) {
          const auto tile = kernels::kTileShapes[random_() % std::size(kernels::kTileShapes)];
          SCOPED_TRACE(::testing::PrintToString(shape) + ", " + std::to_string(tokens) + " tokens, " + std::to_string(threads) +
                       " threads on " + std::to_string(nodes) + " nodes, " + std::string(kernels::to_string(tile)) + ", inner " + std::to_string(tuning.inner));
          Engine engine(tiled(tile), threads, {gate_up.layout, down.layout}, nodes);
          expect_bits(expected, experts(shape, gate_up, down, engine, 9, tuning, x, routed), shape.columns);
          if (HasFatalFailure()) return;
        }
    }
  }
}

// More rows than one call takes, and an expert alone.
TEST_F(PanelSteps, ManyRowsOfOneExpert) {
  const Shape shape{Format::int8, 0, 0, 64, 16, 2, 1};
  const Panels gate_up(shape, true, shape.experts, 2 * shape.intermediate, shape.columns, random_);
  const Panels down(shape, false, shape.experts, shape.columns, shape.intermediate, random_);
  Engine scalar(plain_, 1, {}), engine(tiled(kernels::TileShape::one_by_two), 2, {gate_up.layout, down.layout});
  for (std::size_t tokens : {512, 513, 1100}) {
    const std::vector<float> x = inputs(tokens * shape.columns);
    const Routed routed{std::vector<std::int32_t>(tokens, 1), std::vector<float>(tokens, 0.5f)};
    expect_bits(experts(shape, gate_up, down, scalar, 0, {}, x, routed),
                experts(shape, gate_up, down, engine, 9, {}, x, routed), shape.columns);
    if (HasFatalFailure()) return;
  }
}

TEST_F(PanelSteps, LinearOnTilesGivesTheBitsOfTheScalarKernels) {
  for (const Shape& shape : shapes())
    for (std::size_t columns : {1, 40, 300}) {
      const Panels w(shape, false, 1, columns, shape.columns, random_);
      const std::vector<float> bias = inputs(columns);
      Engine scalar(plain_, 1, {}), one(tiled(kernels::TileShape::two_by_one), 2, {w.layout}),
          two(tiled(kernels::TileShape::two_by_one), 3, {w.layout}, 2);
      for (std::size_t rows : {9, 16, 70})
        for (const TileTuning& tuning : tunings()) {
          Engine& engine = rows == 16 ? one : two;
          SCOPED_TRACE(::testing::PrintToString(shape) + ", " + std::to_string(columns) + " columns, " + std::to_string(rows) + " rows");
          const std::vector<float> x = inputs(rows * shape.columns);
          const float* const b = rows == 16 ? nullptr : bias.data();
          expect_bits(linear(shape, w, scalar, 0, {}, x, b), linear(shape, w, engine, 9, tuning, x, b), columns);
          if (HasFatalFailure()) return;
        }
    }
}

TEST_F(PanelSteps, MlpOnTilesGivesTheBitsOfTheScalarKernels) {
  for (const Shape& shape : shapes()) {
    const Panels gate_up(shape, true, 1, 2 * shape.intermediate, shape.columns, random_);
    const Panels down(shape, false, 1, shape.columns, shape.intermediate, random_);
    Engine scalar(plain_, 1, {}), one(tiled(kernels::TileShape::one_by_one), 2, {gate_up.layout, down.layout}),
        two(tiled(kernels::TileShape::one_by_one), 3, {gate_up.layout, down.layout}, 2);
    for (std::size_t rows : {8, 9, 40, 49})
      for (const TileTuning& tuning : tunings()) {
        Engine& engine = rows == 49 ? one : two;
        SCOPED_TRACE(::testing::PrintToString(shape) + ", " + std::to_string(rows) + " rows");
        const std::vector<float> x = inputs(rows * shape.columns);
        expect_bits(mlp(shape, gate_up, down, scalar, 0, {}, x), mlp(shape, gate_up, down, engine, 9, tuning, x), shape.columns);
        if (HasFatalFailure()) return;
      }
  }
}

TEST(TileCut, PiecesAreEvenAndFit) {
  for (std::size_t blocks = 1; blocks < 300; ++blocks)
    for (std::size_t rows : {1, 16, 17, 128, 256, 512})
      for (std::size_t element : {1, 2}) {
        const TileTuning tuning;
        const TileCut cut = tile_cut(blocks, rows, element, tuning);
        ASSERT_GE(cut.outer, 1u);
        ASSERT_GE(cut.outer, cut.inner);
        if (cut.inner < cut.outer) EXPECT_EQ(cut.inner % 2, 0u) << blocks << " " << rows;
        if (cut.outer < blocks) {
          EXPECT_EQ(cut.outer % 2, 0u) << blocks << " " << rows;
          EXPECT_EQ(cut.outer % cut.inner, 0u) << blocks << " " << rows;
          EXPECT_LE(round_up(rows, 16) * 64 * element * cut.outer, tuning.outer_bytes + round_up(rows, 16) * 64 * element * cut.inner);
        }
        EXPECT_LE(cut.inner, std::max<std::size_t>(2, tuning.inner / element));
      }
  EXPECT_EQ(tile_cut(112, 256, 1, {}).outer, 56u);  // K = 7168: two pieces of activations of 256 rows
  EXPECT_EQ(tile_cut(112, 256, 1, {}).inner, 8u);
  EXPECT_EQ(tile_cut(32, 512, 1, {}).outer, 32u);
}

}  // namespace
}  // namespace ktc::exec
