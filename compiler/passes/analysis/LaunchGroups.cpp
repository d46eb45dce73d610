#include "compiler/passes/analysis/LaunchGroups.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/TypeSwitch.h"

namespace ktc::compiler {

Joinable joinableOf(kt::StepOpInterface step) {
  return llvm::TypeSwitch<mlir::Operation*, Joinable>(step)
      .Case([](kt::AwaitOp) { return Joinable::await; })
      .Case([](kt::AddNormOp) { return Joinable::add_norm; })
      .Case([](kt::RouteOp) { return Joinable::route; })
      .Case([](kt::SubmitOp) { return Joinable::publish; })
      .Default([](mlir::Operation*) { return Joinable::other; });
}

std::string namesOf(llvm::ArrayRef<Joinable> steps) {
  std::string names;
  for (Joinable step : steps) names += (names.empty() ? "" : ", ") + std::string(to_string(step));
  return names;
}

std::vector<StepsOfGpu> stepsOfGpus(kt::EntryOp entry) {
  llvm::MapVector<llvm::StringRef, StepsOfGpu> byDevice;
  for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
    if (!step.getPlaceAttr()) continue;
    llvm::SmallVector<llvm::StringRef, 3> devices = {step.getPlaceAttr().getDevice()};
    for (llvm::StringRef device : {step.operandDevice(), step.resultDevice()})
      if (!llvm::is_contained(devices, device)) devices.push_back(device);
    for (llvm::StringRef device : devices)
      if (!device.empty() && device != "cpu") byDevice[device].push_back(step);
  }
  std::vector<StepsOfGpu> all;
  for (auto& [device, steps] : byDevice) all.push_back(std::move(steps));
  return all;
}

const LaunchSequence* sequenceOf(llvm::ArrayRef<kt::StepOpInterface> steps) {
  llvm::SmallVector<Joinable, kMostJoined> kinds;
  const auto same = [](mlir::Value a, mlir::Value b) { return a == b; };
  mlir::IntegerAttr graph;
  mlir::Operation* before = nullptr;
  for (kt::StepOpInterface step : steps) {
    const Joinable kind = joinableOf(step);
    if (before == nullptr) graph = step.getGraphAttr();
    if (!graph || step.getGraphAttr() != graph || kind == Joinable::other) return nullptr;
    if (before != nullptr &&
        !hands_on(kinds.back(), kind, before->getOperands(), before->getResults(), step->getOperands(), same))
      return nullptr;
    kinds.push_back(kind);
    before = step;
  }
  return find_launch_sequence(kinds);
}

llvm::DenseMap<mlir::Operation*, Span> launchSpans(kt::EntryOp entry) {
  llvm::DenseMap<mlir::Operation*, Span> spans;
  llvm::DenseMap<int64_t, llvm::SmallVector<mlir::Operation*>> groups;
  uint64_t number = 0;
  for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
    ++number;
    spans[step] = {number, number};
    if (mlir::IntegerAttr group = step.getLaunchGroupAttr()) groups[group.getInt()].push_back(step);
  }
  for (auto& [group, members] : groups) {
    const Span all = {spans[members.front()].first, spans[members.back()].last};
    for (mlir::Operation* member : members) spans[member] = all;
  }
  return spans;
}

}  // namespace ktc::compiler
