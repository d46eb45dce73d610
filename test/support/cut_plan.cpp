#include "test/support/cut_plan.h"

#include <algorithm>
#include <map>

namespace ktc::test {

using namespace planfb;

void cut_in_halves(PlanT& plan, EntryT& entry) {
  std::vector<std::uint64_t> ends;  // by device
  for (auto& device : plan.devices) ends.push_back((device->arena_bytes + 255) / 256 * 256);
  std::map<std::uint32_t, std::uint32_t> second;  // buffer of the first half -> of the second one
  const std::size_t buffers = entry.buffers.size();
  std::vector<std::uint64_t> most = ends;
  for (const auto& buffer : entry.buffers) {
    std::uint64_t& end = most[buffer->device];
    end = std::max(end, ends[buffer->device] + buffer->offset + buffer->bytes);
  }
  for (std::uint32_t b = 0; b < buffers; ++b) {
    BufferT& first = *entry.buffers[b];
    if (first.symbol == Symbol::rows) continue;
    auto other = std::make_unique<BufferT>(first);
    other->name += ".second";
    if (first.symbol == Symbol::tokens) {
      other->offset += ends[other->device];
      first.symbol = Symbol::first_half;
      other->symbol = Symbol::second_half;
    } else {  // fewer rows may need more: attention splits keys further
      for (BufferT* scratch : {&first, other.get()}) {
        std::uint64_t& end = most[scratch->device];
        scratch->offset = (end + 255) / 256 * 256;
        scratch->bytes *= 2;
        end = scratch->offset + scratch->bytes;
      }
    }
    second[b] = static_cast<std::uint32_t>(entry.buffers.size());
    entry.buffers.push_back(std::move(other));
  }
  const auto move = [&](std::vector<View>& views) {
    for (View& view : views)
      if (const auto found = second.find(view.buffer()); found != second.end()) view = View(found->second, view.column(), view.columns());
  };
  std::vector<std::unique_ptr<StepT>> steps;
  for (auto& step : entry.steps) {
    const bool of_tokens = entry.buffers[step->outputs[0].buffer()]->symbol == Symbol::first_half;
    auto other = of_tokens ? std::make_unique<StepT>(*step) : nullptr;
    if (step->op.AsSelectRowsOp() != nullptr) {
      std::vector<View> x = {step->inputs[0]};
      move(x);
      step->inputs.push_back(x[0]);
    }
    steps.push_back(std::move(step));
    if (other == nullptr) continue;
    other->name += ".second";
    move(other->inputs);
    move(other->outputs);
    if (other->workspace != plan::kNone) other->workspace = second.at(other->workspace);
    steps.push_back(std::move(other));
  }
  entry.steps = std::move(steps);
  for (std::size_t d = 0; d < plan.devices.size(); ++d) plan.devices[d]->arena_bytes = most[d];
  for (auto& line : plan.account) {
    if (line->category == "arena") line->bytes = plan.devices[line->device]->arena_bytes;
    if (line->category == "step-block") line->bytes = plan::step_block_bytes(plan);
  }
  plan.required_features = plan::features_of(plan);
}

}  // namespace ktc::test
