// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=9 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/even.yaml" --mlir-print-local-scope --remarks-filter-passed=kt-halve-batches --remarks-filter-analyse=kt-halve-batches --remark-format=emitRemark > %t.cut 2> %t.remarks
// RUN: FileCheck %s < %t.cut
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// Cut once, it stays as it is, and goes through the rest of the pipeline.
// RUN: ktc-opt %t.cut --kt-halve-batches="target=%S/../Inputs/even.yaml below=1000" --mlir-print-local-scope | diff %t.cut -
// RUN: ktc-opt %t.cut --kt-pipeline="from=optimised policy=%S/../Inputs/late.yaml target=%S/../Inputs/even.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=LOWERED
// Where fixed times and bytes decide, halves are slower; `below` is how much of the whole's time they may take.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=9 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/slow-cpu.yaml" --remarks-filter-missed=kt-halve-batches --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=SLOW
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised halves-below=1000 chunk=9 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/slow-cpu.yaml" --mlir-print-local-scope | FileCheck %s
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised disable=halve-batches chunk=9 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/even.yaml" > %t.off
// RUN: FileCheck %s --check-prefix=OFF < %t.off
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised halves-below=0 chunk=9 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/even.yaml" | diff %t.off -
// One token, one device, experts that pass through the GPU: whole.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised halves-below=1000 chunk=1 decode=1 policy=%S/../Inputs/late.yaml target=%S/../Inputs/even.yaml" --remarks-filter-missed=kt-halve-batches --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefixes=ONE,OFF
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised halves-below=1000 chunk=9 decode=2 policy=%S/../Inputs/defers.yaml" | FileCheck %s --check-prefix=OFF
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised halves-below=1000 chunk=8 stream-chunk=32 decode=2 policy=%S/../Inputs/streams.yaml target=%S/../Inputs/fast-cpu.yaml" --remarks-filter-missed=kt-halve-batches --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=STREAM
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-halve-batches 2>&1 | FileCheck %s --check-prefix=UNPLACED

// REMARKS: remark: [Passed] Halves | Category:kt-halve-batches | Remark="extend[9]: while one device computes a half of the tokens, the other one computes the other; what is read is read twice", us={{[0-9]+}}, us as a whole={{[0-9]+}}
// REMARKS: remark: [Analysis] Counts | Category:kt-halve-batches | cut=1
// SLOW: remark: [Missed] NoGain | Category:kt-halve-batches | Remark="extend[9]: in halves it is predicted not to be fast enough", us={{[0-9]+}}, us in halves={{[0-9]+}}
// ONE: remark: [Missed] Whole | Category:kt-halve-batches | Remark="extend[1]: it has one token"
// OFF-NOT: _half
// STREAM: remark: [Missed] Whole | Category:kt-halve-batches | Remark="extend[32]: experts pass through a GPU"
// UNPLACED: 'kt.embed' op has no place; run kt-place first

// Inputs of both halves; in a layer attention of the second half comes behind that of the first one; the rows with logits are of both.
// CHECK: kt.entry @"extend[9]" extend bounds <tokens = 9, rows = 9, sequences = 2>
// CHECK-NEXT: ^bb0(%ids: tensor<?x1xi32, #kt.dim<first_half>>, %positions: tensor<?x1xi32, #kt.dim<first_half>>, %rows: tensor<?x1xi32, #kt.dim<rows>>, %deferred: tensor<?x1xi32, #kt.dim<first_half>>, %[[I:ids_[0-9]+]]: tensor<?x1xi32, #kt.dim<second_half>>, %[[P:positions_[0-9]+]]: tensor<?x1xi32, #kt.dim<second_half>>, %[[D:deferred_[0-9]+]]: tensor<?x1xi32, #kt.dim<second_half>>)
// CHECK-DAG: kt.embed %ids @embed.weight {{.*}} -> tensor<?x8xf32, #kt.dim<first_half>>
// CHECK-DAG: kt.embed %[[I]] @embed.weight {{.*}} -> tensor<?x8xf32, #kt.dim<second_half>>
// CHECK-DAG: kt.gqa {{.*}}, %positions cache @kv[0] order 0
// CHECK-DAG: kt.gqa {{.*}}, %[[P]] cache @kv[0] order 1
// CHECK-DAG: %[[X:[0-9]+]]:3 = kt.transfer {{.*}} from "cuda:0" to "cpu" {{.*}} -> tensor<?x8xf32, #kt.dim<first_half>>
// CHECK-DAG: kt.experts swiglu %[[X]]#0, %[[X]]#1, %[[X]]#2 deferred %deferred @l0.experts slots {{.*}} part = in_time
// CHECK-DAG: %[[Y:[0-9]+]]:3 = kt.transfer {{.*}} from "cuda:0" to "cpu" {{.*}} -> tensor<?x8xf32, #kt.dim<second_half>>
// CHECK-DAG: kt.experts swiglu %[[Y]]#0, %[[Y]]#1, %[[Y]]#2 deferred %[[D]] @l0.experts slots {{.*}} part = in_time
// CHECK-DAG: kt.gqa {{.*}}, %positions cache @kv[1] order 2
// CHECK-DAG: kt.gqa {{.*}}, %[[P]] cache @kv[1] order 3
// CHECK: kt.select_rows %{{.*}}, %rows then %{{[0-9]+}} of {{.*}} : tensor<?x8xf32, #kt.dim<first_half>>, tensor<?x1xi32, #kt.dim<rows>> then tensor<?x8xf32, #kt.dim<second_half>> -> tensor<?x8xf32, #kt.dim<rows>>
// CHECK-NOT: _half
// CHECK: kt.entry @"decode[2]"
// CHECK-NOT: _half

// Buffers have room for a half of 9 tokens: 5, and 4.
// LOWERED: kt.entry @"extend[9]"
// LOWERED-SAME: #kt.buffer<name = "ids", device = "cuda:0", role = ids, dim = first_half, format = "i32", columns = 1, row_bytes = 4, offset = {{[0-9]+}}, bytes = 20>
// LOWERED-SAME: #kt.buffer<name = "ids#2", device = "cuda:0", role = ids, dim = second_half, format = "i32", columns = 1, row_bytes = 4, offset = {{[0-9]+}}, bytes = 16>
