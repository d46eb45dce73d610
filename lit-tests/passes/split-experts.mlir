// RUN: ktc-opt %s --split-input-file --kt-split-experts --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s
// Twice is as once.
// RUN: ktc-opt %s --split-input-file --kt-split-experts > %t.once
// RUN: ktc-opt %t.once --split-input-file --kt-split-experts | diff %t.once -
// Switched off, every expert stays cold.
// RUN: ktc-opt %s --split-input-file --kt-split-experts=enable=false | FileCheck %s --check-prefix=OFF
// RUN: ktc-opt %s --split-input-file --kt-split-experts --remarks-filter=".*" --remarks-filter-passed="kt-.*" --remarks-filter-analyse="kt-.*" --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=REMARKS

// REMARKS: remark: [Passed] Hot | Category:kt-split-experts | Remark="b: on cuda:0 as int8", hot=1, of=4
// REMARKS: remark: [Analysis] Counts | Category:kt-split-experts | hot experts=1, layers=1

// OFF-NOT: hot
// OFF: kt.expert_bank @b experts 4 hidden 8
// OFF-NOT: slots

// Expert 1 gets a bank and an op of its own; the sum takes both.
// CHECK-LABEL: module @some
// CHECK: kt.expert_bank @b experts 3 ids [0, 2, 3] hidden 8 intermediate 6 bf16 {{.*}} on "cpu" as "bf16" packed "row_major" loc
// CHECK: kt.expert_bank @b.hot experts 1 ids [1] hidden 8 intermediate 6 bf16 {{.*}} on "cuda:0" as "int8" packed "gpu_rows" loc({{.*}}"rule"("p.yaml":7:11){{.*}})
// CHECK: %[[C:.*]] = kt.experts swiglu %[[H:.*]], %[[E:.*]], %[[W:.*]] @b slots [0, -1, 1, 2] of {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// CHECK: %[[G:.*]] = kt.experts swiglu %[[H]], %[[E]], %[[W]] @b.hot slots [-1, 0, -1, -1] of {{.*}} {place = #kt.place<"cuda:0", weights = "int8", activations = "bf16">} {{.*}} loc({{.*}}"rule"("p.yaml":7:11){{.*}})
// CHECK: kt.add %[[H]], %[[C]], %[[G]] of
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
module @some {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
  kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
  kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:0", weights = "int8", activations = "bf16", experts = [1], line = "p.yaml:7:11">]
  kt.entry @m generic {
  ^bb0(%ids: !i, %pos: !i):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #gpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %z = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    %s = kt.add %h, %z of <RoutedExperts "x" layer 0> {place = #gpu} : !h, !h -> !h
    kt.return %ids : !i
  }
}

// -----

// All of them: bank and op move. What is no sum gets one.
// CHECK-LABEL: module @all
// CHECK: kt.expert_bank @b experts 2 hidden 8 {{.*}} on "cuda:0" as "bf16" packed "row_major"
// CHECK: kt.expert_bank @c experts 1 ids [0]
// CHECK: kt.expert_bank @c.hot experts 1 ids [1]
// CHECK: %[[Y:.*]] = kt.experts swiglu {{.*}} @b of {{.*}} {place = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">}
// CHECK: %[[C:.*]] = kt.experts swiglu {{.*}} @c slots [0, -1]
// CHECK: %[[G:.*]] = kt.experts swiglu {{.*}} @c.hot slots [-1, 0]
// CHECK: %[[S:.*]] = kt.add %[[C]], %[[G]] of {{.*}} {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">}
// CHECK: kt.route softmax_topk %[[S]]
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x1xi32, #kt.dim<tokens>>
!w = tensor<?x1xf32, #kt.dim<tokens>>
module @all {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
  kt.weight @r [1, 2, 8] bf16 from [#kt.piece<slot = "r", rows = 2>] on "cuda:0" as "bf16" packed "row_major"
  kt.expert_bank @b experts 2 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [0, 1], line = "p.yaml:7:11">]
  kt.expert_bank @c experts 2 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu2", rows = 12>] down [#kt.piece<slot = "d2", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1], line = "p.yaml:7:11">]
  kt.entry @m generic {
  ^bb0(%ids: !i, %pos: !i):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #gpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 2 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %y = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    %z = kt.experts swiglu %h, %e, %w @c of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    %f, %v = kt.route softmax_topk %z @r of <Router "r" layer 0> {experts = 2 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %s = kt.add %h, %y of <RoutedExperts "x" layer 0> {place = #gpu} : !h, !h -> !h
    kt.return %ids : !i
  }
}

// -----

// All of them, on two GPUs: the bank keeps those of the first.
// CHECK-LABEL: module @divided
// CHECK: kt.expert_bank @b experts 3 ids [0, 2, 3] {{.*}} on "cuda:1" as "bf16"
// CHECK: kt.expert_bank @"b.hot-cuda:0" experts 1 ids [1] {{.*}} on "cuda:0" as "int8" packed "gpu_rows"
// CHECK: %[[C:.*]] = kt.experts swiglu {{.*}} @b slots [0, -1, 1, 2] of {{.*}} {place = #kt.place<"cuda:1", weights = "bf16", activations = "bf16">}
// CHECK: %[[G:.*]] = kt.experts swiglu {{.*}} @"b.hot-cuda:0" slots [-1, 0, -1, -1] of {{.*}} {place = #kt.place<"cuda:0", weights = "int8", activations = "bf16">}
// CHECK: kt.add %{{.*}}, %[[C]], %[[G]] of
#gpu = #kt.place<"cuda:1", weights = "bf16", activations = "bf16">
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
module @divided {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cuda:1" as "bf16" packed "row_major"
  kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>] on "cuda:1" as "bf16" packed "row_major"
  kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:1", weights = "bf16", activations = "bf16", experts = [0, 2, 3], line = "p.yaml:7:11">, #kt.hot<device = "cuda:0", weights = "int8", activations = "bf16", experts = [1], line = "p.yaml:7:11">]
  kt.entry @m generic {
  ^bb0(%ids: !i, %pos: !i):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #gpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %z = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    %s = kt.add %h, %z of <RoutedExperts "x" layer 0> {place = #gpu} : !h, !h -> !h
    kt.return %ids : !i
  }
}
