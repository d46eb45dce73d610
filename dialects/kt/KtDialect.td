// The kt dialect: what a mixture-of-experts model computes, where, and in which memory. One dialect for all phases.
//
// WHAT IT MODELS
//   A module holds symbols and entries.
//     kt.weight, kt.expert_bank   packed matrices: a shape, a recipe that names *slots* of the checkpoint, a place. No data.
//     kt.cache, kt.table          state that outlives a step: KV pages, page tables.
//     kt.entry                    one program per kind of step and bound: extend[512], decode[1], decode[8], sample[8].
//   The body of an entry is one block, in execution order. A value is a matrix whose rows are counted at run time and whose
//   columns are fixed: tensor<?x192xf32, #kt.dim<tokens>>. The encoding names the symbol behind the `?`, and #kt.bounds of
//   the entry says how large it can get, so every buffer has a static size.
//   A layer of 256 experts is one kt.expert_bank and one kt.experts: the text of the IR grows with layers, not with experts.
//
// PHASES. The attribute kt.phase of the module names the last seam whose checks passed; kt-verify-PHASE checks and sets it.
//
//   phase        established by                     holds from then on
//   -----------  ---------------------------------  -----------------------------------------------------------------
//   (none)       import                             one entry of kind `generic`, no bounds, no places
//   imported     kt-specialise-entries              one body per entry, each symbol bounded; every weight is used; shapes
//                                                   agree; nothing is placed
//   placed       kt-place, kt-split-experts         every op, weight, bank and cache has a device and formats that exist;
//                                                   every expert has a matrix in exactly one op over its router's ids
//   transferred  kt-defer-experts,                  the operands and weights of an op live on its device; each record has
//                kt-insert-transfers                one submit and one await; what is late arrives once, in the next MoE layer
//   optimised    kt-fold-weights, kt-fuse,          one op is one kernel: kt.mla has W_UK and W_UV, every weight is used
//                kt-schedule
//   tiled        kt-tile-cpu                        every weight and bank has a packing that its format takes; products with
//                                                   panels have a #kt.tile
//   lowered      kt-form-cuda-graphs,               every operand, result and scratch area lies at a fixed address, inside
//                kt-join-launches,                  the arena; live ranges that meet do not share bytes, and those of one
//                kt-plan-memory                     launch are alive together; the account is final
//   planned      emit                               the same IR; the plan's bytes verify
//
//   A later phase keeps what the earlier ones established. Any phase can be printed, edited, parsed and resumed from.
//
// EFFECTS. Weights never change, so reading them is no effect. An op that touches a cache or a table declares it through
//   SymbolEffectsOpInterface and carries `order`: its rank among the accesses to those symbols, given at import and never
//   changed afterwards. The verifier of kt.entry walks the block and refuses an access whose order is not above that of every
//   conflicting access before it (two accesses conflict when they name one symbol and one of them writes). Import hands out
//   distinct ranks, so exchanging two conflicting accesses, or duplicating a write, always leaves a descent and is refused;
//   exchanging two reads, or moving anything else, is free. The same facts reach MLIR's own passes as memory effects.
//
// DEVICES. A value lies on the device of the op that made it (StepOpInterface::resultDevice) and is used on the device of its
//   user (operandDevice): both are the op's place, but for kt.transfer, kt.submit and kt.await, which move values and are placed
//   on the GPU that does the moving. Arguments are on every device that reads them.
//
// FROM LOWERED IR TO plan.fbs (emit walks this; helpers are in KtWalk.h)
//   module kt.model, kt.policy, kt.target      Plan.model, .policy, .target
//   module kt.devices [#kt.device]             Plan.devices, in this order; #kt.device<arena> is Device.arena_bytes
//   module kt.account [#kt.account]            Plan.account
//   kt.weight                                  one Weight: shape, place.weights = format, group, packing,
//                                              recipe -> WeightJob
//   kt.expert_bank @b                          two Weights: b.gate_up [E, 2I, H] and b.down [E, H, I]; ids ->
//                                              WeightJob.matrices
//   kt.cache                                   one Cache; pages = sequences * ceil(tokens / page)
//   #kt.rope                                   Plan.ropes, each distinct attribute once, in order of appearance
//   kt.entry                                   one Entry: kind, bounds, buffers
//   kt.entry buffers [#kt.buffer]              Entry.buffers, same indices
//   kt.entry graphs [#kt.graph]                Entry.graphs, same indices
//   module kt.defer                            Plan.defer_decode, .defer_prefill
//   module kt.update                           Plan.update_every_tokens; the hot and cold banks of each layer: Plan.moving
//   an op of a body                            one Step: kind `compute` on the CPU, `launch` on a GPU; place.device,
//                                              place.activations, in_views, out_views, workspace (an index in buffers), graph
//                                              (an index in graphs), name = stepName(op), location = locationText(op)
//   kt.transfer, kt.submit, kt.await           CopyOp, PublishOp, AwaitOp with the kind of that name, on the GPU's device
//   kt.experts slots, late, stream, share      ExpertsOp.slots; .late, .late_among_all, .part; .stream; .share
//   kt.entry from                              Entry.from_tokens
//   #kt.tile<x, h, rows>                       x_granule, h_granule, tile_rows of the op
//   kt.linear                                  LinearOp; its results are consecutive columns of one buffer and become the one
//                                              output that spans them
//   kt.lm_head                                 LinearOp with head = true
//   kt.return                                  nothing: what it returns lies in the buffer with role logits or next_ids
//
// FILES  KtDialect.td <- KtEnums.td <- KtAttrs.td <- KtInterfaces.td <- { KtSymbols.td, KtSteps.td } <- KtOps.td
#ifndef KTC_DIALECTS_KT_DIALECT_TD
#define KTC_DIALECTS_KT_DIALECT_TD

include "mlir/IR/OpBase.td"

def Kt_Dialect : Dialect {
  let name = "kt";
  let cppNamespace = "::ktc::kt";
  let summary = "mixture-of-experts models from checkpoint to placed, planned steps";
  let description = [{
    Symbols describe packed weights, expert banks and caches; entries describe steps over a ragged batch. The page at the
    head of `KtDialect.td` has the phases with their invariants, the rules of effects and the mapping to the plan.
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  // attributes are registered where their storage is defined, in KtAttrs.cpp
  let extraClassDeclaration = "void registerAttributes();";
}

#endif
