// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=8 decode=2 policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --mlir-print-local-scope > %t.late
// RUN: FileCheck %s < %t.late
// RUN: ktc-opt %t.late --kt-schedule --mlir-print-local-scope | diff %t.late -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=8 decode=2 policy=%S/../Inputs/between.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=BETWEEN
// One device: nothing moves.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries --kt-place="policy=%S/../Inputs/defers.yaml" --kt-defer-experts > %t.cpu
// RUN: ktc-opt %t.cpu --kt-schedule | diff %t.cpu -
// RUN: ktc-opt %s --kt-schedule --mlir-print-local-scope --remarks-filter-passed="kt-schedule" --remarks-filter-analyse="kt-schedule" --remark-format=emitRemark 2> %t.remarks | FileCheck %s --check-prefix=HERE
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-schedule 2>&1 | FileCheck %s --check-prefix=UNPLACED
// UNPLACED: 'kt.embed' op has no place; run kt-place first
// REMARKS: remark: [Passed] Scheduled | Category:kt-schedule | Remark="m: the CPU's work as early as it can be, waits for it last", moved=
// REMARKS: remark: [Analysis] Counts | Category:kt-schedule | moved=

// The CPU: what is in time, its delivery, what is late, and that before the next layer's. The GPU: hot and shared experts
// before it waits.
// CHECK: kt.entry @"decode[2]"
// CHECK: kt.submit {{.*}} record 0
// CHECK-NEXT: kt.experts {{.*}} @l0.experts slots {{.*}} part = in_time
// CHECK-NEXT: kt.experts {{.*}} @l0.experts.hot slots {{.*}} part = in_time
// CHECK-NEXT: kt.experts {{.*}} @l0.experts.hot slots {{.*}} part = late
// CHECK-NEXT: kt.mlp {{.*}} @l0.shared
// CHECK-NEXT: kt.await {{.*}} record 0
// CHECK-NEXT: kt.experts {{.*}} @l0.experts slots {{.*}} part = late
// CHECK-NEXT: kt.add_norm
// CHECK: kt.submit {{.*}} record 1
// CHECK-NEXT: kt.experts {{.*}} @l1.experts slots {{.*}} part = in_time
// CHECK-NEXT: kt.add {{.*}} {place = #kt.place<"cpu"
// CHECK-NEXT: kt.experts {{.*}} @l1.experts.hot slots {{.*}} part = in_time
// CHECK: kt.await {{.*}} record 1
// CHECK-NEXT: kt.experts {{.*}} @l1.experts slots {{.*}} part = late

// A record without pairs goes with its await.
// BETWEEN: kt.entry @"decode[2]"
// BETWEEN: kt.await {{.*}} record 0
// BETWEEN-NEXT: kt.experts {{.*}} part = late
// BETWEEN: kt.mlp {{.*}} @l1.shared
// BETWEEN-NEXT: kt.submit {{.*}} record 1
// BETWEEN-NEXT: kt.await {{.*}} record 1

// Accesses to one cache keep their order, whatever comes between.
// HERE: kt.embed {{.*}} {place = #kt.place<"cpu"
// HERE: kt.transfer
// HERE: kt.gqa {{.*}} order 0
// HERE: kt.gqa {{.*}} order 1
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @w0 [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 2 page 4 tokens 16 sequences 1 pages @t on "cuda:0" as "f32"
  kt.entry @m generic {
  ^bb0(%ids: !i, %pos: !i):
    %g = kt.embed %ids @w0 of <Embedding "e"> {place = #gpu} : !i -> !h
    %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
    %c = kt.transfer %h from "cpu" to "cuda:0" of <Attention "a"> {place = #gpu} : !h -> !h
    %o = kt.gqa %c, %c, %c, %pos cache @kv[0] order 0 of <Attention "a"> {place = #gpu, heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    %p = kt.gqa %g, %g, %g, %pos cache @kv[1] order 1 of <Attention "b"> {place = #gpu, heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}
