// One layer of experts as the executor runs it: the step of runtime/exec on weights of a Pool, with its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/exec/panel_steps.h"
#include "tools/ktc/bench_options.h"
#include "tools/ktc/bench_pool.h"

namespace ktc::bench {

// Which experts serve which tokens, so that every active expert has exactly `per_expert` tokens:
//   fewer than 16 tokens per expert   all tokens choose the same top_k experts
//   16 and more                       64 active experts, or 16 where an expert has more than 4 Mi weights in a matrix, rounded
//                                     down to whole groups of top_k (at least one group, at most all experts); token t chooses
//                                     group t modulo the number of groups
struct Routing {
  std::size_t per_expert = 0, active = 0, tokens = 0, top_k = 0;
  std::size_t pairs() const { return per_expert * active; }
  std::size_t expert(std::size_t token, std::size_t k) const { return token % (active / top_k) * top_k + k; }
};
Routing make_routing(std::size_t per_expert, std::size_t experts, std::size_t top_k, std::uint64_t hidden,
                     std::uint64_t intermediate);

// The engine's state for steps on these kernels.
struct Engine {
  kernels::KernelSet kernels = {};
  kernels::TileShapes shapes;  // what the start-up probe chose
  exec::Workers* workers = nullptr;
  std::vector<std::uint32_t> busy_experts;
  weights::HostBlock tile_scratch;
  exec::StepState state;
};
// `layouts`: whatever steps of this engine will read.
Status make_engine(IsaLevel level, exec::Workers& workers, std::size_t experts, const std::vector<PanelLayout>& layouts,
                   kernels::TileShapes shapes, Engine& engine);

class Layer {
 public:
  // `pool` and `engine` outlive the layer. `tile_rows`: as planned, 0 for never.
  static Expected<Layer> create(const Pool& pool, Engine& engine, const ExpertsOptions& options, const TileVariant& variant,
                                std::size_t most_tokens, std::uint32_t tile_rows);

  // Sets the inputs: token i of the layer is row tokens[i] of `x`, chooses the experts that `routing` gives it.
  void set_inputs(const Routing& routing, const std::vector<std::size_t>& tokens, const float* x);
  // Runs the layer on the window of the pool that starts at `expert`. Inside Workers::enter, as the executor does.
  void run(std::size_t expert);

  const float* output(std::size_t token) const { return out_.data() + token * hidden_; }
  bool tiled(std::size_t per_expert) const { return per_expert >= step_.tile_rows; }
  const exec::ExpertTimes& times() const { return *times_; }  // since the layer was made

 private:
  Layer() = default;
  const Pool* pool_ = nullptr;
  Engine* engine_ = nullptr;
  std::size_t hidden_ = 0, count_ = 0;
  std::vector<float> x_, out_, routing_weights_;
  std::vector<std::int32_t> ids_;
  weights::HostBlock workspace_;
  std::unique_ptr<exec::ExpertTimes> times_;
  exec::PanelExpertsStep step_ = {};
};

}  // namespace ktc::bench
