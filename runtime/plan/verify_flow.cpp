// Data flow in one entry: nothing is read before it was written, caches are appended once per layer, expert ids come
// from a router of the same experts, and live ranges that meet do not share bytes of the arena.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

bool is_output(const EntrySite& site, BufferRole role) {
  return role == (site.entry.kind == EntryKind::sample ? BufferRole::next_ids : BufferRole::logits);
}

// Columns that were written, as disjoint ranges: begin -> end.
class Columns {
 public:
  void add(std::uint64_t begin, std::uint64_t end) {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second >= begin) begin = (--at)->first;
    while (at != ranges_.end() && at->first <= end) {
      end = std::max(end, at->second);
      at = ranges_.erase(at);
    }
    ranges_[begin] = end;
  }
  bool covers(std::uint64_t begin, std::uint64_t end) const {
    auto at = ranges_.upper_bound(begin);
    return at != ranges_.begin() && std::prev(at)->second >= end;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;
};

struct Routed {  // what a RouteOp wrote last into a buffer
  View ids;
  std::uint32_t experts = 0;
};

class Flow {
 public:
  explicit Flow(const EntrySite& site)
      : site_(site), written_(site.entry.buffers.size()), routed_(site.entry.buffers.size()) {
    for (std::size_t b = 0; b < written_.size(); ++b)
      if (is_input(site, site.entry.buffers[b]->role)) written_[b].add(0, site.entry.buffers[b]->columns);
  }

  Status run() {
    for (std::size_t s = 0; s < site_.entry.steps.size(); ++s) KTC_RETURN_IF_ERROR(step(s));
    for (std::size_t b = 0; b < written_.size(); ++b) {
      const BufferT& buffer = *site_.entry.buffers[b];
      if (is_output(site_, buffer.role) && !written_[b].covers(0, buffer.columns))
        return wrong(site_.place(), "output " + shown(buffer.name), "columns that no step writes", "all written");
    }
    return {};
  }

 private:
  Status step(std::size_t index) {
    const StepT& step = *site_.entry.steps[index];
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const View& view = step.inputs[i];
      if (!written_[view.buffer()].covers(view.column(), view.column() + view.columns()))
        return wrong(
            site_.place(index), fmt::format("inputs[{}]", i),
            fmt::format("columns of {} that no step has written", shown(site_.entry.buffers[view.buffer()]->name)),
            "a value of an earlier step or an input");
    }
    KTC_RETURN_IF_ERROR(check_cache(index));
    KTC_RETURN_IF_ERROR(check_ids(index));
    for (const View& view : step.outputs) {
      written_[view.buffer()].add(view.column(), view.column() + view.columns());
      routed_[view.buffer()] = Routed();
    }
    if (step.kind == StepKind::copy || step.kind == StepKind::publish) {
      for (std::size_t i = 0; i < step.outputs.size(); ++i) {  // a router's choice stays one on another device
        const View &from = step.inputs[i], &to = step.outputs[i];
        const Routed routed = routed_[from.buffer()];
        if (routed.experts != 0 && routed.ids.column() == from.column() && routed.ids.columns() == from.columns())
          routed_[to.buffer()] = {to, routed.experts};
      }
    }
    if (const RouteOpT* op = step.op.AsRouteOp()) routed_[step.outputs[0].buffer()] = {step.outputs[0], op->experts};
    return {};
  }

  // Two appends to one layer would overwrite each other, but for the halves of a step: the second one attends what the first one
  // appended.
  Status check_cache(std::size_t index) {
    const OpUnion& op = site_.entry.steps[index]->op;
    std::pair<std::uint32_t, std::uint32_t> layer;
    if (const GqaOpT* gqa = op.AsGqaOp())
      layer = {gqa->cache, gqa->cache_layer};
    else if (const MlaOpT* mla = op.AsMlaOp())
      layer = {mla->cache, mla->cache_layer};
    else
      return {};
    const Symbol symbol = site_.entry.buffers[site_.entry.steps[index]->outputs[0].buffer()]->symbol;
    if (symbol == Symbol::second_half && !appended_.contains({layer, Symbol::first_half}))
      return wrong(site_.place(index), "cache_layer", fmt::format("{} of a second half", layer.second), "it behind that of the first half");
    if (appended_.insert({layer, symbol}).second) return {};
    return wrong(site_.place(index), "cache_layer", fmt::format("{}, which an earlier step appends to", layer.second),
                 "each layer of a cache once in an entry");
  }

  // Ids are indices into the bank: only a router vouches for them.
  Status check_ids(std::size_t index) {
    const StepT& step = *site_.entry.steps[index];
    if (step.op.type != Op::ExpertsOp) return {};
    const View& ids = step.inputs[1];
    const Routed& routed = routed_[ids.buffer()];
    if (routed.experts == site_.plan.model->experts && routed.ids.column() == ids.column() &&
        routed.ids.columns() == ids.columns())
      return {};
    return wrong(site_.place(index), "inputs[1]",
                 shown(site_.entry.buffers[ids.buffer()]->name) + ", not as a router wrote it",
                 "the expert ids of a RouteOp");
  }

  const EntrySite& site_;
  std::vector<Columns> written_;
  std::vector<Routed> routed_;
  std::set<std::pair<std::pair<std::uint32_t, std::uint32_t>, Symbol>> appended_;  // (cache, layer), part of the step
};

// Steps [first, last] during which a buffer's bytes are its own. Step numbers count from 1: the executor writes inputs
// at 0 and reads outputs after the last step. Scratch is live in each step of its own. What a step touches on its device is taken for
// as long as its launch group is at work.
struct Segment {
  std::size_t first, last;
  std::size_t buffer;
};

std::vector<Segment> segments_of(const EntrySite& site) {
  const std::size_t end = site.entry.steps.size() + 1;
  constexpr std::size_t kUnused = SIZE_MAX;
  std::vector<Segment> live;
  std::vector<Segment> values(site.entry.buffers.size(), {kUnused, 0, 0});
  for (std::size_t b = 0; b < values.size(); ++b) {
    const BufferRole role = site.entry.buffers[b]->role;
    values[b] = {is_input(site, role) ? 0 : kUnused, is_output(site, role) ? end : 0, b};
  }
  std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> groups;  // first and last step of a launch group
  for (std::size_t s = 0; s < site.entry.steps.size(); ++s)
    if (const std::uint32_t group = site.entry.steps[s]->launch_group; group != kNone) groups.emplace(group, std::pair(s + 1, s + 1)).first->second.second = s + 1;
  for (std::size_t s = 0; s < site.entry.steps.size(); ++s) {
    const StepT& step = *site.entry.steps[s];
    const auto span = step.launch_group == kNone ? std::pair(s + 1, s + 1) : groups.at(step.launch_group);
    const auto touch = [&](const View& view) {
      Segment& value = values[view.buffer()];
      const bool own = site.entry.buffers[view.buffer()]->device == step.device;
      value.first = std::min(value.first, own ? span.first : s + 1);
      value.last = std::max(value.last, own ? span.second : s + 1);
    };
    for (const View& view : step.inputs) touch(view);
    for (const View& view : step.outputs) touch(view);
    if (step.workspace != kNone) live.push_back({span.first, span.second, step.workspace});
  }
  for (const Segment& value : values)
    if (value.first != kUnused) live.push_back(value);
  return live;
}

}  // namespace

Status verify_flow(const EntrySite& site) {
  return Flow(site).run();
}

Status verify_arena(const EntrySite& site) {
  std::vector<Segment> starts = segments_of(site);
  std::sort(starts.begin(), starts.end(), [](const Segment& a, const Segment& b) {
    return a.first != b.first ? a.first < b.first : a.buffer < b.buffer;
  });
  std::vector<Segment> ends = starts;
  std::sort(ends.begin(), ends.end(), [](const Segment& a, const Segment& b) { return a.last < b.last; });

  // those that are live at once, by offset: they are disjoint, so a newcomer can only meet its two neighbours
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // device, offset
  std::map<Key, std::size_t> live;
  const auto buffer = [&](std::size_t index) -> const BufferT& { return *site.entry.buffers[index]; };
  std::size_t ended = 0;
  for (const Segment& segment : starts) {
    for (; ends[ended].last < segment.first; ++ended)
      live.erase({buffer(ends[ended].buffer).device, buffer(ends[ended].buffer).offset});
    const BufferT& mine = buffer(segment.buffer);
    const auto clash = [&](std::size_t other) {
      const std::string at = segment.first == 0                        ? "before the first step"
                             : segment.first > site.entry.steps.size() ? "after the last step"
                                                                       : fmt::format("at step {}", segment.first - 1);
      return wrong(
          site.place(), fmt::format("arena {}", at),
          fmt::format("{} at [{}, {}) on {}, which is live", shown(mine.name), mine.offset, mine.offset + mine.bytes,
                      shown(buffer(other).name)),
          fmt::format("bytes outside [{}, {})", buffer(other).offset, buffer(other).offset + buffer(other).bytes));
    };
    const auto next = live.lower_bound({mine.device, mine.offset});
    if (next != live.end() && next->first.first == mine.device && next->first.second < mine.offset + mine.bytes)
      return clash(next->second);
    if (next != live.begin()) {
      const auto before = std::prev(next);
      if (before->first.first == mine.device && before->first.second + buffer(before->second).bytes > mine.offset)
        return clash(before->second);
    }
    live.emplace(Key{mine.device, mine.offset}, segment.buffer);
  }
  return {};
}

}  // namespace ktc::plan::detail
