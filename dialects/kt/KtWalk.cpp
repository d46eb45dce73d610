#include "dialects/kt/KtWalk.h"

namespace ktc::kt {

std::optional<Phase> phaseOf(mlir::ModuleOp module) {
  auto phase = module->getAttrOfType<PhaseAttr>(kPhase);
  return phase ? std::optional(phase.getValue()) : std::nullopt;
}

void setPhase(mlir::ModuleOp module, Phase phase) {
  module->setAttr(kPhase, PhaseAttr::get(module.getContext(), phase));
}

ModelAttr modelOf(mlir::ModuleOp module) {
  return module->getAttrOfType<ModelAttr>(kModel);
}

namespace {

std::string wholeName(StepOpInterface step) {
  mlir::Operation* op = step;
  if (auto linear = llvm::dyn_cast<LinearOp>(op)) return linear.getWeight().str();
  std::string name = step.getModule().getName().str();
  if (llvm::isa<AddOp>(op)) return name + ".add";
  if (llvm::isa<SelectRowsOp>(op)) return name + ".select_rows";
  if (llvm::isa<SampleOp>(op)) return name + ".sample";
  if (llvm::isa<TransferOp>(op)) return name + ".transfer";
  if (llvm::isa<SubmitOp>(op)) return name + ".submit";
  if (llvm::isa<AwaitOp>(op)) return name + ".await";
  if (auto experts = llvm::dyn_cast<ExpertsOp>(op)) {
    if (experts.getSlotsAttr() && !experts.getStream() && experts.getPlaceAttr() && experts.getPlaceAttr().getDevice() != "cpu") name += ".hot";
    if (experts.getLateAttr() && experts.getLateAttr().getPart() == ExpertsPart::late) name += ".late";
    return name;
  }
  // the norms inside an attention block are told apart by their weight
  if (auto norm = llvm::dyn_cast<NormOp>(op)) return norm.getWeight().str();
  if (auto norm = llvm::dyn_cast<AddNormOp>(op)) return norm.getWeight().str();
  return name;
}

}  // namespace

std::string stepName(StepOpInterface step) {
  std::string name = wholeName(step);
  if (step->getNumResults() == 0) return name;
  const Dim dim = dimOf(step->getResult(0));
  return dim == Dim::first_half ? name + ".first" : dim == Dim::second_half ? name + ".second" : name;
}

namespace {

constexpr llvm::StringLiteral kRule = "rule";

std::string fileAndLine(mlir::FileLineColLoc at) {
  llvm::StringRef file = at.getFilename().getValue();
  return file.substr(file.rfind('/') + 1).str() + ":" + std::to_string(at.getLine());
}

}  // namespace

std::string locationText(mlir::Location location) {
  std::string text;
  location->walk([&](mlir::Location at) {
    if (auto named = llvm::dyn_cast<mlir::NameLoc>(at); named && named.getName() == kRule)
      return mlir::WalkResult::skip();
    auto line = llvm::dyn_cast<mlir::FileLineColLoc>(at);
    if (!line) return mlir::WalkResult::advance();
    text = fileAndLine(line);
    return mlir::WalkResult::interrupt();
  });
  return text;
}

std::string ruleText(mlir::Location location) {
  std::string text;
  location->walk([&](mlir::Location at) {
    auto named = llvm::dyn_cast<mlir::NameLoc>(at);
    auto line = named && named.getName() == kRule ? llvm::dyn_cast<mlir::FileLineColLoc>(named.getChildLoc())
                                                  : mlir::FileLineColLoc();
    if (!line) return mlir::WalkResult::advance();
    text = fileAndLine(line) + ":" + std::to_string(line.getColumn());
    return mlir::WalkResult::interrupt();
  });
  return text;
}

mlir::Location withRule(mlir::Location location, llvm::StringRef file, int line, int column) {
  mlir::MLIRContext* context = location.getContext();
  mlir::Location rule =
      mlir::NameLoc::get(mlir::StringAttr::get(context, kRule), mlir::FileLineColLoc::get(context, file, line, column));
  llvm::SmallVector<mlir::Location> parts;
  if (auto fused = llvm::dyn_cast<mlir::FusedLoc>(location)) {
    llvm::copy_if(fused.getLocations(), std::back_inserter(parts), [](mlir::Location at) {
      auto named = llvm::dyn_cast<mlir::NameLoc>(at);
      return !named || named.getName() != kRule;
    });
  } else {
    parts.push_back(location);
  }
  parts.push_back(rule);
  return mlir::FusedLoc::get(context, parts);
}

mlir::Location withRule(mlir::Location location, llvm::StringRef place) {
  auto [rest, column] = place.rsplit(':');
  auto [file, line] = rest.rsplit(':');
  int lineNumber = 0, columnNumber = 0;
  if (file.empty() || line.getAsInteger(10, lineNumber) || column.getAsInteger(10, columnNumber)) return location;
  return withRule(location, file, lineNumber, columnNumber);
}

}  // namespace ktc::kt
