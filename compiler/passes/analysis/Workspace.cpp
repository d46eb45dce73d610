#include "compiler/passes/analysis/Workspace.h"

#include <map>

#include "compiler/passes/Symbols.h"
#include "llvm/ADT/TypeSwitch.h"
#include "runtime/formats/formats.h"
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

}  // namespace

bool hasPanels(kt::StepOpInterface step) {
  kt::PlaceAttr place = step.getPlaceAttr();
  if (!place || place.getDevice() != "cpu") return false;
  auto format = parse_format(place.getWeights().str());
  return format && !takes_packing(*format, Packing::row_major) &&
         llvm::isa<kt::LinearOp, kt::LmHeadOp, kt::MlpOp, kt::ExpertsOp>(step.getOperation());
}

std::optional<uint64_t> workspaceBytes(kt::StepOpInterface step, kt::BoundsAttr bounds) {
  mlir::Operation* op = step;
  uint64_t rows = bounds.of(kt::dimOf(op->getResult(0)));
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

std::optional<uint64_t> cacheBytes(kt::CacheOp cache) {
  auto format = cache.getFormat() ? parse_format(cache.getFormat()->str()) : std::nullopt;
  if (!format) return std::nullopt;
  uint64_t width = format_bits(*format) / 8;
  return product({cache.getLayers(), cache.getSequences(), cache.getPagesPerSequence(), cache.getPage(),
                  cache.getTokenElements(), width});
}

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
  for (auto device : devices.getAsRange<kt::DeviceAttr>()) {
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
  }
  return lines;
}

}  // namespace ktc::compiler
