// Steps between devices: copies, and the hand-off of a layer by record and cells.
#include <fmt/format.h>

#include <map>

#include "runtime/formats/handoff.h"
#include "runtime/plan/step_check.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

// Output i is what input i is.
void same_types(StepCheck& c) {
  for (std::size_t i = 0; i < c.step().inputs.size() && c.ok(); ++i) {
    const BufferT& from = c.buffer(c.input(i));
    c.output_is(i, static_cast<Format>(from.format), from.symbol, c.input(i).columns());
  }
}

void handoff_format(StepCheck& c, std::uint8_t raw) {
  const auto format = static_cast<Format>(raw);
  c.check(format == Format::f32 || format == Format::bf16, "format",
          is_valid(format) ? std::string(to_string(format)) : number(std::uint64_t{raw}), "f32 or bf16");
}

Status copy(const EntrySite& site, std::size_t index) {
  StepCheck c(site, index);
  const std::size_t inputs = c.step().inputs.size();
  if (inputs == 0) c.check(false, "operands", "no inputs", "at least 1");
  if (!c.ok() || !c.operands(inputs, inputs)) return c.take();
  same_types(c);
  return c.take();
}

Status publish(const EntrySite& site, std::size_t index, const PublishOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(3, 3)) return c.take();
  const std::uint64_t columns = c.input(0).columns(), top_k = c.input(1).columns();
  c.input_is(0, Format::f32, Symbol::tokens, columns);
  c.input_is(1, Format::i32, Symbol::tokens, top_k);
  c.input_is(2, Format::f32, Symbol::tokens, top_k);
  same_types(c);
  handoff_format(c, op.format);
  const std::size_t experts = site.plan.model->experts;
  c.check(op.slots.empty() || op.slots.size() == experts, "slots", fmt::format("{} of them", op.slots.size()),
          fmt::format("one for each of the model's {} experts", experts));
  c.check(bounded({site.entry.max_tokens, columns, 4}) && bounded({site.entry.max_tokens, top_k, 8}), "size of the record",
          "2^60 bytes or more", "fewer");
  return c.take();
}

Status await(const EntrySite& site, std::size_t index, const AwaitOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(1, 1)) return c.take();
  const std::uint64_t columns = c.input(0).columns();
  c.input_is(0, Format::f32, Symbol::tokens, columns);
  same_types(c);
  handoff_format(c, op.format);
  c.check(bounded({site.entry.max_tokens, columns, 16}).has_value(), "size of the result", "2^60 bytes or more", "fewer");
  return c.take();
}

}  // namespace

Status verify_transfer(const EntrySite& site, std::size_t index) {
  const OpUnion& op = site.entry.steps[index]->op;
  if (op.type == Op::PublishOp) return publish(site, index, *op.AsPublishOp());
  if (op.type == Op::AwaitOp) return await(site, index, *op.AsAwaitOp());
  return copy(site, index);
}

Status verify_handoffs(const EntrySite& site) {
  struct Handoff {
    std::size_t publish = 0;
    bool awaited = false;
  };
  std::map<std::uint32_t, Handoff> records;
  std::map<std::uint32_t, const PublishOpT*> published;  // by buffer of the ids on the CPU
  for (std::size_t s = 0; s < site.entry.steps.size(); ++s) {
    const StepT& step = *site.entry.steps[s];
    if (const PublishOpT* op = step.op.AsPublishOp()) {
      if (!records.emplace(op->record, Handoff{s, false}).second)
        return wrong(site.place(s), "record", fmt::format("{} again", op->record), "one publish step for a record");
      published[step.outputs[1].buffer()] = op;
    } else if (const AwaitOpT* op = step.op.AsAwaitOp()) {
      const auto record = records.find(op->record);
      if (record == records.end() || record->second.awaited)
        return wrong(site.place(s), "record", fmt::format("{}, {}", op->record, record == records.end() ? "which no earlier step publishes" : "which was awaited"),
                     "one await step behind the publish step of its record");
      const StepT& from = *site.entry.steps[record->second.publish];
      if (from.device != step.device || from.inputs[0].columns() != step.inputs[0].columns())
        return wrong(site.place(s), "record", fmt::format("{} of another device or width", op->record),
                     "the device and columns of its publish step");
      record->second.awaited = true;
    } else if (const ExpertsOpT* experts = step.op.AsExpertsOp(); experts != nullptr && step.kind == StepKind::compute) {
      const auto record = published.find(step.inputs[1].buffer());
      if (record != published.end() && record->second->slots != experts->slots)
        return wrong(site.place(s), "slots", "others than its publish step's", "equal ones: what is published is counted by them");
    }
  }
  std::uint32_t next = 0;
  for (const auto& [number, record] : records) {
    if (!record.awaited)
      return wrong(site.place(record.publish), "record", fmt::format("{}, which no step awaits", number), "one await step");
    if (number != next++) return wrong(site.place(record.publish), "record", fmt::format("{}", number), fmt::format("{}: they count from 0", next - 1));
  }
  return {};
}

Status verify_graphs(const EntrySite& site) {
  const auto& graphs = site.entry.graphs;
  std::vector<std::size_t> steps(graphs.size(), 0);
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    const std::string place = site.place() + ": " + item("graphs", g, graphs[g]->name);
    if (graphs[g]->name.empty()) return wrong(place, "name", "nothing", "a name");
    KTC_RETURN_IF_ERROR(check_index(place, "device", graphs[g]->device, site.plan.devices.size(), "devices"));
    if (!is_gpu(site.plan, graphs[g]->device))
      return wrong(place, "device", shown(site.plan.devices[graphs[g]->device]->name), "a cuda device");
  }
  std::map<std::uint32_t, std::uint32_t> current;  // device -> graph of its last step, kNone
  for (std::size_t s = 0; s < site.entry.steps.size(); ++s) {
    const StepT& step = *site.entry.steps[s];
    std::uint32_t& last = current.emplace(step.device, kNone).first->second;
    if (step.graph != kNone) {
      KTC_RETURN_IF_ERROR(check_index(site.place(s), "graph", step.graph, graphs.size(), "graphs"));
      if (graphs[step.graph]->device != step.device)
        return wrong(site.place(s), "graph", shown(graphs[step.graph]->name) + " of another device", "one of the step's device");
      // the CPU may have to do something between a copy and the steps around it
      if (step.kind == StepKind::copy)
        return wrong(site.place(s), "graph", shown(graphs[step.graph]->name), "none for a copy");
      if (step.graph != last && steps[step.graph] > 0)
        return wrong(site.place(s), "graph", shown(graphs[step.graph]->name) + " again, behind other steps of the device",
                     "the steps of a graph one behind the other");
      ++steps[step.graph];
    }
    last = step.graph;
  }
  for (std::size_t g = 0; g < graphs.size(); ++g)
    if (steps[g] == 0) return wrong(site.place() + ": " + item("graphs", g, graphs[g]->name), "steps", "none", "at least 1");
  return verify_launch_groups(site);
}

}  // namespace ktc::plan::detail
