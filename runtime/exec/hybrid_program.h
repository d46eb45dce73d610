// A plan's entries as the hybrid executor runs them: steps of all devices in the plan's order, resolved once at open.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/exec/entry_program.h"
#include "runtime/exec/halves.h"
#include "runtime/exec/hybrid_sample.h"
#include "runtime/exec/shared_experts.h"
#include "runtime/exec/step_request.h"
#include "runtime/formats/step_block.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::exec {

// Rows that a device computes: the entry's bounds in decode (one graph serves every batch), those of the step in extend.
struct Counts {
  std::uint32_t tokens = 0, rows = 0, sequences = 0;
  std::uint32_t first_tokens = 0, first_rows = 0;  // of an entry cut in halves, of all tokens: those of its first half
};

// One kernel of a step: fills in the counts and launches. Without rows it does nothing.
using Launch = std::function<Status(device::Stream&, const Counts&)>;

// One value that changes sides: rows of 4-byte elements.
struct CopyRows {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::uint64_t device_stride = 0, host_stride = 0, row_bytes = 0;  // bytes
  bool whole = false;    // of equal strides, and what lies between the rows is padding: one copy for all rows
  bool of_rows = false;  // counts rows, not tokens
  std::uint32_t shared = plan::kNone;  // a result of the CPU's share of streams[shared]: zero where it takes none
  Status run(device::Stream& stream, bool to_host, const Counts& counts) const;
  Status clear(device::Stream& stream, const Counts& counts) const;  // zeros on the device
};

// One value that goes from one GPU to another, as CopyRows.
struct PeerRows {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t from_stride = 0, to_stride = 0, row_bytes = 0;
  bool whole = false, of_rows = false;
  Status run(device::Stream& stream, device::Device& peer, const Counts& counts) const;  // stream: of the GPU that takes it
};

// Values of a copy step.
struct CopyStep {
  std::uint32_t from_gpu = plan::kNone, to_gpu = plan::kNone;  // indices of gpus; kNone: the CPU
  std::vector<CopyRows> up;      // from_gpu to the CPU
  std::vector<CopyRows> down;    // from the CPU to to_gpu
  std::vector<PeerRows> across;  // from_gpu to to_gpu: the host has no part in it
  std::unique_ptr<device::Event> done;  // with the CPU: recorded behind its rows
  bool between_gpus() const { return from_gpu != plan::kNone && to_gpu != plan::kNone; }
  // With the CPU: whose stream does it.
  std::uint32_t gpu() const { return from_gpu != plan::kNone ? from_gpu : to_gpu; }
};

struct RecordArea;

// The CPU's side of a publish step: what it unpacks the record to. `staged`: where copies put the same, for the slow hand-off.
struct RecordStep {
  RecordArea* area = nullptr;
  std::uint32_t gpu = 0;
  Matrix x, weights, staged_x, staged_weights;
  Ids ids, staged_ids;
  bool skip_empty = false;             // of its await
};
struct AwaitStep {
  Matrix result, staged;
};

// What a step of the CPU says about experts that move.
struct MovingStep {
  std::uint32_t index = plan::kNone;  // in Plan.moving; kNone: its experts do not
  Ids ids;                            // of the router; no data: another step of the layer counts them
  bool of_rows = false;
};

struct HybridStep {
  planfb::StepKind kind = planfb::StepKind::compute;
  std::uint32_t step = 0;              // index in the entry's steps; kNone: made by the executor (rope tables)
  std::uint32_t gpu = plan::kNone;     // index of gpus; kNone: the CPU
  std::uint32_t graph = plan::kNone;   // index in the entry's graphs
  std::string name;
  std::vector<Launch> launches;        // launch, publish, await
  std::uint32_t at = 0;                // compute: in cpu_steps; copy: in copies; publish, await: the record
  std::uint32_t stream = plan::kNone;  // launch: its experts, in streams; before its launches
  std::uint32_t shared = plan::kNone;  // compute, copy: of the CPU's share of streams[shared]
  MovingStep moving;                   // compute
  Part part = Part::whole;             // of the step's tokens that it works on; without any it does nothing
  std::vector<std::uint32_t> waits;    // with waits_by_copy: copies that must be done first
  // compute: every value of this step comes from record `at_record` and serves its await alone: nothing to do when the record
  // has no pairs for the CPU and the await does not wait then.
  std::uint32_t skipped_with = plan::kNone;
  std::uint32_t near_record = plan::kNone;  // compute: the last experts op before the await of this record
  bool is_result = false;              // and its output is what the await hands down
};

// Ids of a router on a device, copied to the host for the counts of activations.
struct CountedIds {
  std::uint64_t* counts = nullptr;       // of the layer
  const std::int32_t* slots = nullptr;   // host; null: every expert is the op's
  std::uint32_t experts = 0, top_k = 0;
  CopyRows copy;
  Part part = Part::whole;
};

// One experts step of kind `stream`.
struct StreamStep {
  std::string name;
  const std::byte *gate_up = nullptr, *down = nullptr;    // on the host, as the CPU packs them
  std::uint32_t w_gate_up = 0;                            // says whose bank it is: other weights may have the same bytes (alias)
  std::uint32_t matrices = 0, group = 0;                  // of the bank; that pass at once
  gpu::Weight packed_gate_up, packed_down;                // of the whole bank, without data
  gpu::ExpertsArgs args;                                  // gate_up, down: as kernels read them, without data
  bool unpacks = false;                                   // panels; else rows, which are multiplied where they were copied to
  bool of_rows = false;
  int (*unpack)(const gpu::UnpackArgs&, void*) = nullptr;
  int (*experts)(const gpu::ExpertsArgs&, void*) = nullptr;
  std::uint32_t first_piece = 0, pieces = 0;              // of the program's list for its GPU
  std::optional<SharedExpertsStep> shared;                // the CPU takes some
  std::vector<CopyRows> shared_up;                        // what its op reads besides the choice
};

// A group of one step's bank.
struct StreamPiece {
  std::uint32_t step = 0;          // index in HybridProgram::streams
  std::uint32_t first = 0, count = 0;
  bool loads = true;               // false: the piece before has left these matrices, the part in time of the same layer
  bool last_use = true;            // what it needs is not needed by the next piece
};

struct HybridProgram {
  EntryBounds bounds;
  std::string name;
  StepBlockLayout block;
  bool cut = false;                    // in halves
  StepBlockLayout half_blocks[2] = {};
  HalfInputs half_inputs[2];           // on the CPU
  bool waits_by_copy = false;          // HybridStep::waits says what is waited for; else the CPU waits for all copies, GPUs for each
  std::vector<HybridStep> steps;
  std::vector<Step> cpu_steps;
  std::vector<CopyStep> copies;
  std::vector<RecordStep> records;     // by number
  std::vector<AwaitStep> awaits;       // by number of their record
  std::vector<CountedIds> counted;
  std::vector<StreamStep> streams;
  std::vector<std::vector<StreamPiece>> pieces;  // by gpu, in the order of its steps; none of them: no stream
  std::vector<Ids> ids, positions, output_rows, deferred;  // inputs on the CPU
  Matrix logits;                       // on the host
  std::uint32_t logits_gpu = plan::kNone;  // the device that they are copied from; kNone: computed on the CPU
  CopyRows logits_copy;
  std::optional<SampleProgram> sample;  // decode: what chooses tokens behind it, where a device can
  bool fed = false;                    // its ids may be those that a device chose
  std::uint32_t fed_gpu = 0;           // on this one
  std::vector<std::unique_ptr<device::Graph>> graphs;  // by number; null: not captured, its steps are launched one by one

  Counts bound_counts() const { return {bounds.max_tokens, bounds.max_rows, bounds.max_sequences}; }
};

}  // namespace ktc::exec
