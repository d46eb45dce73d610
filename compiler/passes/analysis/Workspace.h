// Scratch memory and packed sizes of IR, from the pure functions of runtime/formats.
#pragma once

#include <optional>

#include "dialects/kt/Kt.h"
#include "runtime/formats/gpu_stream.h"

namespace ktc::compiler {

// Whether the op multiplies by weights in panels: on a CPU, products with weights that have scales.
bool hasPanels(kt::StepOpInterface step);

// Bytes of scratch that a step needs at the bounds of its entry; 0: none. nullopt: more than 2^60, which
// nothing has.
std::optional<uint64_t> workspaceBytes(kt::StepOpInterface step, kt::BoundsAttr bounds);

// Bytes of a placed weight, of both stacks of a placed bank, of a placed cache. nullopt: an unknown format or packing,
// or more than 64 bits.
std::optional<uint64_t> packedBytes(kt::WeightOp weight);
std::optional<uint64_t> packedBytes(kt::ExpertBankOp bank);
std::optional<uint64_t> cacheBytes(kt::CacheOp cache);

// How the bank of an op with `stream` passes through its GPU; nullopt: no size.
std::optional<GpuStream> streamOf(kt::ExpertsOp op);

// The account of a module whose arenas have these sizes, device by device: weights by module class, caches, arena, the step
// block of a GPU, the records of the CPU. A
// weight belongs to the class of the first step that uses it. nullopt: a size is unknown.
std::optional<llvm::SmallVector<mlir::Attribute>> accountOf(mlir::ModuleOp module, mlir::ArrayAttr devices);

}  // namespace ktc::compiler
