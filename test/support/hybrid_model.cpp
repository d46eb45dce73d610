#include "test/support/hybrid_model.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/workspace.h"
#include "test/support/cut_plan.h"

namespace ktc::test {

using namespace planfb;

namespace {

constexpr std::uint32_t kGpu = 1;

// Hot ones are spread over the ids.
bool is_hot(std::uint32_t expert, const HybridOptions& options, std::uint32_t experts) {
  return (expert * 5 + 2) % experts < options.hot;
}

struct Bank {
  std::uint32_t gate_up = plan::kNone, down = plan::kNone;
  std::vector<std::int32_t> slots;  // empty: all of them
  std::uint32_t matrices = 0;
};

class Rewriter {
 public:
  Rewriter(TinyModel& model, const HybridOptions& options) : model_(model), options_(options), plan_(model.builder.plan()) {}

  void run() {
    auto device = std::make_unique<DeviceT>();
    device->name = "cuda:0";
    device->kind = DeviceKind::cuda;
    plan_.devices.push_back(std::move(device));
    plan_.devices[0]->arena_bytes = 0;
    for (auto& weight : plan_.weights) weight->device = kGpu;
    for (auto& cache : plan_.caches) cache->device = kGpu;
    plan_.defer_prefill = options_.defer_prefill;
    plan_.defer_decode = options_.defer_decode;
    for (auto& entry : plan_.entries) rewrite(*entry);
    if (options_.samples) sample_entries();
    plan_.required_features = plan::features_of(plan_);
    if (options_.update_every_tokens != 0) moving();
    account();
  }

 private:
  void moving() {
    plan_.update_every_tokens = options_.update_every_tokens;
    for (const auto& [key, hot] : banks_) {
      if (!key.second) continue;
      const Bank& cold = banks_.at({key.first, false});
      auto layer = std::make_unique<MovingExpertsT>();
      layer->layer = key.first;
      layer->w_cold_gate_up = cold.gate_up;
      layer->w_cold_down = cold.down;
      layer->w_hot_gate_up = hot.gate_up;
      layer->w_hot_down = hot.down;
      layer->slots = hot.slots;
      plan_.moving.push_back(std::move(layer));
    }
  }

  std::uint64_t& arena(std::uint32_t device) { return end_[device]; }

  std::uint32_t add(const std::string& name, BufferRole role, Symbol symbol, Format format, std::uint64_t columns, std::uint32_t device,
                    std::uint64_t workspace = 0) {
    auto buffer = std::make_unique<BufferT>();
    buffer->name = name;
    buffer->device = device;
    buffer->role = role;
    buffer->symbol = symbol;
    buffer->format = static_cast<std::uint8_t>(format);
    buffer->columns = columns;
    buffer->row_bytes = symbol == Symbol::workspace ? 0 : format == Format::i32 && columns == 1 ? 4 : align64(columns * 4);
    buffer->bytes = symbol == Symbol::workspace ? workspace : buffer->row_bytes * (symbol == Symbol::rows ? entry_->max_rows : entry_->max_tokens);
    place(*buffer);
    entry_->buffers.push_back(std::move(buffer));
    return static_cast<std::uint32_t>(entry_->buffers.size() - 1);
  }
  void place(BufferT& buffer) {
    buffer.offset = arena(buffer.device);
    arena(buffer.device) += align256(buffer.bytes);
    plan_.devices[buffer.device]->arena_bytes = std::max(plan_.devices[buffer.device]->arena_bytes, arena(buffer.device));
  }
  View whole(std::uint32_t buffer) const { return View(buffer, 0, entry_->buffers[buffer]->columns); }

  StepT& push(const std::string& name, StepKind kind, std::uint32_t device, std::vector<View> inputs, std::vector<View> outputs,
              std::uint32_t workspace = plan::kNone) {
    auto step = std::make_unique<StepT>();
    step->kind = kind;
    step->device = device;
    step->activations = static_cast<std::uint8_t>(Format::f32);
    step->inputs = std::move(inputs);
    step->outputs = std::move(outputs);
    step->workspace = workspace;
    step->name = name;
    if (device == kGpu && kind != StepKind::copy && entry_->kind == EntryKind::decode) step->graph = 0;
    steps_.push_back(std::move(step));
    return *steps_.back();
  }

  std::uint64_t gpu_scratch(const StepT& step) const {
    const std::uint64_t n = entry_->max_tokens;
    using M = TinyModel;
    if (step.op.AsGqaOp()) return gpu_gqa_workspace(n, M::kHeads, M::kKvHeads, M::kHeadDim).total();
    if (step.op.AsMlaOp()) return gpu_mla_workspace(n, M::kMlaHeads, M::kLatent, M::kRope).total();
    if (step.op.AsRouteOp()) return gpu_route_workspace(n, model_.experts()).total();
    if (const auto* mlp = step.op.AsMlpOp()) {
      const WeightT& down = *plan_.weights[mlp->w_down];
      return gpu_mlp_workspace(Format::f32, n, down.rows, down.columns).total();
    }
    return 0;
  }

  // What chooses behind each decode entry, over the logits where they are.
  void sample_entries() {
    std::vector<std::unique_ptr<EntryT>> made;
    for (const auto& decode : plan_.entries) {
      if (decode->kind != EntryKind::decode) continue;
      auto entry = std::make_unique<EntryT>();
      entry->name = "sample[" + std::to_string(decode->max_rows) + "]";
      entry->kind = EntryKind::sample;
      entry->max_tokens = entry->max_rows = entry->max_sequences = decode->max_rows;
      for (const auto& buffer : decode->buffers)
        if (buffer->role == BufferRole::logits) entry->buffers.push_back(std::make_unique<BufferT>(*buffer));
      entry_ = entry.get();
      steps_.clear();
      arena(kGpu) = align256(entry->buffers[0]->offset + entry->buffers[0]->bytes);
      const std::uint32_t ids = add("next_ids", BufferRole::next_ids, Symbol::rows, Format::i32, 1, kGpu);
      const std::uint32_t space = add("sample.workspace", BufferRole::workspace, Symbol::workspace, Format::f32, 0, kGpu, gpu_sample_workspace(entry->max_rows));
      StepT& step = push("sample", StepKind::launch, kGpu, {whole(0)}, {whole(ids)}, space);
      step.op.Set(SampleOpT());
      step.graph = 0;
      entry->graphs.push_back(std::make_unique<GraphT>());
      entry->graphs.back()->name = entry->name;
      entry->graphs.back()->device = kGpu;
      entry->steps = std::move(steps_);
      made.push_back(std::move(entry));
    }
    for (auto& entry : made) plan_.entries.push_back(std::move(entry));
  }

  void rewrite(EntryT& entry) {
    entry_ = &entry;
    end_[0] = end_[1] = 0;
    record_ = 0;
    late_cpu_ = late_gpu_ = deferred_[0] = deferred_[1] = plan::kNone;
    std::vector<std::unique_ptr<StepT>> old = std::move(entry.steps);
    steps_.clear();
    for (const auto& step : old)
      if (step->workspace != plan::kNone && step->op.AsExpertsOp() == nullptr) entry.buffers[step->workspace]->bytes = gpu_scratch(*step);
    for (auto& buffer : entry.buffers) {
      buffer->device = kGpu;
      place(*buffer);
    }
    for (auto& step : old) {
      if (step->op.AsExpertsOp() != nullptr) {
        experts(*step);
        continue;
      }
      step->kind = StepKind::launch;
      step->device = kGpu;
      if (entry.kind == EntryKind::decode) step->graph = 0;
      steps_.push_back(std::move(step));
    }
    entry.steps = std::move(steps_);
    if (entry.kind != EntryKind::decode) return;
    entry.graphs.push_back(std::make_unique<GraphT>());
    entry.graphs.back()->name = entry.name;
    entry.graphs.back()->device = kGpu;
  }

  View deferred(std::uint32_t device) {
    if (deferred_[device] == plan::kNone)
      deferred_[device] = add(device == kGpu ? "deferred" : "deferred on cpu", BufferRole::deferred, Symbol::tokens, Format::i32, 1, device);
    return whole(deferred_[device]);
  }

  // Matrices of the experts on one side, on that device.
  const Bank& bank(const ExpertsOpT& op, bool hot) {
    const auto found = banks_.find({op.layer, hot});
    if (found != banks_.end()) return found->second;
    Bank& bank = banks_[{op.layer, hot}];
    if (options_.hot == 0) {
      plan_.weights[op.w_gate_up]->device = plan_.weights[op.w_down]->device = 0;
      bank = {op.w_gate_up, op.w_down, {}, model_.experts()};
      return bank;
    }
    bank.slots.assign(model_.experts(), -1);
    std::vector<float> gate_up, down;
    const std::string prefix = "layers." + std::to_string(op.layer) + ".experts.";
    const auto take = [](std::vector<float>& to, const std::vector<float>& all, std::size_t each, std::size_t expert) {
      to.insert(to.end(), all.begin() + static_cast<std::ptrdiff_t>(expert * each), all.begin() + static_cast<std::ptrdiff_t>((expert + 1) * each));
    };
    using M = TinyModel;
    for (std::uint32_t e = 0; e < model_.experts(); ++e) {
      const bool mine = is_hot(e, options_, model_.experts()) == hot, kept = !hot && options_.update_every_tokens != 0;
      if (!mine && !kept) continue;
      if (mine) bank.slots[e] = static_cast<std::int32_t>(bank.matrices);
      ++bank.matrices;
      take(gate_up, model_.values.at(prefix + "gate_up"), 2 * M::kIntermediate * M::kHidden, e);
      take(down, model_.values.at(prefix + "down"), M::kHidden * M::kIntermediate, e);
    }
    const char* side = hot ? "hot" : "cold";
    bank.gate_up = model_.builder.weight(prefix + "gate_up." + side, options_.tiny.weights, bank.matrices, 2 * M::kIntermediate, M::kHidden, gate_up);
    bank.down = model_.builder.weight(prefix + "down." + side, options_.tiny.weights, bank.matrices, M::kHidden, M::kIntermediate, down);
    plan_.weights[bank.gate_up]->device = plan_.weights[bank.down]->device = hot ? kGpu : 0;
    return bank;
  }

  // One op of a bank; returns its output. streamed: a bank of the CPU on the GPU.
  std::uint32_t compute(const StepT& from, bool hot, ExpertsPart part, std::vector<View> inputs, bool streamed = false,
                        std::uint32_t out = plan::kNone, const char* suffix = "") {
    const ExpertsOpT& op = *from.op.AsExpertsOp();
    const Bank bank = this->bank(op, hot);
    const bool on_gpu = hot || streamed;
    const std::uint32_t device = on_gpu ? kGpu : 0, top_k = model_.top_k();
    const std::string name = from.name + (hot ? ".hot" : "") + (part == ExpertsPart::late ? ".late" : "") + suffix;
    using M = TinyModel;
    const std::uint64_t bytes =
        on_gpu ? gpu_experts_workspace(Format::f32, entry_->max_tokens, top_k, M::kHidden, M::kIntermediate, model_.experts()).total()
               : experts_workspace(entry_->max_tokens, top_k, M::kIntermediate, bank.matrices).total();
    if (out == plan::kNone) out = add(name, BufferRole::value, Symbol::tokens, Format::f32, M::kHidden, device);
    const std::uint32_t scratch = add(name + ".scratch", BufferRole::workspace, Symbol::workspace, Format::f32, 0, device, bytes);
    if (part != ExpertsPart::all) inputs.push_back(deferred(device));
    StepT& step = push(name, on_gpu ? StepKind::launch : StepKind::compute, device, std::move(inputs), {whole(out)}, scratch);
    ExpertsOpT to = op;
    to.w_gate_up = bank.gate_up;
    to.w_down = bank.down;
    to.slots = bank.slots;
    to.part = part;
    to.late = part == ExpertsPart::all ? 0 : static_cast<std::uint16_t>(options_.late);
    to.stream = streamed;
    to.stream_group = streamed ? std::min(options_.stream_group, bank.matrices) : 0;
    to.late_among_all = part != ExpertsPart::all && options_.scope_all;
    step.op.Set(std::move(to));
    return out;
  }

  std::uint32_t sum(const std::string& name, std::uint32_t device, std::vector<View> terms, std::uint32_t out = plan::kNone) {
    if (out == plan::kNone) out = add(name, BufferRole::value, Symbol::tokens, Format::f32, TinyModel::kHidden, device);
    push(name, device == kGpu ? StepKind::launch : StepKind::compute, device, std::move(terms), {whole(out)}).op.Set(AddOpT());
    return out;
  }

  // One op that streams and one of the CPU, whose sum is the result.
  void shared_experts(const StepT& from, bool hot, std::uint32_t out) {
    using M = TinyModel;
    const std::string name = from.name;
    const std::uint32_t x = add(name + ".x", BufferRole::value, Symbol::tokens, Format::f32, M::kHidden, 0);
    const std::uint32_t ids = add(name + ".ids", BufferRole::value, Symbol::tokens, Format::i32, model_.top_k(), 0);
    const std::uint32_t weights = add(name + ".weights", BufferRole::value, Symbol::tokens, Format::f32, model_.top_k(), 0);
    push(name + ".up", StepKind::copy, kGpu, from.inputs, {whole(x), whole(ids), whole(weights)}).op.Set(CopyOpT());
    std::vector<View> terms = {whole(compute(from, false, ExpertsPart::all, from.inputs, true))};
    set_share(*steps_.back());
    if (hot) terms.push_back(whole(compute(from, true, ExpertsPart::all, from.inputs)));
    const std::uint32_t cold = compute(from, false, ExpertsPart::all, {whole(x), whole(ids), whole(weights)}, false, plan::kNone, ".cpu");
    set_share(*steps_.back());
    const std::uint32_t down = add(name + ".down", BufferRole::value, Symbol::tokens, Format::f32, M::kHidden, kGpu);
    push(name + ".down", StepKind::copy, kGpu, {whole(cold)}, {whole(down)}).op.Set(CopyOpT());
    terms.push_back(whole(down));
    sum(name + ".sum", kGpu, std::move(terms), out);
  }
  void set_share(StepT& step) {
    const ktc::ExpertShare& s = *options_.share;
    auto share = std::make_unique<ExpertShareT>();
    share->ahead_ns = s.ahead_ns, share->ahead_row_ns = s.ahead_row_ns, share->copy_ns = s.copy_ns;
    share->gpu_ns = s.gpu_ns, share->gpu_row_ns = s.gpu_row_ns, share->cpu_ns = s.cpu_ns, share->cpu_row_ns = s.cpu_row_ns;
    share->values_ns = s.values_ns, share->values_row_ns = s.values_row_ns;
    step.op.AsExpertsOp()->share = std::move(share);
  }

  // As kt-stream-experts has it: all on the GPU, no copies.
  void streamed_experts(const StepT& from) {
    const bool parts = options_.late != 0 && from.op.AsExpertsOp()->layer + 1 < TinyModel::kLayers;
    const bool hot = options_.hot != 0, hot_parts = parts && options_.scope_all;
    const std::uint32_t out = from.outputs[0].buffer();
    const ExpertsPart part = parts ? ExpertsPart::in_time : ExpertsPart::all;
    const bool alone = !hot && late_cpu_ == plan::kNone;
    if (options_.share && !parts) return shared_experts(from, hot, out);
    std::vector<View> terms = {whole(compute(from, false, part, from.inputs, true, alone ? out : plan::kNone))};
    if (hot) terms.push_back(whole(compute(from, true, hot_parts ? ExpertsPart::in_time : ExpertsPart::all, from.inputs)));
    for (std::uint32_t* late : {&late_cpu_, &late_gpu_}) {
      if (*late != plan::kNone) terms.push_back(whole(*late));
      *late = plan::kNone;
    }
    if (!alone) sum(from.name + ".sum", kGpu, std::move(terms), out);
    if (parts) late_cpu_ = compute(from, false, ExpertsPart::late, from.inputs, true);
    if (hot_parts && hot) late_gpu_ = compute(from, true, ExpertsPart::late, from.inputs);
  }

  void experts(const StepT& from) {
    if (options_.stream_group != 0 && entry_->kind == EntryKind::extend) return streamed_experts(from);
    const std::uint32_t layer = from.op.AsExpertsOp()->layer;
    const bool parts = options_.late != 0 && layer + 1 < TinyModel::kLayers;
    const bool hot = options_.hot != 0, hot_parts = parts && options_.scope_all;
    const bool decode = entry_->kind == EntryKind::decode;
    const std::string name = from.name;
    using M = TinyModel;
    const std::uint32_t x = add(name + ".x", BufferRole::value, Symbol::tokens, Format::f32, M::kHidden, 0);
    const std::uint32_t ids = add(name + ".ids", BufferRole::value, Symbol::tokens, Format::i32, model_.top_k(), 0);
    const std::uint32_t weights = add(name + ".weights", BufferRole::value, Symbol::tokens, Format::f32, model_.top_k(), 0);
    StepT& up = push(name + ".up", decode ? StepKind::publish : StepKind::copy, kGpu, from.inputs, {whole(x), whole(ids), whole(weights)});
    const bool all_slots = options_.hot == 0;
    if (decode) {
      PublishOpT op;
      op.record = record_;
      op.format = static_cast<std::uint8_t>(options_.record);
      if (!all_slots) op.slots = bank(*from.op.AsExpertsOp(), false).slots;
      up.op.Set(std::move(op));
    } else {
      up.op.Set(CopyOpT());
    }
    const std::vector<View> on_cpu = {whole(x), whole(ids), whole(weights)};
    std::uint32_t hot_out = plan::kNone;
    if (hot) hot_out = compute(from, true, hot_parts ? ExpertsPart::in_time : ExpertsPart::all, from.inputs);
    std::uint32_t cold = compute(from, false, parts ? ExpertsPart::in_time : ExpertsPart::all, on_cpu);
    const bool takes_late = late_cpu_ != plan::kNone;
    if (takes_late) cold = sum(name + ".with_late", 0, {whole(late_cpu_), whole(cold)});
    late_cpu_ = plan::kNone;
    const std::uint32_t out = from.outputs[0].buffer();
    const std::uint32_t down = hot ? add(name + ".cold", BufferRole::value, Symbol::tokens, Format::f32, M::kHidden, kGpu) : out;
    StepT& back = push(name + ".down", decode ? StepKind::await : StepKind::copy, kGpu, {whole(cold)}, {whole(down)});
    if (decode) {
      AwaitOpT op;
      op.record = record_++;
      op.format = static_cast<std::uint8_t>(options_.record);
      op.skip_empty = options_.skip_empty && !takes_late;
      back.op.Set(op);
    } else {
      back.op.Set(CopyOpT());
    }
    if (hot) {
      std::vector<View> terms = {whole(down), whole(hot_out)};
      if (late_gpu_ != plan::kNone) terms.push_back(whole(late_gpu_));
      late_gpu_ = plan::kNone;
      sum(name + ".sum", kGpu, std::move(terms), out);
    }
    if (parts) late_cpu_ = compute(from, false, ExpertsPart::late, on_cpu);
    if (hot && hot_parts) late_gpu_ = compute(from, true, ExpertsPart::late, from.inputs);
  }

  void account() {
    plan_.account.clear();
    const auto line = [this](std::uint32_t device, const char* category, std::uint64_t bytes) {
      auto account = std::make_unique<AccountLineT>();
      account->device = device;
      account->category = account->name = category;
      account->bytes = bytes;
      plan_.account.push_back(std::move(account));
    };
    std::uint64_t weights[2] = {}, cache = 0;
    for (const auto& weight : plan_.weights) weights[weight->device] += weight->bytes;
    for (const auto& c : plan_.caches) {
      std::uint64_t page = 0;
      for (const auto& part : c->parts)
        page += std::uint64_t{part->heads} * part->width * c->page_tokens * static_cast<std::uint64_t>(format_bits(static_cast<Format>(c->format)) / 8);
      cache += page * (std::uint64_t{c->pages} + 1) * c->layers;
    }
    for (const std::uint32_t device : {0u, kGpu}) {
      line(device, "weights", weights[device]);
      line(device, "arena", plan_.devices[device]->arena_bytes);
    }
    line(kGpu, "kv-cache", cache);
    line(kGpu, "step-block", plan::step_block_bytes(plan_));
    if (const std::uint64_t bytes = plan::stream_areas(plan_, kGpu).total(); bytes != 0) line(kGpu, "stream", bytes);
    line(0, "records", plan::record_bytes(plan_));
    if (!plan_.moving.empty()) line(0, "spare", plan::spare_host_bytes(plan_));
    if (!plan_.moving.empty()) line(kGpu, "spare", plan::spare_bytes(plan_, kGpu));
    plan_.weight_files[0]->bytes = model_.builder.weight_bytes().size();
  }

  TinyModel& model_;
  const HybridOptions& options_;
  PlanT& plan_;
  EntryT* entry_ = nullptr;
  std::vector<std::unique_ptr<StepT>> steps_;
  std::map<std::pair<std::uint32_t, bool>, Bank> banks_;
  std::uint64_t end_[2] = {};
  std::uint32_t record_ = 0, late_cpu_ = 0, late_gpu_ = 0;
  std::uint32_t deferred_[2] = {};
};

void write(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.flush()) << path;
}

}  // namespace

std::shared_ptr<const plan::OpenPlan> hybrid_plan(TinyModel& model, const HybridOptions& options, const std::filesystem::path& folder) {
  Rewriter(model, options).run();
  if (options.halves)
    for (auto& entry : model.builder.plan().entries)
      if (entry->kind == planfb::EntryKind::extend) cut_in_halves(model.builder.plan(), *entry);
  const std::filesystem::path path = folder / "hybrid.ktp";
  std::filesystem::create_directories(path);
  write(path / "all.weights", model.builder.weight_bytes());
  write(path / "plan.ktp", plan::serialise_plan(model.builder.plan()));
  auto opened = plan::open_plan(path);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? *opened : nullptr;
}

}  // namespace ktc::test
