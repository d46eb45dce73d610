#include "runtime/exec/hybrid_waits.h"

#include <algorithm>
#include <map>

namespace ktc::exec {

using planfb::StepKind;

namespace {

// Bytes [begin, end) of a device's arena.
struct Range {
  std::uint32_t device = 0;
  std::uint64_t begin = 0, end = 0;
};
using Ranges = std::vector<Range>;

Range range_of(const planfb::EntryT& entry, std::uint32_t b) {
  const planfb::BufferT& buffer = *entry.buffers[b];
  return {buffer.device, buffer.offset, buffer.offset + buffer.bytes};
}
Ranges ranges(const planfb::EntryT& entry, const std::vector<planfb::View>& views) {
  Ranges all;
  for (const planfb::View& view : views) all.push_back(range_of(entry, view.buffer()));
  return all;
}
bool meet(const Ranges& a, const Ranges& b) {
  for (const Range& x : a)
    for (const Range& y : b)
      if (x.device == y.device && x.begin < y.end && y.begin < x.end) return true;
  return false;
}

// One that was queued in front of the steps that are looked at.
struct Copy {
  std::uint32_t index = 0, gpu = 0;  // in HybridProgram::copies; whose stream does it
  bool up = false;                   // to the CPU
  Ranges from, to;

  bool concerns(bool of_cpu, const Ranges& reads, const Ranges& writes) const {
    if (!of_cpu) return up && meet(writes, from);
    return meet(writes, up ? to : from) || (up && meet(reads, to));
  }
};

}  // namespace

Status find_waits(const planfb::EntryT& entry, std::vector<Gpu>& gpus, HybridProgram& program) {
  if (program.bounds.decode || !program.streams.empty()) return {};
  // where values go between GPUs, their streams wait for each other, and all is kept in the order of the list
  if (std::any_of(program.copies.begin(), program.copies.end(), [](const CopyStep& copy) { return copy.between_gpus(); })) return {};
  program.waits_by_copy = true;
  std::vector<Copy> copies;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> done;  // by who waits, gpu: so many of `copies` are known to be done
  for (HybridStep& step : program.steps) {
    if (step.step == plan::kNone) continue;
    const planfb::StepT& from = *entry.steps[step.step];
    if (step.kind == StepKind::copy) {
      CopyStep& copy = program.copies[step.at];
      const bool up = copy.from_gpu != plan::kNone;
      const std::uint32_t gpu = copy.gpu();
      KTC_ASSIGN_OR_RETURN(copy.done, gpus[gpu].device->create_event());
      copies.push_back({step.at, gpu, up, ranges(entry, from.inputs), ranges(entry, from.outputs)});
      continue;
    }
    const bool of_cpu = step.kind == StepKind::compute;
    const Ranges reads = ranges(entry, from.inputs);
    Ranges writes = ranges(entry, from.outputs);
    if (from.workspace != plan::kNone) writes.push_back(range_of(entry, from.workspace));
    for (std::uint32_t g = 0; g < gpus.size(); ++g) {
      if (!of_cpu && step.gpu != g) continue;
      std::size_t& known = done[{of_cpu ? plan::kNone : g, g}];
      for (std::size_t c = copies.size(); c-- > known;) {
        if (copies[c].gpu != g || !copies[c].concerns(of_cpu, reads, writes)) continue;
        step.waits.push_back(copies[c].index);
        known = c + 1;
        break;
      }
    }
  }
  return {};
}

}  // namespace ktc::exec
