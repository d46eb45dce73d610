// What a step takes: its modules in their order, and its layers of routed experts after one another (cost_model.h has the
// formulas).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "placement/cost_model_impl.h"
#include "placement/memory.h"

namespace ktc::placement {
namespace {

using models::Module;

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

}  // namespace

void Load::add(double p, double touched, std::uint32_t step_rows) {
  pairs += p, distinct += touched;
  if (step_rows == 1 || touched <= 1e-9) return;
  const double each = p * step_rows / touched;
  if (!alike.empty() && alike.back().rows == each)
    alike.back().experts += touched;
  else
    alike.push_back({touched, each});
}

Load Load::of_pairs(double fraction) const {
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

Expected<Step> CostModel::Impl::make_step(std::string entry, std::uint32_t rows, bool decode, bool streamed) const {
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

void CostModel::Impl::count_experts(Step& step) const {
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

Load CostModel::Impl::load_of(const Step& step, std::size_t index, const std::vector<std::uint32_t>& ids) const {
  Load load;
  for (const std::uint32_t id : ids) {
    if (id >= moe[index].probability.size()) continue;
    load.add(moe[index].probability[id], step.touched[index][id], step.rows);
  }
  return load;
}

Load CostModel::Impl::load_without(const Step& step, std::size_t index,
                                   const std::vector<const HotExperts*>& hot) const {
  std::vector<bool> taken(moe[index].probability.size());
  for (const HotExperts* entry : hot)
    for (const std::uint32_t id : entry->ids)
      if (id < taken.size()) taken[id] = true;
  Load load;
  for (std::size_t e = 0; e < taken.size(); ++e)
    if (!taken[e]) load.add(moe[index].probability[e], step.touched[index][e], step.rows);
  return load;
}

void CostModel::Impl::add_moe(const Step& step, const MoeLayer& layer, const Load& cold,
                              const std::vector<HotLoad>& hot, bool late, Timeline* line) const {
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
    Time time = expert_time(step, layer, rate, h.experts->weights, h.experts->activations, h.experts->group,
                            h.expert_bytes, h.load);
    if (time.total() <= 0) continue;
    count_fixed(time);
    line->parts.gpu_hot += time.total() - time[Bound::kernels];
    if (h.experts->device == fixed.device) {
      home += time;
      continue;
    }
    for (int way = 0; way < 2; ++way) time += transfer(rate, step.rows);  // there and back, a chain cut at each
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
    time[Bound::gpu_read] +=
        cold.distinct * (layer.cold_bytes + layer.operations) / (gpu.read * gpu.reads.at(Format::bf16));
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
      Time branch;
      branch[Bound::handoff] = link.handoff_us * (step.decode ? any : kCopyHandoffs);
      // decode: a record of bf16 rows, results in cells of six values and 16 bytes; extend: f32 up and down
      branch[Bound::pcie] = step.decode ? any * step.rows * hidden * (2 + 16.0 / 6) / link.handoff
                                        : step.rows * hidden * 8 / std::max(link.pcie, 1.0);
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

std::size_t CostModel::Impl::moe_index(std::uint32_t module) const {
  for (std::size_t i = 0; i < moe.size(); ++i)
    if (moe[i].module == module) return i;
  return moe.size();
}

Expected<double> CostModel::Impl::expert_bytes(const HotExperts& hot) const {
  const Module& module = shapes.modules[hot.module];
  KTC_ASSIGN_OR_RETURN(const std::uint64_t bank,
                       weight_bytes(shapes, module, {hot.weights, hot.group, hot.weights, !is_cpu(hot.device)}));
  const auto& desc = std::get<models::ExpertsDesc>(module.attributes);
  return static_cast<double>(bank) / std::max(desc.experts, 1u);
}

Expected<StepCost> CostModel::Impl::cost(const Step& step, const std::vector<HotExperts>& hot) const {
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
  cost.bound = static_cast<Bound>(
      std::max_element(cost.critical.begin(), cost.critical.end()) - cost.critical.begin());
  cost.cold_experts = moe.empty() ? 0 : line.cold / static_cast<double>(moe.size());
  cost.hit_rate = line.pairs > 0 ? line.hot_pairs / line.pairs : 0;
  return cost;
}

}  // namespace ktc::placement
