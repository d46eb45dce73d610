// The step executor: runs one entry of a plan for a batch of sequences. It decides nothing: entry, order, buffers, formats
// and packings come from the plan; the kernel rows follow from them and the ISA level. There are two kinds: one for plans of the CPU
// alone, one for plans with GPUs (hybrid_executor.h).
//
// Threading: one thread calls run(); inside, work is cut into ranges over a oneTBB arena of `threads` workers. Results do not
// depend on the number of workers nor on the other sequences in the step.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/cpu_features.h"
#include "runtime/base/status.h"
#include "runtime/exec/expert_update.h"
#include "runtime/exec/moments.h"
#include "runtime/exec/trace.h"
#include "runtime/formats/sample_row.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/weight_store.h"

namespace ktc::device {
class Device;
}

namespace ktc::exec {

// How a GPU and the CPU hand a layer over (runtime/formats/handoff.h). automatic: doorbell, or hostnode where the system refuses
// mapped memory.
enum class HandoffKind : std::uint8_t { automatic, doorbell, hostnode };
std::string_view to_string(HandoffKind kind);

enum class UpdateKind : std::uint8_t { automatic, on, off };
std::string_view to_string(UpdateKind kind);

// Which kernels compute products of many rows with bf16 weights on a GPU: ours, or cuBLASLt's where it can be opened.
enum class ProductsKind : std::uint8_t { own, library };
std::string_view to_string(ProductsKind kind);

// Told about each step that ran, by the thread that called run(). No clock is read without one.
struct StepObserver {
  // entry: index in Plan.entries; step: index in its steps; name: Step.name; wall-clock nanoseconds.
  void (*report)(void* context, std::uint32_t entry, std::uint32_t step, std::string_view name,
                 std::uint64_t nanoseconds) = nullptr;
  void* context = nullptr;
};

struct ExecutorOptions {
  int threads = 0;                       // 0: one per physical core in the affinity mask, at most the cgroup quota
  // NUMA nodes that workers and weights are split over. 0: those of this machine that threads fall to; N: the cores cut into N (at
  // most weights::kMostNodes). With one, weights stay in their mapped files; with several, each node has its share in memory.
  int nodes = 0;
  IsaLevel isa = IsaLevel::best;
  bool populate = false;                 // read all weights at open
  weights::Progress progress;
  StepObserver observer;
  // Not null: run() adds the operands of every product, on the calling thread. For plans whose weights are all in rows (f32,
  // bf16); others are an error of open(). Must outlive the executor.
  Moments* moments = nullptr;
  // [model.layers][model.experts] or empty: run() adds the number of tokens routed to each expert. Must outlive the executor.
  std::span<std::uint64_t> expert_counts;
  Tracer tracer;

  // What follows is for plans with GPUs.
  bool emulate_gpu = false;              // host-emulated devices: slow, and for tests
  std::uint64_t emulated_memory = 0;     // bytes of each; 0: what the plan needs
  bool device_sampling = true;           // false: tokens are chosen by the host, and every step waits for it
  bool graphs = true;                    // false: steps of decode entries are launched one by one
  HandoffKind handoff = HandoffKind::automatic;
  // A step whose hand-off makes no progress for as long is given up: run() returns a Status.
  std::chrono::milliseconds watchdog{2000};
  // Called once, from another thread, when run() cannot return even so (a worker or a driver call hangs): the process can only end.
  void (*wedged)(void* context) = nullptr;
  void* wedged_context = nullptr;
  void (*note)(void* context, std::string_view line) = nullptr;  // one line for people: kernels chosen, a fallback taken
  void* note_context = nullptr;
  // Experts that change sides (Plan.moving): as long as it pays, always, never.
  UpdateKind update = UpdateKind::automatic;
  ProductsKind products = ProductsKind::own;
  UpdateRules update_rules;              // every_tokens is the plan's
  // Opens a GPU of the plan; `memory`: what the plan needs there. Empty: a CUDA device, or as emulate_gpu says. For tests.
  std::function<Expected<std::unique_ptr<device::Device>>(const planfb::DeviceT& device, std::uint64_t memory)> open_device;
};

// One sequence's part of a step: `ids` follow the `position` tokens that are already in its pages.
struct StepSequence {
  static constexpr std::uint32_t kNothing = 0xffffffffu;
  std::span<const std::int32_t> ids;     // at least one
  std::uint32_t position = 0;            // of ids[0]
  std::span<const std::uint32_t> pages;  // page ids for at least position + ids.size() tokens
  std::uint32_t logits_from = 0;         // ids[logits_from ..] need logits; ids.size(): none
  // Position of the first token that decode generated. Plan.defer_prefill and defer_decode say on which side of it tokens are
  // deferred, whichever entry runs them: so a sequence gives the same again when it is recomputed.
  std::uint32_t generated_from = kNothing;
  // begin() alone: the only id is what the step before chooses for this row of its; ids then holds one that is ignored.
  std::uint32_t fed_by = kNothing;
};

struct StepResult {
  const float* logits = nullptr;         // [rows, vocab], f32; valid until the next run()
  std::uint64_t row_stride = 0;          // in floats
  std::uint32_t rows = 0;                // in the order of the sequences and their ids
  const float* row(std::uint32_t r) const { return logits + r * row_stride; }
};

struct StepLimits {
  std::uint32_t max_tokens, max_rows, max_sequences;
};

class Executor {
 public:
  // Allocates the arena and the KV cache; both sizes are in the plan. Errors: not enough memory, an ISA level that this
  // machine lacks, a plan for a device that is not here.
  static Expected<std::unique_ptr<Executor>> open(std::shared_ptr<const plan::OpenPlan> plan,
                                                  const ExecutorOptions& options);
  virtual ~Executor() = default;  // abstract so that schedulers are tested on a scripted executor

  // decode[B] with the smallest bucket when every sequence brings one id and wants its logits, else the smallest extend[N], or a
  // larger one that the plan prefers for so many tokens (Entry.from_tokens).
  // Errors: ids outside the vocabulary, more tokens, rows or sequences than the largest entry takes, pages too short or
  // outside the pool, a position beyond tokens_per_sequence. `unavailable`: a GPU is lost or the hand-off stalled; the executor
  // answers every further step with the same and can only be destroyed.
  virtual Expected<StepResult> run(std::span<const StepSequence> sequences) = 0;

  // Decode steps whose tokens are chosen where the logits are. How many may be begun and not finished: 0: none can, 1: one, whose ids
  // the caller brings; 2: another one behind it, whose ids may be the tokens of the first (StepSequence::fed_by).
  virtual std::uint32_t most_begun() const { return 0; }
  // Begins a decode step; rows: of each sequence. What the host has to do for the step before is done first. Nothing that the
  // arguments point to is read later. run() is refused until every step is finished. Errors: as run(); a step that is not a decode
  // step, more of them than most_begun(), a row that the step before does not have.
  virtual Status begin(std::span<const StepSequence>, std::span<const SampleRow>) {
    return Status(StatusCode::unsupported, "step: this executor chooses no tokens");
  }
  // Ends the oldest step that was begun: the id that was chosen for each of its sequences, or ~id of the first logit that is not
  // finite; valid until the next call. discard: nobody wants them, nor what the step leaves in its pages.
  virtual Expected<std::span<const std::int32_t>> finish(bool discard = false) {
    (void)discard;
    return Status(StatusCode::unsupported, "step: this executor chooses no tokens");
  }

  virtual StepLimits extend_limits() const = 0;   // of the largest extend entry
  // How many of `waiting` tokens, at least 1, the next extend step should take: at most extend_limits().max_tokens, fewer where a
  // smaller entry is the faster one for so few.
  virtual std::uint32_t best_tokens(std::uint32_t waiting) const { return std::min(waiting, extend_limits().max_tokens); }
  virtual StepLimits decode_limits() const = 0;   // of the largest decode entry
  virtual std::uint32_t page_tokens() const = 0;
  virtual std::uint32_t page_count() const = 0;
  virtual std::uint32_t tokens_per_sequence() const = 0;
  virtual const plan::OpenPlan& plan() const = 0;
  virtual int threads() const = 0;
  virtual int nodes() const { return 1; }         // that the workers are of
  virtual IsaLevel isa() const = 0;
  virtual Busy busy() const { return {}; }
  // What moving experts did since the plan was opened; nothing where none move.
  virtual std::optional<UpdateTrial> updates() const { return {}; }
  // How layers are handed over; meaningless for plans without a hand-off.
  virtual HandoffKind handoff() const { return HandoffKind::automatic; }
};

}  // namespace ktc::exec
