#include "compiler/passes/analysis/StepTime.h"

#include <cmath>

#include "compiler/passes/analysis/Workspace.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

using placement::DeviceRates;
using placement::Product;

namespace {

constexpr double kCopyHandoffs = 4;  // a copy's fixed time in hand-offs, as in placement/cost_model.cpp

Format formatOf(llvm::StringRef word, Format otherwise) { return parse_format(word.str()).value_or(otherwise); }

double bytesOf(mlir::Value value, double rows) {
  return rows * kt::columnsOf(value) * kt::elementOf(value.getType()).getIntOrFloatBitWidth() / 8;
}

}  // namespace

StepTimes::StepTimes(mlir::ModuleOp module, const placement::Target& target, bool rowScales)
    : module_(module), symbols_(module), rates_(placement::rates_of(target)), cpu_(target.cpu), rowScales_(rowScales) {}

double StepTimes::us(kt::StepOpInterface step, kt::EntryOp entry) const {
  mlir::Operation* op = step;
  kt::BoundsAttr bounds = entry.getBounds().value_or(kt::BoundsAttr());
  const kt::Dim dim = op->getNumResults() > 0 ? kt::dimOf(op->getResult(0)) : kt::Dim::tokens;
  const double rows = bounds ? static_cast<double>(bounds.of(dim)) : 1;
  if (llvm::isa<kt::TransferOp, kt::SubmitOp, kt::AwaitOp>(op)) {
    const llvm::StringRef gpu = step.operandDevice() == "cpu" ? step.resultDevice() : step.operandDevice();
    const DeviceRates& rate = rates_.of(gpu);
    double bytes = 0;
    for (mlir::Value value : op->getOperands()) bytes += bytesOf(value, rows);
    const bool copies = llvm::isa<kt::TransferOp>(op);
    return (copies ? kCopyHandoffs : 0.5) * rate.handoff_us + bytes / (copies ? 1 : 2) / std::max(rate.pcie, 1.0);  // records: bf16
  }
  const DeviceRates& rate = rates_.of(step.getPlaceAttr().getDevice());
  if (auto experts = llvm::dyn_cast<kt::ExpertsOp>(op)) return rate.kernel_us + this->experts(experts, rows);
  double us = rate.kernel_us;
  for (mlir::Value value : op->getOperands()) us += bytesOf(value, rows) / rate.read;
  for (mlir::Value value : op->getResults()) us += bytesOf(value, rows) / rate.read;
  if (!llvm::isa<kt::EmbedOp>(op)) us += product(step, step.getPlaceAttr().getDevice(), rows);
  return us + attention(step, entry, rows);
}

double StepTimes::product(kt::StepOpInterface step, llvm::StringRef device, double rows) const {
  Product p;
  p.weights = formatOf(step.getPlaceAttr().getWeights(), Format::bf16);
  p.activations = formatOf(step.getPlaceAttr().getActivations(), Format::f32);
  p.rows = rows;
  p.row_scales = rowScales_;
  for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
    auto weight = symbols_.lookup<kt::WeightOp>(ref.getValue());
    if (!weight || weight.isVector()) continue;
    p.bytes += static_cast<double>(packedBytes(weight).value_or(0));
    p.operations += 2 * rows * weight.getBatch() * weight.getRows() * weight.getColumns();
    p.group = static_cast<uint32_t>(weight.getGroup().value_or(0));
  }
  return p.bytes == 0 ? 0 : placement::product_time(rates_.of(device), cpu_, p).us;
}

double StepTimes::experts(kt::ExpertsOp op, double rows) const {
  auto bank = symbols_.lookup<kt::ExpertBankOp>(op.getBank());
  if (!bank) return 0;
  const double matrices = bank.getExperts(), topk = kt::columnsOf(op.getIds());
  const double all = op.getSlotsAttr() ? op.getSlotsAttr().size() : matrices;
  double part = 1;
  if (kt::LateAttr late = op.getLateAttr()) {
    const double few = std::min<double>(late.getCount(), topk) / topk;
    part = late.getPart() == kt::ExpertsPart::late ? few : 1 - few;
  }
  const double pairs = rows * topk * part * matrices / all;  // of this op
  const double touched = matrices * (1 - std::pow(1 - std::min(1.0, topk * part / all), rows));
  if (touched <= 0) return 0;
  Product p;
  p.weights = formatOf(op.getPlaceAttr().getWeights(), Format::bf16);
  p.activations = formatOf(op.getPlaceAttr().getActivations(), Format::f32);
  p.group = static_cast<uint32_t>(bank.getGroup().value_or(0));
  p.bytes = static_cast<double>(packedBytes(bank).value_or(0)) / matrices * touched;
  p.operations = 6 * pairs * bank.getHidden() * bank.getIntermediate();
  p.rows = pairs / touched;
  p.row_scales = rowScales_;
  return placement::product_time(rates_.of(op.getPlaceAttr().getDevice()), cpu_, p).us;
}

double StepTimes::attention(kt::StepOpInterface step, kt::EntryOp entry, double rows) const {
  mlir::Operation* op = step;
  auto gqa = llvm::dyn_cast<kt::GqaOp>(op);
  auto mla = llvm::dyn_cast<kt::MlaOp>(op);
  if (!gqa && !mla) return 0;
  auto cache = symbols_.lookup<kt::CacheOp>((gqa ? gqa.getCacheAttr() : mla.getCacheAttr()).getValue());
  if (!cache) return 0;
  const bool decode = entry.getKind() == kt::EntryKind::decode;
  const double seen = decode ? cache.getTokens() / 2.0 : rows / 2;
  const double passes = decode ? rows : std::max(1.0, rows / 64);
  const double width = cache.getFormat() == "f32" ? 4 : 2;
  Product p;
  p.weights = p.activations = Format::bf16;
  p.bytes = passes * seen * cache.getTokenElements() * width;
  p.operations = rows * seen * (gqa ? 4.0 * gqa.getHeads() * gqa.getHeadDim() : 2.0 * mla.getHeads() * cache.getTokenElements() * 2);
  p.rows = rows;
  return placement::product_time(rates_.of(step.getPlaceAttr().getDevice()), cpu_, p).us;
}

}  // namespace ktc::compiler
