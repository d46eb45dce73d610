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
  const bool gpu = device.kind == DeviceKind::cuda;
  const bool legal = step.kind == StepKind::compute ? !gpu : step.kind != StepKind::graph && gpu;
  if (!legal)
    return wrong(site.place(index), "kind", fmt::format("{} on {}", EnumNameStepKind(step.kind), shown(device.name)),
                 "compute on a cpu or launch on a cuda device");
  const StepKind expected = step.op.type == Op::CopyOp      ? StepKind::copy
                            : step.op.type == Op::PublishOp ? StepKind::publish
                            : step.op.type == Op::AwaitOp   ? StepKind::await
                            : gpu                           ? StepKind::launch
                                                            : StepKind::compute;
  if (step.kind != expected)
    return wrong(site.place(index), "kind", fmt::format("{} of {}", EnumNameStepKind(step.kind), EnumNameOp(step.op.type)),
                 EnumNameStepKind(expected));
  if ((step.kind == StepKind::publish || step.kind == StepKind::await) && site.entry.kind != EntryKind::decode)
    return wrong(site.place(index), "kind",
                 fmt::format("{} in an entry of kind {}", EnumNameStepKind(step.kind), EnumNameEntryKind(site.entry.kind)),
                 "a hand-off in decode entries alone: copy");
  return {};
}

// Steps touch values of their own device; those between devices have one side elsewhere.
Status check_device(const EntrySite& site, std::size_t index, const std::string& where, bool output, std::size_t operand,
                    const BufferT& buffer) {
  const StepT& step = *site.entry.steps[index];
  const auto name = [&](std::uint32_t device) { return shown(site.plan.devices[device]->name); };
  std::uint32_t expected = step.device;
  if (step.kind == StepKind::copy) {
    const auto& list = output ? step.outputs : step.inputs;
    expected = operand == 0 ? buffer.device : site.entry.buffers[list[0].buffer()]->device;  // one device on each side
    if (operand == 0 && output) {
      const std::uint32_t from = step.inputs.empty() ? buffer.device : site.entry.buffers[step.inputs[0].buffer()]->device;
      if (from == buffer.device || (from != step.device && buffer.device != step.device))
        return wrong(where, "device of " + shown(buffer.name), name(buffer.device),
                     fmt::format("another than the inputs', {}, one of them the step's, {}", name(from), name(step.device)));
    }
  } else if (step.kind == StepKind::publish ? output : step.kind == StepKind::await && !output) {
    if (!is_gpu(site.plan, buffer.device)) return {};
    return wrong(where, "device of " + shown(buffer.name), name(buffer.device), "a cpu");
  }
  if (buffer.device == expected) return {};
  return wrong(where, "device of " + shown(buffer.name), name(buffer.device),
               (step.kind == StepKind::copy ? "that of the first, " : "the step's, ") + name(expected));
}

Status check_view(const EntrySite& site, std::size_t index, const char* list, std::size_t operand, const View& view) {
  const auto where = [&] { return fmt::format("{}: {}[{}]", site.place(index), list, operand); };
  if (view.buffer() >= site.entry.buffers.size())
    return check_index(where(), "buffer", view.buffer(), site.entry.buffers.size(), "buffers");
  const BufferT& buffer = *site.entry.buffers[view.buffer()];
  if (buffer.symbol == Symbol::workspace)
    return wrong(where(), "buffer", shown(buffer.name) + ", a workspace", "a buffer of rows");
  KTC_RETURN_IF_ERROR(check_device(site, index, where(), list[0] == 'o', operand, buffer));
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
  const bool in_place = step.op.type == Op::NormOp || step.op.type == Op::AddOp || step.op.type == Op::AddNormOp;
  for (std::size_t o = 0; o < step.outputs.size(); ++o) {
    const View& output = step.outputs[o];
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      if (!meet(output, step.inputs[i]) || (in_place && i == 0 && o == 0 && same(output, step.inputs[i]))) continue;
      return wrong(site.place(index), fmt::format("outputs[{}]", o), fmt::format("it on inputs[{}]", i),
                   in_place ? "a range of its own, or exactly inputs[0]" : "a range of its own");
    }
    for (std::size_t other = 0; other < o; ++other)
      if (meet(output, step.outputs[other]))
        return wrong(site.place(index), fmt::format("outputs[{}]", o), fmt::format("it on outputs[{}]", other),
                     "a range of its own");
    const BufferRole role = site.entry.buffers[output.buffer()]->role;
    if (is_input(site, role))
      return wrong(site.place(index), fmt::format("outputs[{}]", o),
                   fmt::format("{}, an input of the entry", shown(site.entry.buffers[output.buffer()]->name)),
                   "a buffer that steps may write");
  }
  return {};
}

}  // namespace

bool is_input(const EntrySite& site, BufferRole role) {
  if (site.entry.kind == EntryKind::sample) return role == BufferRole::logits;
  return role == BufferRole::ids || role == BufferRole::positions || role == BufferRole::output_rows ||
         role == BufferRole::deferred;
}

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
  if (step.kind != StepKind::compute && format == Format::int8)
    return wrong(site.place(index), "activations", "int8", "f32 or bf16 on a cuda device");
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
