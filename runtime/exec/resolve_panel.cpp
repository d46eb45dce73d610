// Steps whose weights are panels, from the plan's numbers to pointers.
#include "runtime/exec/step_reader.h"
#include "runtime/formats/workspace.h"

namespace ktc::exec {
namespace {

// Hands out one area behind the other.
class Areas {
 public:
  explicit Areas(std::byte* at) : at_(at) {}
  std::byte* take(std::uint64_t bytes) {
    std::byte* area = at_;
    at_ += bytes;
    return area;
  }

 private:
  std::byte* at_;
};

Status check_mlp(const StepReader& r, planfb::Activation activation, std::uint32_t gate_up, std::uint32_t down) {
  if (activation != planfb::Activation::swiglu)
    return refuse(r.step_, "unknown activation", std::to_string(static_cast<int>(activation)), "swiglu");
  if (r.view(gate_up).packing != Packing::panel_paired || r.view(down).packing != Packing::panel)
    return refuse(r.step_, "packings of gate_up and down",
                  std::string(to_string(r.view(gate_up).packing)) + " and " + std::string(to_string(r.view(down).packing)),
                  "panel_paired and panel");
  return {};
}

}  // namespace

Expected<Step> resolve_panel_linear(const StepReader& r, const planfb::LinearOpT& op) {
  if (r.view(op.w).packing != Packing::panel)
    return refuse(r.step_, "packing of a linear step", std::string(to_string(r.view(op.w).packing)), "panel");
  PanelLinearStep s = {};
  s.x = r.in(0);
  s.out = r.out(0);
  s.w = r.panels(op.w);
  s.bias = r.vector(op.w_bias);
  s.of_rows = r.of_rows();
  s.tile_rows = r.tile_rows(op.tile_rows, s.w, s.w);
  const auto space = panel_linear_workspace(r.activations(), r.bound(), s.x.columns, op.x_granule, op.tile_rows);
  Areas areas(r.workspace());
  s.operands = panel_operands(areas.take(space.x.total()), space.x, r.activations(), s.x.columns, op.x_granule, r.kernels_);
  s.tiles = panel_operands(areas.take(space.x_tiles.total()), space.x_tiles, r.activations(), s.x.columns, op.x_granule, r.kernels_);
  s.rows = reinterpret_cast<kernels::PanelRow*>(areas.take(space.rows));
  return Step(s);
}

Expected<Step> resolve_panel_mlp(const StepReader& r, const planfb::MlpOpT& op) {
  KTC_RETURN_IF_ERROR(check_mlp(r, op.activation, op.w_gate_up, op.w_down));
  PanelMlpStep s = {};
  s.x = r.in(0);
  s.out = r.out(0);
  s.gate_up = r.panels(op.w_gate_up);
  s.down = r.panels(op.w_down);
  s.swiglu = r.kernels_.swiglu;
  s.of_rows = r.of_rows();
  s.tile_rows = r.tile_rows(op.tile_rows, s.gate_up, s.down);
  const std::size_t intermediate = s.down.layout.columns;
  const auto space = panel_mlp_workspace(r.activations(), r.bound(), s.x.columns, intermediate, op.x_granule, op.h_granule,
                                         op.tile_rows);
  Areas areas(r.workspace());
  s.x_operands = panel_operands(areas.take(space.x.total()), space.x, r.activations(), s.x.columns, op.x_granule, r.kernels_);
  s.x_tiles = panel_operands(areas.take(space.x_tiles.total()), space.x_tiles, r.activations(), s.x.columns, op.x_granule, r.kernels_);
  s.hidden = {reinterpret_cast<float*>(areas.take(space.hidden)), padded16(intermediate), padded16(intermediate)};
  s.h_operands = panel_operands(areas.take(space.h.total()), space.h, r.activations(), intermediate, op.h_granule, r.kernels_);
  s.rows = reinterpret_cast<kernels::PanelRow*>(areas.take(space.rows));
  return Step(s);
}

Expected<Step> resolve_panel_experts(const StepReader& r, const planfb::ExpertsOpT& op) {
  KTC_RETURN_IF_ERROR(check_mlp(r, op.activation, op.w_gate_up, op.w_down));
  PanelExpertsStep s = {};
  s.gate_up = r.panels(op.w_gate_up);
  s.down = r.panels(op.w_down);
  s.swiglu = r.kernels_.swiglu;
  s.accumulate = r.kernels_.accumulate;
  s.tile_rows = r.tile_rows(op.tile_rows, s.gate_up, s.down);
  const std::size_t columns = r.in(0).columns, intermediate = s.down.layout.columns;
  const std::size_t top_k = r.ids(1).columns, experts = r.view(op.w_gate_up).batch;
  s.most_pairs = r.bound() * top_k;
  const auto space = panel_experts_workspace(r.activations(), r.bound(), top_k, columns, intermediate, experts, op.x_granule,
                                             op.h_granule, op.tile_rows);
  Areas areas(r.workspace());
  s.x_operands = panel_operands(areas.take(space.x.total()), space.x, r.activations(), columns, op.x_granule, r.kernels_);
  s.x_tiles = panel_operands(areas.take(space.x_tiles.total()), space.x_tiles, r.activations(), columns, op.x_granule, r.kernels_);
  s.hidden = {reinterpret_cast<float*>(areas.take(space.hidden)), padded16(intermediate), padded16(intermediate)};
  s.h_operands = panel_operands(areas.take(space.h.total()), space.h, r.activations(), intermediate, op.h_granule, r.kernels_);
  s.rows = reinterpret_cast<kernels::PanelRow*>(areas.take(space.rows));
  std::byte* routing = areas.take(space.pairs + space.offsets + space.weights);
  KTC_RETURN_IF_ERROR(fill_routing(r, op, routing, space.pairs, space.offsets, s.routed));
  s.places = reinterpret_cast<ExpertPlace*>(areas.take(space.progress));
  s.sixteens = reinterpret_cast<std::uint32_t*>(areas.take(space.sixteens));
  s.out_panels = reinterpret_cast<float*>(areas.take(space.out_panels));
  s.turns = reinterpret_cast<ExpertTurn*>(areas.take(space.turns));
  return Step(s);
}

}  // namespace ktc::exec
