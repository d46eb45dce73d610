// Experts that change sides while the plan runs: that both sides hold the same values, and that steps start where the table says.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/formats/moving.h"
#include "runtime/plan/verify.h"

namespace ktc::plan {

using namespace planfb;

// Of the largest expert that moves to the device.
static std::uint64_t largest_moving(const PlanT& plan, std::uint32_t device) {
  std::uint64_t most = 0;
  for (const auto& moving : plan.moving) {
    const WeightT &gate_up = *plan.weights[moving->w_cold_gate_up], &down = *plan.weights[moving->w_cold_down];
    if (plan.weights[moving->w_hot_gate_up]->device != device) continue;
    most = std::max(most, SpareExpert{gate_up.bytes / gate_up.batch, down.bytes / down.batch}.bytes());
  }
  return most;
}

std::uint64_t spare_bytes(const PlanT& plan, std::uint32_t device) {
  const std::uint64_t each = largest_moving(plan, device);
  return spare_experts(each) * each;
}

std::uint64_t spare_host_bytes(const PlanT& plan) {
  std::uint64_t all = 0;
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d)
    if (plan.devices[d]->kind == DeviceKind::cuda) all += kStagedExperts * largest_moving(plan, d);
  return all;
}

namespace detail {
namespace {

Status check_pair(const PlanT& plan, const std::string& place, const char* what, std::uint32_t cold, std::uint32_t hot) {
  KTC_RETURN_IF_ERROR(check_index(place, fmt::format("w_cold_{}", what), cold, plan.weights.size(), "weights"));
  KTC_RETURN_IF_ERROR(check_index(place, fmt::format("w_hot_{}", what), hot, plan.weights.size(), "weights"));
  const WeightT &from = *plan.weights[cold], &to = *plan.weights[hot];
  if (plan.devices[from.device]->kind != DeviceKind::cpu)
    return wrong(place, fmt::format("device of w_cold_{}", what), shown(plan.devices[from.device]->name), "the cpu");
  if (!is_gpu(plan, to.device))
    return wrong(place, fmt::format("device of w_hot_{}", what), shown(plan.devices[to.device]->name), "a cuda device");
  const auto text = [](const WeightT& w) {
    return fmt::format("{} group {} [{}, {}]", to_string(static_cast<Format>(w.format)), w.group, w.rows, w.columns);
  };
  if (from.format != to.format || from.group != to.group || from.rows != to.rows || from.columns != to.columns)
    return wrong(place, fmt::format("w_hot_{}", what), text(to), text(from) + " as on the cpu");
  const auto packing = static_cast<Packing>(to.packing);
  const bool rows = static_cast<Packing>(from.packing) == Packing::row_major;
  const bool known = packing == Packing::row_major ? rows || static_cast<Format>(from.format) == Format::bf16
                                                   : packing == Packing::gpu_rows && !rows;
  if (!known)
    return wrong(place, fmt::format("packing of w_hot_{}", what), std::string(to_string(packing)),
                 fmt::format("one that {} is repacked to", to_string(static_cast<Packing>(from.packing))));
  if (from.batch != plan.model->experts)
    return wrong(place, fmt::format("matrices of w_cold_{}", what), number(from.batch), fmt::format("{}, all experts", plan.model->experts));
  return {};
}

// The slots of the CPU's op: expert e is matrix e where it is not hot.
std::vector<std::int32_t> cold_slots(const std::vector<std::int32_t>& hot) {
  std::vector<std::int32_t> slots(hot.size());
  for (std::size_t e = 0; e < hot.size(); ++e) slots[e] = hot[e] < 0 ? static_cast<std::int32_t>(e) : -1;
  return slots;
}

}  // namespace

Status verify_moving(const PlanT& plan) {
  std::map<std::uint32_t, const MovingExpertsT*> of_gate_up;  // either side's
  for (std::size_t i = 0; i < plan.moving.size(); ++i) {
    const MovingExpertsT& m = *plan.moving[i];
    const std::string place = fmt::format("moving[{}]", i);
    if (m.layer >= plan.model->layers) return wrong(place, "layer", number(std::uint64_t{m.layer}), fmt::format("below the model's {}", plan.model->layers));
    if (i > 0 && plan.moving[i - 1]->layer >= m.layer) return wrong(place, "layer", number(std::uint64_t{m.layer}), "ascending ones");
    KTC_RETURN_IF_ERROR(check_pair(plan, place, "gate_up", m.w_cold_gate_up, m.w_hot_gate_up));
    KTC_RETURN_IF_ERROR(check_pair(plan, place, "down", m.w_cold_down, m.w_hot_down));
    const WeightT &gate_up = *plan.weights[m.w_hot_gate_up], &down = *plan.weights[m.w_hot_down];
    if (gate_up.device != down.device || gate_up.batch != down.batch)
      return wrong(place, "w_hot_down", fmt::format("{} matrices on {}", down.batch, shown(plan.devices[down.device]->name)),
                   fmt::format("{} on {}, as of w_hot_gate_up", gate_up.batch, shown(plan.devices[gate_up.device]->name)));
    if (m.slots.size() != plan.model->experts)
      return wrong(place, "slots", fmt::format("{} of them", m.slots.size()), fmt::format("one for each of {} experts", plan.model->experts));
    std::vector<bool> taken(m.slots.size(), false);
    std::uint64_t hot = 0;
    for (std::size_t e = 0; e < m.slots.size(); ++e) {
      const std::int64_t slot = m.slots[e];
      if (slot == -1) continue;
      if (slot < 0 || static_cast<std::uint64_t>(slot) >= std::min<std::uint64_t>(gate_up.batch, taken.size()) || taken[slot])
        return wrong(place, fmt::format("slots[{}]", e), fmt::format("{}", slot), fmt::format("-1 or one of {} matrices that no other expert has", gate_up.batch));
      taken[slot] = true;
      ++hot;
    }
    if (hot != gate_up.batch || hot == m.slots.size())
      return wrong(place, "slots", fmt::format("{} hot experts", hot), fmt::format("{}, one for each matrix, and some cold ones", gate_up.batch));
    for (const std::uint32_t w : {m.w_cold_gate_up, m.w_hot_gate_up})
      if (!of_gate_up.emplace(w, &m).second) return wrong(place, "weights", shown(plan.weights[w]->name), "those of no other layer");
  }
  if ((plan.update_every_tokens == 0) != plan.moving.empty())
    return wrong("plan", "update_every_tokens", number(std::uint64_t{plan.update_every_tokens}),
                 plan.moving.empty() ? "0 where nothing moves" : "at least 1 where experts move");

  for (const auto& entry : plan.entries) {
    for (std::size_t s = 0; s < entry->steps.size(); ++s) {
      const ExpertsOpT* op = entry->steps[s]->op.AsExpertsOp();
      const auto found = op == nullptr ? of_gate_up.end() : of_gate_up.find(op->w_gate_up);
      if (found == of_gate_up.end()) continue;
      const MovingExpertsT& m = *found->second;
      const bool hot = op->w_gate_up == m.w_hot_gate_up;
      const std::string place = fmt::format("entry {}: step {} {}", shown(entry->name), s, shown(entry->steps[s]->name));
      if (op->w_down != (hot ? m.w_hot_down : m.w_cold_down)) return wrong(place, "w_down", number(std::uint64_t{op->w_down}), "that of moving");
      if (op->layer != m.layer) return wrong(place, "layer", number(std::uint64_t{op->layer}), fmt::format("{}, as moving says", m.layer));
      if (op->slots != (hot ? m.slots : cold_slots(m.slots))) return wrong(place, "slots", "others than those of moving", "where experts are at first");
    }
  }
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d) {
    std::uint64_t lines = 0;
    for (const auto& line : plan.account)
      if (line->category == "spare" && line->device == d) lines += line->bytes;
    const std::uint64_t spare = is_gpu(plan, d) ? spare_bytes(plan, d) : d == 0 ? spare_host_bytes(plan) : 0;
    if (lines != spare)
      return wrong("account of " + shown(plan.devices[d]->name), "category \"spare\"", bytes_text(lines), bytes_text(spare) + ", for experts that move");
  }
  return {};
}

}  // namespace detail
}  // namespace ktc::plan
