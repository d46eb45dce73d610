// Experts of the CPU that pass through a GPU: in long steps of prefill their banks are copied through, group by group, while what
// lies before them is computed.
//
// The order of banks in an entry is known, so copies run ahead: two staging areas, filled in turn by the stream for copies, each
// as soon as what it held was unpacked (or, for rows, multiplied), also across layers. Unpacking and multiplying are in order on the
// stream for computing. Where the CPU shares a bank, copies run ahead of its router as far as the share's rule says, and leave out
// what the CPU takes or no row chose behind that: such places hold anything. Sums of groups are added in their order, so results do not depend on when a copy arrives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/exec/hybrid_program.h"
#include "runtime/exec/hybrid_trace.h"
#include "runtime/formats/gpu_stream.h"
#include "runtime/kernels/cuda/gpu_kernels.h"
#include "runtime/weights/weight_store.h"

namespace ktc::exec {

class GpuStepReader;

// What a step of the plan reads; the bank's views come from `weights`. Errors: no kernel for it.
Expected<StreamStep> resolve_stream(const GpuStepReader& reader, const weights::WeightStore& weights);
// Appends the pieces of streams[step] to those of its GPU.
void add_pieces(std::vector<StreamStep>& streams, std::uint32_t step, std::vector<StreamPiece>& pieces);

// Weights that some step streams, without repetition: indices in Plan.weights.
std::vector<std::uint32_t> streamed_weights(const planfb::PlanT& plan);

// One GPU's areas. Threading: as the executor.
class Streamer {
 public:
  // Without areas: one that is not used.
  static Expected<Streamer> open(device::Device& device, const GpuStreamAreas& areas);

  // Before the steps of an entry: starts the first copies. All arguments stay until the step has ended.
  Status begin(device::Device& device, const std::vector<StreamStep>& steps, const std::vector<StreamPiece>& pieces, TraceRecorder* trace,
               std::uint32_t index, const Counts& counts);
  // The steps in the order of their pieces. Of one that the CPU shares, `shared` was decided for this step, and its slots are on
  // their way on the stream for computing.
  Status run(const StreamStep& step, const Counts& counts);

 private:
  Status look_ahead();
  Status load(const StreamPiece& piece);
  Status load_matrices(const StreamPiece& piece, std::uint64_t area, std::uint32_t from, std::uint32_t to);
  Status load_rest(const StreamStep& step);
  std::uint32_t known(const StreamPiece& piece) const;
  Status release();

  device::Block block_;
  std::uint64_t staging_ = 0;
  std::unique_ptr<device::Event> copied_[2], freed_[2];  // of the staging areas
  bool used_[2] = {};                                    // freed_ was recorded

  // of the step that runs
  device::Device* device_ = nullptr;
  const std::vector<StreamStep>* steps_ = nullptr;
  const std::vector<StreamPiece>* pieces_ = nullptr;
  TraceRecorder* trace_ = nullptr;
  std::uint32_t index_ = 0;
  std::size_t next_ = 0;                   // piece to copy next
  std::uint32_t decided_ = 0;              // steps before this one are decided, where the CPU shares them
  std::size_t begun_ = 0;                  // a piece of which `ahead_` matrices were copied before its step was decided, plus 1; 0: none
  std::uint32_t ahead_ = 0;
  Counts counts_;
  std::uint64_t loaded_ = 0, freed_count_ = 0;  // staging areas filled and given back, counted from the start of the step
};

}  // namespace ktc::exec
