// Experts that a GPU and the CPU share in a step: what streams them has exactly one other op that takes the rest, over the same choice.
#include <fmt/format.h>

#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

bool same_view(const View& a, const View& b) {
  return a.buffer() == b.buffer() && a.column() == b.column() && a.columns() == b.columns();
}

bool same_rates(const ExpertShareT& a, const ExpertShareT& b) {
  return a.ahead_ns == b.ahead_ns && a.ahead_row_ns == b.ahead_row_ns && a.copy_ns == b.copy_ns && a.gpu_ns == b.gpu_ns &&
         a.gpu_row_ns == b.gpu_row_ns && a.cpu_ns == b.cpu_ns && a.cpu_row_ns == b.cpu_row_ns && a.values_ns == b.values_ns &&
         a.values_row_ns == b.values_row_ns;
}

bool same_bank(const ExpertsOpT& a, const ExpertsOpT& b) {
  return a.w_gate_up == b.w_gate_up && a.w_down == b.w_down && a.layer == b.layer && a.slots == b.slots && same_rates(*a.share, *b.share);
}

// Whether a copy in front of `before` makes `to` of `from`.
bool copied(const EntryT& entry, std::size_t before, const View& from, const View& to) {
  for (std::size_t s = 0; s < before; ++s) {
    const StepT& step = *entry.steps[s];
    if (step.kind != StepKind::copy) continue;
    for (std::size_t i = 0; i < step.inputs.size() && i < step.outputs.size(); ++i)
      if (same_view(step.inputs[i], from) && same_view(step.outputs[i], to)) return true;
  }
  return false;
}

}  // namespace

Status verify_share(const EntrySite& site) {
  const EntryT& entry = site.entry;
  std::vector<bool> paired(entry.steps.size(), false);
  const auto op_of = [&](std::size_t s) {
    const ExpertsOpT* op = entry.steps[s]->op.AsExpertsOp();
    return op != nullptr && op->share != nullptr ? op : nullptr;
  };
  for (std::size_t s = 0; s < entry.steps.size(); ++s) {
    const ExpertsOpT* op = op_of(s);
    if (op == nullptr) continue;
    if (entry.kind != EntryKind::extend) return wrong(site.place(s), "share", EnumNameEntryKind(entry.kind), "an entry of kind extend");
    if (op->part != ExpertsPart::all) return wrong(site.place(s), "share", EnumNameExpertsPart(op->part), "part all");
    if (!op->stream) {
      if (!paired[s]) return wrong(site.place(s), "share", "no step that streams before it", "one over its bank, choice and slots");
      continue;
    }
    for (std::size_t before = 0; before < s; ++before)
      if (const ExpertsOpT* earlier = op_of(before); earlier != nullptr && earlier->stream && earlier->w_gate_up == op->w_gate_up)
        return wrong(site.place(s), "share", "a second one of its bank", "at most one in an entry");
    std::size_t other = s + 1;
    for (; other < entry.steps.size(); ++other) {
      const ExpertsOpT* candidate = op_of(other);
      if (candidate != nullptr && !candidate->stream && entry.steps[other]->device == 0 && !paired[other] && same_bank(*op, *candidate)) break;
    }
    if (other == entry.steps.size())
      return wrong(site.place(s), "share", "no step of the CPU behind it", "one over its bank and slots, with the same rates");
    paired[other] = true;
    for (std::size_t i = 0; i < 3; ++i)
      if (!copied(entry, s, entry.steps[s]->inputs[i], entry.steps[other]->inputs[i]))
        return wrong(site.place(other), fmt::format("inputs[{}]", i), "another value", "a copy of what " + shown(entry.steps[s]->name) + " reads, made before it");
  }
  return {};
}

}  // namespace ktc::plan::detail
