#include "runtime/exec/kernel_choice.h"

#include <algorithm>

namespace ktc::exec {
namespace {

// The least and the largest number of rows from which steps on the CPU ask for tiles; 0 and 0: none does.
struct TileRows {
  std::uint32_t least = 0, most = 0;
  void add(std::uint32_t rows) {
    if (rows == 0) return;
    least = least == 0 ? rows : std::min(least, rows);
    most = std::max(most, rows);
  }
};

TileRows tile_rows(const planfb::PlanT& plan) {
  TileRows rows;
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps) {
      if (const auto* linear = step->op.AsLinearOp()) rows.add(linear->tile_rows);
      if (const auto* mlp = step->op.AsMlpOp()) rows.add(mlp->tile_rows);
      if (const auto* experts = step->op.AsExpertsOp()) rows.add(experts->tile_rows);
    }
  return rows;
}

}  // namespace

std::string choose_kernels(const planfb::PlanT& plan, IsaLevel asked, int threads, kernels::KernelSet& kernels) {
  const bool panels = std::any_of(plan.weights.begin(), plan.weights.end(), [&](const auto& w) {
    return plan.devices[w->device]->kind == planfb::DeviceKind::cpu && static_cast<Packing>(w->packing) != Packing::row_major;
  });
  if (!panels) return "";
  std::string text = "CPU kernels: " + std::string(to_string(kernels.level)) +
                     (asked == IsaLevel::best ? " (the best that runs here)" : " (as asked)");
  const TileRows rows = tile_rows(plan);
  if (kernels.panel_int8.many == nullptr)
    return text + (asked == IsaLevel::best ? "; no tiles: the processor or the system has no AMX" : "; no tiles at this level");
  if (rows.most == 0) return text + "; no tiles: the plan was compiled for a machine without them";
  const kernels::TileShapes shapes = kernels::probe_tile_shapes(threads);
  kernels::set_tile_shapes(kernels, shapes);
  text += "; tiles from " + std::to_string(rows.least);
  if (rows.most != rows.least) text += " to " + std::to_string(rows.most);
  return text + " rows of a matrix, in shape " + to_string(shapes) + " (the fastest here of 2x1, 1x2, 1x1, 2x2)";
}

}  // namespace ktc::exec
