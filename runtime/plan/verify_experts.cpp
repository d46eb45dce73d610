// Router and dense feed-forward blocks.
#include <fmt/format.h>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/workspace.h"
#include "runtime/plan/step_check.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

// Equal weights would pick the same experts for every token and time nothing.
void check_not_splat(StepCheck& c, const WeightT* weight) {
  if (weight == nullptr) return;
  c.check(storage_of(c.site().plan, *weight).source != WeightSource::splat, "source of w " + shown(weight->name),
          "splat", "the checkpoint's weights: a router of equal ones always picks the same experts");
}

constexpr std::uint32_t kMostExperts = 4096;  // kernels keep the scores of a token on the stack

void check_groups(StepCheck& c, const RouteOpT& op) {
  c.check(op.experts > 0 && op.experts == c.site().plan.model->experts, "experts", number(std::uint64_t{op.experts}),
          fmt::format("the model's {}", c.site().plan.model->experts));
  c.check(op.experts <= kMostExperts, "experts", number(std::uint64_t{op.experts}), fmt::format("at most {}", kMostExperts));
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
  const bool fits = bounded({rows, op.experts, 4}).has_value();
  if (c.on_gpu())
    c.gpu_workspace(fits ? std::optional(gpu_route_workspace(rows, op.experts).total()) : std::nullopt);
  else
    c.workspace(fits ? std::optional(route_workspace(rows, op.experts).total()) : std::nullopt);
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
  const std::uint64_t intermediate = c.gate_up_is(gate_up, 1, hidden);
  const WeightT* down = c.weight("w_down", op.w_down);
  c.weight_is("w_down", down, 1, hidden, intermediate);
  c.output_is(0, Format::f32, symbol, hidden);
  if (!c.ok()) return c.take();
  const std::uint64_t rows = site.bound(symbol);
  const bool panels = c.panels({{"w_gate_up", gate_up, true}, {"w_down", down, false}}, op.x_granule, op.h_granule, op.tile_rows);
  if (!c.ok()) return c.take();
  if (c.on_gpu()) {
    const auto width = sum(hidden, 63), inner = sum(intermediate, 63);
    const bool fits = width && inner && bounded({rows, *width, 4}) && bounded({rows, 2, *inner, 4});
    c.gpu_workspace(fits ? std::optional(gpu_mlp_workspace(static_cast<Format>(c.step().activations), rows, hidden, intermediate)
                                             .total())
                         : std::nullopt);
    return c.take();
  }
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
  return mlp(site, index, *op.AsMlpOp());
}

}  // namespace ktc::plan::detail
