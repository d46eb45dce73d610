// What a reader of the IR needs besides the generated accessors: names, lines and facts in the form of the plan.
#pragma once

#include <string>

#include "dialects/kt/Kt.h"

namespace ktc::kt {

// Names of the module's own attributes.
inline constexpr llvm::StringLiteral kPhase = "kt.phase";
inline constexpr llvm::StringLiteral kModel = "kt.model";
inline constexpr llvm::StringLiteral kPolicy = "kt.policy";
inline constexpr llvm::StringLiteral kTarget = "kt.target";
inline constexpr llvm::StringLiteral kDefer = "kt.defer";
inline constexpr llvm::StringLiteral kStream = "kt.stream";
inline constexpr llvm::StringLiteral kUpdate = "kt.update";  // i64: experts change sides every so many tokens
inline constexpr llvm::StringLiteral kDevices = "kt.devices";
inline constexpr llvm::StringLiteral kAccount = "kt.account";

std::optional<Phase> phaseOf(mlir::ModuleOp module);  // nullopt: fresh from import
void setPhase(mlir::ModuleOp module, Phase phase);
ModelAttr modelOf(mlir::ModuleOp module);  // null where the module has none

// A name for people: the weight of a projection ("model.layers.3.self_attn.q_proj"), else the module, with the kind of
// step where a module has several ("model.layers.3.self_attn", "model.layers.3.mlp.experts.add").
std::string stepName(StepOpInterface step);

// "qwen3_moe.yaml:40": the first line of a file in the location, without its path; empty where there is none.
std::string locationText(mlir::Location location);

// "policy.yaml:9:5": the rule that withRule added; empty where there is none.
std::string ruleText(mlir::Location location);

// The location of an op that a rule of the policy placed: the family's line, then the rule's, which replaces an older
// one.
mlir::Location withRule(mlir::Location location, llvm::StringRef file, int line, int column);
// The same for a place in text, "policy.yaml:9:5"; other text changes nothing.
mlir::Location withRule(mlir::Location location, llvm::StringRef place);

}  // namespace ktc::kt
