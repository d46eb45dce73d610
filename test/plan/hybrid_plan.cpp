#include "test/plan/hybrid_plan.h"

#include <algorithm>

#include "runtime/formats/workspace.h"
#include "test/plan/small_plan.h"

namespace ktc::test {

using namespace planfb;

namespace {

constexpr std::uint64_t kScratch = 1 << 18;

std::uint32_t add_weight(PlanT& plan, const std::string& name, std::uint32_t device, Format format, Packing packing,
                         std::uint64_t rows, std::uint64_t columns) {
  auto w = std::make_unique<WeightT>();
  w->name = name;
  w->source = WeightSource::random;
  w->seed = 7;
  w->device = device;
  w->format = static_cast<std::uint8_t>(format);
  w->packing = static_cast<std::uint8_t>(packing);
  w->batch = 2;
  w->rows = rows;
  w->columns = columns;
  w->bytes = packed_bytes(format, packing, 2, rows, columns).value_or(0);
  plan.weights.push_back(std::move(w));
  return static_cast<std::uint32_t>(plan.weights.size() - 1);
}

struct Banks {
  std::uint32_t hot_gate_up, hot_down, cold_gate_up, cold_down;
};

class HybridEntry {
 public:
  HybridEntry(PlanT& plan, EntryT& entry, const Banks& banks) : plan_(plan), entry_(entry), banks_(banks) {
    for (auto& buffer : entry.buffers) buffer->device = 1;
    test::buffer(entry, "scratch").bytes = kScratch;
    gpu_end_ = (plan.devices[1]->arena_bytes + 255) / 256 * 256;
    test::buffer(entry, "scratch").offset = gpu_end_;
    gpu_end_ += kScratch;
    cpu_x_ = add("cpu.x", 0, "h");
    cpu_ids_ = add("cpu.expert_ids", 0, "expert_ids");
    cpu_weights_ = add("cpu.expert_weights", 0, "expert_weights");
    cpu_out_ = add("cpu.in_time", 0, "h");
    cpu_late_ = add("cpu.late", 0, "h");
    cold_ = add("cold", 1, "h");
    late_ = add("late", 1, "h");
    deferred_ = add("deferred", 0, "ids");
    entry.buffers[deferred_]->role = BufferRole::deferred;
    cpu_scratch_ = add("cpu.scratch", 0, "scratch");
  }

  void run() {
    const auto old = std::move(entry_.steps);
    entry_.steps.clear();
    for (const auto& step : old) {
      StepT& mine = push(*step);
      mine.device = 1;
      mine.kind = StepKind::launch;
      mine.activations = static_cast<std::uint8_t>(Format::bf16);
      if (step->op.type == Op::LinearOp) mine.workspace = buffer_index(entry_, "scratch");
      if (step->name == "layers.0.mlp.experts") first_layer();
      if (step->name == "layers.1.mlp.experts") second_layer();
      if (step->name == "layers.0.mlp.add") mine.inputs[1] = view("cold");
      if (step->name == "layers.1.attention.norm") fuse_norm();
      if (step->name == "layers.1.mlp.add") {
        mine.inputs.push_back(view("cold"));
        mine.inputs.push_back(view("late"));
        const std::unique_ptr<StepT> last = std::move(entry_.steps.back());
        entry_.steps.pop_back();
        transfer("layers.0.mlp.late.to_gpu", StepKind::copy, CopyOpT(), {view("cpu.late")}, {view("late")});
        push(*last);
      }
    }
    if (is_decode()) graphs();
    if (is_decode()) launches();
    plan_.devices[0]->arena_bytes = std::max(plan_.devices[0]->arena_bytes, cpu_end_);
    plan_.devices[1]->arena_bytes = std::max(plan_.devices[1]->arena_bytes, gpu_end_);
  }

 private:
  bool is_decode() const { return entry_.kind == EntryKind::decode; }

  std::uint32_t add(const std::string& name, std::uint32_t device, std::string_view like) {
    auto buffer = std::make_unique<BufferT>(test::buffer(entry_, like));
    std::uint64_t& end = device == 0 ? cpu_end_ : gpu_end_;
    buffer->name = name;
    buffer->device = device;
    if (buffer->role != BufferRole::workspace) buffer->role = BufferRole::value;
    buffer->offset = end;
    end += (buffer->bytes + 63) / 64 * 64;
    entry_.buffers.push_back(std::move(buffer));
    return static_cast<std::uint32_t>(entry_.buffers.size() - 1);
  }
  View view(std::string_view name) const {
    const std::uint32_t index = buffer_index(entry_, name);
    return View(index, 0, entry_.buffers[index]->columns);
  }
  StepT& push(const StepT& step) {
    entry_.steps.push_back(std::make_unique<StepT>(step));
    return *entry_.steps.back();
  }

  template <typename OpT>
  StepT& transfer(const std::string& name, StepKind kind, OpT op, std::vector<View> inputs, std::vector<View> outputs) {
    StepT step;
    step.name = name;
    step.kind = kind;
    step.device = 1;
    step.op.Set(std::move(op));
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    return push(step);
  }

  void to_cpu(const std::string& layer, std::uint32_t record, const std::vector<std::int32_t>& slots) {
    const std::vector<View> from = {view("h"), view("expert_ids"), view("expert_weights")};
    const std::vector<View> to = {view("cpu.x"), view("cpu.expert_ids"), view("cpu.expert_weights")};
    if (!is_decode()) {
      transfer(layer + ".to_cpu", StepKind::copy, CopyOpT(), from, to);
      return;
    }
    PublishOpT op;
    op.record = record;
    op.format = static_cast<std::uint8_t>(Format::bf16);
    op.slots = slots;
    transfer(layer + ".publish", StepKind::publish, op, from, to);
  }
  void to_gpu(const std::string& layer, std::uint32_t record, bool skip_empty) {
    if (!is_decode()) {
      transfer(layer + ".to_gpu", StepKind::copy, CopyOpT(), {view("cpu.in_time")}, {view("cold")});
      return;
    }
    AwaitOpT op;
    op.record = record;
    op.format = static_cast<std::uint8_t>(Format::f32);
    op.skip_empty = skip_empty;
    transfer(layer + ".await", StepKind::await, op, {view("cpu.in_time")}, {view("cold")});
  }

  // The step that was pushed last, with the CPU's operands.
  void on_cpu(StepT& step) {
    step.kind = StepKind::compute;
    step.device = 0;
    step.activations = static_cast<std::uint8_t>(Format::f32);
    step.workspace = cpu_scratch_;
    step.inputs = {view("cpu.x"), view("cpu.expert_ids"), view("cpu.expert_weights")};
    step.outputs = {view("cpu.in_time")};
  }

  void first_layer() {
    const StepT experts = *entry_.steps.back();
    entry_.steps.pop_back();
    to_cpu("layers.0.mlp", 0, {});
    for (const ExpertsPart part : {ExpertsPart::in_time, ExpertsPart::late}) {
      StepT& step = push(experts);
      on_cpu(step);
      step.inputs.push_back(View(deferred_, 0, 1));
      ExpertsOpT& op = *step.op.AsExpertsOp();
      op.part = part;
      op.late = 1;
      op.late_among_all = true;
      if (part == ExpertsPart::in_time) {
        to_gpu("layers.0.mlp", 0, true);
        continue;
      }
      step.name += ".late";
      step.outputs = {view("cpu.late")};
    }
  }

  void second_layer() {
    StepT& hot = *entry_.steps.back();
    const StepT experts = hot;
    hot.op.AsExpertsOp()->w_gate_up = banks_.hot_gate_up;
    hot.op.AsExpertsOp()->w_down = banks_.hot_down;
    hot.op.AsExpertsOp()->slots = {0, -1, 1, -1};
    const std::vector<std::int32_t> slots = {-1, 0, -1, 1};
    const std::unique_ptr<StepT> kept = std::move(entry_.steps.back());
    entry_.steps.pop_back();
    to_cpu("layers.1.mlp", 1, slots);
    push(*kept);
    StepT& cold = push(experts);
    on_cpu(cold);
    cold.name += ".cold";
    cold.activations = static_cast<std::uint8_t>(Format::int8);
    ExpertsOpT& op = *cold.op.AsExpertsOp();
    op.w_gate_up = banks_.cold_gate_up;
    op.w_down = banks_.cold_down;
    op.slots = slots;
    op.x_granule = op.h_granule = 64;
    to_gpu("layers.1.mlp", 1, true);
  }

  // layers.0.mlp.add and layers.1.attention.norm as one.
  void fuse_norm() {
    const StepT norm = *entry_.steps.back();
    entry_.steps.pop_back();
    StepT& add = *entry_.steps.back();
    AddNormOpT op;
    op.w = norm.op.AsNormOp()->w;
    op.eps = norm.op.AsNormOp()->eps;
    add.op.Set(op);
    add.outputs.push_back(norm.outputs[0]);
  }

  void graphs() {
    std::uint32_t graph = plan::kNone;
    for (auto& step : entry_.steps) {
      if (step->device != 1) continue;
      if (step->kind == StepKind::copy) {
        graph = plan::kNone;
        continue;
      }
      if (graph == plan::kNone) {
        auto one = std::make_unique<GraphT>();
        one->name = entry_.name + (entry_.graphs.empty() ? ".first" : ".second");
        one->device = 1;
        graph = static_cast<std::uint32_t>(entry_.graphs.size());
        entry_.graphs.push_back(std::move(one));
      }
      step->graph = graph;
    }
  }

  // A router and its record, an await and its sum.
  void launches() {
    std::uint32_t group = 0;
    StepT* before = nullptr;  // of the GPU
    for (auto& step : entry_.steps) {
      if (step->device != 1) continue;
      const bool joins = step->op.type == Op::PublishOp || (step->op.type == Op::AddNormOp && before->op.type == Op::AwaitOp);
      if (joins) before->launch_group = step->launch_group = group++;
      before = step.get();
    }
  }

  PlanT& plan_;
  EntryT& entry_;
  const Banks& banks_;
  std::uint64_t cpu_end_ = 0, gpu_end_ = 0;
  std::uint32_t cpu_x_, cpu_ids_, cpu_weights_, cpu_out_, cpu_late_, cold_, late_, deferred_, cpu_scratch_;
};

void add_line(PlanT& plan, std::uint32_t device, const char* category, std::uint64_t bytes) {
  auto line = std::make_unique<AccountLineT>();
  line->device = device;
  line->category = line->name = category;
  line->bytes = bytes;
  plan.account.push_back(std::move(line));
}

}  // namespace

PlanT hybrid_plan() {
  PlanT plan = small_plan();
  auto gpu = std::make_unique<DeviceT>();
  gpu->name = "cuda:0";
  gpu->kind = DeviceKind::cuda;
  gpu->arena_bytes = plan.devices[0]->arena_bytes;  // the small plan's buffers stay where they are
  plan.devices.push_back(std::move(gpu));
  plan.devices[0]->arena_bytes = 0;
  for (auto& w : plan.weights)
    if (w->name.find(".experts.") == std::string::npos) w->device = 1;
  for (auto& cache : plan.caches) cache->device = 1;
  Banks banks{};
  banks.hot_gate_up = add_weight(plan, "layers.1.hot.gate_up", 1, Format::int8, Packing::gpu_rows, 8, 16);
  banks.hot_down = add_weight(plan, "layers.1.hot.down", 1, Format::int8, Packing::gpu_rows, 16, 4);
  banks.cold_gate_up = add_weight(plan, "layers.1.cold.gate_up", 0, Format::int8, Packing::panel_paired, 8, 16);
  banks.cold_down = add_weight(plan, "layers.1.cold.down", 0, Format::int8, Packing::panel, 16, 4);
  for (auto& entry : plan.entries) {
    if (entry->kind == EntryKind::sample) {
      for (auto& buffer : entry->buffers) buffer->device = 1;
      for (auto& step : entry->steps) step->device = 1, step->kind = StepKind::launch;
      continue;
    }
    HybridEntry(plan, *entry, banks).run();
  }
  std::uint64_t weights[2] = {0, 0}, pages = 0;
  for (const auto& w : plan.weights)
    if (w->source != WeightSource::alias) weights[w->device] += w->bytes;
  for (const auto& line : plan.account)
    if (line->category == "kv-cache") pages += line->bytes;
  plan.account.clear();
  add_line(plan, 0, "weights", weights[0]);
  add_line(plan, 1, "weights", weights[1]);
  pages += pages / plan.caches[0]->pages;  // both have as many
  add_line(plan, 1, "kv-cache", pages);
  add_line(plan, 0, "arena", plan.devices[0]->arena_bytes);
  add_line(plan, 1, "arena", plan.devices[1]->arena_bytes);
  add_line(plan, 1, "step-block", plan::step_block_bytes(plan));
  add_line(plan, 0, "records", plan::record_bytes(plan));
  plan.required_features = plan::features_of(plan);
  plan.defer_prefill = true;
  return plan;
}

}  // namespace ktc::test
