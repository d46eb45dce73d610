// What every executor has of the CPU: kernels of the ISA level, workers, arena, caches, and what a step tells its ops.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/attend_memory.h"
#include "runtime/exec/entry_program.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/halves.h"
#include "runtime/exec/resolve.h"
#include "runtime/weights/host_memory.h"

namespace ktc::exec {

inline constexpr const char* kSmallerPlan =
    "compile with a smaller kv_cache.tokens, kv_cache.sequences or batch.chunk, or free some memory";

// Inputs of an entry in the CPU's arena.
struct CpuInputs {
  const std::vector<Ids>*ids, *positions, *output_rows, *deferred;
};

class CpuSide {
 public:
  // Checks the options, then allocates what the plan has on the CPU. `more`: bytes that the caller will touch as well.
  Status open(const planfb::PlanT& plan, const ExecutorOptions& options, std::uint64_t more = 0);
  // Chooses the nodes of the workers and gives the weights memory there, if there are several: WeightStore::load() must follow.
  // Before anybody keeps a pointer to a weight.
  Status place(const planfb::PlanT& plan, weights::WeightStore& weights, const ExecutorOptions& options);
  // Workers, of one node without place(), and scratch memory for the kernels of `weights`; the steps are those that will run.
  Status start(const planfb::PlanT& plan, const weights::WeightStore& weights, const std::vector<const std::vector<Step>*>& steps,
               int threads);

  // Before the steps: writes the inputs, counts tokens and rows, orders tokens by their cost. No sequences: no tokens.
  void fill(const planfb::PlanT& plan, std::span<const StepSequence> sequences, const CpuInputs& inputs);
  void fill_ropes();
  // Behind fill(): what steps of a half are told, and its inputs. `first`: tokens of the step in front of it.
  void fill_half(Part part, const planfb::PlanT& plan, const StepHalf& half, std::size_t first, const HalfInputs& inputs);
  const StepState& part(Part part) const { return part == Part::whole ? state : halves_[part == Part::second]; }
  void run(const Step& step, Part of = Part::whole) const {
    std::visit([&](const auto& s) { run_step(s, part(of)); }, step);
  }

  weights::HostBlock arena;
  Memory memory;  // with what resolve() needs
  kernels::KernelSet kernels = {};
  std::unique_ptr<Workers> workers;
  StepState state;

 private:
  Status allocate(const planfb::PlanT& plan, std::uint64_t more);
  Status allocate_tile_scratch(const planfb::PlanT& plan, const weights::WeightStore& weights);

  StepState halves_[2];
  std::vector<WorkerNode> nodes_;  // that place() chose
  std::vector<weights::HostBlock> caches_;
  weights::HostBlock rope_values_, tile_scratch_;
  std::vector<Token> tokens_;
  AttendMemory attend_;
  std::vector<std::uint32_t> busy_experts_;
};

}  // namespace ktc::exec
