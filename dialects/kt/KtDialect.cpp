// Registration, textual aliases and the checks of module attributes.
#include "dialects/kt/Kt.h"
#include "llvm/ADT/TypeSwitch.h"

// generated code comes behind every header
#include "dialects/kt/KtDialect.cpp.inc"

namespace ktc::kt {
namespace {

// #tokens instead of #kt.dim<tokens> in every type; #rope for the array of frequencies.
struct KtAliases : mlir::OpAsmDialectInterface {
  using OpAsmDialectInterface::OpAsmDialectInterface;
  AliasResult getAlias(mlir::Attribute attr, llvm::raw_ostream& os) const override {
    if (auto dim = llvm::dyn_cast<DimAttr>(attr)) {
      os << stringifyDim(dim.getValue());
      return AliasResult::FinalAlias;
    }
    if (llvm::isa<RopeAttr>(attr)) {
      os << "rope";
      return AliasResult::FinalAlias;
    }
    if (auto place = llvm::dyn_cast<PlaceAttr>(attr)) {
      os << "place";
      return AliasResult::FinalAlias;
    }
    return AliasResult::NoAlias;
  }
};

template <typename Element>
mlir::LogicalResult checkArray(mlir::Operation* op, mlir::NamedAttribute named, llvm::StringRef expected) {
  auto array = llvm::dyn_cast<mlir::ArrayAttr>(named.getValue());
  if (array && llvm::all_of(array, [](mlir::Attribute a) { return llvm::isa<Element>(a); })) return mlir::success();
  return op->emitOpError() << "attribute '" << named.getName().getValue() << "': found " << named.getValue()
                           << ", expected " << expected;
}

template <typename Attr>
mlir::LogicalResult checkKind(mlir::Operation* op, mlir::NamedAttribute named, llvm::StringRef expected) {
  if (llvm::isa<Attr>(named.getValue())) return mlir::success();
  return op->emitOpError() << "attribute '" << named.getName().getValue() << "': found " << named.getValue()
                           << ", expected " << expected;
}

}  // namespace

void KtDialect::initialize() {
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "dialects/kt/KtOps.cpp.inc"
      >();
  addInterfaces<KtAliases>();
}

// The attributes that a module may carry; a misspelt one would silently be lost otherwise.
mlir::LogicalResult KtDialect::verifyOperationAttribute(mlir::Operation* op, mlir::NamedAttribute named) {
  llvm::StringRef name = named.getName().getValue();
  if (!llvm::isa<mlir::ModuleOp>(op)) {
    return op->emitOpError() << "carries the attribute '" << name << "'; only a module may carry attributes of kt";
  }
  if (name == "kt.phase") return checkKind<PhaseAttr>(op, named, "#kt.phase");
  if (name == "kt.model") return checkKind<ModelAttr>(op, named, "#kt.model");
  if (name == "kt.policy" || name == "kt.target") return checkKind<mlir::StringAttr>(op, named, "a string");
  if (name == "kt.defer") return checkKind<DeferAttr>(op, named, "#kt.defer");
  if (name == "kt.stream") return checkKind<StreamAttr>(op, named, "#kt.stream");
  if (name == "kt.update") return checkKind<mlir::IntegerAttr>(op, named, "a number of tokens");
  if (name == "kt.devices") return checkArray<DeviceAttr>(op, named, "an array of #kt.device");
  if (name == "kt.account") return checkArray<AccountAttr>(op, named, "an array of #kt.account");
  return op->emitOpError() << "unknown attribute '" << name
                           << "': expected kt.phase, kt.model, kt.policy, kt.target, kt.defer, kt.stream, kt.update, kt.devices or kt.account";
}

}  // namespace ktc::kt
