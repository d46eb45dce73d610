// Steps that are one launch: what their kernels rest on holds, whoever wrote the plan.
#include <fmt/format.h>

#include <map>
#include <set>

#include "runtime/formats/launch_groups.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

Joinable joinable_of(const StepT& step) {
  switch (step.op.type) {
    case Op::AwaitOp: return Joinable::await;
    case Op::AddNormOp: return Joinable::add_norm;
    case Op::RouteOp: return Joinable::route;
    case Op::PublishOp: return Joinable::publish;
    default: return Joinable::other;
  }
}

bool same(const View& a, const View& b) {
  return a.buffer() == b.buffer() && a.column() == b.column() && a.columns() == b.columns();
}

// Copies are steps of both their devices.
bool takes_part(const EntrySite& site, const StepT& step, std::uint32_t device) {
  if (step.device == device) return true;
  if (step.kind != StepKind::copy) return false;
  return site.entry.buffers[step.inputs[0].buffer()]->device == device ||
         site.entry.buffers[step.outputs[0].buffer()]->device == device;
}

// Indices of steps, in order.
using Members = std::vector<std::size_t>;

Status verify_group(const EntrySite& site, const Members& members) {
  std::vector<Joinable> kinds;
  for (const std::size_t s : members) kinds.push_back(joinable_of(*site.entry.steps[s]));
  if (find_launch_sequence(kinds) == nullptr) {
    std::string found;
    for (const Joinable kind : kinds) found += (found.empty() ? "" : ", ") + std::string(to_string(kind));
    if (found.size() > 100) found = fmt::format("{} steps", kinds.size());
    return wrong(site.place(members.front()), "launch_group", found, "steps that have one kernel together");
  }
  for (std::size_t i = 1; i < members.size(); ++i) {
    const StepT &first = *site.entry.steps[members[i - 1]], &second = *site.entry.steps[members[i]];
    if (second.device != first.device || second.graph != first.graph || first.graph == kNone)
      return wrong(site.place(members[i]), "launch_group", fmt::format("{} across graphs", second.launch_group),
                   "steps of one graph");
    for (std::size_t s = members[i - 1] + 1; s < members[i]; ++s)
      if (takes_part(site, *site.entry.steps[s], second.device))
        return wrong(site.place(members[i]), "launch_group",
                     fmt::format("{} behind step {} of the same device", second.launch_group, s),
                     "steps that follow each other");
    if (!hands_on(kinds[i - 1], kinds[i], first.inputs, first.outputs, second.inputs, same))
      return wrong(
          site.place(members[i]), "launch_group",
          fmt::format("{}, but other operands than what step {} hands on", second.launch_group, members[i - 1]),
          "the operands that their kernel takes");
  }
  return {};
}

}  // namespace

Status verify_launch_groups(const EntrySite& site) {
  std::map<std::uint32_t, Members> groups;
  for (std::size_t s = 0; s < site.entry.steps.size(); ++s) {
    const StepT& step = *site.entry.steps[s];
    if (step.launch_group == kNone) continue;
    if (site.entry.kind != EntryKind::decode || !is_gpu(site.plan, step.device))
      return wrong(site.place(s), "launch_group", number(std::uint64_t{step.launch_group}),
                   "none but on a GPU in an entry of kind decode");
    groups[step.launch_group].push_back(s);
  }
  for (const auto& [group, members] : groups) KTC_RETURN_IF_ERROR(verify_group(site, members));
  return {};
}

}  // namespace ktc::plan::detail
