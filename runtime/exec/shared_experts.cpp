#include "runtime/exec/shared_experts.h"

#include <algorithm>

namespace ktc::exec {
namespace {

std::uint64_t table_bytes(const planfb::PlanT& plan) { return (plan.model->experts * sizeof(std::int32_t) + 63) / 64 * 64; }

}  // namespace

SharedSlots shared_slots(const planfb::PlanT& plan) {
  SharedSlots slots;
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps)
      if (const auto* op = step->op.AsExpertsOp(); op != nullptr && op->share != nullptr && !op->stream)
        slots[op].assign(plan.model->experts, -1);
  return slots;
}

const planfb::StepT& sharing_step(const planfb::EntryT& entry, const planfb::StepT& streams) {
  const planfb::ExpertsOpT& op = *streams.op.AsExpertsOp();
  for (const auto& step : entry.steps) {
    const auto* other = step->op.AsExpertsOp();
    if (other != nullptr && other->share != nullptr && !other->stream && other->w_gate_up == op.w_gate_up) return *step;
  }
  return streams;  // never
}

ExpertShare share_of(const planfb::ExpertShareT& s) {
  return {s.ahead_ns, s.ahead_row_ns, s.copy_ns, s.gpu_ns, s.gpu_row_ns, s.cpu_ns, s.cpu_row_ns, s.values_ns, s.values_row_ns};
}

std::uint64_t shared_table_bytes(const planfb::PlanT& plan) { return shared_slots(plan).size() * table_bytes(plan); }

void SharedExpertsStep::decide(std::uint32_t rows) {
  std::fill(chosen.begin(), chosen.end(), 0u);
  pairs = 0;
  for (std::uint32_t r = 0; r < rows; ++r) {
    const std::int32_t* of_row = ids.data + r * ids.stride;
    for (std::uint32_t k = 0; k < ids.columns; ++k) {
      const std::int32_t id = of_row[k];
      if (id < 0 || static_cast<std::uint32_t>(id) >= experts) continue;
      const std::int32_t matrix = slots == nullptr ? id : slots[id];
      if (matrix < 0 || static_cast<std::size_t>(matrix) >= chosen.size()) continue;
      ++chosen[static_cast<std::size_t>(matrix)];
      ++pairs;
    }
  }
  result = share_experts(rates, chosen, rows, on_cpu);
  write_slots();
}

void SharedExpertsStep::decide_nothing() {
  std::fill(on_cpu.begin(), on_cpu.end(), std::uint8_t{0});
  std::fill(chosen.begin(), chosen.end(), 1u);  // all may be
  result = {};
  pairs = 0;
  write_slots();
}

void SharedExpertsStep::write_slots() {
  for (std::uint32_t e = 0; e < experts; ++e) {
    const std::int32_t matrix = slots == nullptr ? static_cast<std::int32_t>(e) : slots[e];
    const bool known = matrix >= 0 && static_cast<std::size_t>(matrix) < chosen.size();
    const bool taken = known && on_cpu[static_cast<std::size_t>(matrix)] != 0;
    cpu_slots[e] = taken ? matrix : -1;
    to_gpu[e] = known && !taken ? matrix : -1;
  }
}

}  // namespace ktc::exec
