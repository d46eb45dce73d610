// RUN: ktc-opt %s --kt-form-cuda-graphs --kt-join-launches --mlir-print-local-scope --remarks-filter-passed="kt-join.*" --remarks-filter-missed="kt-join.*" --remarks-filter-analyse="kt-join.*" --remark-format=emitRemark 2> %t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// Twice is as once; without graphs nothing is one launch.
// RUN: ktc-opt %s --kt-form-cuda-graphs --kt-join-launches > %t.once
// RUN: ktc-opt %t.once --kt-join-launches | diff %t.once -
// RUN: ktc-opt %s --kt-join-launches | FileCheck %s --check-prefix=EAGER
// EAGER-NOT: launch_group
// REMARKS: remark: [Missed] Apart | Category:kt-join-launches | Remark="d: m lies between g and e.submit"
// REMARKS: remark: [Passed] Joined | Category:kt-join-launches | Remark="d: await, add_norm in one launch", groups=1
// REMARKS: remark: [Passed] Joined | Category:kt-join-launches | Remark="d: route, publish in one launch", groups=1
// REMARKS: remark: [Passed] Joined | Category:kt-join-launches | Remark="d: add_norm, route, publish in one launch", groups=1
// REMARKS: remark: [Passed] Joined | Category:kt-join-launches | Remark="o: add_norm, route in one launch", groups=1
// REMARKS: remark: [Analysis] Counts | Category:kt-join-launches | groups=4, launches saved=5

// Numbers ascend with the steps of the entry.
// CHECK: kt.entry @d decode
// CHECK: kt.add_norm {{.*}} launch_group = 0
// CHECK: kt.route {{.*}} launch_group = 0
// CHECK: kt.submit {{.*}} record 0 {{.*}} launch_group = 0
// What lies on the CPU comes between nothing.
// CHECK: kt.await {{.*}} record 0 {{.*}} launch_group = 1
// CHECK: kt.experts {{.*}} {place = #kt.place<"cpu"
// The sum has gone with the await: the router and its record are left.
// CHECK: kt.add_norm {{.*}} launch_group = 1
// CHECK: kt.route {{.*}} launch_group = 2
// CHECK: kt.submit {{.*}} record 1 {{.*}} launch_group = 2
// An await whose result is no term of the sum behind it, a router that a step lies behind, a sum of which another step is routed.
// CHECK-NOT: launch_group
// CHECK: kt.await {{.*}} record 1
// CHECK: kt.route
// CHECK: kt.mlp
// CHECK: kt.submit {{.*}} record 2
// Experts on the GPU: there is no record, and the router goes with the sum.
// CHECK: kt.entry @o decode
// CHECK: kt.add_norm {{.*}} launch_group = 0
// CHECK: kt.route {{.*}} launch_group = 0
// CHECK-NOT: launch_group
// CHECK: kt.entry @x extend
// CHECK-NOT: launch_group
#cpu = #kt.place<"cpu", weights = "f32", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "f32", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "f32" packed "row_major"
  kt.weight @n [1, 1, 8] bf16 from [#kt.piece<slot = "n", rows = 1>] on "cuda:0" as "f32" packed "row_major"
  kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "f32" packed "row_major"
  kt.weight @u [1, 8, 8] bf16 from [#kt.piece<slot = "u", rows = 8>] on "cuda:0" as "f32" packed "row_major"
  kt.weight @v [1, 8, 4] bf16 from [#kt.piece<slot = "v", rows = 8>] on "cuda:0" as "f32" packed "row_major"
  kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "b.gate_up", rows = 12>] down [#kt.piece<slot = "b.down", rows = 8>] on "cpu" as "f32" packed "row_major"
  kt.expert_bank @c experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "b.gate_up", rows = 12>] down [#kt.piece<slot = "b.down", rows = 8>] on "cuda:0" as "f32" packed "row_major"
  kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "h"> {place = #gpu} : !i -> !h
    %s0, %n0 = kt.add_norm rms %h, %h @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h, !h -> !h
    %e0, %w0 = kt.route softmax_topk %n0 @g of <Router "g"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %x0, %i0, %v0 = kt.submit %n0, %e0, %w0 record 0 as "f32" of <RoutedExperts "e"> {place = #gpu} : !h, !e, !w
    %y0 = kt.experts swiglu %x0, %i0, %v0 @b of <RoutedExperts "e"> {place = #cpu} : !h, !e, !w
    %a0 = kt.await %y0 record 0 as "f32" of <RoutedExperts "e"> {place = #gpu} : !h
    %z0 = kt.experts swiglu %x0, %i0, %v0 @b of <RoutedExperts "e"> {place = #cpu} : !h, !e, !w
    %s1, %n1 = kt.add_norm rms %s0, %a0 @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h, !h -> !h
    %e1, %w1 = kt.route softmax_topk %n1 @g of <Router "g"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %x1, %i1, %v1 = kt.submit %n1, %e1, %w1 record 1 as "f32" of <RoutedExperts "e"> {place = #gpu} : !h, !e, !w
    %y1 = kt.experts swiglu %x1, %i1, %v1 @b of <RoutedExperts "e"> {place = #cpu} : !h, !e, !w
    %a1 = kt.await %y1 record 1 as "f32" of <RoutedExperts "e"> {place = #gpu} : !h
    %s2, %n2 = kt.add_norm rms %s1, %n1 @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h, !h -> !h
    %e2, %w2 = kt.route softmax_topk %s2 @g of <Router "g"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %m = kt.mlp swiglu %n2 gate_up @u down @v of <SharedExperts "m"> {place = #gpu} : !h
    %x2, %i2, %v2 = kt.submit %s2, %e2, %w2 record 2 as "f32" of <RoutedExperts "e"> {place = #gpu} : !h, !e, !w
    %y2 = kt.experts swiglu %x2, %i2, %v2 @b of <RoutedExperts "e"> {place = #cpu} : !h, !e, !w
    %a2 = kt.await %y2 record 2 as "f32" of <RoutedExperts "e"> {place = #gpu} : !h
    %t = kt.add %s2, %a1, %a2, %m of <RoutedExperts "e"> {place = #gpu} : !h, !h, !h, !h -> !h
    %c = kt.select_rows %t, %rows of <Norm "n"> {place = #gpu} : !h, !r -> !s
    %l = kt.lm_head %c @w of <Head "l"> {place = #gpu} : !s -> !l
    kt.return %l : !l
  }
  kt.entry @o decode bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "h"> {place = #gpu} : !i -> !h
    %s0, %n0 = kt.add_norm rms %h, %h @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h, !h -> !h
    %e0, %w0 = kt.route softmax_topk %n0 @g of <Router "g"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %y0 = kt.experts swiglu %n0, %e0, %w0 @c of <RoutedExperts "e"> {place = #gpu} : !h, !e, !w
    %t = kt.add %s0, %y0 of <RoutedExperts "e"> {place = #gpu} : !h, !h -> !h
    %c = kt.select_rows %t, %rows of <Norm "n"> {place = #gpu} : !h, !r -> !s
    %l = kt.lm_head %c @w of <Head "l"> {place = #gpu} : !s -> !l
    kt.return %l : !l
  }
  kt.entry @x extend bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "h"> {place = #gpu} : !i -> !h
    %s0, %n0 = kt.add_norm rms %h, %h @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h, !h -> !h
    %e0, %w0 = kt.route softmax_topk %n0 @g of <Router "g"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
    %c = kt.select_rows %s0, %rows of <Norm "n"> {place = #gpu} : !h, !r -> !s
    %l = kt.lm_head %c @w of <Head "l"> {place = #gpu} : !s -> !l
    kt.return %l : !l
  }
}
