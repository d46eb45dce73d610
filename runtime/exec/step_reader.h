// One step of one entry, with small readers of the plan's indices: what the resolvers of ops are written in.
#pragma once

#include <string>

#include "runtime/exec/panel_steps.h"
#include "runtime/exec/resolve.h"

namespace ktc::exec {

Status refuse(const planfb::StepT& step, std::string what, std::string found, std::string expected);

class StepReader {
 public:
  StepReader(const planfb::PlanT& plan, const planfb::EntryT& entry, const planfb::StepT& step,
             const weights::WeightStore& weights, const kernels::KernelSet& kernels, const Memory& memory)
      : plan_(plan), entry_(entry), step_(step), weights_(weights), kernels_(kernels), memory_(memory) {}

  template <typename T>
  Rows<T> rows(const planfb::View& view) const {
    const planfb::BufferT& buffer = *entry_.buffers[view.buffer()];
    return {reinterpret_cast<T*>(memory_.arena + buffer.offset) + view.column(), buffer.row_bytes / sizeof(T), view.columns()};
  }
  Matrix in(std::size_t i) const { return rows<float>(step_.inputs[i]); }
  Matrix out(std::size_t i) const { return rows<float>(step_.outputs[i]); }
  Ids ids(std::size_t i) const { return rows<std::int32_t>(step_.inputs[i]); }
  bool of_rows() const { return entry_.buffers[step_.outputs[0].buffer()]->symbol == planfb::Symbol::rows; }
  std::uint64_t bound() const { return plan::bound_of(entry_, entry_.buffers[step_.outputs[0].buffer()]->symbol); }
  std::byte* workspace() const { return memory_.arena + entry_.buffers[step_.workspace]->offset; }

  const weights::WeightView& view(std::uint32_t w) const { return weights_[w]; }
  Weight weight(std::uint32_t w) const { return {view(w).data, view(w).row_bytes, view(w).rows, view(w).columns}; }
  const float* vector(std::uint32_t w) const { return w == plan::kNone ? nullptr : view(w).vector(); }

  Format activations() const { return static_cast<Format>(step_.activations); }
  bool in_panels(std::uint32_t w) const { return view(w).packing != Packing::row_major; }
  // The plan was verified, so the layout exists.
  PanelWeight panels(std::uint32_t w) const {
    const weights::WeightView& v = view(w);
    return {v.data, *panel_layout(v.format, v.group, v.packing == Packing::panel_paired, v.rows, v.columns), kernels_.panel(v.format), v.split};
  }
  // From how many rows tile kernels serve: the plan's number where this machine has such kernels for both formats.
  std::size_t tile_rows(std::uint32_t planned, const PanelWeight& a, const PanelWeight& b) const {
    return planned != 0 && a.kernels.many != nullptr && b.kernels.many != nullptr ? planned : SIZE_MAX;
  }

  const planfb::PlanT& plan_;
  const planfb::EntryT& entry_;
  const planfb::StepT& step_;
  const weights::WeightStore& weights_;
  const kernels::KernelSet& kernels_;
  const Memory& memory_;
};

// Steps whose weights are panels (resolve_panel.cpp).
Expected<Step> resolve_panel_linear(const StepReader& reader, const planfb::LinearOpT& op);
Expected<Step> resolve_panel_mlp(const StepReader& reader, const planfb::MlpOpT& op);
Expected<Step> resolve_panel_experts(const StepReader& reader, const planfb::ExpertsOpT& op);

// The table of sorted pairs behind `area`: pair_row, active, first, pair_weight, in the order of ExpertsWorkspace; and the
// counters of activations. Everything of an ExpertsStep but its weights and kernels.
Status fill_routing(const StepReader& reader, const planfb::ExpertsOpT& op, std::byte* area, std::uint64_t pairs_bytes,
                    std::uint64_t offsets_bytes, ExpertsStep& step);

}  // namespace ktc::exec
