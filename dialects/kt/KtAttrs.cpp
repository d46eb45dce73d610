// Attributes and the value types that they name.
#include "dialects/kt/Kt.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Format.h"
#include "mlir/IR/DialectImplementation.h"

// "[1.00000000e+00, 7.49894202e-01]": nine digits tell every f32 from its neighbours.
static void printFloats(mlir::AsmPrinter& printer, mlir::DenseF32ArrayAttr values) {
  printer << "[";
  llvm::interleaveComma(values.asArrayRef(), printer.getStream(),
                        [&](float value) { printer.getStream() << llvm::format("%.8e", static_cast<double>(value)); });
  printer << "]";
}

static mlir::FailureOr<mlir::DenseF32ArrayAttr> parseFloats(mlir::AsmParser& parser) {
  llvm::SmallVector<float> values;
  auto parseOne = [&]() -> mlir::ParseResult {
    double value = 0;
    if (parser.parseFloat(value)) return mlir::failure();
    values.push_back(static_cast<float>(value));
    return mlir::success();
  };
  if (parser.parseCommaSeparatedList(mlir::AsmParser::Delimiter::Square, parseOne)) return mlir::failure();
  return mlir::DenseF32ArrayAttr::get(parser.getContext(), values);
}

// generated code comes behind every header
#include "dialects/kt/KtEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "dialects/kt/KtAttrs.cpp.inc"

namespace ktc::kt {

void KtDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/kt/KtAttrs.cpp.inc"
      >();
}

bool isValue(mlir::Type type) {
  auto tensor = llvm::dyn_cast<mlir::RankedTensorType>(type);
  return tensor && llvm::isa_and_nonnull<DimAttr>(tensor.getEncoding());
}

mlir::Type elementOf(mlir::Type type) {
  return llvm::cast<mlir::RankedTensorType>(type).getElementType();
}

Dim dimOf(mlir::Type type) {
  return llvm::cast<DimAttr>(llvm::cast<mlir::RankedTensorType>(type).getEncoding()).getValue();
}

int64_t columnsOf(mlir::Type type) {
  return llvm::cast<mlir::RankedTensorType>(type).getDimSize(1);
}

mlir::RankedTensorType valueType(Dim dim, int64_t columns, mlir::Type element) {
  return mlir::RankedTensorType::get({mlir::ShapedType::kDynamic, columns}, element,
                                     DimAttr::get(element.getContext(), dim));
}

mlir::LogicalResult DimAttr::verifyEncoding(llvm::ArrayRef<int64_t> shape, mlir::Type element,
                                            llvm::function_ref<mlir::InFlightDiagnostic()> emitError) const {
  // a bound keeps all later byte counts inside 64 bits
  constexpr int64_t kMaxColumns = int64_t{1} << 31;
  if (shape.size() != 2 || !mlir::ShapedType::isDynamic(shape[0]) || mlir::ShapedType::isDynamic(shape[1]) ||
      shape[1] < 1 || shape[1] > kMaxColumns) {
    return emitError() << "a tensor with #kt.dim has rows `?` and from 1 to " << kMaxColumns
                       << " columns: expected tensor<?xNxf32, #kt.dim<" << stringifyDim(getValue()) << ">>";
  }
  if (!element.isF32() && !element.isBF16() && !element.isInteger(32)) {
    return emitError() << "a tensor with #kt.dim has elements f32, bf16 or i32: found " << element;
  }
  return mlir::success();
}

mlir::LogicalResult PieceAttr::verify(llvm::function_ref<mlir::InFlightDiagnostic()> emitError, llvm::StringRef slot,
                                      uint64_t rows, uint64_t src_row, uint64_t row_step, bool transpose,
                                      uint64_t dst_batch, uint64_t dst_row, uint64_t repeat, uint64_t repeat_src_row,
                                      uint64_t repeat_dst_batch, uint64_t repeat_dst_row) {
  if (slot.empty()) return emitError() << "#kt.piece names no slot";
  if (rows == 0 || row_step == 0 || repeat == 0) {
    return emitError() << "#kt.piece of '" << slot << "': rows, row_step and repeat are at least 1, found " << rows
                       << ", " << row_step << ", " << repeat;
  }
  // every product and sum that a reader forms stays far inside 64 bits
  constexpr uint64_t kLimit = uint64_t{1} << 31;
  for (uint64_t value :
       {rows, src_row, row_step, dst_batch, dst_row, repeat, repeat_src_row, repeat_dst_batch, repeat_dst_row}) {
    if (value > kLimit) {
      return emitError() << "#kt.piece of '" << slot << "': found " << value << ", expected at most " << kLimit;
    }
  }
  return mlir::success();
}

mlir::LogicalResult TileAttr::verify(llvm::function_ref<mlir::InFlightDiagnostic()> emitError, uint32_t x, uint32_t h,
                                     uint32_t rows) {
  constexpr uint32_t kMostRows = 65535;  // a ushort of the plan
  for (uint32_t granule : {x, h}) {
    if (granule != 0 && granule != 64 && granule != 128) {
      return emitError() << "#kt.tile: found a granule of " << granule << ", expected 0 (a row), 64 or 128";
    }
  }
  if (rows > kMostRows) return emitError() << "#kt.tile: found rows = " << rows << ", expected at most " << kMostRows;
  return mlir::success();
}

mlir::LogicalResult LateAttr::verify(llvm::function_ref<mlir::InFlightDiagnostic()> emitError, uint32_t count,
                                     ExpertsPart part, bool among_all) {
  if (count > 0 && count <= 65535) return mlir::success();  // a ushort of the plan
  return emitError() << "#kt.late: found count = " << count << ", expected from 1 to 65535";
}

mlir::LogicalResult RopeAttr::verify(llvm::function_ref<mlir::InFlightDiagnostic()> emitError, RopeStyle style,
                                     mlir::FloatAttr factor, mlir::DenseF32ArrayAttr inv_freq) {
  if (!factor.getType().isF32()) return emitError() << "#kt.rope: factor is f32, found " << factor.getType();
  if (inv_freq.empty()) return emitError() << "#kt.rope: inv_freq is empty, expected one value per rotated pair";
  return mlir::success();
}

mlir::LogicalResult BoundsAttr::verify(llvm::function_ref<mlir::InFlightDiagnostic()> emitError, uint64_t tokens,
                                       uint64_t rows, uint64_t sequences) {
  constexpr uint64_t kLimit = uint64_t{1} << 24;
  if (tokens == 0 || rows == 0 || sequences == 0 || rows > tokens || sequences > tokens || tokens > kLimit) {
    return emitError() << "#kt.bounds: found tokens = " << tokens << ", rows = " << rows
                       << ", sequences = " << sequences
                       << ", expected each at least 1, rows and sequences at most tokens, tokens at most " << kLimit;
  }
  return mlir::success();
}

}  // namespace ktc::kt
