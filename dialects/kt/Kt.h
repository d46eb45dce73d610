// The kt dialect in C++: classes generated from the .td files, and the few helpers their verifiers and the passes
// share. KtDialect.td says what the dialect means.
#pragma once

#include <cstdint>
#include <string>

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/IR/TensorEncoding.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

// what mlir-tblgen makes includes nothing itself
#include "dialects/kt/KtEnums.h.inc"  // NOLINT

#define GET_ATTRDEF_CLASSES
#include "dialects/kt/KtAttrs.h.inc"

namespace ktc::kt {

// One access of an op to a cache or table. A write includes reads.
struct SymbolEffect {
  mlir::FlatSymbolRefAttr symbol;
  bool write;
};

// A value of a body: rank 2, `?` rows named by a #kt.dim encoding, fixed columns.
bool isValue(mlir::Type type);
mlir::Type elementOf(mlir::Type type);
Dim dimOf(mlir::Type type);
int64_t columnsOf(mlir::Type type);
inline Dim dimOf(mlir::Value value) {
  return dimOf(value.getType());
}
inline int64_t columnsOf(mlir::Value value) {
  return columnsOf(value.getType());
}
// Whether rows of the value are those of one half of a step's tokens.
inline bool isHalf(Dim dim) { return dim == Dim::first_half || dim == Dim::second_half; }
mlir::RankedTensorType valueType(Dim dim, int64_t columns, mlir::Type element);

// The attributes that are not null, in order.
llvm::SmallVector<mlir::FlatSymbolRefAttr> present(std::initializer_list<mlir::FlatSymbolRefAttr> refs);

}  // namespace ktc::kt

#include "dialects/kt/KtDialect.h.inc"
#include "dialects/kt/KtInterfaces.h.inc"

namespace ktc::kt {
// What every step must obey, whatever it computes: rows of one symbol, as many views as operands and results.
mlir::LogicalResult verifyStep(StepOpInterface step);
// What an argument of an entry is.
BufferRole roleOf(mlir::BlockArgument argument);
}  // namespace ktc::kt

#define GET_OP_CLASSES
#include "dialects/kt/KtOps.h.inc"
