// The CPU's late experts: two of a token in time of layer 0, added to layer 1's; the last layer has none.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/between.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-split-experts --kt-defer-experts --mlir-print-local-scope > %t.between
// RUN: FileCheck %s --check-prefix=BETWEEN < %t.between
// RUN: ktc-opt %t.between --kt-defer-experts --mlir-print-local-scope | diff %t.between -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-split-experts --kt-defer-experts --mlir-print-local-scope --remarks-filter-passed="kt-defer.*" --remark-format=emitRemark 2> %t.remarks | FileCheck %s --check-prefix=ALL
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// Nothing to defer, or switched off: nothing changes.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/hybrid.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" > %t.none
// RUN: ktc-opt %t.none --kt-defer-experts | diff %t.none -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-defer-experts=enable=false | FileCheck %s --check-prefix=OFF
// OFF-NOT: late <count
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-defer-experts

// Layer 1 has no experts on the CPU, so layer 0's late ones go into its sum as they are.
// BETWEEN: kt.defer = #kt.defer<max_per_token = 1, decode = true, prefill = false, all = false, line = "between.yaml:10:8">
// BETWEEN: kt.entry @"extend[8]"
// BETWEEN-NEXT: ^bb0(%ids: {{.*}}, %positions: {{.*}}, %rows: {{.*}}, %deferred: tensor<?x1xi32, #kt.dim<tokens>>):
// BETWEEN: %[[Z0:.*]] = kt.experts swiglu %[[Y0:.*]], %[[E0:.*]], %[[W0:.*]] deferred %deferred @l0.experts late <count = 1, part = in_time> of
// BETWEEN-NEXT: %[[L0:.*]] = kt.experts swiglu %[[Y0]], %[[E0]], %[[W0]] deferred %deferred @l0.experts late <count = 1, part = late> of
// BETWEEN: kt.add %{{.*}}, %[[Z0]], %{{.*}} of <RoutedExperts "l0.experts" layer 0>
// BETWEEN: %[[Z1:.*]] = kt.experts swiglu {{.*}} @l1.experts of
// BETWEEN: kt.add %{{.*}}, %[[Z1]], %{{.*}}, %[[L0]] of <RoutedExperts "l1.experts" layer 1>
// BETWEEN: %[[Z2:.*]] = kt.experts swiglu {{.*}} @l2.experts of
// BETWEEN: kt.add %{{.*}}, %[[Z2]], %{{.*}} of <RoutedExperts "l2.experts" layer 2>
// BETWEEN: kt.entry @"decode[2]"
// BETWEEN-NEXT: ^bb0({{.*}}, %deferred: {{.*}}):
// BETWEEN: kt.entry @"sample[2]"
// BETWEEN-NEXT: ^bb0(%logits: {{[^,]*}}, #kt.dim<rows>>):

// Late ones of all experts: on both devices, each added on its own.
// ALL: kt.entry @"extend[8]"
// ALL: %[[C0:.*]] = kt.experts {{.*}} deferred %deferred @l0.experts slots [-1, 0, 1, 2] late <count = 1, part = in_time, among_all = true>
// ALL: %[[CL0:.*]] = kt.experts {{.*}} deferred %deferred @l0.experts slots [-1, 0, 1, 2] late <count = 1, part = late, among_all = true>
// ALL: %[[G0:.*]] = kt.experts {{.*}} deferred %deferred @l0.experts.hot slots [0, -1, -1, -1] late <count = 1, part = in_time, among_all = true>
// ALL: %[[GL0:.*]] = kt.experts {{.*}} deferred %deferred @l0.experts.hot slots [0, -1, -1, -1] late <count = 1, part = late, among_all = true>
// ALL: %[[C1:.*]] = kt.experts {{.*}} @l1.experts slots {{.*}} part = in_time
// ALL: %[[CL1:.*]] = kt.experts {{.*}} @l1.experts slots {{.*}} part = late
// ALL: %[[CS1:.*]] = kt.add %[[C1]], %[[CL0]] of {{.*}} {place = #kt.place<"cpu", weights = "f32", activations = "f32">}
// ALL: %[[G1:.*]] = kt.experts {{.*}} @l1.experts.hot slots {{.*}} part = in_time
// ALL: %[[GL1:.*]] = kt.experts {{.*}} @l1.experts.hot slots {{.*}} part = late
// ALL: %[[GS1:.*]] = kt.add %[[G1]], %[[GL0]] of {{.*}} {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">}
// ALL: kt.add %{{.*}}, %[[CS1]], %[[GS1]], %{{.*}} of
// ALL: %[[C2:.*]] = kt.experts swiglu %{{.*}}, %{{.*}}, %{{.*}} @l2.experts slots [-1, 0, 1, 2] of
// ALL: kt.add %[[C2]], %[[CL1]] of

// REMARKS: remark: [Passed] Deferred | Category:kt-defer-experts | Remark="extend[8]: l0.experts.late on cpu", late=1, of=2
// REMARKS: remark: [Passed] Deferred | Category:kt-defer-experts | Remark="extend[8]: l0.experts.hot.late on cuda:0", late=1, of=2

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x1xi32, #kt.dim<tokens>>
!w = tensor<?x1xf32, #kt.dim<tokens>>
module attributes {kt.defer = #kt.defer<max_per_token = 1, decode = true, prefill = false, all = false, line = "p.yaml:3:1">} {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @r [1, 2, 8] bf16 from [#kt.piece<slot = "r", rows = 2>] on "cpu" as "bf16" packed "row_major"
  kt.expert_bank @b experts 2 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
  kt.entry @m decode bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%ids: !i, %pos: !i, %rows: !r):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #cpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 2 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
    // expected-error@+1 {{'kt.experts' op is not one term of its layer's sum, so that late experts have no place to come to; expected kt.add of all experts of a layer}}
    %y = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    %s = kt.select_rows %y, %rows of <Norm "n"> {place = #cpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
    %l = kt.lm_head %s @embed of <Head "h"> {place = #cpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
    kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
  }
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x1xi32, #kt.dim<tokens>>
!w = tensor<?x1xf32, #kt.dim<tokens>>
module attributes {kt.defer = #kt.defer<max_per_token = 1, decode = true, prefill = false, all = false, line = "p.yaml:3:1">} {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @r [1, 2, 8] bf16 from [#kt.piece<slot = "r", rows = 2>] on "cpu" as "bf16" packed "row_major"
  kt.expert_bank @b experts 2 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
  kt.entry @m decode bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%ids: !i, %pos: !i, %rows: !r):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #cpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 2 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
    // expected-error@+1 {{'kt.experts' op has no place; run kt-place first}}
    %y = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x" layer 0> : !h, !e, !w
    %s = kt.select_rows %y, %rows of <Norm "n"> {place = #cpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
    %l = kt.lm_head %s @embed of <Head "h"> {place = #cpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
    kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
  }
}
