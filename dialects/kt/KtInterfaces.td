// What the passes may ask of any op of a body, so that they name no op they do not change.
#ifndef KTC_DIALECTS_KT_INTERFACES_TD
#define KTC_DIALECTS_KT_INTERFACES_TD

include "dialects/kt/KtAttrs.td"

def Kt_StepInterface : OpInterface<"StepOpInterface"> {
  let cppNamespace = "::ktc::kt";
  let description = "An op of an entry's body: one step of the plan.";
  let methods = [
    InterfaceMethod<"Module that the op belongs to.", "::ktc::kt::ModuleAttr", "getModule">,
    InterfaceMethod<"Null before `placed`.", "::ktc::kt::PlaceAttr", "getPlaceAttr">,
    InterfaceMethod<"", "void", "setPlaceAttr", (ins "::ktc::kt::PlaceAttr":$place)>,
    InterfaceMethod<"One #kt.view per operand, in order. Null before `lowered`.", "::mlir::ArrayAttr", "getInViewsAttr">,
    InterfaceMethod<"", "void", "setInViewsAttr", (ins "::mlir::ArrayAttr":$views)>,
    InterfaceMethod<"One #kt.view per result, in order. Null before `lowered`.", "::mlir::ArrayAttr", "getOutViewsAttr">,
    InterfaceMethod<"", "void", "setOutViewsAttr", (ins "::mlir::ArrayAttr":$views)>,
    InterfaceMethod<"Index of the scratch buffer. Null where the op needs none.", "::mlir::IntegerAttr", "getWorkspaceAttr">,
    InterfaceMethod<"", "void", "setWorkspaceAttr", (ins "::mlir::IntegerAttr":$workspace)>,
    InterfaceMethod<"Index of the entry's graph that the step is captured in. Null: none.", "::mlir::IntegerAttr", "getGraphAttr">,
    InterfaceMethod<"", "void", "setGraphAttr", (ins "::mlir::IntegerAttr":$graph)>,
    InterfaceMethod<"Number of the steps of the entry that are one launch together. Null: none.", "::mlir::IntegerAttr", "getLaunchGroupAttr">,
    InterfaceMethod<"", "void", "setLaunchGroupAttr", (ins "::mlir::IntegerAttr":$group)>,
    InterfaceMethod<"Device that the operands lie on: the op's, but for ops that move values. Empty before `placed`.",
                    "::llvm::StringRef", "operandDevice", (ins), "",
                    "return $_op.getPlaceAttr() ? $_op.getPlaceAttr().getDevice() : ::llvm::StringRef();">,
    InterfaceMethod<"Device that the results lie on.", "::llvm::StringRef", "resultDevice", (ins), "",
                    "return $_op.getPlaceAttr() ? $_op.getPlaceAttr().getDevice() : ::llvm::StringRef();">,
    InterfaceMethod<"Weights and banks that the op reads, in the order of its attributes.",
                    "::llvm::SmallVector<::mlir::FlatSymbolRefAttr>", "getWeights">,
  ];
}

def Kt_SymbolEffectsInterface : OpInterface<"SymbolEffectsOpInterface"> {
  let cppNamespace = "::ktc::kt";
  let description = "An op that reads or writes state that outlives the step. KtDialect.td states the rules.";
  let methods = [
    InterfaceMethod<"Accesses to caches and tables.", "::llvm::SmallVector<::ktc::kt::SymbolEffect>", "getSymbolEffects">,
    InterfaceMethod<"Rank among the accesses to these symbols.", "int64_t", "getEffectOrder">,
  ];
}

#endif
