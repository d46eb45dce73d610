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

// -----

// expected-error@+1 {{'kt.weight' op packing: found "row_major", which int8 does not have; run kt-tile-cpu}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "int8" packed "row_major"

// -----

// expected-error@+1 {{'kt.weight' op group: found 48, which int4 does not have}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "int4" packed "panel" group 48

// -----

// expected-error@+1 {{'kt.expert_bank' op group: found 32, which int8 does not have}}
kt.expert_bank @b experts 4 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 4>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "int8" packed "panel_paired" group 32

// -----

!h = tensor<?x8xf32, #kt.dim<tokens>>
!i = tensor<?x1xi32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @w [1, 8, 8] bf16 from [#kt.piece<slot = "w", rows = 8>] on "cpu" as "int8" packed "panel"
kt.entry @m generic {
^bb0(%ids: !i, %positions: !i):
  %h = kt.embed %ids @e of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
  // expected-error@+1 {{'kt.linear' op multiplies by panels and has no tile; run kt-tile-cpu}}
  %y = kt.linear %h @w of <Attention "a"> {place = #kt.place<"cpu", weights = "int8", activations = "int8">} : !h -> !h
  kt.return %ids : !i
}

// -----

!h = tensor<?x8xf32, #kt.dim<tokens>>
!i = tensor<?x1xi32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @w [1, 8, 8] bf16 from [#kt.piece<slot = "w", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @m generic {
^bb0(%ids: !i, %positions: !i):
  %h = kt.embed %ids @e of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
  // expected-error@+1 {{'kt.linear' op has a tile and no weights in panels; expected neither or both}}
  %y = kt.linear %h @w of <Attention "a"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">, tile = #kt.tile<x = 64>} : !h -> !h
  kt.return %ids : !i
}

// -----

!h = tensor<?x8xf32, #kt.dim<tokens>>
!i = tensor<?x1xi32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "int8" packed "panel"
kt.weight @d [1, 8, 2] bf16 from [#kt.piece<slot = "d", rows = 8>] on "cpu" as "int8" packed "panel"
kt.entry @m generic {
^bb0(%ids: !i, %positions: !i):
  %h = kt.embed %ids @e of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
  // expected-error@+1 {{'kt.mlp' op @g is packed "panel", expected "panel_paired"; run kt-tile-cpu}}
  %y = kt.mlp swiglu %h gate_up @g down @d of <DenseMlp "m"> {place = #kt.place<"cpu", weights = "int8", activations = "int8">, tile = #kt.tile<x = 64, h = 64>} : !h
  kt.return %ids : !i
}
