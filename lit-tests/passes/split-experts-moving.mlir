// RUN: ktc-opt %s --kt-split-experts | FileCheck %s

// Experts change sides at run time: the CPU keeps a matrix of every one, at its own number.
// CHECK-LABEL: module @moving attributes {kt.update = 256 : i64}
// CHECK: kt.expert_bank @b experts 4 hidden 8
// CHECK: kt.expert_bank @b.hot experts 2 ids [1, 3] hidden 8
// CHECK: kt.experts swiglu {{.*}} @b slots [0, -1, 2, -1] of
// CHECK: kt.experts swiglu {{.*}} @b.hot slots [-1, 0, -1, 1] of
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
module @moving attributes {kt.update = 256 : i64} {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
  kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
  kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1, 3], line = "p.yaml:7:11">]
  kt.entry @m generic {
  ^bb0(%ids: !i, %pos: !i):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #gpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %z = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    %s = kt.add %h, %z of <RoutedExperts "x" layer 0> {place = #gpu} : !h, !h -> !h
    kt.return %ids : !i
  }
}
