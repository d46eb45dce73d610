#include "runtime/exec/resolve.h"

#include <algorithm>
#include <string>

#include "runtime/exec/step_reader.h"
#include "runtime/formats/workspace.h"

namespace ktc::exec {

Status refuse(const planfb::StepT& step, std::string what, std::string found, std::string expected) {
  std::string place = "step " + step.name;
  if (!step.location.empty()) place += " (" + step.location + ")";
  return make_error(StatusCode::unsupported, {std::move(place), std::move(what), std::move(found), std::move(expected),
                                              "compile the model for this version of ktc and a policy without other devices"});
}

Status fill_routing(const StepReader& r, const planfb::ExpertsOpT& op, std::byte* area, std::uint64_t pairs_bytes,
                    std::uint64_t offsets_bytes, ExpertsStep& s) {
  s.x = r.in(0);
  s.ids = r.ids(1);
  s.weights = r.in(2);
  s.out = r.out(0);
  s.experts = r.view(op.w_gate_up).batch;
  s.top_k = s.ids.columns;
  s.intermediate = r.view(op.w_down).columns;
  s.of_rows = r.of_rows();
  s.pair_row = reinterpret_cast<std::uint32_t*>(area);
  s.active = s.pair_row + r.bound() * s.top_k;
  s.first = reinterpret_cast<std::uint32_t*>(area + pairs_bytes);
  s.pair_weight = reinterpret_cast<float*>(area + pairs_bytes + offsets_bytes);
  s.filter.slots = op.slots.empty() ? nullptr : op.slots.data();
  if (r.memory_.moving != nullptr)
    if (const auto moving = r.memory_.moving->find(op.w_gate_up); moving != r.memory_.moving->end()) s.filter.slots = moving->second.data();
  s.filter.ids = op.slots.empty() ? s.experts : op.slots.size();
  if (op.share != nullptr) {
    if (r.memory_.shared != nullptr)
      if (const auto shared = r.memory_.shared->find(&op); shared != r.memory_.shared->end()) s.filter.slots = shared->second.data();
    return {};  // its pairs are counted where they are streamed
  }
  s.filter.late = op.late;
  s.filter.part = static_cast<PairFilter::Part>(op.part);
  s.filter.among_all = op.late_among_all;
  if (op.late != 0 && r.step_.inputs.size() > 3) s.filter.deferred = r.ids(3);
  // Of a bank's two parts one counts.
  if (r.memory_.expert_counts.empty() || op.part == planfb::ExpertsPart::late) return {};
  const planfb::ModelT& model = *r.plan_.model;
  if (op.layer >= model.layers || s.filter.ids > model.experts)
    return refuse(r.step_, "the bank is outside of the model's counts",
                  std::to_string(s.filter.ids) + " experts of layer " + std::to_string(op.layer),
                  std::to_string(model.experts) + " experts, " + std::to_string(model.layers) + " layers");
  s.activations = r.memory_.expert_counts.data() + std::size_t{op.layer} * model.experts;
  return {};
}

namespace {

using planfb::BufferRole;
using planfb::EntryKind;
using planfb::Op;

std::string format_name(std::uint8_t format) { return std::string(to_string(static_cast<Format>(format))); }

// A resolver per op.
class StepResolver : public StepReader {
 public:
  using StepReader::StepReader;

  Expected<Step> resolve() const {
    switch (step_.op.type) {
      case Op::EmbedOp: return embed(*step_.op.AsEmbedOp());
      case Op::NormOp: return norm(*step_.op.AsNormOp());
      case Op::LinearOp: return linear(*step_.op.AsLinearOp());
      case Op::GqaOp: return gqa(*step_.op.AsGqaOp());
      case Op::MlaOp: return mla(*step_.op.AsMlaOp());
      case Op::RouteOp: return route(*step_.op.AsRouteOp());
      case Op::ExpertsOp: return experts(*step_.op.AsExpertsOp());
      case Op::MlpOp: return mlp(*step_.op.AsMlpOp());
      case Op::AddOp: return add();
      case Op::AddNormOp: return add_norm(*step_.op.AsAddNormOp());
      case Op::SelectRowsOp: return select_rows();
      default: return refuse(step_, "an op that this executor does not run", planfb::EnumNameOp(step_.op.type), "");
    }
  }

 private:
  KvLayer kv_layer(std::uint32_t index, std::uint32_t layer) const {
    const planfb::CacheT& cache = *plan_.caches[index];
    const std::size_t page = kv_page_bytes(cache);
    return {memory_.caches[index] + std::size_t{layer} * cache.pages * page, page, cache.page_tokens};
  }
  Format kv_format(std::uint32_t index) const { return static_cast<Format>(plan_.caches[index]->format); }

  Expected<Step> embed(const planfb::EmbedOpT& op) const {
    EmbedStep s = {};
    s.ids = ids(0);
    s.w = weight(op.w);
    s.load = kernels_.load(view(op.w).format);
    s.out = out(0);
    return Step(s);
  }

  Expected<Step> norm(const planfb::NormOpT& op) const {
    if (op.kind != planfb::NormKind::rms)
      return refuse(step_, "unknown norm", std::to_string(static_cast<int>(op.kind)), "rms");
    NormStep s = {};
    s.x = in(0);
    s.out = out(0);
    s.w = vector(op.w);
    s.eps = op.eps;
    s.norm = kernels_.rms_norm;
    s.of_rows = of_rows();
    return Step(s);
  }

  Expected<Step> linear(const planfb::LinearOpT& op) const {
    if (in_panels(op.w)) return resolve_panel_linear(*this, op);
    LinearStep s = {};
    s.x = in(0);
    s.out = out(0);
    s.w = weight(op.w);
    s.bias = vector(op.w_bias);
    s.matmul = kernels_.matmul(view(op.w).format);
    s.of_rows = of_rows();
    return Step(s);
  }

  Expected<Step> gqa(const planfb::GqaOpT& op) const {
    if (op.head_dim > kMostHeadWidth)
      return refuse(step_, "heads too wide", std::to_string(op.head_dim), "at most " + std::to_string(kMostHeadWidth));
    if (op.kv_heads == 0 || op.heads % op.kv_heads != 0)
      return refuse(step_, "heads do not share keys evenly",
                    std::to_string(op.heads) + " heads on " + std::to_string(op.kv_heads), "a multiple");
    GqaStep s = {};
    s.q = in(0);
    s.k = in(1);
    s.v = in(2);
    s.out = out(0);
    s.heads = op.heads;
    s.kv_heads = op.kv_heads;
    s.head_dim = op.head_dim;
    s.scale = op.scale;
    s.norm_eps = op.norm_eps;
    s.q_norm = vector(op.w_q_norm);
    s.k_norm = vector(op.w_k_norm);
    s.rope = &memory_.ropes[op.rope];
    if (2 * s.rope->half > s.head_dim)
      return refuse(step_, "rope is wider than a head", std::to_string(2 * s.rope->half),
                    "at most " + std::to_string(op.head_dim));
    s.layer = kv_layer(op.cache, op.cache_layer);
    s.k_part = kv_part(*plan_.caches[op.cache], 0);
    s.v_part = kv_part(*plan_.caches[op.cache], 1);
    s.query = reinterpret_cast<float*>(workspace());
    s.norm = kernels_.rms_norm;
    s.rotate = kernels_.rope;
    s.store = kernels_.store(kv_format(op.cache));
    s.attend = kernels_.attend(kv_format(op.cache));
    s.join = kernels_.attend_join;
    return Step(s);
  }

  Expected<Step> mla(const planfb::MlaOpT& op) const {
    MlaStep s = {};
    s.q = in(0);
    s.latent = in(1);
    s.k_rope = in(2);
    s.out = out(0);
    s.heads = op.heads;
    s.nope_dim = op.nope_dim;
    s.rope_dim = op.rope_dim;
    s.v_dim = op.v_dim;
    s.latent_dim = op.latent_dim;
    s.scale = op.scale;
    s.rope = &memory_.ropes[op.rope];
    if (op.rope_dim > kMostHeadWidth)
      return refuse(step_, "rope part too wide", std::to_string(op.rope_dim), "at most " + std::to_string(kMostHeadWidth));
    if (2 * s.rope->half != op.rope_dim)
      return refuse(step_, "rope does not cover the rope part", std::to_string(2 * s.rope->half), std::to_string(op.rope_dim));
    s.w_uk = weight(op.w_uk);
    s.w_uv = weight(op.w_uv);
    s.layer = kv_layer(op.cache, op.cache_layer);
    s.latent_part = kv_part(*plan_.caches[op.cache], 0);
    s.rope_part = kv_part(*plan_.caches[op.cache], 1);
    const MlaWorkspace space = mla_workspace(bound(), op.heads, op.latent_dim, op.rope_dim);
    s.query = reinterpret_cast<float*>(workspace());
    s.context = reinterpret_cast<float*>(workspace() + space.query);
    s.matmul_uk = kernels_.matmul(view(op.w_uk).format);
    s.matmul_uv = kernels_.matmul(view(op.w_uv).format);
    s.rotate = kernels_.rope;
    s.store = kernels_.store(kv_format(op.cache));
    s.attend = kernels_.attend(kv_format(op.cache));
    s.join = kernels_.attend_join;
    return Step(s);
  }

  Expected<Step> route(const planfb::RouteOpT& op) const {
    if (op.kind != planfb::RouterKind::softmax_topk && op.kind != planfb::RouterKind::sigmoid_group)
      return refuse(step_, "unknown router", std::to_string(static_cast<int>(op.kind)), "softmax_topk or sigmoid_group");
    RouteStep s = {};
    s.x = in(0);
    s.ids = rows<std::int32_t>(step_.outputs[0]);
    s.weights = out(1);
    s.w = weight(op.w);
    s.bias = vector(op.w_bias);
    s.experts = op.experts;
    s.top_k = op.top_k;
    s.groups = op.groups;
    s.topk_groups = op.topk_groups;
    s.sigmoid = op.kind == planfb::RouterKind::sigmoid_group;
    s.normalise = op.normalise;
    s.scale = op.scale;
    s.logits = reinterpret_cast<float*>(workspace());
    s.matmul = kernels_.matmul(view(op.w).format);
    s.of_rows = of_rows();
    return Step(s);
  }

  Expected<Step> experts(const planfb::ExpertsOpT& op) const {
    if (in_panels(op.w_gate_up)) return resolve_panel_experts(*this, op);
    if (op.activation != planfb::Activation::swiglu)
      return refuse(step_, "unknown activation", std::to_string(static_cast<int>(op.activation)), "swiglu");
    ExpertsStep s = {};
    const ExpertsWorkspace space = experts_workspace(bound(), ids(1).columns, view(op.w_down).columns, view(op.w_gate_up).batch);
    s.hidden = reinterpret_cast<float*>(workspace());
    s.gate_up = weight(op.w_gate_up);
    s.down = weight(op.w_down);
    KTC_RETURN_IF_ERROR(fill_routing(*this, op, workspace() + space.hidden, space.pairs, space.offsets, s));
    s.gate_up_fn = kernels_.gate_up(view(op.w_gate_up).format);
    s.matmul = kernels_.matmul(view(op.w_down).format);
    return Step(s);
  }

  Expected<Step> mlp(const planfb::MlpOpT& op) const {
    if (in_panels(op.w_gate_up)) return resolve_panel_mlp(*this, op);
    if (op.activation != planfb::Activation::swiglu)
      return refuse(step_, "unknown activation", std::to_string(static_cast<int>(op.activation)), "swiglu");
    MlpStep s = {};
    s.x = in(0);
    s.out = out(0);
    s.gate_up = weight(op.w_gate_up);
    s.down = weight(op.w_down);
    s.intermediate = s.down.columns;
    s.hidden = reinterpret_cast<float*>(workspace());
    s.gate_up_fn = kernels_.gate_up(view(op.w_gate_up).format);
    s.matmul = kernels_.matmul(view(op.w_down).format);
    s.of_rows = of_rows();
    return Step(s);
  }

  // The terms of a sum.
  template <typename S>
  Status terms(S& s) const {
    s.count = step_.inputs.size();
    if (s.count > AddStep::kMostInputs)
      return refuse(step_, "a sum of too many terms", std::to_string(s.count),
                    "at most " + std::to_string(AddStep::kMostInputs));
    for (std::size_t i = 0; i < s.count; ++i) s.inputs[i] = in(i);
    return {};
  }

  Expected<Step> add_norm(const planfb::AddNormOpT& op) const {
    AddNormStep s = {};
    KTC_RETURN_IF_ERROR(terms(s));
    s.sum = out(0);
    s.out = out(1);
    s.w = vector(op.w);
    s.eps = op.eps;
    s.add = kernels_.add;
    s.norm = kernels_.rms_norm;
    s.of_rows = of_rows();
    return Step(s);
  }

  Expected<Step> add() const {
    AddStep s = {};
    KTC_RETURN_IF_ERROR(terms(s));
    s.out = out(0);
    s.add = kernels_.add;
    s.of_rows = of_rows();
    return Step(s);
  }

  Expected<Step> select_rows() const {
    SelectRowsStep s = {};
    s.x = in(0);
    s.output_rows = ids(1);
    if (step_.inputs.size() > 2) s.second = in(2);
    s.out = out(0);
    return Step(s);
  }

};

Ids input_rows(const planfb::BufferT& buffer, const Memory& memory) {
  return {reinterpret_cast<std::int32_t*>(memory.arena + buffer.offset), buffer.row_bytes / sizeof(std::int32_t), 1};
}

// The kernels of a weight decide which activations it goes with.
Status check_activations(const planfb::PlanT& plan, const planfb::StepT& step) {
  std::vector<std::uint32_t> weights;
  if (const auto* op = step.op.AsLinearOp()) weights = {op->w};
  if (const auto* op = step.op.AsMlpOp()) weights = {op->w_gate_up, op->w_down};
  if (const auto* op = step.op.AsExpertsOp()) weights = {op->w_gate_up, op->w_down};
  const Format found = static_cast<Format>(step.activations);
  if (weights.empty()) {
    if (found == Format::f32) return {};
    return refuse(step, "an activation format without kernels", format_name(step.activations), "f32");
  }
  for (const std::uint32_t index : weights) {
    const planfb::WeightT& w = *plan.weights[index];
    const Format format = static_cast<Format>(w.format);
    const bool panels = static_cast<Packing>(w.packing) != Packing::row_major;
    const Format wanted = !panels ? Format::f32 : format == Format::int8 || format == Format::int4 ? Format::int8 : Format::bf16;
    if (found != wanted)
      return refuse(step, "activations that the kernels of weight " + w.name + " do not take", format_name(step.activations),
                    std::string(to_string(wanted)));
  }
  return {};
}

Status check_step(const planfb::PlanT& plan, const planfb::StepT& step) {
  const planfb::DeviceT& device = *plan.devices[step.device];
  if (device.kind != planfb::DeviceKind::cpu) return refuse(step, "a step of another device", device.name, "cpu");
  if (step.kind != planfb::StepKind::compute)
    return refuse(step, "a step kind that the CPU does not run", planfb::EnumNameStepKind(step.kind), "compute");
  return check_activations(plan, step);
}

}  // namespace

// What the CPU does of a plan: its weights, the caches' common pool of pages, its steps.
static Status check_parts(const planfb::PlanT& plan) {
  for (const auto& weight : plan.weights) {
    if (plan.devices[weight->device]->kind != planfb::DeviceKind::cpu) continue;
    const Format format = static_cast<Format>(weight->format);
    if (!takes_packing(format, static_cast<Packing>(weight->packing)) || static_cast<Packing>(weight->packing) == Packing::gpu_rows)
      return make_error(StatusCode::unsupported,
                        {"weight " + weight->name, "no CPU kernel reads it",
                         format_name(weight->format) + " " + std::string(to_string(static_cast<Packing>(weight->packing))),
                         "f32 or bf16 in row_major; int8, int4, fp8 or bf16 in panels", "compile the model again with a policy of these formats"});
  }
  if (plan.caches.empty())
    return make_error(StatusCode::unsupported, {"caches", "the plan has no KV cache", "", "at least one", "compile the model again"});
  const planfb::CacheT& first = *plan.caches[0];
  for (const auto& cache : plan.caches) {
    if (cache->page_tokens == 0 || cache->page_tokens != first.page_tokens || cache->pages != first.pages ||
        cache->tokens_per_sequence != first.tokens_per_sequence)
      return make_error(StatusCode::unsupported,
                        {"cache " + cache->name, "caches of one plan have one pool of pages",
                         std::to_string(cache->pages) + " pages of " + std::to_string(cache->page_tokens) + " tokens",
                         std::to_string(first.pages) + " pages of " + std::to_string(first.page_tokens), "compile the model again"});
    if (!kv_cache_bytes(*cache))
      return make_error(StatusCode::resource_exhausted, {"cache " + cache->name, "too large", "more than 2^64 bytes", "",
                                                         "compile with a smaller kv_cache.tokens or kv_cache.sequences"});
  }
  bool runs = false;
  for (const auto& entry : plan.entries) {
    if (entry->kind == EntryKind::sample) continue;
    runs = true;
    for (const auto& step : entry->steps)
      if (plan.devices[step->device]->kind == planfb::DeviceKind::cpu) KTC_RETURN_IF_ERROR(check_step(plan, *step));
  }
  if (!runs)
    return make_error(StatusCode::unsupported, {"entries", "the plan has nothing to run", "no entry of kind extend or decode",
                                                "at least one", "compile the model again"});
  return {};
}

Status check_runnable(const planfb::PlanT& plan) {
  const std::string compile = "compile the model for the CPU alone";
  for (const auto& device : plan.devices)
    if (device->kind != planfb::DeviceKind::cpu)
      return make_error(StatusCode::unsupported, {"device " + device->name, "the plan needs a device that is not here",
                                                  device->name, "cpu alone", compile});
  if (plan.devices.size() != 1)
    return make_error(StatusCode::unsupported, {"devices", "more than one CPU", std::to_string(plan.devices.size()), "1", compile});
  for (const auto& entry : plan.entries)
    if (plan::is_cut(*entry))
      return make_error(StatusCode::unsupported, {"entry " + entry->name, "halves of a step on the CPU alone", "", "whole steps", compile});
  return check_parts(plan);
}

Status check_hybrid(const planfb::PlanT& plan) {
  std::size_t cpus = 0;
  for (const auto& device : plan.devices) cpus += device->kind == planfb::DeviceKind::cpu;
  if (cpus != 1 || plan.devices[0]->kind != planfb::DeviceKind::cpu)
    return make_error(StatusCode::unsupported, {"devices", "a plan has one CPU, and first", std::to_string(cpus) + " of them", "1",
                                                "compile the model again"});
  return check_parts(plan);
}

Expected<Step> resolve_step(const planfb::PlanT& plan, const planfb::EntryT& entry, const planfb::StepT& step,
                            const weights::WeightStore& weights, const kernels::KernelSet& kernels, const Memory& memory) {
  return StepResolver(plan, entry, step, weights, kernels, memory).resolve();
}

Expected<std::vector<Program>> resolve(const planfb::PlanT& plan, const weights::WeightStore& weights,
                                       const kernels::KernelSet& kernels, const Memory& memory) {
  std::vector<Program> programs;
  for (std::size_t e = 0; e < plan.entries.size(); ++e) {
    const planfb::EntryT& entry = *plan.entries[e];
    if (entry.kind == EntryKind::sample) continue;
    Program program;
    program.entry = static_cast<std::uint32_t>(e);
    program.decode = entry.kind == EntryKind::decode;
    program.max_tokens = entry.max_tokens;
    program.max_rows = entry.max_rows;
    program.max_sequences = entry.max_sequences;
    for (const auto& buffer : entry.buffers) {
      if (buffer->role == BufferRole::ids) program.ids.push_back(input_rows(*buffer, memory));
      if (buffer->role == BufferRole::positions) program.positions.push_back(input_rows(*buffer, memory));
      if (buffer->role == BufferRole::deferred) program.deferred.push_back(input_rows(*buffer, memory));
      if (buffer->role == BufferRole::output_rows) program.output_rows.push_back(input_rows(*buffer, memory));
      if (buffer->role == BufferRole::logits)
        program.logits = {reinterpret_cast<float*>(memory.arena + buffer->offset), buffer->row_bytes / sizeof(float),
                          buffer->columns};
    }
    for (const auto& step : entry.steps) {
      KTC_ASSIGN_OR_RETURN(Step native, resolve_step(plan, entry, *step, weights, kernels, memory));
      program.steps.push_back(native);
      program.names.push_back(step->name);
    }
    if (program.logits.data == nullptr)
      return make_error(StatusCode::unsupported, {"entry " + entry.name, "it computes no logits", "", "a buffer of role logits",
                                                  "compile the model again"});
    programs.push_back(std::move(program));
  }
  std::sort(programs.begin(), programs.end(), [](const Program& a, const Program& b) {
    return a.max_tokens != b.max_tokens ? a.max_tokens < b.max_tokens : a.entry < b.entry;
  });
  return programs;
}

}  // namespace ktc::exec
