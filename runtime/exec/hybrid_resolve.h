// From the plan's tables to HybridPrograms: steps of a GPU become kernel launches with arguments (hybrid_resolve_ops.cpp), steps
// between devices copies or hand-offs, steps of the CPU what resolve.h makes of them.
#pragma once

#include <vector>

#include "runtime/exec/gpu_memory.h"
#include "runtime/exec/halves.h"
#include "runtime/exec/hybrid_handoff.h"
#include "runtime/exec/hybrid_join.h"
#include "runtime/exec/hybrid_program.h"
#include "runtime/exec/resolve.h"

namespace ktc::exec {

// Where the programs of one plan point. All of it outlives them.
struct HybridMemory {
  std::vector<Gpu>* gpus = nullptr;
  const Memory* cpu = nullptr;
  std::byte* logits = nullptr;      // pinned, for the largest entry
  std::byte* counted = nullptr;     // pinned, for ids of routers
  std::byte* shared = nullptr;      // pinned, for slots of experts that the CPU shares
  SharedSlots* shared_slots = nullptr;
};

// Sizes of the areas above.
struct StagedBytes {
  std::uint64_t logits = 0, counted = 0;
};
StagedBytes staged_bytes(const planfb::PlanT& plan);

// The records of all entries of one device.
std::vector<RecordArea> record_areas(const planfb::PlanT& plan, std::uint32_t device);

// handoffs: by gpu. `counted` moves on by what the entry takes of HybridMemory::counted.
Expected<HybridProgram> resolve_hybrid(const planfb::PlanT& plan, const EntryBounds& bounds, const weights::WeightStore& weights,
                                       const kernels::KernelSet& kernels, HybridMemory& memory, std::vector<Handoff>& handoffs);

// What a step of a GPU reads and writes (hybrid_resolve_ops.cpp).
class GpuStepReader {
 public:
  GpuStepReader(const planfb::PlanT& plan, const planfb::EntryT& entry, const planfb::StepT& step, const Gpu& gpu,
                const StepBlockLayout& block)
      : plan_(plan), entry_(entry), step_(step), gpu_(gpu), block_(block) {}

  const planfb::BufferT& buffer(const planfb::View& view) const { return *entry_.buffers[view.buffer()]; }
  // Inputs of the entry lie in the step block, everything else in the arena.
  std::byte* address(const planfb::View& view) const;
  std::uint64_t stride(const planfb::View& view) const;  // elements of 4 bytes
  gpu::Matrix matrix(const planfb::View& view) const {
    return {reinterpret_cast<float*>(address(view)), stride(view), static_cast<std::uint32_t>(view.columns())};
  }
  gpu::Ids ids(const planfb::View& view) const {
    return {reinterpret_cast<std::int32_t*>(address(view)), stride(view), static_cast<std::uint32_t>(view.columns())};
  }
  gpu::Matrix in(std::size_t i) const { return matrix(step_.inputs[i]); }
  gpu::Matrix out(std::size_t i) const { return matrix(step_.outputs[i]); }
  bool of_rows() const { return buffer(step_.outputs[0]).symbol == planfb::Symbol::rows; }
  Part part() const { return part_of(buffer(step_.outputs[0]).symbol); }
  std::uint64_t bound() const { return plan::bound_of(entry_, buffer(step_.outputs[0]).symbol); }
  gpu::Scratch scratch() const;
  const gpu::Weight& weight(std::uint32_t w) const { return gpu_.weight[w]; }
  const float* vector(std::uint32_t w) const {
    return w == plan::kNone ? nullptr : reinterpret_cast<const float*>(gpu_.weight[w].data);
  }
  // Of the bank with this gate_up: a table of its own where its experts move, else one for all equal ones.
  const std::int32_t* slots(std::uint32_t w_gate_up, const std::vector<std::int32_t>& slots) const {
    if (const auto moving = gpu_.moving_slots.find(w_gate_up); moving != gpu_.moving_slots.end()) return moving->second;
    return slots.empty() ? nullptr : gpu_.slots.at(slots);
  }
  Format activations() const { return static_cast<Format>(step_.activations); }
  const std::int32_t* block_at(std::uint64_t offset) const {
    return reinterpret_cast<const std::int32_t*>(gpu_.block() + offset);
  }
  gpu::Batch batch() const;
  gpu::Cache cache(std::uint32_t index, std::uint32_t layer) const;
  gpu::Rope rope(std::uint32_t index) const;
  std::uint64_t rope_offset(const GpuRope& rope) const;  // floats in front of the table of the step's part

  // Adds the kernel `fn` with `args`, whose counts come with each step.
  template <typename Args>
  Status add(std::vector<Launch>& launches, int (*fn)(const Args&, void*), const Args& args) const {
    if (fn == nullptr) return no_kernel();
    launches.push_back([fn, args, of_rows = of_rows()](device::Stream& stream, const Counts& counts) -> Status {
      Args now = args;
      if constexpr (requires { now.rows; }) {
        now.rows = of_rows ? counts.rows : counts.tokens;
        if (now.rows == 0) return {};
      }
      if constexpr (requires { now.batch; }) {
        now.batch.tokens = counts.tokens;
        now.batch.sequences = counts.sequences;
        if (counts.tokens == 0) return {};
      }
      if constexpr (requires { now.append.batch; }) {
        now.append.batch.tokens = now.attend.batch.tokens = counts.tokens;
        now.append.batch.sequences = now.attend.batch.sequences = counts.sequences;
        if (counts.tokens == 0) return {};
      }
      return stream.launch(fn, now);
    });
    return {};
  }
  Status no_kernel() const;

  const planfb::PlanT& plan_;
  const planfb::EntryT& entry_;
  const planfb::StepT& step_;
  const Gpu& gpu_;
  const StepBlockLayout& block_;
};

// Arguments of a routed experts step, but for counts and, where its bank is elsewhere, the bank.
gpu::ExpertsArgs experts_args(const GpuStepReader& reader, const planfb::ExpertsOpT& op);

// Kernels of a step of kind `launch`.
Expected<std::vector<Launch>> resolve_launches(const GpuStepReader& reader);

// Tells of a step of kind `launch` that may be in a launch group.
Status see_joinable(const GpuStepReader& reader, std::size_t step, StepJoiner& joiner);

// Fills the rope table `index` for the positions of the step.
Expected<Launch> rope_launch(const GpuStepReader& reader, std::uint32_t index);

}  // namespace ktc::exec
