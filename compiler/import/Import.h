// A model as kt IR, as it is written in the checkpoint: one generic body, one symbol per slot, no decisions.
#pragma once

#include "dialects/kt/Kt.h"
#include "mlir/IR/OwningOpRef.h"
#include "models/model_desc.h"
#include "placement/policy.h"
#include "placement/target.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

// The module holds, in this order: a kt.weight per slot and a kt.expert_bank per MoE layer, the KV cache with its page
// table (sizes from `policy.kv_cache`), and the entry @model of kind generic. Its attributes carry the facts of the
// model, the policy's text and the target's name. Locations are lines of the family file. Errors: a slot that the ops
// cannot use (an internal error: read_model has checked all shapes).
Expected<mlir::OwningOpRef<mlir::ModuleOp>> importModel(mlir::MLIRContext& context, const models::ModelDesc& model,
                                                        const placement::Policy& policy,
                                                        const placement::Target& target);

// The inverse: modules, slots, layers and facts of a module that import made, as far as placement needs them. Tensors,
// shards, skipped tensors and text files are not in the IR and stay empty. Reads the first entry with a body of steps.
// Errors: steps that do not form decoder layers, a module of two classes.
Expected<models::ModelDesc> modelFromIr(mlir::ModuleOp module);

// The policy as YAML, every default written out: what was compiled, for people and for the plan. parse_policy reads it
// back.
std::string policyText(const placement::Policy& policy);

}  // namespace ktc::compiler
