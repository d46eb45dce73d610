// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries="decode=4,1,4 chunk=8 stream-chunk=32" | FileCheck %s --implicit-check-not=generic
// Twice is as once.
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries="decode=1 chunk=8" > %t.once
// RUN: ktc-opt %t.once --kt-specialise-entries="decode=2 chunk=16" | diff %t.once -
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-specialise-entries="chunk=8"
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries="chunk=0" 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries="decode=16777217" 2>&1 | FileCheck %s --check-prefix=LARGE
// What the pass did, in numbers.
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries --remarks-filter-analyse="kt-.*" --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=COUNTS
// COUNTS: remark: [Analysis] Counts | Category:kt-specialise-entries | entries=3

// ZERO: bounds of entries: found 0 tokens, expected from 1 to 16777216; change batch in the policy
// LARGE: bounds of entries: found 16777217 tokens, expected from 1 to 16777216; change batch in the policy

// A cache of 2 sequences bounds the sequences of a step; 64 MiB of logits is more than all rows of a chunk.
// CHECK: kt.entry @"extend[8]" extend bounds <tokens = 8, rows = 8, sequences = 2> {
// CHECK-NEXT: ^bb0(%ids: tensor<?x1xi32, #tokens>, %positions: tensor<?x1xi32, #tokens>, %rows: tensor<?x1xi32, #rows>):
// CHECK: %[[HIDDEN:.+]] = kt.add {{.*}} of <RoutedExperts "l0.experts" layer 0>
// Only rows that need logits reach the final norm and the head.
// CHECK-NEXT: %[[ROWS:.+]] = kt.select_rows %[[HIDDEN]], %rows of <Norm "norm"> : tensor<?x8xf32, #tokens>, tensor<?x1xi32, #rows> -> tensor<?x8xf32, #rows>
// CHECK-NEXT: %[[NORM:.+]] = kt.norm rms %[[ROWS]] @norm.weight eps {{.*}} : tensor<?x8xf32, #rows>
// CHECK-NEXT: %[[LOGITS:.+]] = kt.lm_head %[[NORM]] @embed.weight of <Head "lm_head"> : tensor<?x8xf32, #rows> -> tensor<?x16xf32, #rows>
// CHECK-NEXT: kt.return %[[LOGITS]] : tensor<?x16xf32, #rows>
// CHECK: kt.entry @"extend[32]" extend bounds <tokens = 32, rows = 32, sequences = 2> {
// Buckets ascend, each once.
// CHECK: kt.entry @"decode[1]" decode bounds <tokens = 1, rows = 1, sequences = 1> {
// CHECK-NOT: kt.sample
// CHECK: kt.entry @"decode[4]" decode bounds <tokens = 4, rows = 4, sequences = 4> {
// CHECK: kt.entry @"sample[1]" sample bounds <tokens = 1, rows = 1, sequences = 1> {
// CHECK-NEXT: ^bb0(%logits: tensor<?x16xf32, #rows>):
// CHECK-NEXT: %[[NEXT:.+]] = kt.sample %logits of <Head "lm_head"> : tensor<?x16xf32, #rows> -> tensor<?x1xi32, #rows>
// CHECK-NEXT: kt.return %[[NEXT]] : tensor<?x1xi32, #rows>
// CHECK: kt.entry @"sample[4]" sample

// A head without a norm in front of it: the selection is in front of the head.
// expected-error@+1 {{no kt.cache: found no bound for the sequences of a step; declare the cache of the attention layers}}
module @no_cache {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.entry @model generic {
  ^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
    %h = kt.embed %ids @w of <Embedding "e"> : tensor<?x1xi32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>
    %l = kt.lm_head %h @w of <Head "h"> : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x16xf32, #kt.dim<tokens>>
    %n = kt.sample %l of <Head "h"> : tensor<?x16xf32, #kt.dim<tokens>> -> tensor<?x1xi32, #kt.dim<tokens>>
    kt.return %n : tensor<?x1xi32, #kt.dim<tokens>>
  }
}

// -----

// expected-error@+1 {{'kt.entry' op does not end in kt.lm_head and kt.sample; expected a body as import makes it}}
kt.entry @model generic {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}
