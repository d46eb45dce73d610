#include "placement/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "placement/memory.h"
#include "placement/product_time.h"
#include "placement/slot_use.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::Module;
using models::ModuleClass;

constexpr double kNoOverlap = 0.5;     // as in product_time
constexpr double kValueBytes = 8;      // that a GPU moves besides a product's operands for each value of many rows: rounded, activated, added
// Of values as a product on a CPU writes them: choosing among a router's takes as long as twelve, a score's exponential as one, a norm's
// as less than half; products of single heads, of small matrices, take so many times as long as others (traces of checkpoints of 192
// and 256 columns on two cores).
constexpr double kChoice = 12, kScore = 1, kNorm = 0.4, kPerHead = 2.5;
constexpr double kFewRows = 4;         // of an expert, that a GPU does not multiply in tiles
constexpr double kAttendPart = 512;    // tokens of the cache that one worker of a CPU attends to (runtime/exec/attend_phase.h)
constexpr double kCached = 0.8;        // of the last cache, that a plan's weights may fill
constexpr double kCopyHandoffs = 4;    // extend moves rows by copies: as many hand-offs' fixed times (18.6 us against 4.3)

struct Time {  // us, by what they are spent on
  std::array<double, kBounds> spent{};
  double total() const {
    double sum = 0;
    for (const double us : spent) sum += us;
    return sum;
  }
  double& operator[](Bound bound) { return spent[static_cast<std::size_t>(bound)]; }
  Time& operator+=(const Time& other) {
    for (std::size_t i = 0; i < kBounds; ++i) spent[i] += other.spent[i];
    return *this;
  }
  Time operator*(double factor) const {
    Time time = *this;
    for (double& us : time.spent) us *= factor;
    return time;
  }
};

bool is_cpu(std::string_view device) { return device == "cpu"; }

// Of one row, experts: of one expert. `per_head`: W_UK and W_UV of latent attention, which are multiplied in f32; otherwise all others.
double matrix_operations(const ModelDesc& model, const Module& module, bool per_head = false) {
  double elements = 0;
  for (const SlotUse& use : slots_of(module))
    if (use.role != SlotRole::vector && (use.role == SlotRole::kv_b) == per_head)
      elements += static_cast<double>(model.slots[use.slot].rows) * static_cast<double>(model.slots[use.slot].columns);
  return 2 * elements;
}

double matrix_outputs(const ModelDesc& model, const Module& module) {  // values that one row's products write, experts: of one expert
  double rows = 0;
  for (const SlotUse& use : slots_of(module))
    if (use.role != SlotRole::vector) rows += static_cast<double>(model.slots[use.slot].rows);
  return rows;
}

// Kernels, or parallel loops of a CPU, of one module in a step.
struct Kernels {
  bool cpu;
  double operator()(const models::EmbeddingDesc&) const { return 1; }
  double operator()(const models::NormDesc&) const { return 1; }               // with the sum in front of it
  double operator()(const models::GqaDesc&) const { return cpu ? 3 : 5; }      // q/k/v, append, attend and merge, o
  double operator()(const models::MlaDesc&) const { return cpu ? 6 : 8; }      // with the products per head
  double operator()(const models::RouterDesc&) const { return 1; }             // publish is part of the hand-off
  double operator()(const models::ExpertsDesc&) const { return cpu ? 1 : 2; }
  double operator()(const models::MlpDesc&) const { return cpu ? 1 : 2; }
  double operator()(const models::HeadDesc&) const { return 1; }
};

// Operations of one row per cached token, and elements of the cache per token.
struct Attention {
  double operations = 0, elements = 0, heads = 0;
  double groups = 0;  // of heads that share keys
};
Attention attention_of(const Module& module) {
  if (const auto* d = std::get_if<models::GqaDesc>(&module.attributes))
    return {4.0 * d->heads * d->head_dim, 2.0 * d->kv_heads * d->head_dim, static_cast<double>(d->heads),
            static_cast<double>(d->kv_heads)};
  if (const auto* d = std::get_if<models::MlaDesc>(&module.attributes))
    return {2.0 * d->heads * (2.0 * d->kv_rank + d->rope_dim), static_cast<double>(d->kv_rank) + d->rope_dim, static_cast<double>(d->heads),
            d->heads / 4.0};
  return {};
}

// E[min(d, X)] of X binomial with n draws of probability q.
double expected_least(std::uint32_t n, double q, std::uint32_t d) {
  if (q <= 0 || d == 0) return 0;
  if (q >= 1) return std::min(n, d);
  double sum = 0, probability = std::pow(1 - q, n);  // of X = 0
  for (std::uint32_t x = 0; x <= n; ++x) {
    sum += probability * std::min(x, d);
    probability *= q / (1 - q) * (n - x) / (x + 1);
  }
  return sum;
}

// The experts of a layer that one device has.
struct Load {
  double pairs = 0;     // routed pairs per token
  double distinct = 0;  // experts that the rows of the step touch
  struct Alike {
    double experts = 0, rows = 0;  // that many, each for so many rows
  };
  std::vector<Alike> alike;  // the same of steps of several rows, by expert: their numbers of rows decide which kernel serves

  // An expert that a row chooses with probability p.
  void add(double p, double touched, std::uint32_t step_rows) {
    pairs += p, distinct += touched;
    if (step_rows == 1 || touched <= 1e-9) return;
    const double each = p * step_rows / touched;
    if (!alike.empty() && alike.back().rows == each)
      alike.back().experts += touched;
    else
      alike.push_back({touched, each});
  }
  // Without a share of each row's pairs: an expert is still read where any of its rows is left.
  Load of_pairs(double fraction) const {
    Load part{pairs * fraction, 0, alike};
    for (Alike& a : part.alike) {
      const double left = 1 - std::pow(1 - fraction, std::max(1.0, a.rows));
      a.experts *= left;
      a.rows *= left > 0 ? fraction / left : 0;
      part.distinct += a.experts;
    }
    if (alike.empty()) part.distinct = distinct * fraction;
    return part;
  }
};
// Of kernels: a time, and one that their work takes at least.
struct Fixed {
  double us = 0, least = 0;
  Fixed operator*(double count) const { return {us * count, least * count}; }
};
struct HotLoad {
  const HotExperts* experts = nullptr;
  double expert_bytes = 0;
  Load load;
};

struct FixedLayer {
  std::string device;  // of the chain: the attention's
  Time before;         // attention, norms, router, and what comes from another device
  Time beside;         // shared experts or the dense MLP
};

struct Step {
  std::string entry;
  std::uint32_t rows = 1;
  double context = 0;
  bool decode = true, streamed = false, defer = false;
  std::vector<FixedLayer> layers;
  Time outside;        // embedding, final norm, head
  StepParts parts;     // of everything that hot experts do not change
  std::vector<std::vector<double>> touched;  // by MoE layer and expert: the probability that any row takes it
  std::vector<Load> all;                     // by MoE layer
};

struct MoeLayer {
  std::uint32_t module = 0, top_k = 0;
  std::size_t layer = 0;  // in ModelDesc::layers
  std::vector<double> probability;
  double cold_bytes = 0, operations = 0, outputs = 0;  // of one expert; operations and values of one row
};

// Where a step stands while its layers are added up.
struct Timeline {
  double now = 0, cpu_free = 0;
  Time critical;
  StepParts parts;
  double cold = 0, hot_pairs = 0, pairs = 0;
  double streamed_us = 0;  // PCIe time of streamed experts

  void add(const Time& time) {
    now += time.total();
    critical += time;
  }
};

}  // namespace

struct CostModel::Impl {
  Rates rates;
  CpuTarget cpu;
  DeferPolicy defer;
  bool row_scales = false;  // of int8 activations
  std::uint32_t context = 0;
  double hidden = 0, vocabulary = 0, cache_bytes = 2;  // of one element of the KV cache
  double cached = 0;        // share of what the CPU reads that its last cache holds
  std::vector<ModulePlacement> modules;
  std::vector<MoeLayer> moe;
  std::vector<Step> steps;
  ModelDesc shapes;  // modules, slots and layers alone: no tensors

  Time work(const DeviceRates& rate, Format weights, Format activations, std::uint32_t group, double bytes, double operations,
            double rows, Fixed fixed, double values = 0, bool experts = false) const {
    const ProductTime product = product_time(
        rate, cpu, {weights, activations, group, bytes, operations, rows, row_scales, values, is_cpu(rate.device) ? cached : 0, experts});
    Time time;
    if (!is_cpu(rate.device) && rows > 1) time[Bound::gpu_read] = values * kValueBytes / (rate.read * rate.reads.at(Format::bf16));
    time[is_cpu(rate.device) ? (product.computes() ? Bound::cpu_compute : Bound::cpu_read)
                             : (product.computes() ? Bound::gpu_compute : Bound::gpu_read)] += product.us;
    return with_fixed(time, fixed);
  }
  static Time with_fixed(Time time, Fixed fixed) {
    time[Bound::kernels] += fixed.us + std::max(0.0, fixed.least - time.total());
    return time;
  }

  // Few rows are in a graph. Of many, a router's products walk through all columns on few processors before any has a result.
  Fixed kernel_time(const DeviceRates& rate, const Step& step, bool router = false) const {
    if (is_cpu(rate.device)) return {rate.kernel_us, 0};
    if (step.decode) return {rate.kernel_us + rate.column_us * hidden, 0};
    return {rate.prefill_kernel_us, router ? rate.prefill_column_us * hidden : 0};
  }

  // Keys and values read, and multiplied.
  // `items`: that workers of a CPU share.
  Time attend(const DeviceRates& rate, double bytes, double operations, double scores, double items) const {
    const bool on_cpu = is_cpu(rate.device);
    const double read = bytes / (on_cpu ? cached * rate.cache + (1 - cached) * rate.read : rate.read * rate.attention_read);
    const double compute = operations / rate.attention + (on_cpu ? kScore * scores * rate.value_us : 0);
    const double idle = on_cpu ? std::max(1.0, std::max(cpu.cores, 1u) / std::max(items, 1.0)) : 1;
    Time time;
    time[on_cpu ? (compute > read ? Bound::cpu_compute : Bound::cpu_read) : (compute > read ? Bound::gpu_compute : Bound::gpu_read)] =
        (std::max(read, compute) + (on_cpu ? kNoOverlap * std::min(read, compute) : 0)) * idle;
    return time;
  }

  // What a step takes besides its kernels: of the host, and the logits that it looks at.
  Time step_time(double rows) const {
    const DeviceRates& host = rates.of("cpu");
    const DeviceRates* device = &host;
    for (const ModulePlacement& module : modules)
      if (!is_cpu(module.device)) device = &rates.of(module.device);
    const double logits = rows * vocabulary * 4;
    const bool copied = shapes.head != models::kNoModule && !is_cpu(modules[shapes.head].device);
    Time time;
    time[Bound::kernels] = device->step_us;
    if (copied) time[Bound::pcie] = logits / std::max(rates.of(modules[shapes.head].device).pcie, 1.0);
    time[Bound::cpu_read] = logits * std::max(cpu.cores, 1u) / host.read;  // by one thread
    return time;
  }

  // From one device to another and on: rows of the residual.
  Time transfer(const DeviceRates& gpu, double rows) const {
    Time time;
    time[Bound::handoff] = gpu.handoff_us;
    time[Bound::pcie] = gpu.pcie > 0 ? rows * hidden * 4 / gpu.pcie : 0;
    return time;
  }

  // Values that one row's products and choices write.
  double values_of(const Module& module, bool on_cpu) const {
    if (module.cls == ModuleClass::Embedding) return 0;
    if (module.cls == ModuleClass::Norm) return hidden * (on_cpu ? kNorm : 1);
    return matrix_outputs(shapes, module) * (on_cpu && module.cls == ModuleClass::Router ? kChoice : 1);
  }

  Expected<Time> module_time(const Step& step, std::uint32_t index, StepParts* parts) const {
    const Module& module = shapes.modules[index];
    const ModulePlacement& placed = modules[index];
    const DeviceRates& rate = rates.of(placed.device);
    const bool cpu_side = is_cpu(placed.device);
    const double rows = module.cls == ModuleClass::Head && !step.decode ? 1 : step.rows;
    double bytes = 0, operations = rows * matrix_operations(shapes, module);
    if (module.cls == ModuleClass::Embedding) {
      bytes = rows * hidden * 4, operations = 0;
    } else {
      KTC_ASSIGN_OR_RETURN(const std::uint64_t packed,
                           weight_bytes(shapes, module, {placed.weights, placed.group, placed.unrounded, !cpu_side}));
      bytes = static_cast<double>(packed);
    }
    Time time = work(rate, placed.weights, placed.activations, placed.group, bytes, operations, rows,
                     kernel_time(rate, step, module.cls == ModuleClass::Router) * std::visit(Kernels{cpu_side}, module.attributes), rows * values_of(module, cpu_side));
    if (const double per_head = matrix_operations(shapes, module, true); per_head > 0)
      time += work(rate, placed.unrounded, cpu_side ? Format::f32 : placed.activations, 0, 0, rows * per_head, rows, {}) * (cpu_side && !step.decode ? kPerHead : 1);
    if (const Attention attention = attention_of(module); attention.operations > 0) {
      const double seen = step.decode ? step.context : rows / 2.0;  // a chunk sees itself, on average half
      const double passes = step.decode ? rows : std::max(1.0, rows / 64);  // blocks of 64 queries read the keys once
      time += attend(rate, passes * seen * attention.elements * cache_bytes, rows * seen * attention.operations, rows * seen * attention.heads,
                     rows * std::ceil(seen / kAttendPart) * attention.groups);
    }
    const double fixed = time[Bound::kernels], rest = time.total() - fixed;
    parts->kernels += fixed;
    (module.cls == ModuleClass::Head          ? parts->head
     : cpu_side                               ? parts->cpu_other
     : module.cls == ModuleClass::Attention   ? parts->gpu_attention
                                              : parts->gpu_dense) += rest;
    return time;
  }

  Expected<Step> make_step(std::string entry, std::uint32_t rows, bool decode, bool streamed) const {
    Step step;
    step.entry = fmt::format("{}[{}]", entry, rows);
    step.rows = rows, step.context = context, step.decode = decode, step.streamed = streamed;
    step.defer = defer.max_per_token > 0 && (decode ? defer.decode : defer.extend);
    auto add = [&](std::uint32_t module, Time* time) -> Status {
      if (module == models::kNoModule) return Status();
      KTC_ASSIGN_OR_RETURN(const Time more, module_time(step, module, &step.parts));
      *time += more;
      return Status();
    };
    std::string device = shapes.embedding == models::kNoModule ? std::string() : modules[shapes.embedding].device;
    auto move_to = [&](std::uint32_t module, Time* time) {
      if (module == models::kNoModule) return;
      const std::string& next = modules[module].device;
      if (!device.empty() && next != device) {
        const Time moved = transfer(rates.of(is_cpu(next) ? device : next), rows);
        *time += moved;
        step.parts.handoff += moved.total();
      }
      device = next;
    };
    KTC_RETURN_IF_ERROR(add(shapes.embedding, &step.outside));
    for (const models::Layer& layer : shapes.layers) {
      FixedLayer fixed;
      move_to(layer.attention, &fixed.before);
      fixed.device = device;
      for (const std::uint32_t module : {layer.attention_norm, layer.attention, layer.ffn_norm})
        KTC_RETURN_IF_ERROR(add(module, &fixed.before));
      if (layer.is_moe()) {
        move_to(layer.router, &fixed.before);
        KTC_RETURN_IF_ERROR(add(layer.router, &fixed.before));
        KTC_RETURN_IF_ERROR(add(layer.shared, &fixed.beside));
        move_to(layer.attention, &fixed.beside);
      } else {
        move_to(layer.mlp, &fixed.beside);
        KTC_RETURN_IF_ERROR(add(layer.mlp, &fixed.beside));
        move_to(layer.attention, &fixed.beside);
      }
      step.layers.push_back(std::move(fixed));
    }
    move_to(shapes.final_norm, &step.outside);
    KTC_RETURN_IF_ERROR(add(shapes.final_norm, &step.outside));
    move_to(shapes.head, &step.outside);
    KTC_RETURN_IF_ERROR(add(shapes.head, &step.outside));
    const Time fixed = step_time(decode ? rows : 1);
    step.outside += fixed;
    step.parts.kernels += fixed.total();
    count_experts(step);
    return step;
  }

  Load load_of(const Step& step, std::size_t index, const std::vector<std::uint32_t>& ids) const {
    Load load;
    for (const std::uint32_t id : ids) {
      if (id >= moe[index].probability.size()) continue;
      load.add(moe[index].probability[id], step.touched[index][id], step.rows);
    }
    return load;
  }
  // The experts that are none of `hot`, whose ids may be those of several devices.
  Load load_without(const Step& step, std::size_t index, const std::vector<const HotExperts*>& hot) const {
    std::vector<bool> taken(moe[index].probability.size());
    for (const HotExperts* entry : hot)
      for (const std::uint32_t id : entry->ids)
        if (id < taken.size()) taken[id] = true;
    Load load;
    for (std::size_t e = 0; e < taken.size(); ++e)
      if (!taken[e]) load.add(moe[index].probability[e], step.touched[index][e], step.rows);
    return load;
  }

  void count_experts(Step& step) const {
    for (const MoeLayer& layer : moe) {
      Load all;
      std::vector<double>& touched = step.touched.emplace_back();
      for (const double p : layer.probability) {
        touched.push_back(step.rows == 1 ? p : 1 - std::pow(1 - p, step.rows));
        all.add(p, touched.back(), step.rows);
      }
      step.all.push_back(all);
    }
  }

  Time expert_time(const Step& step, const MoeLayer& layer, const DeviceRates& rate, Format weights, Format activations,
                   std::uint32_t group, double expert_bytes, const Load& load) const {
    if (load.distinct <= 1e-9) return {};
    const double pairs = load.pairs * step.rows;
    const Fixed kernels = kernel_time(rate, step) * (is_cpu(rate.device) ? 1 : 2);
    if (load.alike.empty())
      return work(rate, weights, activations, group, load.distinct * expert_bytes, pairs * layer.operations, pairs / load.distinct, kernels);
    Time time;
    for (const Load::Alike& a : load.alike) {
      // a CPU's tiles have sixteen rows: where only some of the step's rows choose an expert half of its last one is padding
      const double rows = a.rows + (is_cpu(rate.device) && a.rows >= 16 && a.rows < step.rows ? 8 : 0);
      time += work(rate, weights, activations, group, expert_bytes, rows * layer.operations, a.rows, {}, a.rows * layer.outputs, a.rows > kFewRows) * a.experts;
    }
    return with_fixed(time, kernels);
  }

  // One MoE layer after `line->now`. `late`: it may deliver experts with the next one.
  void add_moe(const Step& step, const MoeLayer& layer, const Load& cold, const std::vector<HotLoad>& hot, bool late,
               Timeline* line) const {
    const FixedLayer& fixed = step.layers[layer.layer];
    const ModulePlacement& placed = modules[layer.module];
    line->add(fixed.before);
    double hot_pairs = 0;
    for (const HotLoad& h : hot) hot_pairs += h.load.pairs;
    line->hot_pairs += hot_pairs;
    line->pairs += hot_pairs + cold.pairs;
    line->cold += cold.distinct;

    Time home = fixed.beside;                    // work of the chain's device
    std::vector<std::pair<Time, double>> away;   // of others, and when they could begin
    auto count_fixed = [&](const Time& time) { line->parts.kernels += Time(time)[Bound::kernels]; };
    for (const HotLoad& h : hot) {
      const DeviceRates& rate = rates.of(h.experts->device);
      Time time = expert_time(step, layer, rate, h.experts->weights, h.experts->activations, h.experts->group, h.expert_bytes, h.load);
      if (time.total() <= 0) continue;
      count_fixed(time);
      line->parts.gpu_hot += time.total() - time[Bound::kernels];
      if (h.experts->device == fixed.device) {
        home += time;
        continue;
      }
      time += transfer(rate, 2 * step.rows);
      away.emplace_back(time, line->now);
    }

    const DeviceRates& rate = rates.of(placed.device);
    Load in_time = cold;
    double fraction = 1;
    if (late && cold.pairs > 1e-9) {
      const double q = std::min(1.0, cold.pairs / std::max(layer.top_k, 1u));
      const double few = defer.scope == DeferScope::cpu
                             ? expected_least(layer.top_k, q, defer.max_per_token)
                             : q * std::min(defer.max_per_token, layer.top_k);
      fraction = std::max(0.0, 1 - few / cold.pairs);
      in_time = cold.of_pairs(fraction);
    }
    auto cold_time = [&](const Load& load) {
      return expert_time(step, layer, rate, placed.weights, placed.activations, placed.group, layer.cold_bytes, load);
    };
    Time all = cold_time(cold);
    const bool apart = placed.device != fixed.device;
    if (step.streamed && is_cpu(placed.device) && apart) {
      // the chain's GPU computes them, the copy engine brings them
      const DeviceRates& gpu = rates.of(fixed.device);
      const double us = cold.distinct * layer.cold_bytes / std::max(gpu.pcie, 1.0);
      line->streamed_us += us;
      line->parts.pcie += us;
      Time time = expert_time(step, layer, gpu, Format::bf16, Format::bf16, 0, 0, cold);
      // unpacked to bf16 on their way: twice as many bytes as values, two operations each
      time[Bound::gpu_read] += cold.distinct * (layer.cold_bytes + layer.operations) / (gpu.read * gpu.reads.at(Format::bf16));
      count_fixed(time);
      line->parts.gpu_hot += time.total() - time[Bound::kernels];
      home += time;
    } else if (all.total() > 0) {
      count_fixed(all);
      (is_cpu(placed.device) ? line->parts.cpu_experts : line->parts.gpu_hot) += all.total() - all[Bound::kernels];
      if (!apart) {
        home += all;
      } else {
        const DeviceRates& link = rates.of(is_cpu(placed.device) ? fixed.device : placed.device);
        const double q = std::min(1.0, cold.pairs / std::max(layer.top_k, 1u));
        const double any = 1 - std::pow(1 - q, static_cast<double>(layer.top_k) * step.rows);
        if (!step.decode) {  // the rows leave behind what the chain's device computes for itself (traces of ktc-run)
          line->add(home);
          home = {};
        }
        Time branch;
        branch[Bound::handoff] = link.handoff_us * (step.decode ? any : kCopyHandoffs);
        // decode: a record of bf16 rows, results in cells of six values and 16 bytes; extend: f32 up and down
        branch[Bound::pcie] = step.decode ? any * step.rows * hidden * (2 + 16.0 / 6) / link.handoff : step.rows * hidden * 8 / std::max(link.pcie, 1.0);
        line->parts.handoff += branch[Bound::handoff];
        line->parts.pcie += branch[Bound::pcie];
        const Time now_due = fraction < 1 ? cold_time(in_time) : all;
        const double waits = std::max(0.0, line->cpu_free - line->now);  // for what is late of the layer before
        branch += now_due;
        branch[Bound::cpu_read] += waits;
        line->cpu_free = std::max(line->now, line->cpu_free) + now_due.total();
        if (fraction < 1) line->cpu_free += std::max(0.0, all.total() - now_due.total());
        away.emplace_back(branch, line->now);
      }
    }
    const Time* longest = &home;
    for (const auto& [time, start] : away)
      if (time.total() > longest->total()) longest = &time;
    line->add(*longest);
  }

  std::size_t moe_index(std::uint32_t module) const {
    for (std::size_t i = 0; i < moe.size(); ++i)
      if (moe[i].module == module) return i;
    return moe.size();
  }

  Expected<double> expert_bytes(const HotExperts& hot) const {
    const Module& module = shapes.modules[hot.module];
    KTC_ASSIGN_OR_RETURN(const std::uint64_t bank,
                         weight_bytes(shapes, module, {hot.weights, hot.group, hot.weights, !is_cpu(hot.device)}));
    const auto& desc = std::get<models::ExpertsDesc>(module.attributes);
    return static_cast<double>(bank) / std::max(desc.experts, 1u);
  }

  Expected<StepCost> cost(const Step& step, const std::vector<HotExperts>& hot) const {
    Timeline line;
    line.parts = step.parts;
    line.add(step.outside);
    std::vector<std::vector<HotLoad>> loads(moe.size());
    std::vector<Load> cold = step.all;
    for (const HotExperts& entry : hot) {
      const std::size_t i = moe_index(entry.module);
      if (i == moe.size()) continue;
      KTC_ASSIGN_OR_RETURN(const double bytes, expert_bytes(entry));
      const Load load = load_of(step, i, entry.ids);
      loads[i].push_back({&entry, bytes, load});
    }
    for (std::size_t i = 0; i < moe.size(); ++i) {
      if (loads[i].empty()) continue;
      std::vector<const HotExperts*> entries;
      for (const HotLoad& h : loads[i]) entries.push_back(h.experts);
      cold[i] = load_without(step, i, entries);
    }
    std::size_t next = 0;
    for (std::size_t l = 0; l < step.layers.size(); ++l) {
      if (next < moe.size() && moe[next].layer == l) {
        add_moe(step, moe[next], cold[next], loads[next], step.defer && next + 1 < moe.size(), &line);
        ++next;
      } else {
        line.add(step.layers[l].before);
        line.add(step.layers[l].beside);
      }
    }
    if (line.streamed_us > line.now) {  // the link is the longer chain
      line.critical = Time();
      line.critical[Bound::pcie] = line.now = line.streamed_us;
    }
    StepCost cost;
    cost.entry = step.entry, cost.rows = step.rows, cost.us = line.now, cost.parts = line.parts;
    cost.critical = line.critical.spent;
    cost.tokens_per_second = line.now > 0 ? step.rows * 1e6 / line.now : 0;
    cost.bound = static_cast<Bound>(std::max_element(cost.critical.begin(), cost.critical.end()) - cost.critical.begin());
    cost.cold_experts = moe.empty() ? 0 : line.cold / static_cast<double>(moe.size());
    cost.hit_rate = line.pairs > 0 ? line.hot_pairs / line.pairs : 0;
    return cost;
  }
};

std::string_view to_string(Bound bound) {
  switch (bound) {
    case Bound::cpu_read: return "CPU bandwidth";
    case Bound::cpu_compute: return "CPU compute";
    case Bound::gpu_read: return "GPU bandwidth";
    case Bound::gpu_compute: return "GPU compute";
    case Bound::pcie: return "PCIe";
    case Bound::handoff: return "hand-off";
    case Bound::kernels: return "fixed kernel times";
  }
  return "?";
}

Expected<CostModel> CostModel::create(const ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                      const Policy& policy, const Target& target, const ExpertCounts& counts,
                                      const CostOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->rates = rates_of(target);
  impl->cpu = target.cpu;
  impl->defer = policy.defer;
  impl->row_scales = policy.activation_group == 0;
  impl->context = options.context > 0 ? options.context : std::max(1u, policy.kv_cache.tokens / 2);
  impl->cache_bytes = format_bits(policy.kv_cache.dtype) / 8.0;
  impl->hidden = model.hidden;
  impl->modules = modules;
  impl->shapes.modules = model.modules, impl->shapes.layers = model.layers, impl->shapes.hidden = model.hidden;
  impl->shapes.embedding = model.embedding, impl->shapes.final_norm = model.final_norm, impl->shapes.head = model.head;
  for (const models::WeightSlot& slot : model.slots) {  // shapes and types: pieces are megabytes in large models
    models::WeightSlot shape;
    shape.name = slot.name, shape.batch = slot.batch, shape.rows = slot.rows, shape.columns = slot.columns, shape.type = slot.type;
    impl->shapes.slots.push_back(std::move(shape));
  }
  if (model.head != models::kNoModule)
    for (const SlotUse& use : slots_of(model.modules[model.head]))
      if (use.role != SlotRole::vector) impl->vocabulary = static_cast<double>(model.slots[use.slot].rows);
  double on_cpu = 0;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!is_cpu(modules[i].device) || model.modules[i].cls == ModuleClass::Embedding) continue;
    KTC_ASSIGN_OR_RETURN(const std::uint64_t bytes,
                         weight_bytes(model, model.modules[i], {modules[i].weights, modules[i].group, modules[i].unrounded, false}));
    on_cpu += static_cast<double>(bytes);
  }
  // A plan a little larger than a cache finds next to nothing in it, for it comes by in the same order in every step.
  if (target.cpu.l3_bytes > 0 && on_cpu > 0)
    impl->cached = std::clamp(2 * kCached * static_cast<double>(target.cpu.l3_bytes) / on_cpu - 1, 0.0, 1.0);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const models::Layer& layer = model.layers[l];
    if (!layer.is_moe()) continue;
    const auto& desc = std::get<models::ExpertsDesc>(model.modules[layer.experts].attributes);
    MoeLayer moe;
    moe.module = layer.experts, moe.layer = l;
    if (layer.router != models::kNoModule) moe.top_k = std::get<models::RouterDesc>(model.modules[layer.router].attributes).top_k;
    moe.operations = matrix_operations(model, model.modules[layer.experts]);
    moe.outputs = matrix_outputs(model, model.modules[layer.experts]);
    const ModulePlacement& placed = modules[layer.experts];
    KTC_ASSIGN_OR_RETURN(const std::uint64_t bank,
                         weight_bytes(model, model.modules[layer.experts],
                                      {placed.weights, placed.group, placed.unrounded, !is_cpu(placed.device)}));
    moe.cold_bytes = static_cast<double>(bank) / std::max(desc.experts, 1u);
    const std::size_t row = impl->moe.size();
    double sum = 0;
    if (row < counts.size())
      for (const std::uint64_t count : counts[row]) sum += static_cast<double>(count);
    for (std::uint32_t e = 0; e < desc.experts; ++e) {
      const double share = sum > 0 && e < counts[row].size() ? static_cast<double>(counts[row][e]) / sum : 1.0 / desc.experts;
      moe.probability.push_back(std::min(1.0, moe.top_k * share));
    }
    impl->moe.push_back(std::move(moe));
  }
  for (const std::uint32_t rows : policy.batch.decode) {
    KTC_ASSIGN_OR_RETURN(Step step, impl->make_step("decode", rows, true, false));
    impl->steps.push_back(std::move(step));
  }
  KTC_ASSIGN_OR_RETURN(Step extend, impl->make_step("extend", policy.batch.chunk, false, false));
  impl->steps.push_back(std::move(extend));
  if (policy.batch.stream_chunk > 0) {
    KTC_ASSIGN_OR_RETURN(Step stream, impl->make_step("stream", policy.batch.stream_chunk, false, true));
    impl->steps.push_back(std::move(stream));
  }
  return CostModel(std::move(impl));
}

Expected<Prediction> CostModel::predict(const std::vector<HotExperts>& hot) const {
  Prediction prediction;
  prediction.context = impl_->context;
  prediction.notes = impl_->rates.notes;
  for (const Step& step : impl_->steps) {
    KTC_ASSIGN_OR_RETURN(StepCost cost, impl_->cost(step, hot));
    prediction.steps.push_back(std::move(cost));
  }
  return prediction;
}

Expected<double> CostModel::us_per_token(const std::vector<HotExperts>& hot) const {
  double sum = 0, steps = 0;
  for (const Step& step : impl_->steps) {
    if (!step.decode) continue;
    KTC_ASSIGN_OR_RETURN(const StepCost cost, impl_->cost(step, hot));
    sum += cost.us / step.rows;
    ++steps;
  }
  return sum / std::max(steps, 1.0);
}

Expected<StepCost> CostModel::prefill(const std::vector<HotExperts>& hot, std::uint32_t rows, bool streamed) const {
  KTC_ASSIGN_OR_RETURN(const Step step, impl_->make_step(streamed ? "stream" : "extend", rows, false, streamed));
  return impl_->cost(step, hot);
}

Expected<std::vector<StreamedLayer>> CostModel::streamed_layers(const std::vector<HotExperts>& hot, std::uint32_t rows) const {
  KTC_ASSIGN_OR_RETURN(const Step step, impl_->make_step("stream", rows, false, true));
  std::vector<StreamedLayer> layers;
  for (std::size_t i = 0; i < impl_->moe.size(); ++i) {
    const MoeLayer& moe = impl_->moe[i];
    const FixedLayer& fixed = step.layers[moe.layer];
    if (!is_cpu(impl_->modules[moe.module].device) || is_cpu(fixed.device)) continue;
    const DeviceRates& gpu = impl_->rates.of(fixed.device);
    StreamedLayer layer;
    layer.module = moe.module;
    layer.chain = fixed.before.total();
    layer.beside = fixed.beside.total();
    layer.cold = static_cast<double>(moe.probability.size());
    layer.pairs = step.all[i].pairs * rows;
    for (const HotExperts& entry : hot) {
      if (entry.module != moe.module) continue;
      KTC_ASSIGN_OR_RETURN(const double bytes, impl_->expert_bytes(entry));
      const Load load = impl_->load_of(step, i, entry.ids);
      layer.cold -= static_cast<double>(entry.ids.size());
      layer.pairs = std::max(0.0, layer.pairs - load.pairs * rows);
      if (entry.device == fixed.device)
        layer.beside += impl_->expert_time(step, moe, gpu, entry.weights, entry.activations, entry.group, bytes, load).total();
    }
    layer.values = 2 * kCopyHandoffs * gpu.handoff_us + rows * (2 * impl_->hidden + 2 * moe.top_k) * 4 / std::max(gpu.pcie, 1.0);
    if (layer.cold > 0) layers.push_back(layer);
  }
  return layers;
}

ExpertTime CostModel::expert_time(const StreamedLayer& layer, double rows) const {
  const std::size_t i = impl_->moe_index(layer.module);
  if (i == impl_->moe.size()) return {};
  const MoeLayer& moe = impl_->moe[i];
  const ModulePlacement& placed = impl_->modules[layer.module];
  const DeviceRates& gpu = impl_->rates.of(impl_->steps.front().layers[moe.layer].device);
  const double operations = rows * moe.operations;
  ExpertTime time;
  time.cpu = impl_->work(impl_->rates.of("cpu"), placed.weights, placed.activations, placed.group, moe.cold_bytes, operations, rows, {}, rows * moe.outputs).total();
  time.gpu = impl_->work(gpu, Format::bf16, Format::bf16, 0, moe.cold_bytes, operations, rows, {}, rows * moe.outputs, true).total();
  time.gpu += (moe.cold_bytes + moe.operations) / (gpu.read * gpu.reads.at(Format::bf16));  // unpacked, as in add_moe
  time.copy = moe.cold_bytes / std::max(gpu.pcie, 1.0);
  return time;
}

Expected<double> CostModel::hot_expert_bytes(const HotExperts& hot) const { return impl_->expert_bytes(hot); }

double CostModel::layer_us_per_token(const HotExperts& hot, double expert_bytes) const {
  const std::size_t i = impl_->moe_index(hot.module);
  if (i == impl_->moe.size()) return 0;
  double sum = 0, steps = 0;
  for (const Step& step : impl_->steps) {
    if (!step.decode) continue;
    const MoeLayer& layer = impl_->moe[i];
    const Load load = impl_->load_of(step, i, hot.ids);
    const Load cold = impl_->load_without(step, i, {&hot});
    // Twice the same layer: the second finds the late work of the first.
    const bool late = step.defer && i + 1 < impl_->moe.size();
    Timeline line;
    impl_->add_moe(step, layer, cold, {{&hot, expert_bytes, load}}, late, &line);
    const double first = line.now;
    if (step.defer) impl_->add_moe(step, layer, cold, {{&hot, expert_bytes, load}}, late, &line);
    sum += (step.defer ? line.now - first : first) / step.rows;
    ++steps;
  }
  return sum / std::max(steps, 1.0);
}

}  // namespace ktc::placement
