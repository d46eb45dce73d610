// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/mixed.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s
// Twice is as once.
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/mixed.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" --mlir-print-debuginfo > %t.once
// RUN: ktc-opt %t.once --kt-place="policy=%S/../Inputs/mixed.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" --mlir-print-debuginfo | diff %t.once -
// Latent attention reads back as well: every shape of module that placement asks about.
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-place="%exact" --kt-verify-placed | FileCheck %s --check-prefix=MLA
// Integer weights: groups and panels, int8 activations for products alone, rows for the lookup and the per-head matrices.
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/int4.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" --kt-verify-placed --mlir-print-local-scope | FileCheck %s --check-prefix=INT
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-place="policy=%S/../Inputs/int4.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" --kt-verify-placed --mlir-print-local-scope | FileCheck %s --check-prefix=LATENT
// What cannot be placed.
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-place 2>&1 | FileCheck %s --check-prefix=NOPOLICY
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-place=policy=%S/missing.yaml 2>&1 | FileCheck %s --check-prefix=NOFILE
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/no-such-device.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" 2>&1 | FileCheck %s --check-prefix=DEVICE
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/too-late.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" 2>&1 | FileCheck %s --check-prefix=TOOLATE
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/defers.yaml target=%source/placement/targets/laptop-8-cores-32gb.yaml" | FileCheck %s --check-prefix=DEFER
// RUN: not ktc-opt %S/../Inputs/moe.mlir --kt-place="policy=%S/../Inputs/updates.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" 2>&1 | FileCheck %s --check-prefix=UPDATE
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-place="policy=%S/../Inputs/moves.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" | FileCheck %s --check-prefix=MOVES
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-place="policy=%S/../Inputs/hybrid.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=HOT
// RUN: not ktc-opt %S/../Inputs/mla.mlir --kt-fold-weights --kt-place="policy=%S/../Inputs/defers.yaml" 2>&1 | FileCheck %s --check-prefix=LATE
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries="chunk=8 decode=1" | sed '/kt.entry @"decode/,$ s/<Norm "norm">/<Norm "other">/' > %t.other
// RUN: not ktc-opt %t.other --kt-place="%exact" 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: sed 's/ of #embed/ of #norm2/' %S/../Inputs/gqa.mlir > %t.class
// RUN: not ktc-opt %t.class --kt-place="%exact" 2>&1 | FileCheck %s --check-prefix=CLASS
// RUN: sed 's/kt.add %h1, %z of #experts/kt.add %h1, %z of <DenseMlp "l0.mlp" layer 0>/' %S/../Inputs/gqa.mlir > %t.step
// RUN: not ktc-opt %t.step --kt-place="%exact" 2>&1 | FileCheck %s --check-prefix=STEP
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-place="policy=%S/../Inputs/mixed.yaml" --remarks-filter-analyse="kt-.*" --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=COUNTS
// COUNTS: remark: [Analysis] Counts | Category:kt-place | copies=1

// The embedding is bf16, the tied head f32: it gets a copy of the weight.
// CHECK: kt.weight @embed.weight [1, 16, 8] bf16 from [#kt.piece<slot = "embed.weight", rows = 16>] on "cpu" as "bf16" packed "row_major" loc(fused[{{.*}}, "rule"("mixed.yaml":8:5)])
// CHECK-NEXT: kt.weight @"embed.weight-f32" [1, 16, 8] bf16 from [#kt.piece<slot = "embed.weight", rows = 16>] on "cpu" as "f32" packed "row_major" loc(fused[{{.*}}, "rule"("mixed.yaml":4:5)])
// Vectors are f32 under every rule.
// CHECK-NEXT: kt.weight @l0.norm1.weight {{.*}} on "cpu" as "f32" packed "row_major"
// The attention's rule is by name.
// CHECK-NEXT: kt.weight @l0.attn.q {{.*}} on "cpu" as "f32" packed "row_major" loc(fused[{{.*}}, "rule"("mixed.yaml":6:5)])
// CHECK: kt.weight @l0.attn.q_norm {{.*}} on "cpu" as "f32" packed "row_major"
// CHECK: kt.expert_bank @l0.experts {{.*}} on "cpu" as "bf16" packed "row_major"
// CHECK: kt.cache @kv {{.*}} on "cpu" as "bf16"
// CHECK: kt.embed {{.*}} @embed.weight of {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} {{.*}} loc(fused[{{.*}}, "rule"("mixed.yaml":8:5)])
// CHECK: kt.linear {{.*}} @l0.attn.q of {{.*}} {place = #kt.place<"cpu", weights = "f32", activations = "f32">}
// A sum is placed with the module whose output it adds.
// CHECK: kt.add {{.*}} of <Attention "l0.attn" layer 0> {place = #kt.place<"cpu", weights = "f32", activations = "f32">}
// CHECK: kt.add {{.*}} of <RoutedExperts "l0.experts" layer 0> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// CHECK: kt.lm_head {{.*}} @"embed.weight-f32" of {{.*}} {place = #kt.place<"cpu", weights = "f32", activations = "f32">}

// MLA: kt.phase = #kt.phase<placed>
// MLA: kt.weight @l0.attn.kv_b {{.*}} on "cpu" as "bf16" packed "row_major"
// MLA: kt.weight @l0.gate.bias [1, 1, 4] f32 {{.*}} on "cpu" as "f32" packed "row_major"

// INT: kt.weight @embed.weight {{.*}} on "cpu" as "bf16" packed "row_major"{{$}}
// INT: kt.weight @"embed.weight-int8" {{.*}} on "cpu" as "int8" packed "panel"{{$}}
// INT: kt.weight @l0.attn.q {{.*}} on "cpu" as "int4" packed "panel"{{$}}
// INT: kt.weight @l0.attn.q_norm {{.*}} on "cpu" as "f32" packed "row_major"{{$}}
// INT: kt.expert_bank @l0.experts {{.*}} on "cpu" as "int4" packed "panel" group 32{{$}}
// INT: kt.embed {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// INT: kt.linear {{.*}} @l0.attn.q of {{.*}} {place = #kt.place<"cpu", weights = "int4", activations = "int8">}
// INT: kt.gqa {{.*}} place = #kt.place<"cpu", weights = "bf16", activations = "f32">
// INT: kt.add {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// INT: kt.lm_head {{.*}} @"embed.weight-int8" of {{.*}} {place = #kt.place<"cpu", weights = "int8", activations = "int8">}
// LATENT: kt.weight @l0.attn.q_a {{.*}} on "cpu" as "int4" packed "panel"{{$}}
// LATENT: kt.weight @l0.attn.kv_b {{.*}} on "cpu" as "bf16" packed "row_major"{{$}}
// LATENT: kt.mla {{.*}} place = #kt.place<"cpu", weights = "bf16", activations = "f32">

// NOPOLICY: error: kt-place: no policy; give policy=FILE
// NOFILE: error: {{.*}}missing.yaml
// DEVICE: error: no-such-device.yaml:4:21: a device that target {{.*}} does not have: found cuda:3
// What the policy defers is written down, with its line; a token has only so many experts.
// DEFER: kt.defer = #kt.defer<max_per_token = 2, decode = true, prefill = false, all = false, line = "defers.yaml:5:8">
// TOOLATE: error: too-late.yaml:5:8: more late experts than a token has: found max_per_token: 3, expected at most 2, as 'l0.gate' chooses
// UPDATE: error: updates.yaml:9:3: experts that move at run time need one format, but those of 'l0.experts' have two: found int8, group row on cuda:0, expected bf16 as on cpu; give experts.gpu the weights and group of the rule, or remove update
// MOVES: kt.update = 256 : i64
// Hot experts are noted on their bank, and the sum of a layer stays with the residual.
// HOT: kt.expert_bank @l0.experts experts 4 {{.*}} on "cpu" as "bf16" packed "panel" hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [0], line = "hybrid.yaml:9:11">]
// HOT: kt.cache @kv {{.*}} on "cuda:0" as "bf16"
// HOT: kt.experts {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "bf16">}
// HOT: kt.add {{.*}} of <RoutedExperts "l0.experts" layer 0> {place = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">}
// LATE: a weight is not one whole slot: expected IR in phase imported, as import writes it; start from the checkpoint
// OTHER: the entries are not of one model: found module 'other', expected a module of the first entry; start from the checkpoint
// CLASS: module 'l0.norm2' of class Norm has a kt.embed: expected IR in phase imported, as import writes it; start from the checkpoint
// STEP: module 'l0.mlp': it has no step of its class, DenseMlp: expected IR in phase imported, as import writes it; start from the checkpoint
