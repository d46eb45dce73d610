// The executor of plans with GPUs. One thread calls run(): it launches the GPUs' work, is worker 0 of the CPU's, polls the records
// of the hand-off and answers them. Steps of decode entries that are in graphs are captured at open and replayed.
//
// Order in a step: block of inputs to every GPU, then the plan's list. A graph is launched at its first step; a publish step is
// waited for where the host has a part in a step behind it, an await step is answered; copies run beside the computation and are
// waited for before the CPU's next step that has to do with them (hybrid_waits.h). Values between two GPUs are copied in the stream of
// the GPU that takes them: it waits for the other one by an event, which then waits for the copy before it goes on; the host waits for
// neither, and queues such copies and the graphs behind them while it waits for records.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/exec/expert_mover.h"
#include "runtime/exec/gpu_memory.h"
#include "runtime/exec/hybrid_handoff.h"
#include "runtime/exec/hybrid_program.h"
#include "runtime/exec/hybrid_stream.h"
#include "runtime/exec/hybrid_trace.h"
#include "runtime/exec/plan_executor.h"
#include "runtime/weights/weight_store.h"

namespace ktc::exec {

class HybridExecutor final : public PlanExecutor {
 public:
  HybridExecutor(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) : PlanExecutor(std::move(plan), options) {}
  static Expected<std::unique_ptr<Executor>> create(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options);
  ~HybridExecutor() override;

  Expected<StepResult> run(std::span<const StepSequence> sequences) override;

  std::uint32_t most_begun() const override;
  Status begin(std::span<const StepSequence> sequences, std::span<const SampleRow> rows) override;
  Expected<std::span<const std::int32_t>> finish(bool discard) override;

  HandoffKind handoff() const override { return handoff_; }
  std::optional<UpdateTrial> updates() const override { return mover_ == nullptr ? std::nullopt : std::optional(mover_->total()); }

 private:
  // A step between begin() and finish() (hybrid_chain.cpp).
  struct Begun {
    HybridProgram* program = nullptr;
    std::uint32_t epoch = 0, rows = 0;
    std::size_t at = 0;        // the next of the program's steps
    bool walked = false;       // all of them are queued or done, and what chooses behind them
    bool greedy = false;
    std::uint64_t begin = 0;
    std::vector<std::vector<std::uint32_t>> pages;  // of its sequences, where the CPU reads them
  };

  Status allocate();
  Status open_handoff();
  Status open_mover();
  Status hold_banks();
  Status capture(HybridProgram& program);
  Status open_sampling();

  Status run_entry(HybridProgram& program, std::span<const StepSequence> sequences);
  Status begin_step(HybridProgram& program, std::span<const StepSequence> sequences, std::span<const SampleRow> rows = {});
  Status walk(HybridProgram& program, std::size_t& at, bool all);
  Status launch(HybridProgram& program, const HybridStep& step);
  Status copy(const HybridProgram& program, const HybridStep& step);
  Status copy_values(std::uint32_t gpu, const HybridProgram& program, const std::vector<CopyRows>& rows, bool to_host, const Counts& counts,
                     const std::string& name, bool hold = true, device::Event* done = nullptr);
  Status pull(Gpu& from, Gpu& to, const std::function<Status(device::Stream&)>& copies, const std::string& name);
  Status decide_share(const HybridProgram& program, const HybridStep& step, StreamStep& stream);
  Status pass(HybridProgram& program, const HybridStep& step);
  Expected<bool> queue_ahead(HybridProgram& program);
  Status serve_published(HybridProgram& program);
  Status serve_publish(HybridProgram& program, const HybridStep& step);
  Status end_step(HybridProgram& program);
  Status wait_idle(device::Stream& stream);
  Status no_progress(const HybridProgram& program) const;
  bool watch(const HybridProgram& program);
  Status walk_rest(Begun& step, bool discard);
  Status end_walk(Begun& step);
  Status wait_chosen(const Begun& step);
  Status wait_copies();
  Status wait_copies_of(const HybridProgram& program, const HybridStep& step);
  const Counts& counts_of(const HybridStep& step) const { return step.part == Part::whole ? counts_ : half_counts_[step.part == Part::second]; }
  Status give_up(Status status);
  void count_activations(const HybridProgram& program) const;
  Status end_update(bool decode, std::uint64_t nanoseconds);
  void beat();

  // In the order of their making, cpu_ before them: host memory that devices pinned goes last.
  MovingSlots slots_;
  SharedSlots shared_slots_;
  weights::HostBlock logits_, counted_, shared_;
  std::unique_ptr<weights::WeightStore> weights_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<Gpu> gpus_;
  std::unique_ptr<ExpertMover> mover_;  // null: nothing moves
  bool banks_pinned_ = false;           // of experts that are streamed or move
  std::vector<Handoff> handoffs_;  // by gpu
  std::vector<Streamer> streamers_;  // by gpu
  std::vector<HybridProgram> programs_;

  HandoffKind handoff_ = HandoffKind::doorbell;
  bool cpu_ropes_ = false;          // some attention is on the CPU
  std::uint32_t epoch_ = 0;
  std::vector<bool> copying_;       // by gpu: copies are on their way
  std::vector<std::uint32_t> launched_;  // by graph of the entry: the epoch of its last launch
  Counts counts_;                   // what devices compute in this step
  Counts half_counts_[2];           // the same of its halves, where the entry is cut
  const HybridStep* published_ = nullptr;  // launched; its record is not looked at yet
  std::size_t ahead_ = 0;                  // of the program's steps: what devices do without the host is queued up to it
  std::uint32_t skipped_ = plan::kNone;  // a record without pairs for the CPU, until its await
  std::deque<Begun> begun_;         // the oldest first; of all but the last the CPU's part is over
  weights::HostBlock landing_[2];   // pinned: ids that were chosen, by parity of the epoch
  std::unique_ptr<device::Event> chosen_events_[2];
  std::vector<std::int32_t> chosen_;
  bool discarded_ = false;          // nobody wants to know what comes of the step that is walked: nothing is computed
  std::uint64_t last_end_ = 0;      // of a step that was finished
  Status broken_;
  std::unique_ptr<TraceRecorder> trace_;
};

// Errors, before weights are read: a device that is not here or too small, kernels that this build lacks, not enough host memory.
Expected<std::unique_ptr<Executor>> open_hybrid(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options);

}  // namespace ktc::exec
