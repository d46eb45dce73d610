// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-tiled | FileCheck %s

// CHECK: kt.phase = #kt.phase<tiled>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.expert_bank @b experts 4 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 4>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
}

// -----

// expected-error@+1 {{'kt.expert_bank' op has no packing; run kt-place}}
kt.expert_bank @b experts 4 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 4>] down [#kt.piece<slot = "d", rows = 8>]

// -----

// expected-error@+1 {{'kt.weight' op packing: found "spiral", expected one of runtime/formats/packings.def}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "spiral"

// -----

// expected-error@+1 {{'kt.expert_bank' op is larger than 2^64 bytes, or its format has no size}}
kt.expert_bank @b experts 1073741824 hidden 1073741824 intermediate 1073741824 bf16 gate_up [#kt.piece<slot = "s", rows = 2147483648>] down [#kt.piece<slot = "d", rows = 1073741824>] on "cpu" as "bf16" packed "row_major"
