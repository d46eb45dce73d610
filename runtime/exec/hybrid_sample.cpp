#include "runtime/exec/hybrid_sample.h"

#include <algorithm>

namespace ktc::exec {

using planfb::BufferRole;

Status SampleProgram::capture(device::Stream& stream) {
  if (!in_graph) return {};
  for (const bool greedy : {false, true}) {
    gpu::SampleArgs now = args;
    now.greedy = greedy;
    KTC_RETURN_IF_ERROR(stream.begin_capture());
    KTC_RETURN_IF_ERROR(stream.launch(fn, now));
    KTC_ASSIGN_OR_RETURN(graphs[greedy], stream.end_capture());
  }
  return {};
}

Status SampleProgram::run(device::Stream& stream, bool greedy) const {
  if (graphs[greedy] != nullptr) return stream.launch(*graphs[greedy]);
  gpu::SampleArgs now = args;
  now.greedy = greedy;
  return stream.launch(fn, now);
}

std::optional<SampleProgram> resolve_sample(const planfb::PlanT& plan, const EntryBounds& bounds, const std::vector<Gpu>& gpus) {
  const planfb::EntryT& decode = *plan.entries[bounds.entry];
  const auto logits_of = [](const planfb::EntryT& entry) -> const planfb::BufferT* {
    for (const auto& buffer : entry.buffers)
      if (buffer->role == BufferRole::logits) return buffer.get();
    return nullptr;
  };
  const planfb::BufferT* logits = logits_of(decode);
  for (const auto& entry : plan.entries) {
    const planfb::StepT* step = device_sample_step(plan, *entry);
    if (step == nullptr || entry->max_rows != bounds.max_rows || !bounds.decode || logits == nullptr) continue;
    const planfb::BufferT& input = *logits_of(*entry);
    if (input.device != logits->device || input.offset != logits->offset || input.row_bytes != logits->row_bytes) continue;
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& g) { return g.index == step->device; });
    if (gpu == gpus.end() || gpu->kernels.sample == nullptr) continue;
    SampleProgram program;
    program.gpu = static_cast<std::uint32_t>(gpu - gpus.begin());
    program.fn = gpu->kernels.sample;
    program.in_graph = step->graph != plan::kNone;
    const planfb::BufferT& space = *entry->buffers[step->workspace];
    program.args.logits = {reinterpret_cast<float*>(gpu->arena.data() + input.offset), input.row_bytes / sizeof(float),
                           static_cast<std::uint32_t>(input.columns)};
    program.args.parameters = gpu->sample_rows();
    program.args.ids = {gpu->next_ids(), 1, 1};
    program.args.rows = entry->max_rows;
    program.args.scratch = {gpu->arena.data() + space.offset, space.bytes};
    return program;
  }
  return std::nullopt;
}

void fill_sample_areas(const SampleAreas& areas, std::span<const StepSequence> sequences, std::span<const SampleRow> parameters, std::byte* to) {
  auto* feed = reinterpret_cast<std::int32_t*>(to);
  auto* rows = reinterpret_cast<SampleRow*>(to + (areas.parameters - areas.feed));
  SampleRow nobody = {};
  nobody.greedy = 1;
  for (std::uint32_t r = 0; r < areas.rows; ++r) {
    const bool fed = r < sequences.size() && sequences[r].fed_by != StepSequence::kNothing;
    feed[r] = fed ? static_cast<std::int32_t>(sequences[r].fed_by) : -1;
    rows[r] = r < parameters.size() ? parameters[r] : nobody;
  }
}

}  // namespace ktc::exec
