// Moves experts between the CPU and GPUs while a plan runs (Plan.moving). Nothing stops and nothing is captured again:
//
//   1. while steps run, the expert's bytes go from where the CPU reads them (pinned) to a spare area of the GPU, on its stream for
//      copies; where the system does not pin that much, a thread of its own copies them to a pinned area first;
//   2. between two steps the compute stream repacks all that has landed over the matrices of the experts that leave (so values stay
//      equal) and takes new tables of slots. Those experts need no way back: the CPU has all of them, always.
//
// Steps read the tables through pointers that never change: those of the device in the kernels' arguments, those of the host in the
// CPU's pair filters. Both change between the same two steps. A spare area is written again behind an event of its repacking.
//
// How much moves in a step: a copy takes as much of the host's memory bandwidth as the CPU would to compute one pair of the expert,
// and an expert that leads by chance's measure (UpdateRules::doubt) saves more pairs than that until counts are compared again. So
// what is wanted pays, and only the steps in which it is paid are kept from being slow: beside a step of decode go copies of at most
// a quarter as many experts as the CPU computes pairs in it, and of no more than there are spare areas.
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
#include "runtime/weights/host_memory.h"
#include "runtime/weights/weight_store.h"

namespace ktc::exec {

struct MoverOptions {
  UpdateRules rules;
  bool always = false;  // also when it does not pay
  int threads = 1;      // of the CPU's side: what copying costs it is a share of one
  bool pinned = true;   // devices copy from the CPU's experts as they lie; false: through pinned areas
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

  // Between two steps, the host has no part in the last one any more: what has landed is taken over.
  Status advance();
  // While a step runs and the host has nothing else to do: copies of a few experts get on their way.
  Status send();
  // Between two steps as well: goes on with what is wanted for so long at most, and as long as the next expert saves more time of the
  // CPU in the next every_tokens tokens than its copy takes. Behind a chunk of a prompt, whose experts serve what it is about to
  // generate: it took its time, and the next steps are better for it.
  Status hurry(std::chrono::nanoseconds most);
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
  enum class State : std::uint8_t { free, staging, ready, copying };
  struct Landing {
    State state = State::free;
    ExpertSwap swap;
    std::byte* staging = nullptr;  // pinned; null: copies come from the bank
    std::byte* spare = nullptr;    // on the device
    std::unique_ptr<device::Event> landed;
  };
  // Host memory for copies: pinned, or ordinary where that is refused.
  struct HostArea {
    device::MappedBlock mapped;
    weights::HostBlock ordinary;
    std::byte* data() { return mapped.host() != nullptr ? mapped.host() : ordinary.data(); }
  };
  struct Site {  // one GPU
    Gpu* gpu = nullptr;
    HostArea staging;
    std::vector<Landing> landings;
    std::deque<Landing*> copying;              // in the order in which they land
    std::unique_ptr<device::Event> repacked;   // what was taken over last
    bool behind_repacking = false;             // copies have not been told to wait for it
    HostArea tables[2];                        // what slots_ says, laid out as on the device; in turn, for two steps may be begun
    std::byte* tables_on_device = nullptr;
    std::uint64_t tables_bytes = 0;
  };

  ExpertMover(std::vector<Gpu>& gpus, MovingSlots& slots, const MoverOptions& options, std::vector<std::vector<std::int32_t>> initial)
      : gpus_(gpus), slots_(slots), options_(options), update_(options.rules, std::move(initial)) {}
  static Layer layer_of(const planfb::PlanT& plan, const planfb::MovingExpertsT& moving, const weights::WeightStore& weights,
                        const std::vector<Gpu>& gpus);
  Status open_site(const planfb::PlanT& plan, Gpu& gpu);
  static Expected<HostArea> host_area(device::Device& device, std::uint64_t bytes, const char* name);
  void stage(const Landing& landing) const;
  Status start_copy(Site& site, Landing& landing);
  Status start_copies(std::size_t most);
  void collect_staged();
  Status take_over();
  void fill_landings(bool hurries);
  bool worth(const ExpertSwap& swap) const;
  Status repack(Site& site, Landing& landing, std::uint32_t matrix);
  Status repack(Gpu& gpu, const Side& side, const std::byte* landed, std::uint32_t matrix) const;
  Status send_tables();
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
  std::size_t taken_over_ = 0;        // by the last advance()
  std::uint32_t parity_ = 0;          // of the tables sent last
  double most_beside_ = 0;            // spare areas of all GPUs
  double beside_ = 0;                 // experts that may still be copied beside steps
  std::size_t cold_ = 0;              // pairs of this step
  double copy_seconds_ = 0;           // of one expert, as hurry() measured it last; 0: not yet

  // The thread that stages.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Landing*> to_stage_, staged_;  // guarded by mutex_, as are the next two
  double staging_seconds_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last
};

}  // namespace ktc::exec
