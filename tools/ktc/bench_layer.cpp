#include "tools/ktc/bench_layer.h"

#include <algorithm>
#include <utility>

#include "runtime/formats/workspace.h"

namespace ktc::bench {

Routing make_routing(std::size_t per_expert, std::size_t experts, std::size_t top_k, std::uint64_t hidden,
                     std::uint64_t intermediate) {
  constexpr std::size_t kManyTokens = 16;
  constexpr std::uint64_t kLargeMatrix = std::uint64_t{4} << 20;
  Routing routing;
  routing.per_expert = per_expert;
  routing.top_k = top_k;
  std::size_t groups = 1;
  if (per_expert >= kManyTokens) {
    const std::size_t wanted = std::min<std::size_t>(experts, hidden * intermediate > kLargeMatrix ? 16 : 64);
    groups = std::max<std::size_t>(1, wanted / top_k);
  }
  routing.active = groups * top_k;
  routing.tokens = groups * per_expert;
  return routing;
}

Status make_engine(IsaLevel level, exec::Workers& workers, std::size_t experts, const std::vector<PanelLayout>& layouts,
                   kernels::TileShapes shapes, Engine& engine) {
  engine.kernels = kernels::select_kernels(host_cpu_features(), level);
  engine.shapes = shapes;
  engine.workers = &workers;
  engine.busy_experts.assign(experts, 0);
  engine.state.workers = &workers;
  engine.state.busy_experts = engine.busy_experts.data();
  std::size_t each = 0;
  for (const PanelLayout& layout : layouts)
    if (engine.kernels.panel(layout.format).many != nullptr)
      each = std::max({each, std::size_t{64}, kernels::panel_scratch_bytes(layout)});
  if (each == 0) return {};
  KTC_ASSIGN_OR_RETURN(engine.tile_scratch,
                       weights::HostBlock::allocate(std::uint64_t{each} * static_cast<unsigned>(workers.threads()), "tile scratch"));
  engine.state.tile_scratch = engine.tile_scratch.data();
  engine.state.tile_scratch_each = each;
  engine.state.enter_tiles = engine.kernels.enter_tiles;
  engine.state.leave_tiles = engine.kernels.leave_tiles;
  return {};
}

// The same steps as resolve_panel_experts takes from a plan.
Expected<Layer> Layer::create(const Pool& pool, Engine& engine, const ExpertsOptions& options, const TileVariant& variant,
                              std::size_t most_tokens, std::uint32_t tile_rows) {
  Layer layer;
  layer.pool_ = &pool;
  layer.engine_ = &engine;
  layer.hidden_ = options.hidden;
  const std::size_t hidden = options.hidden, intermediate = options.intermediate, top_k = options.top_k;
  const std::size_t experts = options.experts, pairs = most_tokens * top_k;
  layer.x_.resize(most_tokens * hidden);
  layer.out_.resize(most_tokens * hidden);
  layer.ids_.resize(pairs);
  layer.routing_weights_.resize(pairs);

  const Format activations = pool.format.integer() ? Format::int8 : Format::bf16;
  const std::uint32_t x_granule = pool.format.integer() ? options.x_granule : 0;
  const std::uint32_t h_granule = pool.format.integer() ? options.h_granule : 0;
  const auto space = panel_experts_workspace(activations, most_tokens, top_k, hidden, intermediate, experts, x_granule, h_granule, tile_rows);
  KTC_ASSIGN_OR_RETURN(layer.workspace_, weights::HostBlock::allocate(space.total(), "workspace"));
  std::byte* at = layer.workspace_.data();
  const auto take = [&at](std::uint64_t bytes) { return std::exchange(at, at + bytes); };

  exec::PanelExpertsStep& s = layer.step_;
  kernels::KernelSet kernels = engine.kernels;
  kernels::set_tile_shapes(kernels, variant.shape ? kernels::TileShapes{*variant.shape, *variant.shape} : engine.shapes);
  s.gate_up = {nullptr, pool.gate_up, kernels.panel(pool.gate_up.format)};
  s.down = {nullptr, pool.down, kernels.panel(pool.down.format)};
  s.tuning = variant.tuning;
  layer.times_ = std::make_unique<exec::ExpertTimes>();
  s.times = layer.times_.get();
  s.swiglu = engine.kernels.swiglu;
  s.accumulate = engine.kernels.accumulate;
  s.tile_rows = tile_rows != 0 && s.gate_up.kernels.many != nullptr && s.down.kernels.many != nullptr ? tile_rows : SIZE_MAX;
  s.most_pairs = pairs;
  s.x_operands = exec::panel_operands(take(space.x.total()), space.x, activations, hidden, x_granule, engine.kernels);
  s.x_tiles = exec::panel_operands(take(space.x_tiles.total()), space.x_tiles, activations, hidden, x_granule, engine.kernels);
  s.hidden = {reinterpret_cast<float*>(take(space.hidden)), padded16(intermediate), padded16(intermediate)};
  s.h_operands = exec::panel_operands(take(space.h.total()), space.h, activations, intermediate, h_granule, engine.kernels);
  s.rows = reinterpret_cast<kernels::PanelRow*>(take(space.rows));
  exec::ExpertsStep& routed = s.routed;
  routed.x = {layer.x_.data(), hidden, hidden};
  routed.out = {layer.out_.data(), hidden, hidden};
  routed.weights = {layer.routing_weights_.data(), top_k, top_k};
  routed.ids = {layer.ids_.data(), top_k, top_k};
  routed.experts = experts;
  routed.filter.ids = experts;
  routed.top_k = top_k;
  routed.intermediate = intermediate;
  routed.pair_row = reinterpret_cast<std::uint32_t*>(take(space.pairs));
  routed.active = routed.pair_row + pairs;
  routed.first = reinterpret_cast<std::uint32_t*>(take(space.offsets));
  routed.pair_weight = reinterpret_cast<float*>(take(space.weights));
  s.places = reinterpret_cast<exec::ExpertPlace*>(take(space.progress));
  s.sixteens = reinterpret_cast<std::uint32_t*>(take(space.sixteens));
  s.out_panels = reinterpret_cast<float*>(take(space.out_panels));
  s.turns = reinterpret_cast<exec::ExpertTurn*>(take(space.turns));
  return layer;
}

void Layer::set_inputs(const Routing& routing, const std::vector<std::size_t>& tokens, const float* x) {
  count_ = tokens.size();
  for (std::size_t i = 0; i < count_; ++i) {
    std::copy_n(x + tokens[i] * hidden_, hidden_, x_.data() + i * hidden_);
    for (std::size_t k = 0; k < routing.top_k; ++k) {
      ids_[i * routing.top_k + k] = static_cast<std::int32_t>(routing.expert(tokens[i], k));
      routing_weights_[i * routing.top_k + k] = (1.0f + static_cast<float>((tokens[i] + k) % 7)) / 16.0f;
    }
  }
}

void Layer::run(std::size_t expert) {
  step_.gate_up.data = pool_->gate_up_at(expert);
  step_.down.data = pool_->down_at(expert);
  engine_->state.tokens = engine_->state.rows = count_;
  run_step(step_, engine_->state);
}

}  // namespace ktc::bench
