// Choosing tokens on the GPU that has the logits: the sample entry of a decode bucket.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "runtime/exec/gpu_memory.h"
#include "runtime/exec/step_request.h"

namespace ktc::exec {

// Two graphs over the same arguments: one kernel is enough for rows that are all greedy.
struct SampleProgram {
  std::uint32_t gpu = 0;
  gpu::SampleArgs args;
  int (*fn)(const gpu::SampleArgs&, void*) = nullptr;
  std::array<std::unique_ptr<device::Graph>, 2> graphs;  // by greedy; null: launched
  bool in_graph = false;

  Status capture(device::Stream& stream);
  Status run(device::Stream& stream, bool greedy) const;
};

// Of the decode entry `bounds`; nothing where a plan has none that a GPU can run on the logits where they are.
std::optional<SampleProgram> resolve_sample(const planfb::PlanT& plan, const EntryBounds& bounds, const std::vector<Gpu>& gpus);

// The areas in front of a step block, at `to` (SampleAreas::feed on), for a step of so many rows. No parameters: rows of nobody.
void fill_sample_areas(const SampleAreas& areas, std::span<const StepSequence> sequences, std::span<const SampleRow> parameters, std::byte* to);

}  // namespace ktc::exec
