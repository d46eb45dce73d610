// Layers and hot experts on two GPUs, from the policy to the graphs.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/two-gpus.yaml target=%S/../Inputs/two-gpus-target.yaml" --kt-split-experts --kt-insert-transfers --kt-form-cuda-graphs --mlir-print-local-scope > %t.once
// RUN: FileCheck %s < %t.once
// Twice is as once.
// RUN: ktc-opt %t.once --kt-split-experts --kt-insert-transfers --kt-form-cuda-graphs --mlir-print-local-scope | diff %t.once -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries="chunk=8 decode=2" --kt-place="policy=%S/../Inputs/two-gpus.yaml target=%S/../Inputs/two-gpus-target.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=PLACED

// A bank says which of its experts belong on which GPU, the layer's own first.
// PLACED: kt.expert_bank @l0.experts {{.*}} hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [0, 1], line = "two-gpus.yaml:13:11">]
// PLACED: kt.expert_bank @l2.experts {{.*}} hot [#kt.hot<device = "cuda:1", {{[^>]*}} experts = [0], {{[^>]*}}>, #kt.hot<device = "cuda:0", {{[^>]*}} experts = [1], {{[^>]*}}>]

// CHECK: kt.expert_bank @l0.experts.hot experts 2 ids [0, 1] {{.*}} on "cuda:0"
// CHECK: kt.expert_bank @l1.experts.hot experts 2 ids [0, 1] {{.*}} on "cuda:1"
// CHECK: kt.expert_bank @l2.experts experts 2 ids [2, 3] {{.*}} on "cpu"
// CHECK: kt.expert_bank @"l2.experts.hot-cuda:1" experts 1 ids [0] {{.*}} on "cuda:1"
// CHECK: kt.expert_bank @"l2.experts.hot-cuda:0" experts 1 ids [1] {{.*}} on "cuda:0"
// Each GPU has the layers of its attention in a cache of its own, with the pages of one table.
// CHECK: kt.cache @kv {{.*}} layers 1 {{.*}} pages @kv.pages on "cuda:0"
// CHECK: kt.cache @"kv-cuda:1" {{.*}} layers 2 {{.*}} pages @kv.pages on "cuda:1"

// CHECK: kt.entry @"decode[2]" {{.*}} graphs [#kt.graph<"decode[2].cuda:0" on "cuda:0">, #kt.graph<"decode[2].cuda:1" on "cuda:1">, #kt.graph<"decode[2].cuda:0#2" on "cuda:0">, #kt.graph<"decode[2].cuda:1#2" on "cuda:1">, #kt.graph<"decode[2].cuda:1#3" on "cuda:1">]
// CHECK: kt.gqa {{.*}} cache @kv[0] order 0 {{.*}} {graph = 0
// One record for each layer with experts on the CPU, on the layer's GPU.
// CHECK: kt.submit {{.*}} record 0 {{.*}} {graph = 0
// CHECK: kt.await {{.*}} record 0 {{.*}} {graph = 0
// CHECK: %[[R0:.*]] = kt.add
// The residual goes over where the range of layers ends.
// CHECK-NEXT: %[[R:.*]] = kt.transfer %[[R0]] from "cuda:0" to "cuda:1" of <Norm "l1.norm1" layer 1>
// CHECK-NEXT: kt.norm rms %[[R]]
// CHECK: kt.gqa {{.*}} cache @"kv-cuda:1"[0] order 1 {{.*}} {graph = 1
// CHECK: kt.gqa {{.*}} cache @"kv-cuda:1"[1] order 2 {{.*}} {graph = 1
// Hot experts on the other GPU: their operands go there, their sum comes back, in front of the await.
// CHECK: %[[X:.*]], %[[I:.*]], %[[V:.*]] = kt.submit %[[Y:[^ ]*]], %[[E:[^ ]*]], %[[W:[^ ]*]] record 2 {{.*}} {graph = 1
// CHECK-NEXT: %[[C:.*]] = kt.experts swiglu %[[X]], %[[I]], %[[V]] @l2.experts slots [-1, -1, 0, 1]
// CHECK-NEXT: %[[H:.*]] = kt.experts swiglu %[[Y]], %[[E]], %[[W]] @"l2.experts.hot-cuda:1" slots [0, -1, -1, -1] {{.*}} {graph = 1
// CHECK-NEXT: %[[T:.*]]:3 = kt.transfer %[[Y]], %[[E]], %[[W]] from "cuda:1" to "cuda:0"
// CHECK-NEXT: %[[A:.*]] = kt.experts swiglu %[[T]]#0, %[[T]]#1, %[[T]]#2 @"l2.experts.hot-cuda:0" slots [-1, 0, -1, -1] {{.*}} {graph = 2
// CHECK: %[[B:.*]] = kt.transfer %[[A]] from "cuda:0" to "cuda:1"
// CHECK-NEXT: %[[D:.*]] = kt.await %[[C]] record 2 {{.*}} {graph = 4
// CHECK-NEXT: kt.add %{{.*}}, %[[D]], %[[H]], %[[B]], %{{.*}} of <RoutedExperts "l2.experts" layer 2> {graph = 4 : i64, place = #kt.place<"cuda:1"
