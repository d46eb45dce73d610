// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-fold-weights --kt-verify-optimised | FileCheck %s
// RUN: not ktc-opt %S/../Inputs/mla.mlir --kt-verify-optimised 2>&1 | FileCheck %s --check-prefix=SPLIT
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-optimised

// CHECK: kt.phase = #kt.phase<optimised>
// SPLIT: 'kt.mla' op holds kv_b, which no kernel takes; expected w_uk and w_uv, run kt-fold-weights

// expected-error@+1 {{'kt.weight' op is used by no step; a pass that replaces a weight removes it}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]

// -----

// expected-error@+1 {{'kt.table' op is used by no step; a pass that replaces a weight removes it}}
kt.table @t pages [1, 4]
