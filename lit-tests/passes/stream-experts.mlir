// In long steps of prefill the CPU's experts run on the GPU of their router, without transfers; the bank stays. Short ones and decode
// are as they were.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 stream-chunk=32 decode=2" --kt-place="policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-split-experts --kt-defer-experts --kt-stream-experts=chunk=32 --kt-insert-transfers --kt-verify-transferred --mlir-print-local-scope --remarks-filter-passed="kt-stream.*" --remarks-filter-analyse="kt-stream.*" --remark-format=emitRemark > %t.late 2> %t.remarks
// RUN: FileCheck %s < %t.late
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// Twice is as once; none is nothing.
// RUN: ktc-opt %t.late --kt-stream-experts=chunk=32 --mlir-print-local-scope | diff %t.late -
// RUN: ktc-opt %t.late --kt-stream-experts --mlir-print-local-scope | diff %t.late -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="chunk=8 stream-chunk=32 decode=2 policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=LOWERED
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="chunk=8 stream-chunk=32 decode=2 disable=stream-experts policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" | FileCheck %s --check-prefix=OFF
// OFF-NOT: {{ stream }}
// From how many tokens on, and whether the CPU takes a share, follows from the target: over a slow link with a fast CPU some, and it
// does; over a fast link with a slow CPU always, and it does not.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=transferred chunk=8 stream-chunk=32 decode=2 policy=%S/../Inputs/streams.yaml target=%S/../Inputs/fast-cpu.yaml" --mlir-print-local-scope --remarks-filter-passed="kt-stream.*" --remarks-filter-analyse="kt-stream.*" --remark-format=emitRemark > %t.shared 2> %t.shared-remarks
// RUN: FileCheck %s --check-prefix=SHARED < %t.shared
// RUN: FileCheck %s --check-prefix=SHARED-REMARKS < %t.shared-remarks
// RUN: ktc-opt %t.shared --kt-stream-experts=chunk=32 --kt-verify-transferred --mlir-print-local-scope | diff %t.shared -
// RUN: sed '/ stream share </!s/ share <ahead[^>]*> of/ of/' %t.shared | not ktc-opt --kt-verify-transferred 2>&1 | FileCheck %s --check-prefix=ALONE
// RUN: sed 's/@"extend.32." extend/@"extend[32]" decode/' %t.shared | not ktc-opt --kt-verify-transferred 2>&1 | FileCheck %s --check-prefix=KIND
// KIND: 'kt.experts' op shares experts; expected an entry of kind extend, and nothing late
// ALONE: 'kt.experts' op shares experts with 0 ops over the same values, expected one that takes a share on the cpu
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=transferred chunk=8 stream-chunk=32 decode=2 policy=%S/../Inputs/streams.yaml target=%S/../Inputs/slow-cpu.yaml" --mlir-print-local-scope --remarks-filter-analyse="kt-stream.*" --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=ALWAYS
// SHARED: kt.expert_bank @l0.experts {{.*}} on "cpu" {{.*}} share <
// SHARED: kt.entry @"extend[8]"
// SHARED-NOT: share <
// SHARED: kt.entry @"extend[32]" extend bounds <{{.*}}> from {{[2-9]|[12][0-9]|3[0-2]}} {
// SHARED: %[[GPU:.*]] = kt.experts swiglu %[[X:.*]], %[[IDS:.*]], %[[SCORES:.*]] @l0.experts stream share <{{.*}}> of {{.*}} {place = #kt.place<"cuda:0"
// SHARED: %[[UP:.*]]:3 = kt.transfer %[[X]], %[[IDS]], %[[SCORES]] from "cuda:0" to "cpu"
// SHARED: %[[CPU:.*]] = kt.experts swiglu %[[UP]]#0, %[[UP]]#1, %[[UP]]#2 @l0.experts share <{{.*}}> of {{.*}} {place = #kt.place<"cpu"
// SHARED: %[[DOWN:.*]] = kt.transfer %[[CPU]] from "cpu" to "cuda:0"
// SHARED: kt.add {{.*}}%[[GPU]], %[[DOWN]]
// SHARED-REMARKS: Threshold | Category:kt-stream-experts | Remark="extend[32]: streamed from {{.*}} tokens: {{.*}} without a share of the CPU), on the CPU
// SHARED-REMARKS: Counts | Category:kt-stream-experts | from={{[2-9]|[12][0-9]|3[0-2]}}, shared=3, streamed=3
// ALWAYS: Counts | Category:kt-stream-experts | from=1, shared=0, streamed=3

// LOWERED: #kt.account<"cuda:0" "stream" "experts" = {{[1-9][0-9]*}}>

// REMARKS: remark: [Passed] Streamed | Category:kt-stream-experts | Remark="extend[32]: l0.experts through cuda:0 as
// REMARKS: remark: [Analysis] Counts | Category:kt-stream-experts | from=0, shared=0, streamed=5

// CHECK: kt.expert_bank @l0.experts experts 3 {{.*}} on "cpu"
// CHECK: kt.entry @"extend[8]"
// CHECK: kt.transfer
// CHECK: kt.entry @"extend[32]"
// CHECK-NOT: kt.transfer
// CHECK: %[[C0:.*]] = kt.experts {{.*}} deferred %deferred @l0.experts slots [-1, 0, 1, 2] late <count = 1, part = in_time, among_all = true> stream of {{.*}} {place = #kt.place<"cuda:0"
// CHECK: %[[CL0:.*]] = kt.experts {{.*}} deferred %deferred @l0.experts slots [-1, 0, 1, 2] late <count = 1, part = late, among_all = true> stream of {{.*}} {place = #kt.place<"cuda:0"
// CHECK: kt.experts {{.*}} @l0.experts.hot slots [0, -1, -1, -1] late <{{[^>]*}}> of
// CHECK: %[[C1:.*]] = kt.experts {{.*}} @l1.experts slots {{.*}} part = in_time, among_all = true> stream of
// What was added on the CPU is added where it is made.
// CHECK: kt.add %[[C1]], %[[CL0]] of {{.*}} {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">}
// CHECK: kt.entry @"decode[2]"
// CHECK-NOT: stream of
// CHECK: kt.await
