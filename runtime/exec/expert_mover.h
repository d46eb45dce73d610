// Moves experts between the CPU and GPUs while a plan runs (Plan.moving). Nothing stops and nothing is captured again:
//
//   1. a thread of its own copies the expert's bytes, as the CPU packs them, to pinned memory;
//   2. they go to a spare area of the GPU on its stream for copies, while steps run;
//   3. between two steps the compute stream repacks them over the matrix of the expert that leaves (so values stay equal) and takes
//      new tables of slots. That expert needs no way back: the CPU has all of them, always.
//
// Steps read the tables through pointers that never change: those of the device in the kernels' arguments, those of the host in the
// CPU's pair filters. Both change between the same two steps. A spare area is written again behind an event of its repacking.
//
// Threading: one thread, that which runs steps. Nothing here waits for a device, but for hurry().
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/exec/expert_update.h"
#include "runtime/exec/gpu_memory.h"
#include "runtime/exec/moving_slots.h"
#include "runtime/exec/program.h"
#include "runtime/formats/moving.h"
#include "runtime/weights/weight_store.h"

namespace ktc::exec {

struct MoverOptions {
  UpdateRules rules;
  bool always = false;  // also when it does not pay
  int threads = 1;      // of the CPU's side: what copying costs it is a share of one
};

class ExpertMover {
 public:
  // Weights are on their devices. Moves one hot expert of each GPU onto itself, so that everything is loaded before the first step.
  // Errors: no pinned memory, no kernel that repacks.
  static Expected<std::unique_ptr<ExpertMover>> open(const planfb::PlanT& plan, std::vector<Gpu>& gpus, const weights::WeightStore& weights,
                                                     MovingSlots& slots, const MoverOptions& options);
  ~ExpertMover();  // waits for copies on their way
  ExpertMover(const ExpertMover&) = delete;
  ExpertMover& operator=(const ExpertMover&) = delete;

  // While a step runs: what a router chose in layer Plan.moving[index], and how long the CPU took for its part.
  void count(std::uint32_t index, const Ids& ids, std::size_t rows, bool decode);
  void add_cold(std::uint64_t nanoseconds) { update_.add_cold(static_cast<double>(nanoseconds) * 1e-9); }

  // Between two steps, nothing of the last one runs any more: what has landed is taken over, what waits gets on its way.
  Status advance();
  // Between two steps as well: goes on with what is wanted for so long at most. Behind a chunk of a prompt, whose experts serve what
  // it is about to generate: it took its time, and the next steps are better for it.
  Status hurry(std::chrono::nanoseconds time);
  // Behind a step of so many tokens. True: a trial ended and did not pay; the experts stay where they are from now on.
  bool end_step(std::size_t tokens, bool decode);

  // Ends the thread that stages; what has not left the host stays. For an executor that leaves its memory behind.
  void stop();

  bool active() const { return active_; }
  UpdateTrial total() const { return update_.total(); }
  const UpdateTrial* ended_trial() const { return update_.ended_trial(); }

 private:
  struct Side {  // gate_up or down of one layer
    const std::byte* cold = nullptr;  // host, matrix of expert 0
    std::uint64_t cold_bytes = 0;     // of one matrix
    gpu::Weight from;                 // one matrix as the CPU packs it; no data
    gpu::Weight to;                   // the hot bank
  };
  struct Layer {
    std::uint32_t gpu = 0;
    SpareExpert spare;
    Side gate_up, down;
    std::uint32_t w_cold = 0, w_hot = 0;  // gate_up: names of the tables
  };
  enum class State : std::uint8_t { free, staging, staged, copying };
  struct Landing {
    State state = State::free;
    ExpertSwap swap;
    std::byte* staging = nullptr;  // pinned
    std::byte* spare = nullptr;    // on the device
    std::unique_ptr<device::Event> repacked;
    bool used = false;             // repacked was recorded
  };
  struct Site {  // one GPU
    Gpu* gpu = nullptr;
    device::MappedBlock staging;
    std::vector<Landing> landings;
  };

  ExpertMover(std::vector<Gpu>& gpus, MovingSlots& slots, const MoverOptions& options, std::vector<std::vector<std::int32_t>> initial)
      : gpus_(gpus), slots_(slots), options_(options), update_(options.rules, std::move(initial)) {}
  static Layer layer_of(const planfb::PlanT& plan, const planfb::MovingExpertsT& moving, const weights::WeightStore& weights,
                        const std::vector<Gpu>& gpus);
  Status open_site(const planfb::PlanT& plan, Gpu& gpu);
  void stage(const Landing& landing) const;
  Status start_copy(Site& site, Landing& landing);
  Status repack(Site& site, Landing& landing, std::uint32_t matrix);
  Status repack(Gpu& gpu, const Side& side, const std::byte* landed, std::uint32_t matrix) const;
  Status send_tables(const Layer& layer);
  bool moves(const ExpertSwap& swap) const;  // one of its experts is on its way
  void run();

  std::vector<Gpu>& gpus_;
  MovingSlots& slots_;
  const MoverOptions options_;
  ExpertUpdate update_;
  bool active_ = true;
  std::vector<Layer> layers_;
  std::vector<Site> sites_;          // by gpu
  std::deque<ExpertSwap> wanted_;
  std::vector<std::uint32_t> flipped_;  // layers whose tables the last advance() changed

  // The thread that stages.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Landing*> to_stage_, staged_;  // guarded by mutex_, as are the next two
  double staging_seconds_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last
};

}  // namespace ktc::exec
