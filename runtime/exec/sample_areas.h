// Where a GPU that chooses tokens has what that needs, in front of its step block (runtime/formats/step_block.h), so that both are
// sent in one copy. Offsets in bytes; all zero on a GPU that neither chooses nor looks up what was chosen.
#pragma once

#include <cstdint>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/sample_row.h"
#include "runtime/plan/plan.h"

namespace ktc::exec {

struct SampleAreas {
  std::uint32_t rows = 0;        // of the largest sample entry
  std::uint64_t next_ids = 0;    // i32 [rows]: written by the sample step, read by the decode step behind it; never sent by the host
  std::uint64_t feed = 0;        // i32 [rows]: of each token, the row of next_ids that is its id, -1: the id is in the step block
  std::uint64_t parameters = 0;  // SampleRow [rows]
  std::uint64_t block = 0;       // the step block
};

constexpr SampleAreas sample_areas(std::uint32_t rows) {
  SampleAreas areas;
  if (rows == 0) return areas;
  areas.rows = rows;
  areas.feed = align256(std::uint64_t{rows} * 4);
  areas.parameters = areas.feed + align256(std::uint64_t{rows} * 4);
  areas.block = areas.parameters + align256(std::uint64_t{rows} * sizeof(SampleRow));
  return areas;
}

// The step of a sample entry that a GPU can run: older plans reserve no workspace for it. Null: none.
inline const planfb::StepT* device_sample_step(const planfb::PlanT& plan, const planfb::EntryT& entry) {
  if (entry.kind != planfb::EntryKind::sample || entry.steps.size() != 1) return nullptr;
  const planfb::StepT& step = *entry.steps[0];
  const bool gpu = plan.devices[step.device]->kind == planfb::DeviceKind::cuda;
  return gpu && step.workspace != plan::kNone ? &step : nullptr;
}

// Of the GPU that chooses, and of another one that has the embedding: ids that were chosen are copied to it.
inline SampleAreas sample_areas(const planfb::PlanT& plan, std::uint32_t device) {
  std::uint32_t rows = 0;
  bool here = false;
  for (const auto& entry : plan.entries) {
    if (const planfb::StepT* step = device_sample_step(plan, *entry)) {
      here = here || step->device == device;
      rows = entry->max_rows > rows ? entry->max_rows : rows;
    }
    for (const auto& step : entry->steps)
      here = here || (entry->kind == planfb::EntryKind::decode && step->device == device && step->op.AsEmbedOp() != nullptr &&
                      plan.devices[device]->kind == planfb::DeviceKind::cuda);
  }
  return sample_areas(here ? rows : 0);
}

}  // namespace ktc::exec
