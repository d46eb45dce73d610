#include "runtime/exec/hybrid_stream.h"

#include <algorithm>

#include "runtime/exec/hybrid_resolve.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/weight_layout.h"

namespace ktc::exec {
namespace {

gpu::Weight packed(const weights::WeightView& view) {
  gpu::Weight w;
  w.format = view.format;
  w.packing = view.packing;
  w.group = view.group;
  w.batch = static_cast<std::uint32_t>(view.batch);
  w.rows = static_cast<std::uint32_t>(view.rows);
  w.columns = static_cast<std::uint32_t>(view.columns);
  w.row_bytes = view.row_bytes;
  w.matrix_bytes = view.matrix_bytes;
  return w;
}

// As kernels read it: rows stay, panels become rows of the same values, or gpu_rows of the same codes and scales.
gpu::Weight unpacked(gpu::Weight w) {
  return w.packing == Packing::row_major ? w : gpu::laid_out(w);
}

gpu::Weight at(gpu::Weight w, const std::byte* data, std::uint32_t count) {
  w.data = data;
  w.batch = count;
  return w;
}

}  // namespace

Expected<StreamStep> resolve_stream(const GpuStepReader& reader, const weights::WeightStore& weights) {
  const planfb::ExpertsOpT& op = *reader.step_.op.AsExpertsOp();
  const weights::WeightView &gate_up = weights[op.w_gate_up], &down = weights[op.w_down];
  StreamStep step;
  step.name = reader.step_.name;
  step.gate_up = gate_up.data;
  step.down = down.data;
  step.w_gate_up = op.w_gate_up;
  step.matrices = static_cast<std::uint32_t>(down.batch);
  step.group = op.stream_group;
  step.packed_gate_up = packed(gate_up);
  step.packed_down = packed(down);
  step.args = experts_args(reader, op);
  step.args.gate_up = unpacked(step.packed_gate_up);
  step.args.down = unpacked(step.packed_down);
  step.unpacks = down.packing != Packing::row_major;
  step.of_rows = reader.of_rows();
  step.unpack = reader.gpu_.kernels.unpack;
  step.experts = reader.gpu_.kernels.experts;
  if (step.experts == nullptr || (step.unpacks && step.unpack == nullptr)) return reader.no_kernel();
  return step;
}

void add_pieces(std::vector<StreamStep>& streams, std::uint32_t step, std::vector<StreamPiece>& pieces) {
  StreamStep& to = streams[step];
  to.first_piece = static_cast<std::uint32_t>(pieces.size());
  for (std::uint32_t first = 0; first < to.matrices; first += to.group) {
    StreamPiece piece;
    piece.step = step;
    piece.first = first;
    piece.count = std::min(to.group, to.matrices - first);
    if (!pieces.empty()) {
      StreamPiece& before = pieces.back();
      const StreamStep& its = streams[before.step];
      piece.loads = its.w_gate_up != to.w_gate_up || before.first != first || before.count != piece.count;
      before.last_use = piece.loads;
    }
    pieces.push_back(piece);
  }
  to.pieces = static_cast<std::uint32_t>(pieces.size()) - to.first_piece;
}

std::vector<std::uint32_t> streamed_weights(const planfb::PlanT& plan) {
  std::vector<std::uint32_t> all;
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps)
      if (const auto* op = step->op.AsExpertsOp(); op != nullptr && op->stream) all.insert(all.end(), {op->w_gate_up, op->w_down});
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Expected<Streamer> Streamer::open(device::Device& device, const GpuStreamAreas& areas) {
  Streamer streamer;
  if (areas.total() == 0) return streamer;
  KTC_ASSIGN_OR_RETURN(streamer.block_, device.allocate(areas.total(), "experts that pass through"));
  streamer.staging_ = areas.staging;
  for (int i = 0; i < 2; ++i) {
    KTC_ASSIGN_OR_RETURN(streamer.copied_[i], device.create_event());
    KTC_ASSIGN_OR_RETURN(streamer.freed_[i], device.create_event());
  }
  return streamer;
}

Status Streamer::begin(device::Device& device, const std::vector<StreamStep>& steps, const std::vector<StreamPiece>& pieces,
                       TraceRecorder* trace, std::uint32_t index, const Counts& counts) {
  device_ = &device;
  steps_ = &steps;
  pieces_ = &pieces;
  trace_ = trace;
  index_ = index;
  next_ = 0;
  loaded_ = freed_count_ = 0;
  decided_ = 0;
  begun_ = 0;
  counts_ = counts;
  return look_ahead();
}

Status Streamer::look_ahead() {
  for (; next_ < pieces_->size(); ++next_) {
    const StreamPiece& piece = (*pieces_)[next_];
    if (!piece.loads) continue;
    if (begun_ != 0) break;  // the last one is not whole: what is behind it waits for its step's choice
    if (loaded_ - freed_count_ == 2 || known(piece) == 0) break;
    KTC_RETURN_IF_ERROR(load(piece).with_context((*steps_)[piece.step].name));
  }
  return {};
}

// How many matrices of the piece may be copied now: all, but for a step that is not decided.
std::uint32_t Streamer::known(const StreamPiece& piece) const {
  const StreamStep& step = (*steps_)[piece.step];
  if (!step.shared || piece.step < decided_) return piece.count;
  const std::uint32_t ahead = matrices_ahead(step.shared->rates, step.matrices, step.of_rows ? counts_.rows : counts_.tokens);
  return std::min(piece.count, ahead > piece.first ? ahead - piece.first : 0);
}

Status Streamer::load(const StreamPiece& piece) {
  const StreamStep& step = (*steps_)[piece.step];
  device::Stream& copies = device_->copies();
  const std::uint64_t area = loaded_++ % 2;
  if (used_[area]) KTC_RETURN_IF_ERROR(copies.wait_for(*freed_[area]));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(copies, index_, step.name, Track::copy));
  const std::uint32_t now = known(piece);
  KTC_RETURN_IF_ERROR(load_matrices(piece, area, 0, now));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->end(copies, Track::copy));
  if (now == piece.count) return copies.record(*copied_[area]);
  begun_ = next_ + 1;
  ahead_ = now;
  return {};
}

// Of the piece that was begun, which is the last one.
Status Streamer::load_rest(const StreamStep& step) {
  if (begun_ == 0) return {};
  const StreamPiece& piece = (*pieces_)[begun_ - 1];
  begun_ = 0;
  device::Stream& copies = device_->copies();
  const std::uint64_t area = (loaded_ - 1) % 2;
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(copies, index_, step.name, Track::copy));
  KTC_RETURN_IF_ERROR(load_matrices(piece, area, ahead_, piece.count));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->end(copies, Track::copy));
  return copies.record(*copied_[area]);
}

// Neighbours go in one copy.
Status Streamer::load_matrices(const StreamPiece& piece, std::uint64_t area, std::uint32_t from, std::uint32_t to) {
  const StreamStep& step = (*steps_)[piece.step];
  device::Stream& copies = device_->copies();
  std::byte* const at = block_.data() + area * staging_;
  const std::uint64_t gate_up = step.packed_gate_up.matrix_bytes, down = step.packed_down.matrix_bytes;
  const SharedExpertsStep* shared = step.shared && piece.step < decided_ ? &*step.shared : nullptr;
  const auto needed = [&](std::uint32_t m) {
    return shared == nullptr || (shared->on_cpu[piece.first + m] == 0 && shared->chosen[piece.first + m] != 0);
  };
  for (std::uint32_t m = from; m < to;) {
    std::uint32_t end = m;
    while (end < to && needed(end)) ++end;
    if (const std::uint64_t n = end - m; n != 0) {
      const std::uint64_t first = piece.first + m;
      KTC_RETURN_IF_ERROR(copies.copy_to_device(at + m * gate_up, step.gate_up + first * gate_up, n * gate_up));
      KTC_RETURN_IF_ERROR(copies.copy_to_device(at + align256(step.group * gate_up) + m * down, step.down + first * down, n * down));
    }
    m = end + 1;
  }
  return {};
}

// The oldest area that is filled was read by what the stream for computing was told so far.
Status Streamer::release() {
  const std::uint64_t area = freed_count_++ % 2;
  KTC_RETURN_IF_ERROR(device_->compute().record(*freed_[area]));
  used_[area] = true;
  return look_ahead();
}

Status Streamer::run(const StreamStep& step, const Counts& counts) {
  device::Stream& compute = device_->compute();
  std::byte* const rows = block_.data() + 2 * staging_;
  const bool decides = step.shared && step.shared->decides(step.of_rows ? counts.rows : counts.tokens);
  if (step.shared) {
    decided_ = (*pieces_)[step.first_piece].step + 1;
    KTC_RETURN_IF_ERROR(load_rest(step));
    KTC_RETURN_IF_ERROR(look_ahead());
  }
  for (std::uint32_t p = 0; p < step.pieces; ++p) {
    const StreamPiece& piece = (*pieces_)[step.first_piece + p];
    const std::uint64_t area = freed_count_ % 2;
    const std::byte* staged = block_.data() + area * staging_;
    const std::byte *gate_up = staged, *down = staged + align256(step.group * step.packed_gate_up.matrix_bytes);
    if (piece.loads) KTC_RETURN_IF_ERROR(compute.wait_for(*copied_[area]));
    if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(compute, index_, step.name));
    if (step.unpacks) {
      std::byte *to_gate_up = rows, *to_down = rows + align256(step.group * step.args.gate_up.matrix_bytes);
      if (piece.loads) {
        KTC_RETURN_IF_ERROR(compute.launch(step.unpack, gpu::UnpackArgs{at(step.packed_gate_up, gate_up, piece.count),
                                                                        at(step.args.gate_up, to_gate_up, piece.count), 0, piece.count}));
        KTC_RETURN_IF_ERROR(compute.launch(step.unpack, gpu::UnpackArgs{at(step.packed_down, down, piece.count),
                                                                        at(step.args.down, to_down, piece.count), 0, piece.count}));
        KTC_RETURN_IF_ERROR(release());
      }
      gate_up = to_gate_up;
      down = to_down;
    }
    gpu::ExpertsArgs args = step.args;
    args.rows = step.of_rows ? counts.rows : counts.tokens;
    if (decides) args.filter.slots = step.shared->gpu_slots;
    args.gate_up = at(args.gate_up, gate_up, piece.count);
    args.down = at(args.down, down, piece.count);
    args.first = piece.first;
    args.accumulate = p != 0;
    if (args.rows != 0) KTC_RETURN_IF_ERROR(compute.launch(step.experts, args));
    if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->end(compute));
    if (!step.unpacks && piece.last_use) KTC_RETURN_IF_ERROR(release());
  }
  return {};
}

}  // namespace ktc::exec
