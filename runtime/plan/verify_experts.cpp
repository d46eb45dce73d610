// Router, routed experts and dense feed-forward blocks.
#include <fmt/format.h>

#include "runtime/formats/workspace.h"
#include "runtime/plan/step_check.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;  // sums of four stay below 2^62; align64 cannot overflow

std::optional<std::uint64_t> bounded(std::initializer_list<std::uint64_t> factors) {
  const auto bytes = product(factors);
  return bytes && *bytes < kLargest ? bytes : std::nullopt;
}

// Equal weights would pick the same experts for every token and time nothing.
void check_not_splat(StepCheck& c, const WeightT* weight) {
  if (weight == nullptr) return;
  c.check(storage_of(c.site().plan, *weight).source != WeightSource::splat, "source of w " + shown(weight->name),
          "splat", "the checkpoint's weights: a router of equal ones always picks the same experts");
}

void check_groups(StepCheck& c, const RouteOpT& op) {
  c.check(op.experts > 0 && op.experts == c.site().plan.model->experts, "experts", number(std::uint64_t{op.experts}),
          fmt::format("the model's {}", c.site().plan.model->experts));
  c.check(op.groups > 0 && op.experts % (op.groups == 0 ? 1 : op.groups) == 0, "groups",
          number(std::uint64_t{op.groups}), fmt::format("a divisor of {}", op.experts));
  c.check(op.topk_groups > 0 && op.topk_groups <= op.groups, "topk_groups", number(std::uint64_t{op.topk_groups}),
          fmt::format("1 to {}", op.groups));
  c.check(op.kind == RouterKind::sigmoid_group || op.groups == 1, "groups", number(std::uint64_t{op.groups}),
          "1 for softmax_topk");
  if (!c.ok()) return;
  const std::uint64_t choice = std::uint64_t{op.experts} / op.groups * op.topk_groups;
  c.check(op.top_k > 0 && op.top_k <= choice, "top_k", number(std::uint64_t{op.top_k}), fmt::format("1 to {}", choice));
}

Status route(const EntrySite& site, std::size_t index, const RouteOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(1, 2)) return c.take();
  c.check(is_member(op.kind), "kind", number(static_cast<std::uint64_t>(op.kind)), "softmax_topk or sigmoid_group");
  check_groups(c, op);
  if (!c.ok()) return c.take();
  const std::uint64_t hidden = c.input(0).columns();
  c.input_is(0, Format::f32, c.symbol_of_input(0), hidden);
  c.output_is(0, Format::i32, c.symbol_of_input(0), op.top_k);
  c.output_is(1, Format::f32, c.symbol_of_input(0), op.top_k);
  const WeightT* w = c.weight("w", op.w);
  c.weight_is("w", w, 1, op.experts, hidden);
  c.packed_as("w", w, Packing::row_major);
  check_not_splat(c, w);
  c.vector_weight("w_bias", op.w_bias, op.experts, true);
  c.finite("scale", op.scale);
  if (!c.ok()) return c.take();
  const std::uint64_t rows = site.bound(c.symbol_of_input(0));
  c.workspace(bounded({rows, op.experts, 4}) ? std::optional(route_workspace(rows, op.experts).total()) : std::nullopt);
  return c.take();
}

// An expert bank is moved and mapped by pages.
void check_bank(StepCheck& c, std::string_view field, const WeightT* weight) {
  if (weight == nullptr || !c.ok()) return;
  const WeightT& storage = storage_of(c.site().plan, *weight);
  c.check(storage.source != WeightSource::file || storage.offset % 4096 == 0,
          fmt::format("offset of {} {}", field, shown(storage.name)), number(storage.offset),
          "a multiple of 4096 for experts");
}

// gate and up rows in one matrix: [batch, 2 * intermediate, hidden]. Returns intermediate, 0 after a failure.
std::uint64_t check_gate_up(StepCheck& c, const WeightT* gate_up, std::uint64_t batch, std::uint64_t hidden) {
  if (gate_up == nullptr || !c.ok()) return 0;
  c.check(gate_up->rows % 2 == 0, "rows of w_gate_up " + shown(gate_up->name), number(gate_up->rows), "an even number");
  c.weight_is("w_gate_up", gate_up, batch, gate_up->rows, hidden);
  return c.ok() ? gate_up->rows / 2 : 0;
}

Status experts(const EntrySite& site, std::size_t index, const ExpertsOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(3, 1)) return c.take();
  const ModelT& model = *site.plan.model;
  const Symbol symbol = c.symbol_of_input(0);
  const std::uint64_t hidden = c.input(0).columns(), top_k = c.input(1).columns();
  c.check(is_member(op.activation), "activation", number(static_cast<std::uint64_t>(op.activation)), "swiglu");
  c.input_is(0, Format::f32, symbol, hidden);
  c.input_is(1, Format::i32, symbol, top_k);
  c.input_is(2, Format::f32, symbol, top_k);
  c.output_is(0, Format::f32, symbol, hidden);
  c.check(op.layer < model.layers, "layer", number(std::uint64_t{op.layer}),
          fmt::format("below the model's {}", model.layers));
  const WeightT* gate_up = c.weight("w_gate_up", op.w_gate_up);
  const std::uint64_t intermediate = check_gate_up(c, gate_up, model.experts, hidden);
  const WeightT* down = c.weight("w_down", op.w_down);
  c.weight_is("w_down", down, model.experts, hidden, intermediate);
  check_bank(c, "w_gate_up", gate_up);
  check_bank(c, "w_down", down);
  if (!c.ok()) return c.take();
  const std::uint64_t rows = site.bound(symbol);
  const bool panels = c.panels({{"w_gate_up", gate_up, true}, {"w_down", down, false}}, op.x_granule, op.h_granule, op.tile_rows);
  if (!c.ok()) return c.take();
  if (panels) {
    const bool fits = bounded({rows, top_k, hidden, 64}) && bounded({rows, top_k, intermediate, 64}) &&
                      bounded({model.experts, hidden, 64}) && bounded({model.experts, intermediate, 64});
    c.workspace(fits ? std::optional(panel_experts_workspace(static_cast<Format>(c.step().activations), rows, top_k, hidden,
                                                             intermediate, model.experts, op.x_granule, op.h_granule,
                                                             op.tile_rows)
                                         .total())
                     : std::nullopt);
    return c.take();
  }
  const bool fits = bounded({rows, top_k, intermediate, 4}) && bounded({rows, top_k, 8});
  c.workspace(fits ? std::optional(experts_workspace(rows, top_k, intermediate, model.experts).total()) : std::nullopt);
  return c.take();
}

Status mlp(const EntrySite& site, std::size_t index, const MlpOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(1, 1)) return c.take();
  const Symbol symbol = c.symbol_of_input(0);
  const std::uint64_t hidden = c.input(0).columns();
  c.check(is_member(op.activation), "activation", number(static_cast<std::uint64_t>(op.activation)), "swiglu");
  c.input_is(0, Format::f32, symbol, hidden);
  const WeightT* gate_up = c.weight("w_gate_up", op.w_gate_up);
  const std::uint64_t intermediate = check_gate_up(c, gate_up, 1, hidden);
  const WeightT* down = c.weight("w_down", op.w_down);
  c.weight_is("w_down", down, 1, hidden, intermediate);
  c.output_is(0, Format::f32, symbol, hidden);
  if (!c.ok()) return c.take();
  const std::uint64_t rows = site.bound(symbol);
  const bool panels = c.panels({{"w_gate_up", gate_up, true}, {"w_down", down, false}}, op.x_granule, op.h_granule, op.tile_rows);
  if (!c.ok()) return c.take();
  if (panels) {
    const auto padded = sum(rows, 15);  // to tiles
    const bool fits = padded && bounded({*padded, hidden, 64}) && bounded({*padded, intermediate, 64});
    c.workspace(fits ? std::optional(panel_mlp_workspace(static_cast<Format>(c.step().activations), rows, hidden, intermediate,
                                                         op.x_granule, op.h_granule, op.tile_rows)
                                         .total())
                     : std::nullopt);
    return c.take();
  }
  c.workspace(bounded({rows, intermediate, 4}) ? std::optional(mlp_workspace(rows, intermediate).total())
                                               : std::nullopt);
  return c.take();
}

}  // namespace

Status verify_experts(const EntrySite& site, std::size_t index) {
  const OpUnion& op = site.entry.steps[index]->op;
  if (op.type == Op::RouteOp) return route(site, index, *op.AsRouteOp());
  if (op.type == Op::ExpertsOp) return experts(site, index, *op.AsExpertsOp());
  return mlp(site, index, *op.AsMlpOp());
}

}  // namespace ktc::plan::detail
