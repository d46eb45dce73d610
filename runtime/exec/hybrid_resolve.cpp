#include "runtime/exec/hybrid_resolve.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "runtime/exec/hybrid_stream.h"
#include "runtime/exec/hybrid_waits.h"
#include "runtime/exec/step_reader.h"

namespace ktc::exec {

using planfb::BufferRole;
using planfb::StepKind;
using planfb::Symbol;

namespace {

bool on_gpu(const planfb::PlanT& plan, std::uint32_t device) { return plan.devices[device]->kind == planfb::DeviceKind::cuda; }

std::uint64_t span_bytes(const planfb::EntryT& entry, const planfb::View& view) {
  const planfb::BufferT& buffer = *entry.buffers[view.buffer()];
  return align64(plan::bound_of(entry, buffer.symbol) * buffer.row_bytes);
}

bool whole(const planfb::EntryT& entry, const planfb::View& view) {
  return view.column() == 0 && view.columns() == entry.buffers[view.buffer()]->columns;
}

const planfb::StepT& await_of(const planfb::EntryT& entry, std::uint32_t record) {
  for (const auto& step : entry.steps)
    if (const auto* op = step->op.AsAwaitOp(); op != nullptr && op->record == record) return *step;
  return *entry.steps[0];  // the plan was verified: never
}

template <typename Op>
bool counts_here(const Op* op) {
  return op != nullptr && op->part != planfb::ExpertsPart::late;
}

// One entry.
class Resolver {
 public:
  Resolver(const planfb::PlanT& plan, const EntryBounds& bounds, const weights::WeightStore& weights,
           const kernels::KernelSet& kernels, HybridMemory& memory, std::vector<Handoff>& handoffs)
      : plan_(plan), entry_(*plan.entries[bounds.entry]), weights_(weights), kernels_(kernels), memory_(memory), handoffs_(handoffs) {
    program_.bounds = bounds;
    program_.name = entry_.name;
    const planfb::CacheT& cache = *plan.caches[0];
    program_.cut = plan::is_cut(entry_);
    const StepBlocks blocks = step_blocks(entry_.max_tokens, entry_.max_rows, entry_.max_sequences,
                                          (cache.tokens_per_sequence + cache.page_tokens - 1) / cache.page_tokens, program_.cut);
    program_.block = blocks.whole;
    for (std::size_t half = 0; half < 2; ++half) program_.half_blocks[half] = blocks.half[half];
  }

  Expected<HybridProgram> run() {
    std::uint32_t records = 0;
    for (const auto& step : entry_.steps) records += step->kind == StepKind::publish;
    program_.records.resize(records);
    program_.awaits.resize(records);
    program_.graphs.resize(entry_.graphs.size());
    program_.pieces.resize(memory_.gpus->size());
    KTC_RETURN_IF_ERROR(inputs_and_logits());
    for (std::uint32_t s = 0; s < entry_.steps.size(); ++s) KTC_RETURN_IF_ERROR(step(s));
    find_skipped();
    find_near();
    joiner_.join(program_);
    find_shared();
    KTC_RETURN_IF_ERROR(find_waits(entry_, *memory_.gpus, program_));
    return std::move(program_);
  }

 private:
  Gpu& gpu(std::uint32_t device) const { return (*memory_.gpus)[gpu_index(device)]; }
  std::uint32_t gpu_index(std::uint32_t device) const {
    for (std::uint32_t g = 0; g < memory_.gpus->size(); ++g)
      if ((*memory_.gpus)[g].index == device) return g;
    return plan::kNone;
  }
  std::uint32_t device_of(const planfb::View& view) const { return entry_.buffers[view.buffer()]->device; }

  template <typename T>
  Rows<T> cpu_rows(const planfb::View& view) const {
    const planfb::BufferT& buffer = *entry_.buffers[view.buffer()];
    return {reinterpret_cast<T*>(memory_.cpu->arena + buffer.offset) + view.column(), buffer.row_bytes / sizeof(T), view.columns()};
  }

  Status inputs_and_logits() {
    for (std::uint32_t b = 0; b < entry_.buffers.size(); ++b) {
      const planfb::BufferT& buffer = *entry_.buffers[b];
      const bool gpu_side = on_gpu(plan_, buffer.device);
      if (buffer.role == BufferRole::logits) {
        const planfb::View all(b, 0, buffer.columns);
        if (!gpu_side) {
          program_.logits = cpu_rows<float>(all);
          continue;
        }
        program_.logits = {reinterpret_cast<float*>(memory_.logits), buffer.row_bytes / sizeof(float), buffer.columns};
        program_.logits_gpu = gpu_index(buffer.device);
        program_.logits_copy = {gpu(buffer.device).arena.data() + buffer.offset, memory_.logits, buffer.row_bytes, buffer.row_bytes,
                                buffer.columns * 4, true, true};
        continue;
      }
      if (gpu_side) continue;
      const Ids ids = {reinterpret_cast<std::int32_t*>(memory_.cpu->arena + buffer.offset), buffer.row_bytes / 4, 1};
      const Part part = part_of(buffer.symbol);
      HalfInputs& half = program_.half_inputs[part == Part::second];
      if (buffer.role == BufferRole::ids) (part == Part::whole ? program_.ids : half.ids).push_back(ids);
      if (buffer.role == BufferRole::positions) (part == Part::whole ? program_.positions : half.positions).push_back(ids);
      if (buffer.role == BufferRole::output_rows) program_.output_rows.push_back(ids);
      if (buffer.role == BufferRole::deferred) (part == Part::whole ? program_.deferred : half.deferred).push_back(ids);
    }
    if (program_.logits.data != nullptr) return {};
    return make_error(StatusCode::unsupported, {"entry " + entry_.name, "it computes no logits", "", "a buffer of role logits",
                                                "compile the model again"});
  }

  Status step(std::uint32_t index) {
    const planfb::StepT& from = *entry_.steps[index];
    HybridStep to;
    to.kind = from.kind;
    to.step = index;
    to.graph = from.graph;
    to.name = from.name;
    to.part = part_of(entry_.buffers[from.outputs[0].buffer()]->symbol);
    if (from.kind == StepKind::compute) {
      KTC_ASSIGN_OR_RETURN(Step native, resolve_step(plan_, entry_, from, weights_, kernels_, *memory_.cpu));
      to.at = static_cast<std::uint32_t>(program_.cpu_steps.size());
      program_.cpu_steps.push_back(native);
      if (const auto* op = from.op.AsExpertsOp(); op != nullptr && op->share == nullptr) to.moving = moving(from, *op);
      program_.steps.push_back(std::move(to));
      return {};
    }
    to.gpu = gpu_index(from.device);
    const StepBlockLayout& block = to.part == Part::whole ? program_.block : program_.half_blocks[to.part == Part::second];
    const GpuStepReader reader(plan_, entry_, from, gpu(from.device), block);
    switch (from.kind) {
      case StepKind::launch: KTC_RETURN_IF_ERROR(launch(from, reader, to)); break;
      case StepKind::copy: KTC_RETURN_IF_ERROR(copy(from, to)); break;
      case StepKind::publish: KTC_RETURN_IF_ERROR(publish(from, reader, to)); break;
      case StepKind::await: KTC_RETURN_IF_ERROR(await(from, reader, to)); break;
      default: return refuse(from, "a step kind that this executor does not run", planfb::EnumNameStepKind(from.kind), "");
    }
    if (from.launch_group != plan::kNone) joiner_.member(from.launch_group, program_.steps.size());
    program_.steps.push_back(std::move(to));
    return {};
  }

  Status launch(const planfb::StepT& from, const GpuStepReader& reader, HybridStep& to) {
    if (from.op.AsEmbedOp() != nullptr && program_.bounds.decode && gpu(from.device).sample.rows != 0) {
      program_.fed = true;
      program_.fed_gpu = to.gpu;
    }
    // the rope table of a device is filled once, before the first step that uses it and in the same graph
    std::uint32_t rope = plan::kNone;
    if (const auto* op = from.op.AsGqaOp()) rope = op->rope;
    if (const auto* op = from.op.AsMlaOp()) rope = op->rope;
    if (rope != plan::kNone && ropes_.emplace(to.gpu, rope, to.part).second) {
      HybridStep table;
      table.kind = StepKind::launch;
      table.step = plan::kNone;
      table.gpu = to.gpu;
      table.graph = to.graph;
      table.part = to.part;
      table.name = "rope table";
      KTC_ASSIGN_OR_RETURN(Launch fill, rope_launch(reader, rope));
      table.launches.push_back(std::move(fill));
      program_.steps.push_back(std::move(table));
    }
    if (const auto* op = from.op.AsExpertsOp(); op != nullptr && op->stream) {
      to.stream = static_cast<std::uint32_t>(program_.streams.size());
      KTC_ASSIGN_OR_RETURN(StreamStep stream, resolve_stream(reader, weights_));
      if (op->share != nullptr) stream.shared = shared(from, *op, reader);
      program_.streams.push_back(std::move(stream));
      add_pieces(program_.streams, to.stream, program_.pieces[to.gpu]);
    } else {
      KTC_ASSIGN_OR_RETURN(to.launches, resolve_launches(reader));
      KTC_RETURN_IF_ERROR(see_joinable(reader, program_.steps.size(), joiner_));
    }
    if (const auto* op = from.op.AsExpertsOp(); counts_here(op) && !memory_.cpu->expert_counts.empty()) count(from, *op, to);
    return {};
  }

  // The ids that a device's experts op reads go to the host as well.
  void count(const planfb::StepT& from, const planfb::ExpertsOpT& op, HybridStep& to) {
    const planfb::View& ids = from.inputs[1];
    CountedIds counted;
    counted.counts = memory_.cpu->expert_counts.data() + std::size_t{op.layer} * plan_.model->experts;
    counted.slots = op.slots.empty() ? nullptr : op.slots.data();
    if (const MovingSlots* moving = memory_.cpu->moving; moving != nullptr && moving->contains(op.w_gate_up))
      counted.slots = moving->at(op.w_gate_up).data();
    counted.experts = plan_.model->experts;
    counted.top_k = static_cast<std::uint32_t>(ids.columns());
    counted.copy = rows_between(ids, gpu(from.device), memory_.counted, entry_.buffers[ids.buffer()]->row_bytes, true);
    memory_.counted += span_bytes(entry_, ids);
    counted.part = to.part;
    program_.counted.push_back(counted);
    to.launches.push_back([copy = counted.copy](device::Stream& stream, const Counts& counts) { return copy.run(stream, true, counts); });
  }

  SharedExpertsStep shared(const planfb::StepT& from, const planfb::ExpertsOpT& op, const GpuStepReader& reader) {
    const planfb::StepT& other = sharing_step(entry_, from);
    SharedExpertsStep step;
    step.rates = share_of(*op.share);
    step.ids = cpu_rows<std::int32_t>(other.inputs[1]);
    step.of_rows = reader.of_rows();
    step.slots = op.slots.empty() ? nullptr : op.slots.data();
    if (const MovingSlots* moving = memory_.cpu->moving; moving != nullptr && moving->contains(op.w_gate_up)) step.slots = moving->at(op.w_gate_up).data();
    step.experts = plan_.model->experts;
    step.cpu_slots = memory_.shared_slots->at(other.op.AsExpertsOp()).data();
    step.to_gpu = reinterpret_cast<std::int32_t*>(memory_.shared);
    memory_.shared += align64(step.experts * sizeof(std::int32_t));
    step.gpu_slots = gpu(from.device).shared_slots.at(&op);
    step.chosen.resize(weights_[op.w_gate_up].batch);
    step.on_cpu.resize(step.chosen.size());
    return step;
  }
  // Copies that serve a CPU's share alone: the choice goes up at once, the rest and the result where the CPU takes some.
  void find_shared() {
    for (HybridStep& step : program_.steps) {
      if (step.stream == plan::kNone || !program_.streams[step.stream].shared) continue;
      const planfb::StepT& streams = *entry_.steps[step.step];
      const planfb::StepT& other = sharing_step(entry_, streams);
      for (HybridStep& candidate : program_.steps) {
        if (candidate.step == plan::kNone) continue;
        const planfb::StepT& from = *entry_.steps[candidate.step];
        if (&from == &other) candidate.shared = step.stream;
        if (from.kind != StepKind::copy) continue;
        CopyStep& copy = program_.copies[candidate.at];
        const bool serves = copy.to_gpu == plan::kNone && std::all_of(from.outputs.begin(), from.outputs.end(), [&](const planfb::View& made) {
          const auto reads = [&](const planfb::View& v) { return v.buffer() == made.buffer(); };
          return readers(made.buffer()) == 1 && std::any_of(other.inputs.begin(), other.inputs.end(), reads);
        });
        if (serves) {
          candidate.shared = step.stream;
          std::vector<CopyRows> now;
          for (std::size_t i = 0; i < copy.up.size(); ++i)
            (from.outputs[i].buffer() == other.inputs[1].buffer() ? now : program_.streams[step.stream].shared_up).push_back(copy.up[i]);
          copy.up = std::move(now);
        }
        for (std::size_t i = 0; i < copy.down.size() && copy.from_gpu == plan::kNone; ++i)
          if (from.inputs[i].buffer() == other.outputs[0].buffer()) copy.down[i].shared = step.stream;
      }
    }
  }
  std::size_t readers(std::uint32_t buffer) const {
    std::size_t count = 0;
    for (const auto& step : entry_.steps)
      count += std::any_of(step->inputs.begin(), step->inputs.end(), [&](const planfb::View& v) { return v.buffer() == buffer; });
    return count;
  }

  MovingStep moving(const planfb::StepT& from, const planfb::ExpertsOpT& op) const {
    MovingStep step;
    for (std::uint32_t i = 0; i < plan_.moving.size(); ++i)
      if (plan_.moving[i]->w_cold_gate_up == op.w_gate_up) step.index = i;
    if (step.index == plan::kNone || !counts_here(&op)) return step;
    step.ids = cpu_rows<std::int32_t>(from.inputs[1]);
    step.of_rows = entry_.buffers[from.inputs[1].buffer()]->symbol == Symbol::rows;
    return step;
  }
  // gate_up of the CPU's experts that read published ids.
  std::uint32_t bank_of(std::uint32_t ids) const {
    for (const auto& step : entry_.steps)
      if (const auto* op = step->op.AsExpertsOp(); op != nullptr && step->kind == StepKind::compute && step->inputs[1].buffer() == ids)
        return op->w_gate_up;
    return plan::kNone;
  }

  // `free`: what lies between the rows on the host is nobody's.
  CopyRows rows_between(const planfb::View& view, const Gpu& gpu, std::byte* host, std::uint64_t host_stride, bool to_host) const {
    const planfb::BufferT& buffer = *entry_.buffers[view.buffer()];
    CopyRows copy;
    copy.device = gpu.arena.data() + buffer.offset + view.column() * 4;
    copy.host = host;
    copy.device_stride = buffer.row_bytes;
    copy.host_stride = host_stride;
    copy.row_bytes = view.columns() * 4;
    copy.whole = host_stride == buffer.row_bytes && (to_host || whole(entry_, view));
    copy.of_rows = buffer.symbol == Symbol::rows;
    return copy;
  }

  PeerRows rows_across(const planfb::View& source, const Gpu& from, const planfb::View& target, const Gpu& to) const {
    const planfb::BufferT &there = *entry_.buffers[source.buffer()], &here = *entry_.buffers[target.buffer()];
    PeerRows copy;
    copy.from = from.arena.data() + there.offset + source.column() * 4;
    copy.to = to.arena.data() + here.offset + target.column() * 4;
    copy.from_stride = there.row_bytes;
    copy.to_stride = here.row_bytes;
    copy.row_bytes = source.columns() * 4;
    copy.whole = there.row_bytes == here.row_bytes && whole(entry_, target);
    copy.of_rows = here.symbol == Symbol::rows;
    return copy;
  }

  Status copy(const planfb::StepT& from, HybridStep& to) {
    CopyStep step;
    const bool from_gpu = on_gpu(plan_, device_of(from.inputs[0])), to_gpu = on_gpu(plan_, device_of(from.outputs[0]));
    if (from_gpu) step.from_gpu = gpu_index(device_of(from.inputs[0]));
    if (to_gpu) step.to_gpu = gpu_index(device_of(from.outputs[0]));
    for (std::size_t i = 0; i < from.inputs.size(); ++i) {
      const planfb::View &source = from.inputs[i], &target = from.outputs[i];
      if (from_gpu && to_gpu) {
        step.across.push_back(rows_across(source, (*memory_.gpus)[step.from_gpu], target, (*memory_.gpus)[step.to_gpu]));
        continue;
      }
      const planfb::View& cpu = from_gpu ? target : source;
      const Ids rows = cpu_rows<std::int32_t>(cpu);
      CopyRows copy = rows_between(from_gpu ? source : target, (*memory_.gpus)[from_gpu ? step.from_gpu : step.to_gpu],
                                   reinterpret_cast<std::byte*>(rows.data), rows.stride * 4, from_gpu);
      copy.whole = copy.whole && whole(entry_, cpu);
      (from_gpu ? step.up : step.down).push_back(copy);
    }
    to.at = static_cast<std::uint32_t>(program_.copies.size());
    program_.copies.push_back(std::move(step));
    return {};
  }

  Status publish(const planfb::StepT& from, const GpuStepReader& reader, HybridStep& to) {
    const planfb::PublishOpT& op = *from.op.AsPublishOp();
    RecordStep& record = program_.records[op.record];
    to.at = op.record;
    record.area = handoffs_[to.gpu].find(program_.bounds.entry, op.record);
    record.gpu = to.gpu;
    record.x = cpu_rows<float>(from.outputs[0]);
    record.ids = cpu_rows<std::int32_t>(from.outputs[1]);
    record.weights = cpu_rows<float>(from.outputs[2]);
    record.skip_empty = await_of(entry_, op.record).op.AsAwaitOp()->skip_empty;
    if (record.area->node != nullptr) return publish_copies(from, record, to);
    gpu::PublishArgs args = {};
    args.x = reader.in(0);
    args.ids = reader.ids(from.inputs[1]);
    args.weights = reader.in(2);
    args.slots = reader.slots(bank_of(from.outputs[1].buffer()), op.slots);
    args.top_k = record.area->top_k;
    args.record = record.area->device;
    args.format = record.area->format;
    args.live = reader.block_at(program_.block.live);
    args.epoch = reinterpret_cast<const std::uint32_t*>(reader.block_at(program_.block.epoch));
    args.pairs = record.area->pairs;
    joiner_.saw(program_.steps.size(), reader.gpu_.kernels, args);
    return reader.add(to.launches, reader.gpu_.kernels.publish, args);
  }

  Status publish_copies(const planfb::StepT& from, RecordStep& record, HybridStep& to) {
    std::byte* at = record.area->node->staged;
    std::vector<CopyRows> copies;
    std::byte* staged[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const planfb::View& view = from.inputs[i];
      staged[i] = at;
      copies.push_back(rows_between(view, gpu(from.device), at, entry_.buffers[view.buffer()]->row_bytes, true));
      at += span_bytes(entry_, view);
    }
    const auto stride = [&](std::size_t i) { return entry_.buffers[from.inputs[i].buffer()]->row_bytes / 4; };
    record.staged_x = {reinterpret_cast<float*>(staged[0]), stride(0), record.area->columns};
    record.staged_ids = {reinterpret_cast<std::int32_t*>(staged[1]), stride(1), record.area->top_k};
    record.staged_weights = {reinterpret_cast<float*>(staged[2]), stride(2), record.area->top_k};
    to.launches.push_back([copies, node = record.area->node.get()](device::Stream& stream, const Counts& counts) -> Status {
      for (const CopyRows& copy : copies) KTC_RETURN_IF_ERROR(copy.run(stream, true, counts));
      return stream.host_call(node_published, node);
    });
    return {};
  }

  Status await(const planfb::StepT& from, const GpuStepReader& reader, HybridStep& to) {
    const planfb::AwaitOpT& op = *from.op.AsAwaitOp();
    const RecordArea& area = *program_.records[op.record].area;
    AwaitStep& await = program_.awaits[op.record];
    to.at = op.record;
    await.result = cpu_rows<float>(from.inputs[0]);
    if (area.node != nullptr) {
      std::byte* staged = area.node->staged + area.staged_bytes - span_bytes(entry_, from.outputs[0]);
      const std::uint64_t stride = entry_.buffers[from.outputs[0].buffer()]->row_bytes;
      await.staged = {reinterpret_cast<float*>(staged), stride / 4, area.columns};
      const CopyRows copy = rows_between(from.outputs[0], gpu(from.device), staged, stride, false);
      to.launches.push_back([copy, node = area.node.get()](device::Stream& stream, const Counts& counts) -> Status {
        KTC_RETURN_IF_ERROR(stream.host_call(node_await, node));
        return copy.run(stream, false, counts);
      });
      return {};
    }
    gpu::AwaitArgs args = {};
    args.cells = area.device_cells;
    args.format = area.cell_format;
    args.out = reader.out(0);
    args.words = handoffs_[to.gpu].device_words();
    args.layer = op.record;
    args.live = reader.block_at(program_.block.live);
    args.epoch = reinterpret_cast<const std::uint32_t*>(reader.block_at(program_.block.epoch));
    args.pairs = area.pairs;
    args.skip_empty = op.skip_empty;
    find_fetches(from, reader, args);
    joiner_.saw(program_.steps.size(), reader.gpu_.kernels, args);
    return reader.add(to.launches, reader.gpu_.kernels.await, args);
  }

  // The weights of the products between an await and the next hand-off, as many as stay in the card's cache: it waits for longer than
  // reading them takes.
  void find_fetches(const planfb::StepT& from, const GpuStepReader& reader, gpu::AwaitArgs& args) const {
    std::uint64_t left = reader.gpu_.device->info().cache / 5 * 4;
    std::size_t count = 0;
    bool behind = false;
    for (const auto& step : entry_.steps) {
      if (step.get() == &from) behind = true;
      if (!behind || step.get() == &from || step->device != from.device) continue;
      if (step->kind != StepKind::launch) return;
      const auto* op = step->op.AsLinearOp();
      if (op == nullptr) continue;
      const gpu::Weight& w = reader.weight(op->w);
      const std::uint64_t bytes = plan_.weights[op->w]->bytes / 16 * 16;
      if (bytes > left || count == std::size(args.fetch)) return;
      args.fetch[count++] = {w.data, bytes};
      left -= bytes;
    }
  }

  // Steps of the CPU between a publish and its await whose values are used by each other and by that await alone.
  void find_skipped() {
    for (std::uint32_t r = 0; r < program_.records.size(); ++r) {
      if (!program_.records[r].skip_empty) continue;
      std::set<std::uint32_t> tainted, candidates;  // buffers, steps
      bool between = false;
      for (std::uint32_t s = 0; s < entry_.steps.size(); ++s) {
        const planfb::StepT& step = *entry_.steps[s];
        if (const auto* op = step.op.AsPublishOp(); op != nullptr && op->record == r) {
          between = true;
          for (const planfb::View& view : step.outputs) tainted.insert(view.buffer());
        }
        if (const auto* op = step.op.AsAwaitOp(); op != nullptr && op->record == r) break;
        if (!between || step.kind != StepKind::compute) continue;
        if (std::none_of(step.inputs.begin(), step.inputs.end(), [&](const planfb::View& v) { return tainted.contains(v.buffer()); }))
          continue;
        candidates.insert(s);
        for (const planfb::View& view : step.outputs) tainted.insert(view.buffer());
      }
      for (bool changed = true; changed;) {
        changed = false;
        for (auto c = candidates.begin(); c != candidates.end();) {
          const bool needed = used_elsewhere(*c, candidates, r);
          changed = changed || needed;
          c = needed ? candidates.erase(c) : std::next(c);
        }
      }
      for (HybridStep& step : program_.steps)
        if (step.kind == StepKind::compute && candidates.contains(step.step)) step.skipped_with = r;
    }
  }
  // The op whose end a waiting device is told of: the last experts op before each await.
  void find_near() {
    HybridStep* last = nullptr;
    for (HybridStep& step : program_.steps) {
      if (step.kind == StepKind::compute && entry_.steps[step.step]->op.AsExpertsOp() != nullptr) last = &step;
      if (step.kind == StepKind::publish) last = nullptr;
      if (step.kind != StepKind::await || last == nullptr || program_.records[step.at].area->node != nullptr) continue;
      last->near_record = step.at;
      const planfb::View &result = entry_.steps[last->step]->outputs[0], &handed = entry_.steps[step.step]->inputs[0];
      last->is_result = result.buffer() == handed.buffer() && result.column() == handed.column() && result.columns() == handed.columns();
    }
  }
  bool used_elsewhere(std::uint32_t producer, const std::set<std::uint32_t>& candidates, std::uint32_t record) const {
    for (const planfb::View& out : entry_.steps[producer]->outputs) {
      if (entry_.buffers[out.buffer()]->role != BufferRole::value) return true;
      for (std::uint32_t s = producer + 1; s < entry_.steps.size(); ++s) {
        const planfb::StepT& step = *entry_.steps[s];
        const auto* await = step.op.AsAwaitOp();
        if (candidates.contains(s) || (await != nullptr && await->record == record)) continue;
        for (const planfb::View& in : step.inputs)
          if (in.buffer() == out.buffer()) return true;
      }
    }
    return false;
  }

  const planfb::PlanT& plan_;
  const planfb::EntryT& entry_;
  const weights::WeightStore& weights_;
  const kernels::KernelSet& kernels_;
  HybridMemory& memory_;
  std::vector<Handoff>& handoffs_;
  HybridProgram program_;
  StepJoiner joiner_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, Part>> ropes_;  // gpu, rope, part: table filled
};

}  // namespace

Status CopyRows::run(device::Stream& stream, bool to_host, const Counts& counts) const {
  const std::uint64_t n = of_rows ? counts.rows : counts.tokens;
  if (n == 0) return {};
  const auto one = [&](std::uint64_t row, std::uint64_t bytes) {
    std::byte* const on_device = device + row * device_stride;
    std::byte* const on_host = host + row * host_stride;
    return to_host ? stream.copy_to_host(on_host, on_device, bytes) : stream.copy_to_device(on_device, on_host, bytes);
  };
  if (whole) return one(0, (n - 1) * device_stride + row_bytes);
  for (std::uint64_t row = 0; row < n; ++row) KTC_RETURN_IF_ERROR(one(row, row_bytes));
  return {};
}

Status PeerRows::run(device::Stream& stream, device::Device& peer, const Counts& counts) const {
  const std::uint64_t n = of_rows ? counts.rows : counts.tokens;
  if (n == 0) return {};
  if (whole) return stream.copy_from_peer(peer, to, from, (n - 1) * from_stride + row_bytes);
  for (std::uint64_t row = 0; row < n; ++row) KTC_RETURN_IF_ERROR(stream.copy_from_peer(peer, to + row * to_stride, from + row * from_stride, row_bytes));
  return {};
}

Status CopyRows::clear(device::Stream& stream, const Counts& counts) const {
  const std::uint64_t n = of_rows ? counts.rows : counts.tokens;
  if (n == 0) return {};
  if (whole) return stream.fill(device, 0, (n - 1) * device_stride + row_bytes);
  for (std::uint64_t row = 0; row < n; ++row) KTC_RETURN_IF_ERROR(stream.fill(device + row * device_stride, 0, row_bytes));
  return {};
}

StagedBytes staged_bytes(const planfb::PlanT& plan) {
  StagedBytes bytes;
  for (const auto& entry : plan.entries) {
    if (entry->kind == planfb::EntryKind::sample) continue;
    for (const auto& buffer : entry->buffers)
      if (buffer->role == BufferRole::logits && on_gpu(plan, buffer->device)) bytes.logits = std::max(bytes.logits, buffer->bytes);
    for (const auto& step : entry->steps) {
      if (counts_here(step->op.AsExpertsOp()) && on_gpu(plan, step->device)) bytes.counted += span_bytes(*entry, step->inputs[1]);
    }
  }
  return bytes;
}

std::vector<RecordArea> record_areas(const planfb::PlanT& plan, std::uint32_t device) {
  std::vector<RecordArea> areas;
  for (std::uint32_t e = 0; e < plan.entries.size(); ++e) {
    const planfb::EntryT& entry = *plan.entries[e];
    for (const auto& step : entry.steps) {
      const auto* op = step->op.AsPublishOp();
      if (op == nullptr || step->device != device) continue;
      const planfb::StepT& await = await_of(entry, op->record);
      RecordArea area;
      area.entry = e;
      area.number = op->record;
      area.tokens = entry.max_tokens;
      area.top_k = static_cast<std::uint32_t>(step->inputs[1].columns());
      area.columns = static_cast<std::uint32_t>(step->inputs[0].columns());
      area.format = static_cast<Format>(op->format);
      area.cell_format = static_cast<Format>(await.op.AsAwaitOp()->format);
      for (const planfb::View& view : step->inputs) area.staged_bytes += span_bytes(entry, view);
      area.staged_bytes += span_bytes(entry, await.outputs[0]);
      areas.push_back(std::move(area));
    }
  }
  return areas;
}

Expected<HybridProgram> resolve_hybrid(const planfb::PlanT& plan, const EntryBounds& bounds, const weights::WeightStore& weights,
                                       const kernels::KernelSet& kernels, HybridMemory& memory, std::vector<Handoff>& handoffs) {
  return Resolver(plan, bounds, weights, kernels, memory, handoffs).run();
}

}  // namespace ktc::exec
