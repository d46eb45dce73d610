// What holds for every step whatever its op: kind, device, views, workspace, and which outputs may lie on inputs.
#include <fmt/format.h>

#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

Status check_kind(const EntrySite& site, std::size_t index) {
  const StepT& step = *site.entry.steps[index];
  if (!is_member(step.kind))
    return wrong(site.place(index), "kind", number(static_cast<std::uint64_t>(step.kind)), "a StepKind");
  const DeviceT& device = *site.plan.devices[step.device];
  const bool legal = step.kind == StepKind::compute  ? device.kind == DeviceKind::cpu
                     : step.kind == StepKind::launch ? device.kind == DeviceKind::cuda
                                                     : false;
  if (legal) return {};
  return wrong(site.place(index), "kind", fmt::format("{} on {}", EnumNameStepKind(step.kind), shown(device.name)),
               "compute on a cpu or launch on a cuda device");
}

Status check_view(const EntrySite& site, std::size_t index, const char* list, std::size_t operand, const View& view) {
  const auto where = [&] { return fmt::format("{}: {}[{}]", site.place(index), list, operand); };
  if (view.buffer() >= site.entry.buffers.size())
    return check_index(where(), "buffer", view.buffer(), site.entry.buffers.size(), "buffers");
  const BufferT& buffer = *site.entry.buffers[view.buffer()];
  if (buffer.symbol == Symbol::workspace)
    return wrong(where(), "buffer", shown(buffer.name) + ", a workspace", "a buffer of rows");
  if (buffer.device != site.entry.steps[index]->device)
    return wrong(where(), "device of " + shown(buffer.name), shown(site.plan.devices[buffer.device]->name),
                 "the step's, " + shown(site.plan.devices[site.entry.steps[index]->device]->name));
  const auto end = sum(view.column(), view.columns());
  if (view.columns() == 0 || !end || *end > buffer.columns)
    return wrong(where(), "columns of " + shown(buffer.name),
                 fmt::format("{} from {} on", view.columns(), view.column()),
                 fmt::format("at least 1, inside its {}", buffer.columns));
  return {};
}

bool same(const View& a, const View& b) {
  return a.buffer() == b.buffer() && a.column() == b.column() && a.columns() == b.columns();
}
bool meet(const View& a, const View& b) {  // both checked
  return a.buffer() == b.buffer() && a.column() < b.column() + b.columns() && b.column() < a.column() + a.columns();
}

// Kernels cut rows and columns among threads: an output on an input would be read half written. A norm and a sum read
// their first operand's element before they write it.
Status check_aliasing(const EntrySite& site, std::size_t index) {
  const StepT& step = *site.entry.steps[index];
  const bool in_place = step.op.type == Op::NormOp || step.op.type == Op::AddOp;
  for (std::size_t o = 0; o < step.outputs.size(); ++o) {
    const View& output = step.outputs[o];
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      if (!meet(output, step.inputs[i]) || (in_place && i == 0 && same(output, step.inputs[i]))) continue;
      return wrong(site.place(index), fmt::format("outputs[{}]", o), fmt::format("it on inputs[{}]", i),
                   in_place ? "a range of its own, or exactly inputs[0]" : "a range of its own");
    }
    for (std::size_t other = 0; other < o; ++other)
      if (meet(output, step.outputs[other]))
        return wrong(site.place(index), fmt::format("outputs[{}]", o), fmt::format("it on outputs[{}]", other),
                     "a range of its own");
    const BufferRole role = site.entry.buffers[output.buffer()]->role;
    const bool input = role == BufferRole::ids || role == BufferRole::positions || role == BufferRole::output_rows ||
                       (role == BufferRole::logits && site.entry.kind == EntryKind::sample);
    if (input)
      return wrong(site.place(index), fmt::format("outputs[{}]", o),
                   fmt::format("{}, an input of the entry", shown(site.entry.buffers[output.buffer()]->name)),
                   "a buffer that steps may write");
  }
  return {};
}

}  // namespace

Status verify_step(const EntrySite& site, std::size_t index) {
  const StepT& step = *site.entry.steps[index];
  if (step.name.empty()) return wrong(site.place(index), "name", "nothing", "a name");
  KTC_RETURN_IF_ERROR(check_index(site.place(index), "device", step.device, site.plan.devices.size(), "devices"));
  KTC_RETURN_IF_ERROR(check_kind(site, index));
  const auto format = static_cast<Format>(step.activations);
  if (!format_serves(format, FormatKind::activation))
    return wrong(site.place(index), "activations",
                 is_valid(format) ? std::string(to_string(format)) : number(std::uint64_t{step.activations}),
                 "one of " + list_formats(FormatKind::activation));
  // AddOp takes any number of inputs; nothing takes thousands, and the check of aliasing is quadratic
  constexpr std::size_t kMostOperands = 64;
  if (step.inputs.size() > kMostOperands || step.outputs.size() > kMostOperands)
    return wrong(site.place(index), "operands",
                 fmt::format("{} inputs, {} outputs", step.inputs.size(), step.outputs.size()),
                 fmt::format("at most {} of each", kMostOperands));
  for (std::size_t i = 0; i < step.inputs.size(); ++i)
    KTC_RETURN_IF_ERROR(check_view(site, index, "inputs", i, step.inputs[i]));
  for (std::size_t i = 0; i < step.outputs.size(); ++i)
    KTC_RETURN_IF_ERROR(check_view(site, index, "outputs", i, step.outputs[i]));
  if (step.workspace != kNone) {
    KTC_RETURN_IF_ERROR(
        check_index(site.place(index), "workspace", step.workspace, site.entry.buffers.size(), "buffers"));
    const BufferT& buffer = *site.entry.buffers[step.workspace];
    if (buffer.symbol != Symbol::workspace || buffer.device != step.device)
      return wrong(site.place(index), "workspace", shown(buffer.name),
                   "a buffer of role workspace on the step's device");
  }
  return check_aliasing(site, index);
}

}  // namespace ktc::plan::detail
