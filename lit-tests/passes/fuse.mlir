// RUN: ktc-opt %s --kt-fuse --mlir-print-local-scope --remarks-filter-passed="kt-fuse" --remarks-filter-analyse="kt-fuse" --remark-format=emitRemark 2> %t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// RUN: ktc-opt %s --kt-fuse > %t.once
// RUN: ktc-opt %t.once --kt-fuse | diff %t.once -
// RUN: ktc-opt %s --kt-fuse=cpu=false --mlir-print-local-scope | FileCheck %s --check-prefix=GPU
// GPU-NOT: kt.add_norm
// GPU: kt.entry @b
// GPU: kt.add_norm

// REMARKS: remark: [Passed] AddNorm | Category:kt-fuse | Remark="n takes the sum in front of it", terms=2
// REMARKS: remark: [Analysis] Counts | Category:kt-fuse | add and norm=3

// The sum stays a result for its other users, and a second norm of it stays a norm. Unplaced steps and what crosses devices
// stay apart, and so do sums of more terms than a kernel takes.
// CHECK: kt.entry @a
// CHECK: %[[H:.*]] = kt.embed
// CHECK-NEXT: %[[S:.*]], %[[Y:.*]] = kt.add_norm rms %[[H]], %[[H]] @n eps 9.99999997E-7 of <Norm "n"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// CHECK-NEXT: %[[Z:.*]] = kt.norm rms %[[S]] @n
// CHECK-NEXT: %[[T:.*]], %{{.*}} = kt.add_norm rms %[[S]], %[[Y]], %[[Z]] @n
// CHECK-NEXT: %[[U:.*]] = kt.add %[[T]], %[[T]] of
// CHECK-NEXT: kt.norm rms %[[U]] @n eps 9.99999997E-7 of <Norm "n"> :
// CHECK-NEXT: %[[V:.*]] = kt.add %[[T]], %[[T]], %[[T]], %[[T]], %[[T]], %[[T]], %[[T]], %[[T]], %[[T]] of
// CHECK-NEXT: kt.norm rms %[[V]]
// CHECK: kt.entry @b
// CHECK: %[[A:.*]] = kt.add %{{.*}} {place = #kt.place<"cpu"
// CHECK: kt.norm rms %{{.*}} {place = #kt.place<"cuda:0"
// CHECK: kt.add_norm {{.*}} {place = #kt.place<"cuda:0"
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @n [1, 1, 8] bf16 from [#kt.piece<slot = "n", rows = 1>]
  kt.entry @a generic {
  ^bb0(%ids: !i, %positions: !i):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
    %s = kt.add %h, %h of <Attention "a"> {place = #cpu} : !h, !h -> !h
    %y = kt.norm rms %s @n eps 1.0e-06 of <Norm "n"> {place = #cpu} : !h
    %z = kt.norm rms %s @n eps 1.0e-06 of <Norm "n"> {place = #cpu} : !h
    %t = kt.add %s, %y, %z of <Attention "a"> {place = #cpu} : !h, !h, !h -> !h
    %t1 = kt.norm rms %t @n eps 1.0e-06 of <Norm "n"> {place = #cpu} : !h
    %u = kt.add %t, %t of <Attention "a"> : !h, !h -> !h
    %u1 = kt.norm rms %u @n eps 1.0e-06 of <Norm "n"> : !h
    %v = kt.add %t, %t, %t, %t, %t, %t, %t, %t, %t of <Attention "a"> {place = #cpu} : !h, !h, !h, !h, !h, !h, !h, !h, !h -> !h
    %v1 = kt.norm rms %v @n eps 1.0e-06 of <Norm "n"> {place = #cpu} : !h
    kt.return %ids : !i
  }
  kt.entry @b generic {
  ^bb0(%ids: !i, %positions: !i):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
    %s = kt.add %h, %h of <Attention "a"> {place = #cpu} : !h, !h -> !h
    %y = kt.norm rms %s @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h
    %t = kt.add %h, %y of <Attention "a"> {place = #gpu} : !h, !h -> !h
    %z = kt.norm rms %t @n eps 1.0e-06 of <Norm "n"> {place = #gpu} : !h
    kt.return %ids : !i
  }
}
