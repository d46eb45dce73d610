// kt-verify-lowered
#include <map>
#include <set>

#include "compiler/passes/Passes.h"
#include "compiler/passes/analysis/LaunchGroups.h"
#include "compiler/passes/analysis/Workspace.h"
#include "dialects/kt/KtWalk.h"
#include "runtime/formats/formats.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYLOWERED
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::Value;

struct Live {
  uint64_t first = UINT64_MAX, last = 0;
  void touch(uint64_t step) {
    first = std::min(first, step);
    last = std::max(last, step);
  }
};

class EntryCheck {
 public:
  EntryCheck(kt::EntryOp entry, const std::map<std::string, uint64_t>& arenas)
      : entry_(entry), arenas_(arenas), spans_(launchSpans(entry)) {}

  mlir::LogicalResult run() {
    if (!entry_.getBuffers()) return entry_.emitOpError("has no buffers; run kt-plan-memory");
    for (auto buffer : entry_.getBuffers()->getAsRange<kt::BufferAttr>()) {
      buffers_.push_back(buffer);
      if (mlir::failed(checkBuffer(buffer))) return mlir::failure();
    }
    live_.resize(buffers_.size());
    if (mlir::failed(checkRoles()) || mlir::failed(checkGraphs()) || mlir::failed(checkLaunchGroups())) return mlir::failure();
    uint64_t number = 0;
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) {
      if (mlir::failed(checkStep(step, ++number))) return mlir::failure();
    }
    for (auto [index, buffer] : llvm::enumerate(buffers_)) {
      if (isInput(buffer.getRole())) live_[index].touch(0);
      if (buffer.getRole() == resultRole()) live_[index].touch(number + 1);
    }
    return checkOverlaps();
  }

 private:
  bool isSample() { return entry_.getKind() == kt::EntryKind::sample; }
  kt::BufferRole resultRole() { return isSample() ? kt::BufferRole::next_ids : kt::BufferRole::logits; }
  bool isInput(kt::BufferRole role) {
    if (isSample()) return role == kt::BufferRole::logits;
    return role == kt::BufferRole::ids || role == kt::BufferRole::positions || role == kt::BufferRole::output_rows ||
           role == kt::BufferRole::deferred;
  }

  mlir::InFlightDiagnostic error(kt::BufferAttr buffer) {
    return entry_.emitOpError() << "buffer \"" << buffer.getName() << "\": ";
  }

  mlir::LogicalResult checkBuffer(kt::BufferAttr buffer) {
    auto arena = arenas_.find(buffer.getDevice().str());
    if (arena == arenas_.end()) return error(buffer) << "device \"" << buffer.getDevice() << "\" is not in kt.devices";
    const uint64_t least = buffer.getDevice() == "cpu" ? 64 : 256;
    if (buffer.getOffset() % least != 0) {
      return error(buffer) << "offset: found " << buffer.getOffset() << ", expected a multiple of " << least;
    }
    if (buffer.getBytes() == 0 || buffer.getBytes() > arena->second ||
        buffer.getOffset() > arena->second - buffer.getBytes()) {
      return error(buffer) << "found bytes " << buffer.getOffset() << " + " << buffer.getBytes()
                           << ", expected inside the " << arena->second << " bytes of the arena";
    }
    if (buffer.getRole() == kt::BufferRole::workspace) return mlir::success();
    auto format = parse_format(buffer.getFormat().str());
    if (!format) return error(buffer) << "format \"" << buffer.getFormat() << "\" is not in runtime/formats";
    uint64_t alignment = *format == Format::i32 ? 4 : 64;
    if (buffer.getColumns() > (uint64_t{1} << 31) || buffer.getRowBytes() > (uint64_t{1} << 34) ||
        buffer.getRowBytes() % alignment != 0 ||
        buffer.getRowBytes() * 8 < buffer.getColumns() * format_bits(*format)) {
      return error(buffer) << "row_bytes: found " << buffer.getRowBytes() << ", expected a multiple of " << alignment
                           << " that holds " << buffer.getColumns() << " columns of " << buffer.getFormat();
    }
    uint64_t rows = entry_.getBounds()->of(buffer.getDim());
    if (buffer.getBytes() >= buffer.getRowBytes() * rows) return mlir::success();
    return error(buffer) << "bytes: found " << buffer.getBytes() << ", expected at least " << rows << " rows of "
                         << buffer.getRowBytes();
  }

  mlir::LogicalResult checkRoles() {
    using R = kt::BufferRole;
    for (R role : {R::ids, R::positions, R::output_rows, R::deferred, R::logits, R::next_ids}) {
      // an input of tokens or rows is there once on every device that reads it; each half has its own
      const bool perDevice = isInput(role) && !isSample();
      std::map<std::pair<llvm::StringRef, kt::Dim>, unsigned> places;
      for (kt::BufferAttr buffer : buffers_) {
        if (buffer.getRole() == role) ++places[{perDevice ? buffer.getDevice() : "", perDevice ? buffer.getDim() : kt::Dim::tokens}];
      }
      unsigned count = 0;
      for (auto& [place, buffers] : places) count = std::max(count, buffers);
      unsigned expected = isInput(role) || role == resultRole();
      if (role == R::deferred) {
        expected = !isSample() && llvm::any_of(entry_.getBody().getArguments(), [](mlir::BlockArgument a) { return kt::roleOf(a) == R::deferred; });
      }
      if (count == expected) continue;
      return entry_.emitOpError() << "buffers of role " << kt::stringifyBufferRole(role) << ": found " << count
                                  << ", expected " << expected;
    }
    return mlir::success();
  }

  // Which steps belong to which graph, kt.entry verifies; here, that none is empty.
  mlir::LogicalResult checkGraphs() {
    std::set<int64_t> used;
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) {
      if (mlir::IntegerAttr graph = step.getGraphAttr()) used.insert(graph.getInt());
    }
    const std::size_t graphs = entry_.getGraphsAttr() ? entry_.getGraphsAttr().size() : 0;
    if (used.size() == graphs) return mlir::success();
    return entry_.emitOpError() << "graphs: found " << graphs << ", of which " << used.size()
                                << " have steps; expected steps in each";
  }

  // The members of a launch group follow each other on their GPU, in one graph, and have a kernel together.
  mlir::LogicalResult checkLaunchGroups() {
    std::set<int64_t> closed;
    std::size_t members = 0;
    for (const StepsOfGpu& steps : stepsOfGpus(entry_)) {
      for (std::size_t first = 0; first < steps.size();) {
        mlir::IntegerAttr group = kt::StepOpInterface(steps[first]).getLaunchGroupAttr();
        std::size_t end = first + 1;
        for (; group && end < steps.size() && kt::StepOpInterface(steps[end]).getLaunchGroupAttr() == group; ++end) {}
        llvm::ArrayRef<kt::StepOpInterface> together = llvm::ArrayRef(steps).slice(first, end - first);
        first = end;
        if (!group) continue;
        mlir::Operation* step = together.front();
        if (group.getInt() < 0 || group.getInt() > UINT32_MAX - 1) {
          return step->emitOpError() << "launch_group: found " << group.getInt() << ", expected a number from 0 to " << UINT32_MAX - 1;
        }
        if (!closed.insert(group.getInt()).second) {
          return step->emitOpError() << "launch_group: found " << group.getInt() << " again, expected its steps one behind the other on one GPU";
        }
        if (entry_.getKind() != kt::EntryKind::decode || sequenceOf(together) == nullptr) {
          llvm::SmallVector<Joinable> kinds;
          for (kt::StepOpInterface member : together) kinds.push_back(joinableOf(member));
          return step->emitOpError() << "launch_group: found " << group.getInt() << " on \"" << namesOf(kinds)
                                     << "\", expected steps of one graph of a decode entry that have one kernel (runtime/formats/launch_groups.h) "
                                        "and hand their values on";
        }
        members += together.size();
      }
    }
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) members -= bool(step.getLaunchGroupAttr());
    if (members == 0) return mlir::success();
    return entry_.emitOpError("launch_group: found a step of the CPU, expected steps of a GPU");
  }

  // What a step touches on its own device is taken for as long as its launch group is at work.
  void touch(kt::StepOpInterface step, uint64_t buffer, uint64_t number) {
    live_[buffer].touch(number);
    if (buffers_[buffer].getDevice() != step.getPlaceAttr().getDevice()) return;
    live_[buffer].touch(spans_.lookup(step).first);
    live_[buffer].touch(spans_.lookup(step).last);
  }

  // The view shows the value: rows, element and columns of its buffer. An argument or result lies in the buffer of its
  // role.
  mlir::LogicalResult checkView(kt::StepOpInterface step, llvm::StringRef list, llvm::StringRef device, kt::ViewAttr view,
                                Value value) {
    if (view.getBuffer() >= buffers_.size()) {
      return step->emitOpError() << list << ": found buffer " << view.getBuffer() << ", expected below "
                                 << buffers_.size();
    }
    kt::BufferAttr buffer = buffers_[view.getBuffer()];
    llvm::StringRef format = kt::elementOf(value.getType()).isF32()    ? "f32"
                             : kt::elementOf(value.getType()).isBF16() ? "bf16"
                                                                       : "i32";
    if (buffer.getRole() == kt::BufferRole::workspace || buffer.getDim() != kt::dimOf(value) ||
        buffer.getFormat() != format) {
      return step->emitOpError() << list << ": buffer \"" << buffer.getName() << "\" does not hold " << value.getType();
    }
    if (buffer.getDevice() != device) {
      return step->emitOpError() << list << ": buffer \"" << buffer.getName() << "\" lies on " << buffer.getDevice()
                                 << ", expected " << device;
    }
    if (view.getColumn() > buffer.getColumns() || view.getColumns() > buffer.getColumns() - view.getColumn()) {
      return step->emitOpError() << list << ": found columns " << view.getColumn() << " + " << view.getColumns()
                                 << ", expected inside the " << buffer.getColumns() << " of \"" << buffer.getName()
                                 << "\"";
    }
    auto [known, fresh] = views_.try_emplace({value, device}, view);
    if (!fresh && known->second != view) {
      return step->emitOpError() << list << ": found " << view << " for a value that lies in " << known->second;
    }
    if (auto argument = llvm::dyn_cast<mlir::BlockArgument>(value); argument && buffer.getRole() != kt::roleOf(argument)) {
      return step->emitOpError() << list << ": an argument lies in \"" << buffer.getName()
                                 << "\", expected the buffer of role " << kt::stringifyBufferRole(kt::roleOf(argument));
    }
    bool returned = llvm::is_contained(value.getUsers(), entry_.getBody().front().getTerminator());
    if (returned && buffer.getRole() != resultRole()) {
      return step->emitOpError() << list << ": the entry's result lies in \"" << buffer.getName()
                                 << "\", expected the buffer of role " << kt::stringifyBufferRole(resultRole());
    }
    return mlir::success();
  }

  mlir::LogicalResult checkStep(kt::StepOpInterface step, uint64_t number) {
    if (!step.getPlaceAttr() || !step.getInViewsAttr() || !step.getOutViewsAttr()) {
      return step->emitOpError("has no place or no views; run kt-place and kt-plan-memory");
    }
    auto checkAll = [&](llvm::StringRef list, llvm::StringRef device, mlir::ArrayAttr views,
                        auto values) -> mlir::LogicalResult {
      for (auto [view, value] : llvm::zip(views.template getAsRange<kt::ViewAttr>(), values)) {
        if (mlir::failed(checkView(step, list, device, view, value))) return mlir::failure();
        touch(step, view.getBuffer(), number);
      }
      return mlir::success();
    };
    if (mlir::failed(checkAll("in_views", step.operandDevice(), step.getInViewsAttr(), step->getOperands())) ||
        mlir::failed(checkAll("out_views", step.resultDevice(), step.getOutViewsAttr(), step->getResults())) ||
        mlir::failed(checkApart(step)) ||
        mlir::failed(checkWrites(step))) {
      return mlir::failure();
    }
    return checkWorkspace(step, number);
  }

  static bool meet(kt::ViewAttr a, kt::ViewAttr b) {
    return a.getBuffer() == b.getBuffer() && a.getColumn() < b.getColumn() + b.getColumns() &&
           b.getColumn() < a.getColumn() + a.getColumns();
  }

  // What a step writes was not promised to anybody: no input of the entry, no value that is read later, and no operand,
  // but for the first one of a norm or a sum, whose place the first result may take. Results of one product are one range
  // of columns.
  mlir::LogicalResult checkWrites(kt::StepOpInterface step) {
    bool mayReplace = llvm::isa<kt::NormOp, kt::AddOp, kt::AddNormOp>(step.getOperation());
    llvm::SmallVector<kt::ViewAttr> writes(step.getOutViewsAttr().getAsRange<kt::ViewAttr>());
    for (auto [index, write] : llvm::enumerate(writes)) {
      kt::BufferAttr buffer = buffers_[write.getBuffer()];
      if (isInput(buffer.getRole())) {
        return step->emitOpError() << "out_views: writes \"" << buffer.getName() << "\", an input of the entry";
      }
      if (index > 0 && llvm::isa<kt::LinearOp>(step.getOperation()) &&
          (write.getBuffer() != writes[index - 1].getBuffer() ||
           write.getColumn() != writes[index - 1].getColumn() + writes[index - 1].getColumns())) {
        return step->emitOpError("out_views: the results of a product are not consecutive columns of one buffer");
      }
      for (auto [operand, view] : llvm::enumerate(step.getInViewsAttr().getAsRange<kt::ViewAttr>())) {
        if (!meet(write, view) || (mayReplace && index == 0 && operand == 0 && write == view)) continue;
        return step->emitOpError() << "out_views: a result lies on operand " << operand
                                   << "; expected columns of its own, or exactly operand 0 of a norm or a sum";
      }
      for (auto& [key, view] : views_) {
        Value value = key.first;
        if (value.getDefiningOp() == step || !meet(write, view) || !readAfter(value, step)) continue;
        return step->emitOpError() << "out_views: overwrites columns of \"" << buffer.getName()
                                   << "\" that a later step reads";
      }
    }
    return mlir::success();
  }

  mlir::LogicalResult checkApart(kt::StepOpInterface step) {
    llvm::SmallVector<kt::ViewAttr> writes(step.getOutViewsAttr().getAsRange<kt::ViewAttr>());
    for (std::size_t a = 0; a < writes.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (meet(writes[a], writes[b])) return step->emitOpError("out_views: two results share columns; expected each its own");
      }
    }
    return mlir::success();
  }

  static bool readAfter(Value value, mlir::Operation* step) {
    return llvm::any_of(value.getUsers(), [&](mlir::Operation* user) { return step->isBeforeInBlock(user); });
  }

  mlir::LogicalResult checkWorkspace(kt::StepOpInterface step, uint64_t number) {
    std::optional<uint64_t> needed = workspaceBytes(step, *entry_.getBounds());
    mlir::IntegerAttr index = step.getWorkspaceAttr();
    if (needed && *needed == 0 && !index) return mlir::success();
    if (!index || index.getInt() < 0 || index.getInt() >= int64_t(buffers_.size())) {
      return step->emitOpError() << "workspace: expected the index of a buffer of at least "
                                 << needed.value_or(UINT64_MAX) << " bytes";
    }
    kt::BufferAttr buffer = buffers_[index.getInt()];
    if (buffer.getRole() != kt::BufferRole::workspace || !needed || buffer.getBytes() < *needed ||
        buffer.getDevice() != step.getPlaceAttr().getDevice()) {
      return step->emitOpError() << "workspace: found \"" << buffer.getName() << "\" of " << buffer.getBytes()
                                 << " bytes, expected scratch of at least " << needed.value_or(UINT64_MAX)
                                 << " bytes on " << step.getPlaceAttr().getDevice();
    }
    touch(step, index.getInt(), number);
    return mlir::success();
  }

  mlir::LogicalResult checkOverlaps() {
    // a sweep over addresses: few ranges share an address, so the inner loop is short
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (live_[i].first != UINT64_MAX) order.push_back(i);
    }
    llvm::sort(order, [&](std::size_t a, std::size_t b) {
      return std::pair(buffers_[a].getOffset(), a) < std::pair(buffers_[b].getOffset(), b);
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      kt::BufferAttr a = buffers_[order[i]];
      for (std::size_t j = i + 1; j < order.size(); ++j) {
        kt::BufferAttr b = buffers_[order[j]];
        if (b.getOffset() >= a.getOffset() + a.getBytes()) break;
        const Live &x = live_[order[i]], &y = live_[order[j]];
        if (a.getDevice() != b.getDevice() || x.first > y.last || y.first > x.last) continue;
        return error(b) << "shares bytes with \"" << a.getName() << "\" while both are live, in step "
                        << std::max(x.first, y.first);
      }
    }
    return mlir::success();
  }

  kt::EntryOp entry_;
  const std::map<std::string, uint64_t>& arenas_;
  std::vector<kt::BufferAttr> buffers_;
  std::vector<Live> live_;  // parallel to buffers_; steps count from 1
  const llvm::DenseMap<mlir::Operation*, Span> spans_;
  llvm::DenseMap<std::pair<Value, llvm::StringRef>, kt::ViewAttr> views_;  // by value and device
};

struct VerifyLowered : impl::VerifyLoweredBase<VerifyLowered> {
  using VerifyLoweredBase::VerifyLoweredBase;

  void runOnOperation() override {
    if (mlir::failed(check(getOperation()))) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::lowered);
  }

  static mlir::LogicalResult check(mlir::ModuleOp module) {
    auto devices = module->getAttrOfType<mlir::ArrayAttr>(kt::kDevices);
    auto account = module->getAttrOfType<mlir::ArrayAttr>(kt::kAccount);
    if (!devices || !account) return module.emitError("no kt.devices or no kt.account; run kt-plan-memory");
    std::map<std::string, uint64_t> arenas;
    for (auto device : devices.getAsRange<kt::DeviceAttr>()) arenas[device.getName().str()] = device.getArena();
    for (auto entry : module.getOps<kt::EntryOp>()) {
      if (!entry.getBounds()) return entry.emitOpError("has no bounds; run kt-specialise-entries");
      if (mlir::failed(EntryCheck(entry, arenas).run())) return mlir::failure();
    }
    auto expected = accountOf(module, devices);
    if (expected && mlir::ArrayAttr::get(module.getContext(), *expected) == account) return mlir::success();
    return module.emitError() << "kt.account: found " << account << ", expected the sums of weights, caches and arenas"
                              << "; run kt-plan-memory again";
  }
};

}  // namespace
}  // namespace ktc::compiler
