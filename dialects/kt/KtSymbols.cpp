// Verifiers of weights, expert banks, caches and tables.
#include "dialects/kt/Kt.h"

namespace ktc::kt {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 31;

// Device, format and packing come together: a weight is placed or it is not.
template <typename Op>
mlir::LogicalResult checkPlaced(Op op) {
  bool device = op.getDeviceAttr() != nullptr;
  if (device != (op.getFormatAttr() != nullptr) || device != (op.getPackingAttr() != nullptr)) {
    return op.emitOpError("is placed by halves: expected device, format and packing, or none of them");
  }
  if (!op.getGroupAttr() || device) return mlir::success();
  return op.emitOpError("has a group and no format; expected one beside the other");
}

// Rows [begin, begin + count) of matrix `batch`.
struct Range {
  uint64_t batch, begin, count;
  bool operator<(const Range& other) const { return std::tie(batch, begin) < std::tie(other.batch, other.begin); }
};

// Every row of every matrix is made exactly once. A transposed piece fills whole matrices: how many rows it makes is a
// property of the slot, which emit checks against the checkpoint.
mlir::LogicalResult checkRecipe(mlir::Operation* op, llvm::StringRef name, mlir::ArrayAttr recipe, uint64_t batch,
                                uint64_t rows, uint64_t columns) {
  constexpr uint64_t kMaxRanges = uint64_t{1} << 20;
  auto error = [&]() { return op->emitOpError() << name << ": "; };
  std::vector<Range> ranges;
  for (auto piece : recipe.getAsRange<PieceAttr>()) {
    if (piece.getRepeat() > kMaxRanges - ranges.size()) {
      return error() << "found more than " << kMaxRanges << " pieces; expected fewer, larger ones";
    }
    if (piece.getTranspose() && piece.getRows() != columns) {
      return error() << "transposed rows of '" << piece.getSlot() << "': found " << piece.getRows() << ", expected "
                     << columns << " as the weight has columns";
    }
    for (uint64_t r = 0; r < piece.getRepeat(); ++r) {
      uint64_t matrix = piece.getDstBatch() + r * piece.getRepeatDstBatch();
      uint64_t begin = piece.getDstRow() + r * piece.getRepeatDstRow();
      uint64_t count = piece.getTranspose() ? rows - std::min(begin, rows) : piece.getRows();
      if (matrix >= batch || begin + count > rows || count == 0) {
        return error() << "rows of '" << piece.getSlot() << "' go to matrix " << matrix << ", rows " << begin << " to "
                       << begin + count << ", expected inside [" << batch << ", " << rows << "]";
      }
      ranges.push_back({matrix, begin, count});
    }
  }
  std::sort(ranges.begin(), ranges.end());
  Range next{0, 0, 0};  // the first row not yet made
  for (const Range& range : ranges) {
    if (range.batch != next.batch || range.begin != next.begin) {
      bool twice = range.batch < next.batch || (range.batch == next.batch && range.begin < next.begin);
      const Range& at = twice ? range : next;
      return error() << "matrix " << at.batch << ", row " << at.begin << " is made "
                     << (twice ? "twice" : "by no piece") << "; expected every row exactly once";
    }
    next.begin += range.count;
    if (next.begin == rows) next = {next.batch + 1, 0, 0};
  }
  if (next.batch != batch) {
    return error() << "matrix " << next.batch << ", row " << next.begin
                   << " is made by no piece; expected every row exactly once";
  }
  return mlir::success();
}

mlir::LogicalResult checkExtents(mlir::Operation* op, llvm::ArrayRef<int64_t> extents) {
  for (int64_t extent : extents) {
    if (extent < 1 || extent > kMaxExtent) {
      return op->emitOpError() << "extent: found " << extent << ", expected from 1 to " << kMaxExtent;
    }
  }
  return mlir::success();
}

mlir::LogicalResult checkAscending(mlir::Operation* op, llvm::StringRef name, mlir::DenseI32ArrayAttr ids,
                                   int64_t end) {
  int64_t next = 0;
  for (int32_t id : ids.asArrayRef()) {
    if (id < next || id >= end) {
      return op->emitOpError() << name << ": found expert " << id << ", expected ascending ids below " << end;
    }
    next = int64_t{id} + 1;
  }
  return mlir::success();
}

}  // namespace

llvm::SmallVector<mlir::FlatSymbolRefAttr> present(std::initializer_list<mlir::FlatSymbolRefAttr> refs) {
  llvm::SmallVector<mlir::FlatSymbolRefAttr> result;
  for (mlir::FlatSymbolRefAttr ref : refs) {
    if (ref) result.push_back(ref);
  }
  return result;
}

mlir::LogicalResult WeightOp::verify() {
  if (getShape().size() != 3) {
    return emitOpError() << "shape: found " << getShape().size() << " extents, expected [batch, rows, columns]";
  }
  if (mlir::failed(checkExtents(*this, getShape())) || mlir::failed(checkPlaced(*this))) return mlir::failure();
  return checkRecipe(*this, "recipe", getRecipe(), getBatch(), getRows(), getColumns());
}

llvm::StringRef ExpertBankOp::getDownPacking() {
  llvm::StringRef packing = getPacking().value_or("");
  return packing == "panel_paired" ? "panel" : packing;
}

// Each device once, no expert on two of them.
static mlir::LogicalResult checkHot(ExpertBankOp bank) {
  if (!bank.getHotAttr()) return mlir::success();
  if (bank.getHotAttr().empty()) return bank.emitOpError("hot: found no devices, expected one or more");
  llvm::SmallDenseMap<int32_t, llvm::StringRef> owner;
  llvm::SmallVector<llvm::StringRef> devices;
  for (auto hot : bank.getHotAttr().getAsRange<HotAttr>()) {
    if (mlir::failed(checkAscending(bank, "hot", hot.getExperts(), bank.getExperts()))) return mlir::failure();
    if (hot.getExperts().empty()) return bank.emitOpError("hot: found no experts, expected one or more");
    if (llvm::is_contained(devices, hot.getDevice())) {
      return bank.emitOpError() << "hot: found \"" << hot.getDevice() << "\" twice, expected each device once";
    }
    devices.push_back(hot.getDevice());
    for (int32_t expert : hot.getExperts().asArrayRef()) {
      auto [other, fresh] = owner.try_emplace(expert, hot.getDevice());
      if (fresh) continue;
      return bank.emitOpError() << "hot: expert " << expert << " is on \"" << other->second << "\" and on \"" << hot.getDevice()
                                << "\"; expected one of them";
    }
  }
  return mlir::success();
}

mlir::LogicalResult ExpertBankOp::verify() {
  int64_t experts = getExperts(), hidden = getHidden(), intermediate = getIntermediate();
  if (mlir::failed(checkExtents(*this, {experts, hidden, intermediate})) || mlir::failed(checkPlaced(*this))) {
    return mlir::failure();
  }
  if (mlir::DenseI32ArrayAttr ids = getIdsAttr()) {
    if (ids.size() != experts) {
      return emitOpError() << "ids: found " << ids.size() << ", expected " << experts << " as the bank has experts";
    }
    if (getHotAttr()) return emitOpError("has ids and hot experts; expected the hot ones of a whole layer");
    if (mlir::failed(checkAscending(*this, "ids", ids, int64_t{1} << 31))) return mlir::failure();
  }
  if (mlir::failed(checkHot(*this))) return mlir::failure();
  // a piece is applied to every expert's matrix, so one matrix stands for all
  for (mlir::ArrayAttr recipe : {getGateUp(), getDown()}) {
    for (auto piece : recipe.getAsRange<PieceAttr>()) {
      if (piece.getRepeat() != 1 || piece.getDstBatch() != 0) {
        return emitOpError()
               << "piece of '" << piece.getSlot()
               << "' repeats or names a matrix; expected neither, since a piece is applied to every expert";
      }
    }
  }
  if (mlir::failed(checkRecipe(*this, "gate_up", getGateUp(), 1, 2 * intermediate, hidden))) return mlir::failure();
  return checkRecipe(*this, "down", getDown(), 1, hidden, intermediate);
}

uint64_t CacheOp::getTokenElements() {
  uint64_t elements = 0;
  for (auto part : getParts().getAsRange<PartAttr>()) elements += part.getHeads() * part.getWidth();
  return elements;
}

mlir::LogicalResult CacheOp::verify() {
  if (getParts().empty())
    return emitOpError("has no parts; expected what attention stores of a token, such as \"k\" and \"v\"");
  constexpr uint64_t kMaxPart = uint64_t{1} << 24;
  llvm::SmallVector<llvm::StringRef> names;
  for (auto part : getParts().getAsRange<PartAttr>()) {
    if (part.getHeads() == 0 || part.getWidth() == 0 || part.getHeads() > kMaxPart || part.getWidth() > kMaxPart) {
      return emitOpError() << "part \"" << part.getName() << "\": found heads = " << part.getHeads()
                           << ", width = " << part.getWidth() << ", expected each from 1 to " << kMaxPart;
    }
    if (llvm::is_contained(names, part.getName())) {
      return emitOpError() << "has two parts \"" << part.getName() << "\"; expected each name once";
    }
    names.push_back(part.getName());
  }
  int64_t extents[] = {int64_t(getLayers()), int64_t(getPage()), int64_t(getTokens()), int64_t(getSequences())};
  if (mlir::failed(checkExtents(*this, extents))) return mlir::failure();
  if ((getDeviceAttr() != nullptr) == (getFormatAttr() != nullptr)) return mlir::success();
  return emitOpError("is placed by halves: expected device and format, or neither");
}

mlir::LogicalResult CacheOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  auto table = symbols.lookupNearestSymbolFrom<TableOp>(*this, getPagesAttr());
  if (!table) return emitOpError() << "pages: " << getPagesAttr() << " is no kt.table of this module; declare it";
  llvm::ArrayRef<int64_t> shape = table.getShape();
  if (shape[0] == int64_t(getSequences()) && shape[1] == int64_t(getPagesPerSequence())) return mlir::success();
  return emitOpError() << "pages: found " << getPagesAttr() << " of [" << shape[0] << ", " << shape[1]
                       << "], expected [" << getSequences() << ", " << getPagesPerSequence()
                       << "] = [sequences, ceil(tokens / page)]";
}

mlir::LogicalResult TableOp::verify() {
  if (getShape().size() != 2) {
    return emitOpError() << "shape: found " << getShape().size()
                         << " extents, expected [sequences, pages per sequence]";
  }
  return checkExtents(*this, getShape());
}

}  // namespace ktc::kt
