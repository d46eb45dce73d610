// Routed experts: which matrices an op computes with, which pairs of a token are its own, and that no pair is computed by two
// ops or by none because of lateness.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/formats/gpu_stream.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/workspace.h"
#include "runtime/plan/step_check.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

// An expert bank is moved and mapped by pages.
void check_bank(StepCheck& c, std::string_view field, const WeightT* weight) {
  if (weight == nullptr || !c.ok()) return;
  const WeightT& storage = storage_of(c.site().plan, *weight);
  c.check(storage.source != WeightSource::file || storage.offset % 4096 == 0,
          fmt::format("offset of {} {}", field, shown(storage.name)), number(storage.offset),
          "a multiple of 4096 for experts");
}

// Which matrix has which expert; the bank may have matrices to spare.
void check_slots(StepCheck& c, const ExpertsOpT& op, std::uint64_t matrices) {
  const std::uint64_t experts = c.site().plan.model->experts;
  if (op.slots.empty() || !c.ok()) return;
  c.check(op.slots.size() == experts, "slots", fmt::format("{} of them", op.slots.size()),
          fmt::format("one for each of the model's {} experts", experts));
  if (!c.ok()) return;
  std::vector<bool> taken(std::min(matrices, experts), false);
  bool any = false;
  for (std::size_t e = 0; e < op.slots.size() && c.ok(); ++e) {
    const std::int64_t slot = op.slots[e];
    if (slot == -1) continue;
    any = true;
    c.check(slot >= 0 && static_cast<std::uint64_t>(slot) < matrices, fmt::format("slots[{}]", e), fmt::format("{}", slot),
            fmt::format("-1 or below the bank's {}", matrices));
    if (!c.ok()) return;
    if (static_cast<std::uint64_t>(slot) >= taken.size()) continue;  // unreachable by two: more matrices than experts
    c.check(!taken[slot], fmt::format("slots[{}]", e), fmt::format("{}, which another expert has", slot),
            "every matrix for one expert");
    taken[slot] = true;
  }
  c.check(any, "slots", "no expert", "at least 1");
}

void check_late(StepCheck& c, const ExpertsOpT& op, std::uint64_t top_k) {
  c.check(is_member(op.part), "part", number(static_cast<std::uint64_t>(op.part)), "all, in_time or late");
  c.check((op.part == ExpertsPart::all) == (op.late == 0), "late",
          c.ok() ? fmt::format("{} with part {}", op.late, EnumNameExpertsPart(op.part)) : "", "0 with part all, and there alone");
  c.check(op.late <= top_k, "late", number(std::uint64_t{op.late}), fmt::format("at most {}, of a token", top_k));
  c.check(op.late > 0 || !op.late_among_all, "late_among_all", "true", "false where nothing is late");
}

// The step's bank: on its device, or streamed from the CPU, which comes first.
const WeightT* bank_weight(StepCheck& c, std::string_view field, std::uint32_t index, bool stream) {
  const WeightT* weight = c.weight_on(field, index, stream ? 0 : c.step().device);
  check_bank(c, field, weight);
  return c.ok() ? weight : nullptr;
}

std::optional<std::uint64_t> gpu_bytes(const StepCheck& c, std::uint64_t rows, std::uint64_t top_k,
                                       std::uint64_t hidden, std::uint64_t intermediate) {
  const std::uint64_t experts = c.site().plan.model->experts;
  const auto width = sum(hidden, 63), inner = sum(intermediate, 63);
  if (!width || !inner || !bounded({rows, top_k, *width, 4}) || !bounded({rows, top_k, *inner, 4})) return std::nullopt;
  return gpu_experts_workspace(static_cast<Format>(c.step().activations), rows, top_k, hidden, intermediate, experts)
      .total();
}

std::optional<std::uint64_t> panel_bytes(const StepCheck& c, const ExpertsOpT& op, std::uint64_t rows, std::uint64_t top_k,
                                         std::uint64_t hidden, std::uint64_t intermediate, std::uint64_t matrices) {
  const bool fits = bounded({rows, top_k, hidden, 64}) && bounded({rows, top_k, intermediate, 64}) &&
                    bounded({matrices, hidden, 64}) && bounded({matrices, intermediate, 64});
  if (!fits) return std::nullopt;
  return panel_experts_workspace(static_cast<Format>(c.step().activations), rows, top_k, hidden, intermediate, matrices,
                                 op.x_granule, op.h_granule, op.tile_rows)
      .total();
}

bool same_view(const View& a, const View& b) {
  return a.buffer() == b.buffer() && a.column() == b.column() && a.columns() == b.columns();
}

// The two ops of one bank that share the pairs of deferred tokens.
bool complete_each_other(const StepT& one, const StepT& other) {
  const ExpertsOpT &a = *one.op.AsExpertsOp(), &b = *other.op.AsExpertsOp();
  if (a.w_gate_up != b.w_gate_up || a.w_down != b.w_down || a.layer != b.layer || a.slots != b.slots || a.late != b.late ||
      a.late_among_all != b.late_among_all || one.device != other.device)
    return false;
  for (std::size_t i = 1; i < one.inputs.size(); ++i)  // ids, weights, deferred
    if (!same_view(one.inputs[i], other.inputs[i])) return false;
  return true;
}

}  // namespace

Status verify_bank(const EntrySite& site, std::size_t index) {
  const ExpertsOpT& op = *site.entry.steps[index]->op.AsExpertsOp();
  StepCheck c(site, index);
  if (!c.operands(op.late > 0 ? 4 : 3, 1)) return c.take();
  const ModelT& model = *site.plan.model;
  const Symbol symbol = c.symbol_of_input(0);
  const std::uint64_t hidden = c.input(0).columns(), top_k = c.input(1).columns();
  c.check(is_member(op.activation), "activation", number(static_cast<std::uint64_t>(op.activation)), "swiglu");
  c.input_is(0, Format::f32, symbol, hidden);
  c.input_is(1, Format::i32, symbol, top_k);
  c.input_is(2, Format::f32, symbol, top_k);
  if (op.late > 0) c.input_has_role(3, BufferRole::deferred);
  if (op.late > 0) c.input_is(3, Format::i32, symbol, 1);
  c.output_is(0, Format::f32, symbol, hidden);
  c.check(op.layer < model.layers, "layer", number(std::uint64_t{op.layer}),
          fmt::format("below the model's {}", model.layers));
  check_late(c, op, top_k);
  c.check(!op.stream || c.on_gpu(), "stream", "true on a cpu", "a bank that is streamed to a cuda device");
  c.check(op.stream == (op.stream_group != 0), "stream_group", number(std::uint64_t{op.stream_group}), op.stream ? "at least 1" : "0 without stream");
  const WeightT* gate_up = bank_weight(c, "w_gate_up", op.w_gate_up, op.stream);
  const std::uint64_t matrices = gate_up == nullptr || op.slots.empty() ? model.experts : gate_up->batch;
  const std::uint64_t intermediate = c.gate_up_is(gate_up, matrices, hidden);
  const WeightT* down = bank_weight(c, "w_down", op.w_down, op.stream);
  c.weight_is("w_down", down, matrices, hidden, intermediate);
  check_slots(c, op, matrices);
  if (c.ok() && op.stream)
    c.check(gpu_stream(static_cast<Format>(down->format), down->group, static_cast<Packing>(down->packing), matrices, hidden, intermediate,
                       op.stream_group)
                .has_value(),
            "stream_group",
            number(std::uint64_t{op.stream_group}), fmt::format("at most the bank's {}, of less than 2^59 bytes", matrices));
  if (!c.ok()) return c.take();
  const bool panels = c.panels({{"w_gate_up", gate_up, true}, {"w_down", down, false}}, op.x_granule, op.h_granule, op.tile_rows,
                               op.stream);
  if (!c.ok()) return c.take();
  const std::uint64_t rows = site.bound(symbol);
  if (c.on_gpu()) {
    c.gpu_workspace(gpu_bytes(c, rows, top_k, hidden, intermediate));
  } else if (panels) {
    c.workspace(panel_bytes(c, op, rows, top_k, hidden, intermediate, matrices));
  } else {
    const bool fits = bounded({rows, top_k, intermediate, 4}) && bounded({rows, top_k, 8}) && bounded({matrices, 4});
    c.workspace(fits ? std::optional(experts_workspace(rows, top_k, intermediate, matrices).total()) : std::nullopt);
  }
  return c.take();
}

Status verify_parts(const EntrySite& site) {
  std::vector<std::size_t> parts;  // steps that compute some pairs of deferred tokens: few, a layer's two behind each other
  for (std::size_t s = 0; s < site.entry.steps.size(); ++s) {
    const ExpertsOpT* op = site.entry.steps[s]->op.AsExpertsOp();
    if (op != nullptr && op->part != ExpertsPart::all) parts.push_back(s);
  }
  std::vector<bool> paired(parts.size(), false);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (paired[i]) continue;
    const StepT& one = *site.entry.steps[parts[i]];
    const ExpertsPart part = one.op.AsExpertsOp()->part;
    std::size_t other = i + 1;
    for (; other < parts.size(); ++other) {
      const StepT& candidate = *site.entry.steps[parts[other]];
      if (!paired[other] && candidate.op.AsExpertsOp()->part != part && complete_each_other(one, candidate)) break;
    }
    if (other == parts.size())
      return wrong(site.place(parts[i]), "part", fmt::format("{} alone", EnumNameExpertsPart(part)),
                   fmt::format("one more step of its bank, ids, weights, slots and device with part {}",
                               EnumNameExpertsPart(part == ExpertsPart::late ? ExpertsPart::in_time : ExpertsPart::late)));
    paired[other] = true;
  }
  return {};
}

}  // namespace ktc::plan::detail
