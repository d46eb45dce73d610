// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=8 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/slow-cpu.yaml" --mlir-print-local-scope > %t.slow
// RUN: FileCheck %s --check-prefix=SLOW < %t.slow
// RUN: ktc-opt %t.slow --kt-schedule=target=%S/../Inputs/slow-cpu.yaml --mlir-print-local-scope | diff %t.slow -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=8 decode=2 policy=%S/../Inputs/late.yaml target=%S/../Inputs/fast-cpu.yaml" --mlir-print-local-scope > %t.fast
// RUN: FileCheck %s --check-prefix=FAST < %t.fast
// RUN: ktc-opt %t.fast --kt-schedule=target=%S/../Inputs/fast-cpu.yaml --mlir-print-local-scope | diff %t.fast -
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised chunk=8 decode=2 policy=%S/../Inputs/between.yaml target=%S/../Inputs/slow-cpu.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=BETWEEN
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="to=optimised disable=halve-batches chunk=8 decode=2 policy=%S/../Inputs/hybrid.yaml target=%S/../Inputs/slow-cpu.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=PROMPT
// One device: nothing moves.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries --kt-place="policy=%S/../Inputs/defers.yaml" --kt-defer-experts > %t.cpu
// RUN: ktc-opt %t.cpu --kt-schedule | diff %t.cpu -
// RUN: ktc-opt %s --kt-schedule=target=%S/../Inputs/slow-cpu.yaml --mlir-print-local-scope --remarks-filter-passed="kt-schedule" --remarks-filter-analyse="kt-schedule" --remark-format=emitRemark 2> %t.remarks | FileCheck %s --check-prefix=HERE
// RUN: FileCheck %s --check-prefix=REMARKS < %t.remarks
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-schedule 2>&1 | FileCheck %s --check-prefix=UNPLACED
// UNPLACED: 'kt.embed' op has no place; run kt-place first
// REMARKS: remark: [Passed] Scheduled | Category:kt-schedule | Remark="m: by critical path, CPU and GPU beside each other", moved={{[0-9]+}}, us={{[0-9]+}}, us as given=
// REMARKS: remark: [Analysis] Counts | Category:kt-schedule | moved=

// A CPU that takes long: the GPU does all that it can before it waits, also what is needed a layer later. In the list the CPU's work
// is behind what the GPU does meanwhile.
// SLOW: kt.entry @"decode[2]"
// SLOW: kt.submit {{.*}} record 0
// SLOW-DAG: kt.mlp {{.*}} @l0.shared
// SLOW-DAG: kt.experts {{.*}} @l0.experts.hot slots {{.*}} part = in_time
// SLOW-DAG: kt.experts {{.*}} @l0.experts.hot slots {{.*}} part = late
// SLOW: kt.experts {{.*}} @l0.experts slots {{.*}} part = in_time
// SLOW-NEXT: kt.await {{.*}} record 0
// SLOW: kt.route {{.*}} @l1.gate
// SLOW: kt.experts {{.*}} @l0.experts slots {{.*}} part = late
// SLOW: kt.submit {{.*}} record 1

// Steps of prompts are launched as the host gets to them: rows, ids and weights leave for the CPU, then the GPU gets all that it can do
// meanwhile, then the host computes.
// PROMPT: kt.entry @"extend[8]"
// PROMPT: kt.route {{.*}} @l0.gate
// PROMPT-NEXT: kt.transfer {{.*}} from "cuda:0" to "cpu"
// PROMPT-NEXT: kt.mlp {{.*}} @l0.shared
// PROMPT-NEXT: kt.experts {{.*}} @l0.experts.hot
// PROMPT-NEXT: kt.experts {{.*}} @l0.experts slots
// PROMPT-NEXT: kt.transfer {{.*}} from "cpu" to "cuda:0"
// PROMPT: kt.route {{.*}} @l1.gate

// A CPU that has its result at once: late experts of the GPU come behind what the next layer waits for.
// FAST: kt.entry @"decode[2]"
// FAST: kt.route {{.*}} @l0.gate
// FAST-NEXT: kt.submit {{.*}} record 0
// FAST: kt.await {{.*}} record 0
// FAST: kt.route {{.*}} @l1.gate
// FAST: kt.experts {{.*}} @l0.experts.hot slots {{.*}} part = late
// FAST: kt.await {{.*}} record 1

// A record without pairs goes with its await.
// BETWEEN: kt.entry @"decode[2]"
// BETWEEN: kt.await {{.*}} record 0
// BETWEEN: kt.experts {{.*}} part = late
// BETWEEN: kt.submit {{.*}} record 1
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
