// RUN: ktc-opt %s --kt-form-cuda-graphs --mlir-print-local-scope --remarks-filter-passed="kt-form.*" --remarks-filter-missed="kt-form.*" --remarks-filter-analyse="kt-form.*" --remark-format=emitRemark 2> %t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// RUN: ktc-opt %s --kt-form-cuda-graphs > %t.once
// RUN: ktc-opt %t.once --kt-form-cuda-graphs | diff %t.once -
// REMARKS: remark: [Missed] Cut | Category:kt-form-cuda-graphs | Remark="d: m.transfer cuts the chain of cuda:0"
// REMARKS: remark: [Passed] Graph | Category:kt-form-cuda-graphs | Remark=d.cuda:0, steps=1
// REMARKS: remark: [Passed] Graph | Category:kt-form-cuda-graphs | Remark=d.cuda:0#2, steps=2
// REMARKS: remark: [Passed] Graph | Category:kt-form-cuda-graphs | Remark=s.cuda:0, steps=1
// REMARKS: remark: [Analysis] Counts | Category:kt-form-cuda-graphs | graphs=3

// Of decode and sample entries alone; a copy cuts a chain; the CPU's steps belong to none.
// CHECK: kt.entry @x extend
// CHECK-NOT: graph
// CHECK: kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> graphs [#kt.graph<"d.cuda:0" on "cuda:0">, #kt.graph<"d.cuda:0#2" on "cuda:0">] {
// CHECK: kt.embed {{.*}} {graph = 0 : i64, place
// CHECK: kt.transfer {{.*}} {place
// CHECK: kt.add {{.*}} {place
// CHECK: kt.transfer {{.*}} {place
// CHECK: kt.select_rows {{.*}} {graph = 1 : i64, place
// CHECK: kt.lm_head {{.*}} {graph = 1 : i64, place
// CHECK: kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> graphs [#kt.graph<"s.cuda:0" on "cuda:0">] {
// CHECK: kt.sample {{.*}} {graph = 0 : i64, place
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
  kt.entry @x extend bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
    %x = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "h"> {place = #gpu} : !s -> !l
    kt.return %l : !l
  }
  kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
    %c = kt.transfer %h from "cuda:0" to "cpu" of <DenseMlp "m"> {place = #gpu} : !h -> !h
    %a = kt.add %c, %c of <DenseMlp "m"> {place = #cpu} : !h, !h -> !h
    %b = kt.transfer %a from "cpu" to "cuda:0" of <Head "h"> {place = #gpu} : !h -> !h
    %x = kt.select_rows %b, %rows of <Norm "n"> {place = #gpu} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "h"> {place = #gpu} : !s -> !l
    kt.return %l : !l
  }
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%l: !l):
    %n = kt.sample %l of <Head "h"> {place = #gpu} : !l -> !r
    kt.return %n : !r
  }
}
