#include "compiler/passes/analysis/Workspace.h"

#include <map>
#include <set>

#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/TypeSwitch.h"
#include "placement/device_formats.h"
#include "runtime/formats/formats.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/moving.h"
#include "runtime/formats/step_block.h"
#include "runtime/formats/workspace.h"

namespace ktc::compiler {
namespace {

std::optional<uint64_t> product(std::initializer_list<uint64_t> factors) {
  uint64_t result = 1;
  for (uint64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return std::nullopt;
  }
  return result;
}

// The formulas of workspace.h add a few products: each must stay far below 64 bits.
bool small(std::initializer_list<uint64_t> factors) {
  std::optional<uint64_t> bytes = product(factors);
  return bytes && *bytes < (uint64_t{1} << 60);
}

template <typename Op>
std::optional<uint64_t> bytesAs(Op op, llvm::StringRef packingName, uint64_t batch, uint64_t rows, uint64_t columns) {
  if (!op.getFormat()) return std::nullopt;
  auto format = parse_format(op.getFormat()->str());
  auto packing = parse_packing(packingName.str());
  const uint64_t group = op.getGroup().value_or(0);
  if (!format || !packing || group > UINT32_MAX) return std::nullopt;
  return packed_bytes(*format, *packing, batch, rows, columns, static_cast<uint32_t>(group));
}

std::optional<uint64_t> sum(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  uint64_t result = 0;
  if (!a || !b || __builtin_add_overflow(*a, *b, &result)) return std::nullopt;
  return result;
}

// Of a step whose formats are verified: int8 where there is no such format, which needs the most scratch beside bf16.
Format activationsOf(kt::StepOpInterface step) {
  return parse_format(step.getPlaceAttr().getActivations().str()).value_or(Format::int8);
}

// Scratch of products with panels; kt.tile says how activations are scaled.
std::optional<uint64_t> panelLinear(kt::StepOpInterface step, uint64_t rows, mlir::Value x) {
  auto tile = step->getAttrOfType<kt::TileAttr>("tile");
  const uint64_t columns = kt::columnsOf(x.getType());
  if (!tile || !small({rows + 15, columns, 16})) return std::nullopt;
  return panel_linear_workspace(activationsOf(step), rows, columns, tile.getX(), tile.getRows()).total();
}

// The same for a step of a GPU (runtime/formats/gpu_workspace.h).
std::optional<uint64_t> gpuWorkspace(mlir::Operation* op, uint64_t rows) {
  const Format activations = activationsOf(llvm::cast<kt::StepOpInterface>(op));
  auto linear = [&](mlir::Value x) -> std::optional<uint64_t> {
    const uint64_t columns = kt::columnsOf(x);
    if (!small({rows, columns + 63, 4})) return std::nullopt;
    return gpu_linear_workspace(activations, rows, columns).total();
  };
  return llvm::TypeSwitch<mlir::Operation*, std::optional<uint64_t>>(op)
      .Case([&](kt::GqaOp o) -> std::optional<uint64_t> {
        if (!small({rows, o.getHeads(), o.getHeadDim() + 2, kGpuMostSplits, 4})) return std::nullopt;
        return gpu_gqa_workspace(rows, o.getHeads(), o.getKvHeads(), o.getHeadDim()).total();
      })
      .Case([&](kt::MlaOp o) -> std::optional<uint64_t> {
        if (!small({rows, o.getHeads(), o.getLatentDim() + o.getRopeDim() + 2, kGpuMostSplits, 4})) return std::nullopt;
        return gpu_mla_workspace(rows, o.getHeads(), o.getLatentDim(), o.getRopeDim()).total();
      })
      .Case([&](kt::RouteOp o) -> std::optional<uint64_t> {
        if (!small({rows, o.getExperts(), 4})) return std::nullopt;
        return gpu_route_workspace(rows, o.getExperts()).total();
      })
      .Case([&](kt::LinearOp o) { return linear(o.getX()); })
      .Case([&](kt::LmHeadOp o) { return linear(o.getX()); })
      .Case([&](kt::MlpOp o) -> std::optional<uint64_t> {
        auto down = mlir::SymbolTable::lookupNearestSymbolFrom<kt::WeightOp>(o, o.getDownAttr());
        const uint64_t hidden = kt::columnsOf(o.getX()), inner = down.getColumns();
        if (!small({rows, hidden + 63, 4}) || !small({rows, inner + 63, 16})) return std::nullopt;
        return gpu_mlp_workspace(activations, rows, hidden, inner).total();
      })
      .Case([&](kt::ExpertsOp o) -> std::optional<uint64_t> {
        auto bank = mlir::SymbolTable::lookupNearestSymbolFrom<kt::ExpertBankOp>(o, o.getBankAttr());
        const uint64_t hidden = kt::columnsOf(o.getX()), inner = bank.getIntermediate(), topk = kt::columnsOf(o.getIds());
        const uint64_t experts = o.getSlotsAttr() ? o.getSlotsAttr().size() : bank.getExperts();
        if (!small({rows, topk, hidden + 63, 4}) || !small({rows, topk, inner + 63, 4})) return std::nullopt;
        return gpu_experts_workspace(activations, rows, topk, hidden, inner, experts).total();
      })
      .Case([&](kt::SampleOp) -> std::optional<uint64_t> {
        if (!small({rows, kGpuSampleRowBytes})) return std::nullopt;
        return gpu_sample_workspace(rows);
      })
      .Default([](mlir::Operation*) { return uint64_t{0}; });
}

}  // namespace

bool hasPanels(kt::StepOpInterface step) {
  kt::PlaceAttr place = step.getPlaceAttr();
  if (!place || place.getDevice() != "cpu") return false;
  auto weights = parse_format(place.getWeights().str()), activations = parse_format(place.getActivations().str());
  return weights && activations && placement::has_panels(*weights, *activations) &&
         llvm::isa<kt::LinearOp, kt::LmHeadOp, kt::MlpOp, kt::ExpertsOp>(step.getOperation());
}

std::optional<uint64_t> workspaceBytes(kt::StepOpInterface step, kt::BoundsAttr bounds) {
  mlir::Operation* op = step;
  uint64_t rows = bounds.of(kt::dimOf(op->getResult(0)));
  if (step.getPlaceAttr().getDevice() != "cpu") return gpuWorkspace(op, rows);
  return llvm::TypeSwitch<mlir::Operation*, std::optional<uint64_t>>(op)
      .Case([&](kt::GqaOp o) -> std::optional<uint64_t> {
        if (!small({rows, o.getHeads(), o.getHeadDim(), 4})) return std::nullopt;
        return gqa_workspace(rows, o.getHeads(), o.getHeadDim()).total();
      })
      .Case([&](kt::MlaOp o) -> std::optional<uint64_t> {
        if (!small({rows, o.getHeads(), o.getLatentDim() + o.getRopeDim(), 4})) return std::nullopt;
        return mla_workspace(rows, o.getHeads(), o.getLatentDim(), o.getRopeDim()).total();
      })
      .Case([&](kt::RouteOp o) -> std::optional<uint64_t> {
        if (!small({rows, o.getExperts(), 4})) return std::nullopt;
        return route_workspace(rows, o.getExperts()).total();
      })
      .Case([&](kt::LinearOp o) -> std::optional<uint64_t> {
        return hasPanels(step) ? panelLinear(step, rows, o.getX()) : 0;
      })
      .Case([&](kt::LmHeadOp o) -> std::optional<uint64_t> {
        return hasPanels(step) ? panelLinear(step, rows, o.getX()) : 0;
      })
      .Case([&](kt::ExpertsOp o) -> std::optional<uint64_t> {
        auto bank = mlir::SymbolTable::lookupNearestSymbolFrom<kt::ExpertBankOp>(o, o.getBankAttr());
        uint64_t topk = kt::columnsOf(o.getIds());
        if (hasPanels(step)) {
          auto tile = o.getTileAttr();
          const uint64_t hidden = bank.getHidden(), inner = bank.getIntermediate(), experts = bank.getExperts();
          if (!tile || !small({rows, topk, hidden, 64}) || !small({rows, topk, inner, 64}) ||
              !small({experts, hidden + inner, 64})) {
            return std::nullopt;
          }
          return panel_experts_workspace(activationsOf(step), rows, topk, hidden, inner, experts, tile.getX(), tile.getH(),
                                         tile.getRows())
              .total();
        }
        if (!small({rows, topk, bank.getIntermediate(), 4}) || !small({rows, topk, 8})) return std::nullopt;
        return experts_workspace(rows, topk, bank.getIntermediate(), bank.getExperts()).total();
      })
      .Case([&](kt::MlpOp o) -> std::optional<uint64_t> {
        auto down = mlir::SymbolTable::lookupNearestSymbolFrom<kt::WeightOp>(o, o.getDownAttr());
        if (hasPanels(step)) {
          auto tile = o.getTileAttr();
          const uint64_t hidden = kt::columnsOf(o.getX().getType());
          if (!tile || !small({rows + 15, hidden, 64}) || !small({rows + 15, down.getColumns(), 64})) return std::nullopt;
          return panel_mlp_workspace(activationsOf(step), rows, hidden, down.getColumns(), tile.getX(), tile.getH(), tile.getRows())
              .total();
        }
        if (!small({rows, down.getColumns(), 4})) return std::nullopt;
        return mlp_workspace(rows, down.getColumns()).total();
      })
      .Default([](mlir::Operation*) { return uint64_t{0}; });
}

std::optional<uint64_t> packedBytes(kt::WeightOp weight) {
  return bytesAs(weight, weight.getPacking().value_or(""), weight.getBatch(), weight.getRows(), weight.getColumns());
}

std::optional<uint64_t> packedBytes(kt::ExpertBankOp bank) {
  uint64_t experts = bank.getExperts(), hidden = bank.getHidden(), inner = bank.getIntermediate();
  return sum(bytesAs(bank, bank.getPacking().value_or(""), experts, 2 * inner, hidden),
             bytesAs(bank, bank.getDownPacking(), experts, hidden, inner));
}

std::optional<GpuStream> streamOf(kt::ExpertsOp op) {
  auto bank = mlir::SymbolTable::lookupNearestSymbolFrom<kt::ExpertBankOp>(op, op.getBankAttr());
  auto format = bank.getFormat() ? parse_format(bank.getFormat()->str()) : std::nullopt;
  auto packing = bank.getPacking() ? parse_packing(bank.getPacking()->str()) : std::nullopt;
  const uint64_t group = bank.getGroup().value_or(0);
  if (!format || !packing || group > UINT32_MAX) return std::nullopt;
  auto all = gpu_stream(*format, static_cast<uint32_t>(group), *packing, bank.getExperts(), bank.getHidden(), bank.getIntermediate());
  if (!all || !op.getShareAttr()) return all;
  const uint64_t atOnce = std::min<uint64_t>(all->group, (bank.getExperts() + kSharedGroups - 1) / kSharedGroups);
  return gpu_stream(*format, static_cast<uint32_t>(group), *packing, bank.getExperts(), bank.getHidden(), bank.getIntermediate(), atOnce);
}

std::optional<uint64_t> cacheBytes(kt::CacheOp cache) {
  auto format = cache.getFormat() ? parse_format(cache.getFormat()->str()) : std::nullopt;
  if (!format) return std::nullopt;
  uint64_t width = format_bits(*format) / 8;
  // padding tokens of a GPU attend a page behind the pool of each layer
  uint64_t dummy = cache.getDevice() == "cpu" ? 0 : 1;
  std::optional<uint64_t> pages = sum(product({cache.getSequences(), cache.getPagesPerSequence()}), dummy);
  if (!pages) return std::nullopt;
  return product({cache.getLayers(), *pages, cache.getPage(), cache.getTokenElements(), width});
}

namespace {

// The largest step block of the entries: pages of the longest sequence of any cache.
std::optional<uint64_t> stepBlockBytes(mlir::ModuleOp module) {
  uint64_t pages = 0, most = 0;
  for (auto cache : module.getOps<kt::CacheOp>()) pages = std::max<uint64_t>(pages, cache.getPagesPerSequence());
  for (auto entry : module.getOps<kt::EntryOp>()) {
    if (entry.getKind() == kt::EntryKind::sample || !entry.getBounds()) continue;
    kt::BoundsAttr bounds = *entry.getBounds();
    if (!small({bounds.getSequences(), pages + 1, 4}) || !small({bounds.getTokens(), 32})) return std::nullopt;
    most = std::max(most, step_blocks(bounds.getTokens(), bounds.getRows(), bounds.getSequences(), pages, entry.isCutInHalves()).bytes);
  }
  return most;
}

// All records and results: memory of the CPU that GPUs map, none used twice in a step.
std::optional<uint64_t> recordBytes(mlir::ModuleOp module) {
  std::optional<uint64_t> bytes = 0;
  for (auto entry : module.getOps<kt::EntryOp>()) {
    for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
      const uint64_t tokens = entry.getBounds() ? entry.getBounds()->getTokens() : 0;
      if (auto submit = llvm::dyn_cast<kt::SubmitOp>(step.getOperation())) {
        const uint64_t columns = kt::columnsOf(submit.getX()), topk = kt::columnsOf(submit.getIds());
        if (!small({tokens, columns, 4}) || !small({tokens, topk, 8})) return std::nullopt;
        bytes = sum(bytes, record_layout(tokens, topk, columns, parse_format(submit.getFormat().str()).value_or(Format::f32)).bytes);
      } else if (auto await = llvm::dyn_cast<kt::AwaitOp>(step.getOperation())) {
        const uint64_t columns = kt::columnsOf(await.getValue());
        if (!small({tokens, columns + 31, 16})) return std::nullopt;
        bytes = sum(bytes, result_bytes(tokens, columns, parse_format(await.getFormat().str()).value_or(Format::f32)));
      }
    }
  }
  return bytes;
}

// What banks of the CPU pass through on a device.
std::optional<uint64_t> streamBytes(mlir::ModuleOp module, llvm::StringRef device) {
  GpuStreamAreas areas;
  bool known = true;
  forEachStep(module, [&](kt::StepOpInterface step) {
    auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
    if (!experts || !experts.getStream() || experts.getPlaceAttr().getDevice() != device) return;
    std::optional<GpuStream> stream = streamOf(experts);
    known = known && stream;
    if (stream) areas.add(*stream);
  });
  return known ? std::optional(areas.total()) : std::nullopt;
}

// Of the largest expert of the CPU that may move to the device, as it lands there.
std::optional<uint64_t> largestMoving(mlir::ModuleOp module, llvm::StringRef device) {
  if (!module->hasAttr(kt::kUpdate)) return 0;
  std::map<int64_t, kt::ExpertBankOp> cold;
  std::set<int64_t> moving;
  forEachStep(module, [&](kt::StepOpInterface step) {
    auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
    if (!experts || !experts.getSlotsAttr()) return;
    auto bank = mlir::SymbolTable::lookupNearestSymbolFrom<kt::ExpertBankOp>(step, experts.getBankAttr());
    const int64_t layer = experts.getModule().getLayer();
    if (bank.getDevice() == "cpu") cold[layer] = bank;
    if (bank.getDevice() == device) moving.insert(layer);
  });
  uint64_t most = 0;
  for (int64_t layer : moving) {
    auto bank = cold.find(layer);
    if (bank == cold.end()) continue;
    auto format = bank->second.getFormat() ? parse_format(bank->second.getFormat()->str()) : std::nullopt;
    auto packing = bank->second.getPacking() ? parse_packing(bank->second.getPacking()->str()) : std::nullopt;
    if (!format || !packing) return std::nullopt;
    const uint64_t hidden = bank->second.getHidden(), inner = bank->second.getIntermediate();
    const uint32_t group = static_cast<uint32_t>(bank->second.getGroup().value_or(0));
    // gate and up are paired, down is not; both have the bytes of plain panels
    auto gateUp = packed_bytes(*format, *packing, 1, 2 * inner, hidden, group);
    auto down = packed_bytes(*format, *packing == Packing::panel_paired ? Packing::panel : *packing, 1, hidden, inner, group);
    if (!gateUp || !down) return std::nullopt;
    most = std::max(most, SpareExpert{*gateUp, *down}.bytes());
  }
  return most;
}

}  // namespace

std::optional<llvm::SmallVector<mlir::Attribute>> accountOf(mlir::ModuleOp module, mlir::ArrayAttr devices) {
  llvm::StringMap<Steps> users = usersOfWeights(module);
  std::map<std::pair<std::string, kt::ModuleClass>, uint64_t> weights;
  for (mlir::Operation& op : *module.getBody()) {
    if (!llvm::isa<kt::WeightOp, kt::ExpertBankOp>(op)) continue;
    auto weight = llvm::dyn_cast<kt::WeightOp>(op);
    auto bank = llvm::dyn_cast<kt::ExpertBankOp>(op);
    std::optional<uint64_t> bytes = weight ? packedBytes(weight) : packedBytes(bank);
    auto steps = users.find(mlir::SymbolTable::getSymbolName(&op).getValue());
    if (!bytes || steps == users.end()) return std::nullopt;
    kt::ModuleClass cls = steps->second.front().getModule().getCls();
    uint64_t& line = weights[{(weight ? *weight.getDevice() : *bank.getDevice()).str(), cls}];
    std::optional<uint64_t> total = sum(line, bytes);
    if (!total) return std::nullopt;
    line = *total;
  }
  mlir::MLIRContext* context = module.getContext();
  llvm::SmallVector<mlir::Attribute> lines;
  const bool hybrid = llvm::any_of(devices.getAsRange<kt::DeviceAttr>(), [](kt::DeviceAttr d) { return d.getName() != "cpu"; });
  std::optional<uint64_t> block = hybrid ? stepBlockBytes(module) : 0, records = hybrid ? recordBytes(module) : 0;
  if (!block || !records) return std::nullopt;
  uint64_t spareOnHost = 0;
  for (auto device : devices.getAsRange<kt::DeviceAttr>()) {
    if (device.getName() == "cpu") continue;
    std::optional<uint64_t> expert = largestMoving(module, device.getName());
    if (!expert) return std::nullopt;
    spareOnHost += kStagedExperts * *expert;
  }
  for (auto device : devices.getAsRange<kt::DeviceAttr>()) {
    const uint64_t expert = *largestMoving(module, device.getName());
    const uint64_t spare = device.getName() == "cpu" ? spareOnHost : spare_experts(expert) * expert;
    if (spare != 0) lines.push_back(kt::AccountAttr::get(context, device.getName(), "spare", "experts", spare));
    for (auto& [key, bytes] : weights) {
      if (key.first != device.getName()) continue;
      lines.push_back(
          kt::AccountAttr::get(context, device.getName(), "weights", kt::stringifyModuleClass(key.second), bytes));
    }
    for (auto cache : module.getOps<kt::CacheOp>()) {
      if (cache.getDevice() != device.getName()) continue;
      std::optional<uint64_t> bytes = cacheBytes(cache);
      if (!bytes) return std::nullopt;
      lines.push_back(kt::AccountAttr::get(context, device.getName(), "kv-cache", cache.getSymName(), *bytes));
    }
    lines.push_back(kt::AccountAttr::get(context, device.getName(), "arena", "activations", device.getArena()));
    if (device.getName() != "cpu") {
      lines.push_back(kt::AccountAttr::get(context, device.getName(), "step-block", "inputs", *block));
      std::optional<uint64_t> stream = streamBytes(module, device.getName());
      if (!stream) return std::nullopt;
      if (*stream != 0) lines.push_back(kt::AccountAttr::get(context, device.getName(), "stream", "experts", *stream));
    } else if (*records != 0) {
      lines.push_back(kt::AccountAttr::get(context, device.getName(), "records", "hand-off", *records));
    }
  }
  return lines;
}

}  // namespace ktc::compiler
