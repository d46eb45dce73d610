// kt-plan-memory
#include <set>

#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/Symbols.h"
#include "compiler/passes/analysis/Arena.h"
#include "compiler/passes/analysis/LaunchGroups.h"
#include "compiler/passes/analysis/Workspace.h"
#include "dialects/kt/KtWalk.h"
#include "runtime/formats/workspace.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_PLANMEMORY
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::Value;

struct Buffer {
  std::string name;
  kt::BufferRole role = kt::BufferRole::value;
  kt::Dim dim = kt::Dim::tokens;
  llvm::StringRef format;
  uint64_t columns = 0, rowBytes = 0;
};

llvm::StringRef formatOf(mlir::Type element) {
  return element.isF32() ? "f32" : element.isBF16() ? "bf16" : "i32";
}

// Columns of rows that kernels stream start at 64 bytes; lists of indices are dense.
uint64_t rowBytesOf(mlir::Type element, uint64_t columns) {
  if (element.isInteger(32)) return columns * 4;
  return align64(columns * (element.isF32() ? 4 : 2));
}

// The buffers of one entry. Steps count from 1: inputs are written at 0, results are read after the last step.
class EntryPlan {
 public:
  EntryPlan(kt::EntryOp entry, llvm::ArrayRef<std::string> devices)
      : entry_(entry), spans_(launchSpans(entry)), cut_(entry.isCutInHalves()), devices_(devices) {
    for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) steps_.push_back(step);
    for (auto [index, step] : llvm::enumerate(steps_)) numbers_[step] = index + 1;
  }

  mlir::LogicalResult run() {
    addInputs();
    for (auto [index, step] : llvm::enumerate(steps_)) {
      if (mlir::failed(addStep(step, index + 1))) return mlir::failure();
    }
    auto ret = llvm::cast<kt::ReturnOp>(entry_.getBody().front().getTerminator());
    auto maker = ret.getValues()[0].getDefiningOp<kt::StepOpInterface>();
    kt::ViewAttr view = maker ? views_.lookup({ret.getValues()[0], arenaOf(maker.resultDevice())}) : kt::ViewAttr();
    if (!view) return ret.emitOpError("returns an argument or a part of a product; expected a value of its own");
    if (view.getColumns() != buffers_[view.getBuffer()].columns) {
      return ret.emitOpError("returns an argument or a part of a product; expected a value of its own");
    }
    Buffer& result = buffers_[view.getBuffer()];
    result.role = entry_.getKind() == kt::EntryKind::sample ? kt::BufferRole::next_ids : kt::BufferRole::logits;
    result.name = kt::stringifyBufferRole(result.role);
    ranges_[view.getBuffer()].last = steps_.size() + 1;
    // where decode leaves the logits, sample finds them
    for (auto [buffer, range] : llvm::zip(buffers_, ranges_)) range.pinned = buffer.role == kt::BufferRole::logits;
    sizes_ = assignOffsets(ranges_, devices_.size());
    writeDown();
    return mlir::success();
  }

  llvm::ArrayRef<uint64_t> arenas() const { return sizes_; }
  std::size_t buffers() const { return buffers_.size(); }
  unsigned inPlace() const { return inPlace_; }
  uint64_t bytesWithoutReuse() const {
    uint64_t bytes = 0;
    for (const LiveRange& range : ranges_) bytes += align64(range.bytes);
    return bytes;
  }

 private:
  uint32_t arenaOf(llvm::StringRef device) const { return llvm::find(devices_, device) - devices_.begin(); }

  uint64_t add(std::string name, kt::BufferRole role, kt::Dim dim, mlir::Type element, uint64_t columns, uint32_t arena,
               uint64_t first) {
    Buffer buffer{unique(std::move(name)), role, dim, formatOf(element), columns, rowBytesOf(element, columns)};
    LiveRange range;
    range.arena = arena;
    range.first = range.last = first;
    range.alignment = alignmentOf(arena);
    range.bytes = buffer.rowBytes * entry_.getBounds()->of(dim);
    buffers_.push_back(buffer);
    ranges_.push_back(range);
    return buffers_.size() - 1;
  }

  std::string unique(std::string name) {
    std::string candidate = name;
    for (unsigned n = 2; !names_.insert(candidate).second; ++n) candidate = name + "#" + std::to_string(n);
    return candidate;
  }

  // Kernels of a GPU want scratch at 256 bytes; one rule for all that lies there.
  uint64_t alignmentOf(uint32_t arena) const { return devices_[arena] == "cpu" ? 64 : 256; }

  // The step with which `op` is done in an arena. Members of a launch group are alive together: on their device what one reads, writes
  // or scribbles on is taken until the last one is done.
  uint64_t busyUntil(mlir::Operation* op, uint32_t arena) const {
    auto number = numbers_.find(op);
    if (number == numbers_.end()) return steps_.size() + 1;
    auto step = llvm::cast<kt::StepOpInterface>(op);
    if (llvm::isa<kt::TransferOp>(op) && step.operandDevice() == "cpu" && devices_[arena] == "cpu") return copiedUntil(number->second);
    return arenaOf(step.getPlaceAttr().getDevice()) == arena ? spans_.lookup(op).last : number->second;
  }

  // In halves the CPU goes on while a copy to a GPU takes what it made: its next step must not write there.
  uint64_t copiedUntil(uint64_t number) const {
    if (!cut_) return number;
    for (uint64_t next = number; next < steps_.size(); ++next) {
      kt::StepOpInterface step = steps_[next];
      if (step.operandDevice() == "cpu" && step.resultDevice() == "cpu") return next + 1;
    }
    return number;
  }

  // Who reads the value in an arena.
  llvm::SmallVector<mlir::Operation*> readers(Value value, uint32_t arena) const {
    llvm::SmallVector<mlir::Operation*> found;
    for (mlir::Operation* user : value.getUsers()) {
      auto step = llvm::dyn_cast<kt::StepOpInterface>(user);
      if (!step || arenaOf(step.operandDevice()) == arena) found.push_back(user);
    }
    return found;
  }

  // The step of the device after which nothing there needs the value.
  uint64_t lastUse(Value value, uint32_t arena) const {
    uint64_t last = 0;
    for (mlir::Operation* user : readers(value, arena)) last = std::max(last, busyUntil(user, arena));
    return last;
  }

  void assign(Value value, uint64_t buffer, uint64_t column) {
    uint32_t arena = ranges_[buffer].arena;
    views_[{value, arena}] = kt::ViewAttr::get(entry_.getContext(), buffer, column, kt::columnsOf(value));
    ranges_[buffer].last = std::max(ranges_[buffer].last, lastUse(value, arena));
    if (mlir::Operation* maker = value.getDefiningOp()) ranges_[buffer].last = std::max(ranges_[buffer].last, busyUntil(maker, arena));
  }

  void addInputs() {
    for (mlir::BlockArgument argument : entry_.getBody().getArguments()) {
      const kt::BufferRole role = kt::roleOf(argument);
      // an input lies where it is read; one that nothing reads lies where the first step runs: there is one, since no
      // argument has the type of a result
      std::set<uint32_t> arenas;
      for (kt::StepOpInterface step : steps_) {
        if (llvm::is_contained(step->getOperands(), argument)) arenas.insert(arenaOf(step.operandDevice()));
      }
      if (arenas.empty()) arenas.insert(arenaOf(steps_.front().operandDevice()));
      for (uint32_t arena : arenas) {
        uint64_t buffer = add(kt::stringifyBufferRole(role).str(), role, kt::dimOf(argument),
                              kt::elementOf(argument.getType()), kt::columnsOf(argument), arena, 0);
        assign(argument, buffer, 0);
      }
    }
  }

  // A norm or a sum reads an element of its first operand before it writes it: the result may take its place.
  bool worksInPlace(kt::StepOpInterface step, uint64_t number) {
    if (!llvm::isa<kt::NormOp, kt::AddOp, kt::AddNormOp>(step.getOperation())) return false;
    Value first = step->getOperand(0), result = step->getResult(0);
    return first.getType() == result.getType() && !llvm::isa<mlir::BlockArgument>(first) &&
           llvm::all_of(readers(first, arenaOf(step.operandDevice())), [&](mlir::Operation* user) { return numbers_.contains(user) && numbers_.lookup(user) <= number; }) &&
           llvm::count(step->getOperands(), first) == 1 &&
           !llvm::is_contained(result.getUsers(), terminator()) &&
           first.getDefiningOp<kt::StepOpInterface>().resultDevice() == step.resultDevice();
  }
  mlir::Operation* terminator() { return entry_.getBody().front().getTerminator(); }

  mlir::LogicalResult addStep(kt::StepOpInterface step, uint64_t number) {
    std::string name = kt::stepName(step);
    const uint32_t arena = arenaOf(step.resultDevice());
    const bool inPlace = worksInPlace(step, number);
    if (inPlace) {
      kt::ViewAttr view = views_.lookup({step->getOperand(0), arena});
      assign(step->getResult(0), view.getBuffer(), view.getColumn());
      ++inPlace_;
    }
    if (inPlace && step->getNumResults() == 1) {
      // nothing else to place
    } else if (llvm::isa<kt::LinearOp>(step.getOperation())) {
      uint64_t columns = 0;
      for (Value result : step->getResults()) columns += kt::columnsOf(result);
      uint64_t buffer = addValue(name, step, columns, number);
      columns = 0;
      for (Value result : step->getResults()) {
        assign(result, buffer, columns);
        columns += kt::columnsOf(result);
      }
    } else {
      llvm::SmallVector<llvm::StringRef> suffixes = suffixesOf(step);
      for (auto [index, result] : llvm::enumerate(step->getResults())) {
        if (inPlace && index == 0) continue;
        std::string part = suffixes.empty() ? name : name + suffixes[index].str();
        assign(result,
               add(part, kt::BufferRole::value, kt::dimOf(result), kt::elementOf(result.getType()), kt::columnsOf(result),
                   arena, number),
               0);
      }
    }
    return addWorkspace(step, name, number);
  }

  // What tells the results of one step apart, for people; empty: nothing, they are numbered.
  static llvm::SmallVector<llvm::StringRef> suffixesOf(kt::StepOpInterface step) {
    if (llvm::isa<kt::RouteOp>(step.getOperation())) return {".ids", ".weights"};
    if (llvm::isa<kt::SubmitOp>(step.getOperation())) return {".x", ".ids", ".weights"};
    if (llvm::isa<kt::AddNormOp>(step.getOperation())) return {".sum", ""};
    return {};
  }

  uint64_t addValue(const std::string& name, kt::StepOpInterface step, uint64_t columns, uint64_t number) {
    Value result = step->getResult(0);
    return add(name, kt::BufferRole::value, kt::dimOf(result), kt::elementOf(result.getType()), columns,
               arenaOf(step.resultDevice()), number);
  }

  mlir::LogicalResult addWorkspace(kt::StepOpInterface step, const std::string& name, uint64_t number) {
    std::optional<uint64_t> bytes = workspaceBytes(step, *entry_.getBounds());
    if (!bytes) return step->emitOpError("needs more scratch than 2^60 bytes; lower batch.chunk in the policy");
    if (*bytes == 0) return mlir::success();
    buffers_.push_back({unique(name + ".workspace"), kt::BufferRole::workspace, kt::Dim::tokens, "f32", 0, 0});
    LiveRange range;
    range.arena = arenaOf(step.getPlaceAttr().getDevice());
    range.alignment = alignmentOf(range.arena);
    range.first = number;
    range.last = busyUntil(step, range.arena);
    range.bytes = *bytes;
    ranges_.push_back(range);
    workspaces_[step] = buffers_.size() - 1;
    return mlir::success();
  }

  void writeDown() {
    mlir::Builder builder(entry_.getContext());
    llvm::SmallVector<mlir::Attribute> list;
    for (auto [buffer, range] : llvm::zip(buffers_, ranges_)) {
      list.push_back(kt::BufferAttr::get(entry_.getContext(), buffer.name, devices_[range.arena], buffer.role,
                                         buffer.dim, buffer.format, buffer.columns, buffer.rowBytes, range.offset,
                                         range.bytes));
    }
    entry_.setBuffersAttr(builder.getArrayAttr(list));
    auto viewsOf = [&](auto values, llvm::StringRef device) {
      llvm::SmallVector<mlir::Attribute> views;
      for (Value value : values) views.push_back(views_.lookup({value, arenaOf(device)}));
      return builder.getArrayAttr(views);
    };
    for (kt::StepOpInterface step : steps_) {
      step.setInViewsAttr(viewsOf(step->getOperands(), step.operandDevice()));
      step.setOutViewsAttr(viewsOf(step->getResults(), step.resultDevice()));
      auto workspace = workspaces_.find(step);
      step.setWorkspaceAttr(workspace == workspaces_.end() ? mlir::IntegerAttr()
                                                           : builder.getI64IntegerAttr(workspace->second));
    }
  }

  kt::EntryOp entry_;
  const llvm::DenseMap<mlir::Operation*, Span> spans_;
  const bool cut_;
  llvm::ArrayRef<std::string> devices_;
  llvm::SmallVector<kt::StepOpInterface> steps_;
  llvm::DenseMap<mlir::Operation*, uint64_t> numbers_;
  std::vector<Buffer> buffers_;
  std::vector<LiveRange> ranges_;  // parallel to buffers_
  std::set<std::string> names_;
  llvm::DenseMap<std::pair<Value, uint32_t>, kt::ViewAttr> views_;  // by value and arena
  llvm::DenseMap<mlir::Operation*, uint64_t> workspaces_;
  std::vector<uint64_t> sizes_;
  unsigned inPlace_ = 0;
};

// "cpu" first, also where nothing runs on it, then GPUs by number.
std::vector<std::string> devicesOf(mlir::ModuleOp module) {
  auto less = [](const std::string& a, const std::string& b) {
    return std::pair(a != "cpu", std::pair(a.size(), a)) < std::pair(b != "cpu", std::pair(b.size(), b));
  };
  std::set<std::string, decltype(less)> names(less);
  names.insert("cpu");
  forEachStep(module, [&](kt::StepOpInterface step) {
    for (llvm::StringRef device : {step.operandDevice(), step.resultDevice()}) names.insert(device.str());
  });
  return {names.begin(), names.end()};
}

struct PlanMemory : impl::PlanMemoryBase<PlanMemory> {
  using PlanMemoryBase::PlanMemoryBase;

  void runOnOperation() override {
    mlir::ModuleOp module = getOperation();
    if (mlir::failed(checkPlaced(module))) return signalPassFailure();
    std::vector<std::string> devices = devicesOf(module);
    std::vector<uint64_t> arenas(devices.size(), 0);
    uint64_t buffers = 0, inPlace = 0;
    for (auto entry : module.getOps<kt::EntryOp>()) {
      EntryPlan plan(entry, devices);
      if (mlir::failed(plan.run())) return signalPassFailure();
      for (auto [arena, bytes] : llvm::zip(arenas, plan.arenas())) arena = std::max(arena, bytes);
      buffers += plan.buffers();
      inPlace += plan.inPlace();
      uint64_t used = 0;
      for (uint64_t bytes : plan.arenas()) used += bytes;
      mlir::remark::analysis(entry.getLoc(), remark("kt-plan-memory", "Arena"))
          << entry.getSymName() << mlir::remark::metric("bytes", used)
          << mlir::remark::metric("bytes without reuse", plan.bytesWithoutReuse());
    }
    llvm::SmallVector<mlir::Attribute> list;
    for (auto [device, arena] : llvm::zip(devices, arenas))
      list.push_back(kt::DeviceAttr::get(&getContext(), device, arena));
    auto deviceList = mlir::ArrayAttr::get(&getContext(), list);
    module->setAttr(kt::kDevices, deviceList);
    auto account = accountOf(module, deviceList);
    if (!account) {
      module.emitError(
          "the account has a size that cannot be counted; expected placed weights and caches that steps use");
      return signalPassFailure();
    }
    module->setAttr(kt::kAccount, mlir::ArrayAttr::get(&getContext(), *account));
    remarkCounts(module, "kt-plan-memory", {{"buffers", buffers}, {"in place", inPlace}});
  }

  static mlir::LogicalResult checkPlaced(mlir::ModuleOp module) {
    for (auto entry : module.getOps<kt::EntryOp>()) {
      if (!entry.getBoundsAttr()) return entry.emitOpError("has no bounds; run kt-specialise-entries first");
      for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
        if (!step.getPlaceAttr()) return step->emitOpError("has no place; run kt-place first");
        for (Value operand : step->getOperands()) {
          auto maker = operand.getDefiningOp<kt::StepOpInterface>();
          if (!maker || !maker.getPlaceAttr() || maker.resultDevice() == step.operandDevice()) continue;
          return step->emitOpError("has an operand on another device; run kt-insert-transfers first");
        }
      }
    }
    return mlir::success();
  }
};

}  // namespace
}  // namespace ktc::compiler
