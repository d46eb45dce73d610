// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/hybrid.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-split-experts --kt-insert-transfers --mlir-print-local-scope --remarks-filter-passed="kt-insert.*" --remarks-filter-analyse="kt-insert.*" --remark-format=emitRemark > %t.hybrid 2> %t.remarks
// RUN: FileCheck %s < %t.hybrid
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// Twice is as once.
// RUN: ktc-opt %t.hybrid --kt-insert-transfers --mlir-print-local-scope | diff %t.hybrid -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/between.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-defer-experts --kt-insert-transfers --mlir-print-local-scope | FileCheck %s --check-prefix=BETWEEN
// RUN: ktc-opt %s --split-input-file --kt-insert-transfers --mlir-print-local-scope | FileCheck %s --check-prefix=HERE
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-insert-transfers 2>&1 | FileCheck %s --check-prefix=UNPLACED
// UNPLACED: 'kt.embed' op has no place; run kt-place first

// REMARKS: remark: [Passed] Transfer | Category:kt-insert-transfers | Remark="extend[8]: for l0.experts from cuda:0 to cpu", values=3
// REMARKS: remark: [Passed] Transfer | Category:kt-insert-transfers | Remark="extend[8]: for l0.experts.add from cpu to cuda:0", values=1
// REMARKS: remark: [Passed] HandOff | Category:kt-insert-transfers | Remark="decode[2]: l0.experts by a record of bf16", record=0
// REMARKS: remark: [Analysis] Counts | Category:kt-insert-transfers | records=3, transfers=6

// In extend by copies.
// CHECK: kt.entry @"extend[8]"
// CHECK: %[[E:.*]], %[[W:.*]] = kt.route softmax_topk %[[Y:[^ ]*]]
// CHECK-NEXT: %[[T:.*]]:3 = kt.transfer %[[Y]], %[[E]], %[[W]] from "cuda:0" to "cpu" of <RoutedExperts "l0.experts" layer 0> {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">}
// CHECK-NEXT: %[[Z:.*]] = kt.experts swiglu %[[T]]#0, %[[T]]#1, %[[T]]#2 @l0.experts slots
// CHECK-NEXT: %[[G:.*]] = kt.experts swiglu %[[Y]], %[[E]], %[[W]] @l0.experts.hot slots
// CHECK-NEXT: %[[S:.*]] = kt.mlp swiglu %[[Y]]
// CHECK-NEXT: %[[R:.*]] = kt.transfer %[[Z]] from "cpu" to "cuda:0" of <RoutedExperts "l0.experts" layer 0> {place = #kt.place<"cuda:0"
// CHECK-NEXT: kt.add %{{.*}}, %[[R]], %[[G]], %[[S]] of
// In decode by records, one for each layer; a step without pairs for the CPU does not wait.
// CHECK: kt.entry @"decode[2]"
// CHECK-NOT: kt.transfer
// CHECK: %[[E:.*]], %[[W:.*]] = kt.route softmax_topk %[[Y:[^ ]*]]
// CHECK-NEXT: %[[X:.*]], %[[I:.*]], %[[V:.*]] = kt.submit %[[Y]], %[[E]], %[[W]] record 0 as "bf16" slots [-1, 0, 1, 2] of <RoutedExperts "l0.experts" layer 0> {place = #kt.place<"cuda:0"
// CHECK-NEXT: %[[Z:.*]] = kt.experts swiglu %[[X]], %[[I]], %[[V]] @l0.experts slots
// CHECK: %[[R:.*]] = kt.await %[[Z]] record 0 as "bf16" skip_empty of
// CHECK-NEXT: kt.add %{{.*}}, %[[R]], %
// CHECK: kt.submit {{.*}} record 1 as
// CHECK: kt.await {{.*}} record 1 as
// CHECK: kt.submit {{.*}} record 2 as
// CHECK: kt.await {{.*}} record 2 as
// CHECK: kt.entry @"sample[2]"

// Late experts arrive in a layer that has none on the CPU: a record without pairs takes them along. A step with late experts
// waits always: the record may be empty, and what came late not.
// BETWEEN: kt.entry @"decode[2]"
// BETWEEN: %[[X:.*]], %[[I:.*]], %[[V:.*]] = kt.submit %[[Y:.*]], %[[E:.*]], %[[W:.*]] record 0 as "bf16" of
// BETWEEN-NEXT: %[[Z:.*]] = kt.experts swiglu %[[X]], %[[I]], %[[V]] deferred %deferred @l0.experts late <count = 1, part = in_time>
// BETWEEN-NEXT: %[[L:.*]] = kt.experts swiglu %[[X]], %[[I]], %[[V]] deferred %deferred @l0.experts late <count = 1, part = late>
// BETWEEN: kt.await %[[Z]] record 0 as "bf16" of
// BETWEEN: kt.submit %[[Y]], %[[E]], %[[W]] record 1 as "bf16" slots [-1, -1, -1, -1] of
// BETWEEN-NEXT: %[[A:.*]] = kt.await %[[L]] record 1 as "bf16" of
// BETWEEN: kt.add {{.*}}, %[[A]] of <RoutedExperts "l1.experts" layer 1>
// BETWEEN: kt.submit {{.*}} record 2
// BETWEEN: kt.await {{.*}} record 2 as "bf16" skip_empty

// What has nothing to do with experts is copied, once for all its users; arguments are written where they are read.
// HERE: kt.entry @d decode
// HERE: %[[H:.*]] = kt.embed
// HERE-NEXT: %[[T:.*]] = kt.transfer %[[H]] from "cpu" to "cuda:0" of <Norm "n"> {place = #kt.place<"cuda:0"
// HERE-NEXT: kt.add %[[T]], %[[T]]
// HERE-NEXT: %[[S:.*]] = kt.select_rows %[[T]], %rows of
// HERE-NEXT: %[[P:.*]] = kt.transfer %[[S]] from "cuda:0" to "cuda:1" of <Head "h"> {place = #kt.place<"cuda:0"
// HERE-NEXT: kt.lm_head %[[P]] @w1
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
#gpu1 = #kt.place<"cuda:1", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @w1 [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:1" as "bf16" packed "row_major"
  kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
    %a = kt.add %h, %h of <Norm "n"> {place = #gpu} : !h, !h -> !h
    %x = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> !s
    %l = kt.lm_head %x @w1 of <Head "h"> {place = #gpu1} : !s -> !l
    kt.return %l : !l
  }
}
