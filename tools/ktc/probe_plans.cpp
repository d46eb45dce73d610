#include "tools/ktc/probe_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <utility>
#include <vector>

#include "models/read_model.h"
#include "placement/cost_model.h"
#include "placement/place.h"
#include "runtime/weights/host_memory.h"
#include "tools/ktc/explore_measure.h"

namespace ktc::tools {
namespace {

namespace fs = std::filesystem;
using placement::Target;

// Of the family of Qwen3-MoE.
struct Shape {
  std::uint32_t layers = 8, hidden = 2048, heads = 2, kv_heads = 1, experts = 8, top_k = 2, intermediate = 64;
};
struct Small {  // a plan
  const char* name;
  Shape shape;
  std::string experts_on, rest_on;     // devices
  std::string experts, rest;           // weights
  std::uint32_t prompt = 32, tokens = 64;
  bool zipf = false;                   // MeasureOptions
  bool fixed = true;                   // fixed times decide: what other programs add to them is left out; false: tokens are drawn
};
struct Microseconds {
  double decode = 0, prefill = 0;  // of a step
};

constexpr std::uint32_t kHeadDim = 128, kVocabulary = 4096;

// A plan that was measured.
struct Taken {
  models::ModelDesc model;
  placement::Policy policy;
  Microseconds us;
};
// A rate that decides how long a step of it takes.
struct Equation {
  const Taken* plan;
  bool decode;
  double* rate;
  double low, high;  // within which it is looked for
};

class Plans {
 public:
  static Expected<Plans> create(const PlanProbe& probe, Target* target) {
    KTC_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::create());
    return Plans(probe, std::move(folder), target);
  }

  Expected<Taken> measure(const Small& small) {
    KTC_ASSIGN_OR_RETURN(Taken taken, read(small));
    MeasureOptions options{small.prompt, small.tokens, 1};
    options.seconds = std::chrono::duration<double>(probe_.deadline - std::chrono::steady_clock::now()).count();
    options.emulate_gpu = probe_.emulated;
    options.quiet = small.fixed;
    options.zipf = small.zipf;
    options.drawn = !small.fixed;
    if (options.seconds <= 0)
      return make_error(StatusCode::unavailable, {.place = std::string("plan ") + small.name, .what = "no time is left to measure it",
                                                  .remedy = "give ktc probe more with --seconds"});
    auto measured = measure_plan(taken.model, taken.policy, *target_, options, folder_.path());
    if (!measured.ok()) return measured.status().with_context(std::string("plan ") + small.name);
    taken.us = {1e6 / std::max(measured->decode, 1e-9), 1e6 * small.prompt / std::max(measured->prefill, 1e-9)};
    return taken;
  }

  // Sets every rate so that the model predicts what was measured. Several together: each in turn with the others as they are, until
  // nothing moves, which ends because every plan is made for its own rate.
  Status solve(const std::vector<Equation>& equations) const {
    for (int round = 0; round < (equations.size() > 1 ? 8 : 1); ++round)
      for (const Equation& equation : equations) KTC_RETURN_IF_ERROR(solve_one(equation));
    return {};
  }

 private:
  Plans(const PlanProbe& probe, TemporaryFolder folder, Target* target)
      : probe_(probe), folder_(std::move(folder)), target_(target) {}

  Expected<double> predict(const Taken& plan, bool decode) const {
    KTC_ASSIGN_OR_RETURN(const placement::Placement placed, placement::place(plan.model, plan.policy, *target_));
    KTC_ASSIGN_OR_RETURN(const auto cost, placement::CostModel::create(plan.model, placed.modules, plan.policy, *target_, placed.counts));
    KTC_ASSIGN_OR_RETURN(const placement::Prediction prediction, cost.predict(placed.hot));
    return decode ? prediction.steps.front().us : prediction.steps.back().us;
  }

  // By halving, for predictions fall with a rate and grow with a time. What no value within the bounds explains gets the nearest bound.
  Status solve_one(const Equation& e) const {
    const double us = e.decode ? e.plan->us.decode : e.plan->us.prefill;
    double low = e.low, high = e.high;
    *e.rate = low;
    KTC_ASSIGN_OR_RETURN(const double at_low, predict(*e.plan, e.decode));
    *e.rate = high;
    KTC_ASSIGN_OR_RETURN(const double at_high, predict(*e.plan, e.decode));
    for (int i = 0; i < 28; ++i) {
      *e.rate = std::sqrt(low * high);
      KTC_ASSIGN_OR_RETURN(const double now, predict(*e.plan, e.decode));
      ((now > us) == (at_high < at_low) ? low : high) = *e.rate;
    }
    return {};
  }

  Expected<Taken> read(const Small& small) const {
    const Shape& s = small.shape;
    const fs::path model = folder_.path() / "model";
    std::error_code error;
    fs::create_directory(model, error);
    std::ofstream(model / "config.json") << fmt::format(
        R"({{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false, "bos_token_id": 0,
"decoder_sparse_step": 1, "dtype": "bfloat16", "eos_token_id": 0, "head_dim": {}, "hidden_act": "silu", "hidden_size": {},
"intermediate_size": {}, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": {}, "norm_topk_prob": true,
"num_attention_heads": {}, "num_experts_per_tok": {}, "num_hidden_layers": {}, "num_key_value_heads": {}, "num_local_experts": {},
"rms_norm_eps": 1e-06, "rope_parameters": {{"rope_theta": 1000000.0, "rope_type": "default"}}, "sliding_window": null,
"tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": {}}})",
        kHeadDim, s.hidden, s.intermediate, s.intermediate, s.heads, s.top_k, s.layers, s.kv_heads, s.experts, kVocabulary);
    Taken taken;
    KTC_ASSIGN_OR_RETURN(taken.model, models::read_model_shapes(model, probe_.families));
    // twice the context of the middle of the answer, which predictions are for
    const std::string policy = fmt::format(
        "version: 1\nrules:\n  - match: {{class: RoutedExperts}}\n    place: {{device: {}, weights: {}}}\n  - match: {{class: \"*\"}}\n"
        "    place: {{device: {}, weights: {}}}\nkv_cache: {{tokens: {}}}\nbatch: {{decode: [1], chunk: {}}}\nbest-effort: true\n",
        small.experts_on, small.experts, small.rest_on, small.rest, 2 * small.prompt + small.tokens, small.prompt);
    KTC_ASSIGN_OR_RETURN(taken.policy, placement::parse_policy(policy, small.name));
    return taken;
  }

  const PlanProbe& probe_;
  TemporaryFolder folder_;
  Target* target_;
};

}  // namespace

Status probe_memory_plans(const PlanProbe& probe, Target* target, MemoryTimes* times) {
  constexpr double kGib = std::uint64_t{1} << 30, kMostEnds = 20;  // more is noise of a machine that others use
  KTC_ASSIGN_OR_RETURN(Plans plans, Plans::create(probe, target));
  placement::CpuTarget& cpu = target->cpu;
  const auto available = weights::available_memory();
  const double free = available ? static_cast<double>(*available) : 4 * kGib;
  const double most = probe.emulated ? kGib / 16 : std::min({free / 8, 4 * kGib, 0.25 * kGib * cpu.cores});
  const auto plan = [&](const char* name, const char* weights, std::uint32_t experts, std::uint32_t hidden, std::uint32_t intermediate) {
    if (probe.emulated) hidden /= 4, intermediate /= 4;
    const double expert = 3.0 * hidden * intermediate * (std::string_view(weights) == "int8" ? 1 : 0.53);
    Shape shape{2, hidden, 2, 1, experts, 8, intermediate};
    shape.experts = static_cast<std::uint32_t>(std::clamp(most / 2 / expert, 8.0, 1.0 * experts));
    shape.layers = static_cast<std::uint32_t>(std::clamp(most / (shape.experts * expert), 2.0, 48.0));
    return Small{name, shape, "cpu", "cpu", weights, weights, 8, 64, true, false};
  };
  // Layers of models of 30B and of 671B parameters with fewer experts: of as much memory, more is read for each token.
  const Small small[] = {plan("int8", "int8", 64, 2048, 768), plan("int4", "int4", 64, 2048, 768), plan("wide int4", "int4", 32, 7168, 2048)};
  std::vector<Taken> taken;
  for (const Small& one : small) {
    KTC_ASSIGN_OR_RETURN(Taken measured, plans.measure(one));
    std::vector<double>& all = (*times)[one.name];
    all.push_back(measured.us.decode);
    measured.us.decode = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
    taken.push_back(std::move(measured));
  }
  placement::Efficiency& reads = cpu.read_efficiency;
  const double before = reads[Format::int8];
  KTC_RETURN_IF_ERROR(plans.solve({{&taken[2], true, &reads[Format::int4], 0.01, 4},
      {&taken[1], true, &cpu.product_us, 0.01, kMostEnds},
      {&taken[0], true, &reads[Format::int8], 0.01, 4}}));
  if (before > 0) reads[Format::fp8] *= reads[Format::int8] / before;
  const double fastest = std::max({1.0, reads[Format::int8], reads[Format::int4]});
  cpu.read_gb_per_s *= fastest;
  for (auto& [format, share] : reads) share = std::min(1.0, share / fastest);
  return {};
}

Status probe_cpu_plans(const PlanProbe& probe, Target* target) {
  KTC_ASSIGN_OR_RETURN(Plans plans, Plans::create(probe, target));
  placement::CpuTarget& cpu = target->cpu;
  const auto plan = [](const char* name, const Shape& shape, std::uint32_t prompt, std::uint32_t tokens, const char* weights = "int8") {
    return Small{name, shape, "cpu", "cpu", weights, weights, prompt, tokens};
  };
  // Every token of the prompt sees those before it: with wide heads and next to no weights that is all the work there is. Matrices of
  // floats: no integer kernel says what they do. Layers that have next to nothing to read leave loops.
  const Shape few{4, 256, 2, 1, 8, 2, 64};  // of many layers a cache of 16 MB holds all
  Shape many = few;
  many.layers = 16;
  KTC_ASSIGN_OR_RETURN(const Taken attention, plans.measure(plan("attention", {2, 256, 16, 4}, cpu.cores >= 8 ? 2048 : 768, 2)));
  const Shape wide{4, 1024, 8, 4, 64, 4, 512};
  KTC_ASSIGN_OR_RETURN(const Taken floats, plans.measure(plan("bf16", wide, 256, 16, "bf16")));
  KTC_ASSIGN_OR_RETURN(const Taken long_floats, plans.measure(plan("f32", {2, 1024, 8, 4, 64, 4, 512}, 256, 16, "f32")));
  KTC_ASSIGN_OR_RETURN(const Taken of_few, plans.measure(plan("few layers", few, 32, 128)));
  KTC_ASSIGN_OR_RETURN(const Taken of_many, plans.measure(plan("many layers", many, 32, 128)));
  KTC_ASSIGN_OR_RETURN(const Taken linear, plans.measure(plan("linear", {6, 2048, 32, 4, 8, 2, 64}, 256, 2)));
  std::vector<Equation> equations = {
      {&of_many, true, &cpu.kernel_us, 0.01, 1e4},
      {&of_few, true, &cpu.step_us, 0.1, 1e6},
      {&attention, false, &cpu.attention_tflops, 1e-5, 1e3},
      {&floats, true, &cpu.read_efficiency[Format::bf16], 0.01, 1},
      {&long_floats, true, &cpu.read_efficiency[Format::f32], 0.01, 1},
      {&long_floats, false, &cpu.matrix_efficiency[Format::f32], 0.001, 1}};
  if (cpu.amx_int8_tops > 0) {  // else vectors multiply, of which vnni_tops tells
    equations.push_back({&floats, false, &cpu.matrix_efficiency[Format::bf16], 0.001, 1});
    equations.push_back({&linear, false, &cpu.linear_efficiency[Format::int8], 0.001, 1});
  }
  KTC_RETURN_IF_ERROR(plans.solve(equations));
  if (cpu.amx_int8_tops > 0)  // other integers unpack to the same products
    for (const Format format : {Format::int4, Format::fp8})
      cpu.linear_efficiency[format] = std::min(1.0, cpu.linear_efficiency[Format::int8] * cpu.matrix_efficiency[format] / cpu.matrix_efficiency[Format::int8]);
  return {};
}

Status probe_gpu_plans(const PlanProbe& probe, std::size_t index, Target* target) {
  KTC_ASSIGN_OR_RETURN(Plans plans, Plans::create(probe, target));
  placement::GpuTarget& gpu = target->gpus[index];
  const std::string on = gpu.device;
  const auto plan = [&](const char* name, Shape shape, std::uint32_t prompt, std::uint32_t tokens, const char* weights = "bf16",
                        bool experts_on_cpu = false) {
    if (probe.emulated) {  // whose kernels take a thousand times as long
      shape.layers = std::max(1u, shape.layers / 8), shape.hidden /= 32, shape.intermediate = 64, shape.heads = 2, shape.kv_heads = 1;
      prompt = 8, tokens = 4;
    }
    return Small{name, shape, experts_on_cpu ? "cpu" : on, on, experts_on_cpu ? "int4" : weights, experts_on_cpu ? "bf16" : weights, prompt, tokens};
  };
  Shape thin, deep, wide;
  deep.layers = 32;
  wide.layers = 16, wide.hidden = 7168;

  // Layers that have next to nothing to read leave the fixed times of kernels.
  KTC_ASSIGN_OR_RETURN(const Taken of_few, plans.measure(plan("few layers", thin, 64, 64)));
  KTC_ASSIGN_OR_RETURN(const Taken of_many, plans.measure(plan("many layers", deep, 64, 64)));
  KTC_ASSIGN_OR_RETURN(const Taken of_wide, plans.measure(plan("wide layers", wide, 64, 64)));
  KTC_ASSIGN_OR_RETURN(const Taken attention, plans.measure(plan("attention", {4, 256, 32, 4}, 8192, 32)));
  KTC_ASSIGN_OR_RETURN(const Taken dense, plans.measure(plan("dense", {8, 4096, 32, 8}, 2048, 16)));
  std::vector<Equation> equations = {{&of_many, true, &gpu.kernel_us, 0.01, 1e4},
                                     {&of_wide, true, &gpu.column_ns, 1e-4, 1e4},
                                     {&of_few, true, &gpu.step_us, 0.1, 1e6},
                                     {&of_many, false, &gpu.prefill_kernel_us, 0.01, 1e5},
                                     {&of_wide, false, &gpu.prefill_column_ns, 1e-4, 1e5},
                                     {&attention, true, &gpu.attention_efficiency, 0.001, 1},
                                     {&attention, false, &gpu.attention_tflops, 1e-6, 1e4},
                                     {&dense, false, &gpu.bf16_tflops, 1e-6, 1e4}};
  // What is read for a single token decides how well a format is read; its experts have many rows in the prompt.
  std::vector<Taken> of_format;
  constexpr std::pair<const char*, Format> kFormats[] = {{"bf16", Format::bf16}, {"int8", Format::int8}, {"int4", Format::int4}};
  for (const auto& [name, format] : kFormats) {
    Small experts = plan(name, {4, 2048, 16, 4, 32, 8, 768}, 2048, 32, name);
    experts.zipf = true;  // rows of very unequal number are what products of experts have
    KTC_ASSIGN_OR_RETURN(Taken taken, plans.measure(experts));
    of_format.push_back(std::move(taken));
  }
  for (std::size_t i = 0; i < of_format.size(); ++i) {
    equations.push_back({&of_format[i], true, &gpu.read_efficiency[kFormats[i].second], 0.005, 1});
    equations.push_back({&of_format[i], false, &gpu.matrix_efficiency[kFormats[i].second], 0.001, 4});
  }
  KTC_RETURN_IF_ERROR(plans.solve(equations));
  gpu.read_efficiency[Format::fp8] = gpu.read_efficiency[Format::int8];
  gpu.matrix_efficiency[Format::fp8] = gpu.matrix_efficiency[Format::int8];
  gpu.read_efficiency[Format::f32] = gpu.read_efficiency[Format::bf16];
  gpu.matrix_efficiency[Format::f32] = gpu.matrix_efficiency[Format::bf16] / 16;  // as rates of f32 are taken

  // Hand-offs of narrow and of wide rows: a time for each, and one for each byte.
  KTC_ASSIGN_OR_RETURN(const Taken narrow, plans.measure(plan("hand-offs", deep, 64, 64, "bf16", true)));
  KTC_ASSIGN_OR_RETURN(const Taken wider, plans.measure(plan("wide hand-offs", wide, 64, 64, "bf16", true)));
  return plans.solve({{&wider, true, &gpu.handoff_gb_per_s, 0.05, 500}, {&narrow, true, &gpu.handoff_us, 0.1, 1e5}});
}

}  // namespace ktc::tools
