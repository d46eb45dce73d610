#include "test/support/divide_plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "runtime/formats/gpu_workspace.h"

namespace ktc::test {

using namespace planfb;

namespace {

constexpr std::uint32_t kFirst = 1, kSecond = 2;  // in PlanT::devices

class Divider {
 public:
  Divider(PlanT& plan, std::uint32_t layer) : plan_(plan), layer_(layer) {}

  void run() {
    plan_.devices.push_back(std::make_unique<DeviceT>(*plan_.devices[kFirst]));
    plan_.devices[kSecond]->name = "cuda:1";
    for (auto& weight : plan_.weights)
      if (weight->device == kFirst && is_behind(weight->name)) weight->device = kSecond;
    const std::uint32_t layers = plan_.caches[0]->layers;
    plan_.caches.push_back(std::make_unique<CacheT>(*plan_.caches[0]));
    plan_.caches[0]->layers = layer_;
    plan_.caches[1]->name += " of cuda:1";
    plan_.caches[1]->device = kSecond;
    plan_.caches[1]->layers = layers - layer_;
    for (auto& entry : plan_.entries) {
      if (entry->kind == EntryKind::sample)
        move(*entry);
      else
        divide(*entry);
    }
    account(layers);
  }

 private:
  // Of steps and of weights: "layers.N.…", or what comes behind all layers; the embedding comes before.
  bool is_behind(const std::string& name) const {
    const std::string layers = "layers.";
    if (name.starts_with(layers)) return std::strtoul(name.c_str() + layers.size(), nullptr, 10) >= layer_;
    return !name.starts_with("embed");  // of a half: embed.second
  }

  // An entry that sees logits alone.
  static void move(EntryT& entry) {
    for (auto& buffer : entry.buffers) buffer->device = kSecond;
    for (auto& step : entry.steps) step->device = kSecond;
    for (auto& graph : entry.graphs) graph->device = kSecond;
  }

  // Buffers that move keep their offsets; what is new on cuda:1 lies behind them.
  void divide(EntryT& entry) {
    const auto own = [&](std::uint32_t buffer) {
      if (entry.buffers[buffer]->device == kFirst) entry.buffers[buffer]->device = kSecond;
    };
    for (auto& step : entry.steps) {
      if (step->device != kFirst || !is_behind(step->name)) continue;
      step->device = kSecond;
      if (step->graph != plan::kNone) step->graph += static_cast<std::uint32_t>(entry.graphs.size());
      for (const View& view : step->outputs) own(view.buffer());
      if (step->workspace != plan::kNone) own(step->workspace);
      if (auto* op = step->op.AsGqaOp()) op->cache = 1, op->cache_layer -= layer_;
      if (auto* op = step->op.AsMlaOp()) op->cache = 1, op->cache_layer -= layer_;
    }
    for (std::size_t g = 0, graphs = entry.graphs.size(); g < graphs; ++g) {
      entry.graphs.push_back(std::make_unique<GraphT>(*entry.graphs[g]));
      entry.graphs.back()->name += " of cuda:1";
      entry.graphs.back()->device = kSecond;
    }
    std::map<std::uint32_t, std::uint32_t> here;      // buffer of cuda:0 -> what cuda:1 reads in its place
    std::map<Symbol, std::unique_ptr<StepT>> copies;  // rows of a step's copies are of one symbol
    std::uint64_t end = plan_.devices[kFirst]->arena_bytes;
    for (auto& step : entry.steps) {
      if (step->device != kSecond) continue;
      for (View& view : step->inputs) {
        const BufferT& from = *entry.buffers[view.buffer()];
        if (from.device != kFirst) continue;
        const auto number = static_cast<std::uint32_t>(entry.buffers.size());
        const auto [found, fresh] = here.emplace(view.buffer(), number);
        if (fresh) {
          auto to = std::make_unique<BufferT>(from);
          to->name += " on cuda:1";
          to->device = kSecond;
          to->offset = align256(end);
          end = to->offset + to->bytes;
          if (from.role == BufferRole::value) add(copies[from.symbol], View(view.buffer(), 0, from.columns), View(number, 0, from.columns));
          entry.buffers.push_back(std::move(to));
        }
        view = View(found->second, view.column(), view.columns());
      }
    }
    plan_.devices[kSecond]->arena_bytes = std::max(plan_.devices[kSecond]->arena_bytes, end);
    auto at = std::find_if(entry.steps.begin(), entry.steps.end(), [](const auto& step) { return step->device == kSecond; });
    for (auto& [symbol, copy] : copies) at = entry.steps.insert(at, std::move(copy)) + 1;
  }

  static void add(std::unique_ptr<StepT>& copy, const View& from, const View& to) {
    if (copy == nullptr) {
      copy = std::make_unique<StepT>();
      copy->kind = StepKind::copy;
      copy->device = kSecond;
      copy->activations = static_cast<std::uint8_t>(Format::f32);
      copy->op.Set(CopyOpT());
      copy->name = "to cuda:1";
    }
    copy->inputs.push_back(from);
    copy->outputs.push_back(to);
  }

  void account(std::uint32_t layers) {
    for (std::size_t i = 0, lines = plan_.account.size(); i < lines; ++i) {
      if (plan_.account[i]->device != kFirst) continue;
      plan_.account.push_back(std::make_unique<AccountLineT>(*plan_.account[i]));
      plan_.account.back()->device = kSecond;
    }
    for (auto& line : plan_.account) {
      if (line->device == 0) continue;
      if (line->category == "weights") line->bytes = weights_of(line->device);
      if (line->category == "arena") line->bytes = plan_.devices[line->device]->arena_bytes;
      if (line->category == "kv-cache") line->bytes = line->bytes / layers * (line->device == kFirst ? layer_ : layers - layer_);
      if (line->category == "stream") line->bytes = plan::stream_areas(plan_, line->device).total();
      if (line->category == "spare") line->bytes = plan::spare_bytes(plan_, line->device);
    }
  }
  std::uint64_t weights_of(std::uint32_t device) const {
    std::uint64_t bytes = 0;
    for (const auto& weight : plan_.weights)
      if (weight->device == device && weight->source != WeightSource::alias) bytes += weight->bytes;
    return bytes;
  }

  PlanT& plan_;
  const std::uint32_t layer_;
};

}  // namespace

Expected<std::shared_ptr<const plan::OpenPlan>> divide_plan(const plan::OpenPlan& whole, std::uint32_t layer) {
  auto divided = std::make_shared<plan::OpenPlan>(whole);
  Divider(divided->plan, layer).run();
  KTC_RETURN_IF_ERROR(plan::verify_plan(divided->plan));
  return std::shared_ptr<const plan::OpenPlan>(std::move(divided));
}

}  // namespace ktc::test
