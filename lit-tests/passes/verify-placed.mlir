// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-placed | FileCheck %s

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
// Vectors are f32 whatever the place says.
// CHECK: kt.phase = #kt.phase<placed>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @n [1, 1, 8] bf16 from [#kt.piece<slot = "n", rows = 1>] on "cpu" as "f32" packed "row_major"
  kt.entry @e generic {
  ^bb0(%ids: !i, %positions: !i):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
    %n = kt.norm rms %h @n eps 1.0e-06 of <Norm "n"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !h
    kt.return %ids : !i
  }
}

// -----

// expected-error@+1 {{'kt.weight' op has no device; run kt-place}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]

// -----

// expected-error@+1 {{'kt.weight' op format: found "int3", expected one of f32, bf16}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "int3" packed "row_major"

// -----

// a format that exists, but not for weights
// expected-error@+1 {{'kt.expert_bank' op format: found "i32", expected one of f32, bf16}}
kt.expert_bank @b experts 4 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 4>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "i32" packed "row_major"

// -----

kt.table @t pages [1, 1]
// expected-error@+1 {{'kt.cache' op has no device; run kt-place}}
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>] layers 1 page 4 tokens 4 sequences 1 pages @t

// -----

kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op has no place; run kt-place}}
  %n = kt.sample %l of <Head "h"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op activations: found "i32", expected one of f32, bf16}}
  %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "i32">} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.entry @e generic {
^bb0(%ids: !i, %positions: !i):
  // expected-error@+1 {{'kt.embed' op @w has format "bf16", expected "f32" as the op's place says}}
  %h = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">} : !i -> tensor<?x8xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @n [1, 1, 8] bf16 from [#kt.piece<slot = "n", rows = 1>] on "cpu" as "bf16" packed "row_major"
kt.entry @e generic {
^bb0(%ids: !i, %positions: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
  // expected-error@+1 {{'kt.norm' op @n has format "bf16", expected "f32" as vectors have}}
  %n = kt.norm rms %h @n eps 1.0e-06 of <Norm "n"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !h
  kt.return %ids : !i
}

// -----

// expected-error@+1 {{'kt.weight' op device: found "tpu", expected cpu, cuda:0, cuda:1, ...}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "tpu" as "bf16" packed "row_major"

// -----

kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op device: found "cuda:-1", expected cpu, cuda:0, cuda:1, ...}}
  %n = kt.sample %l of <Head "h"> {place = #kt.place<"cuda:-1", weights = "f32", activations = "f32">} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

// expected-error@+1 {{'kt.expert_bank' op has hot experts that are nowhere yet; run kt-split-experts}}
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1], line = "">]

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 2 ids [0, 1] hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op slots: expert 2 has a matrix in 0 of the ops over these ids, expected in one}}
  %y = kt.experts swiglu %h, %e, %w @b slots [0, 1, -1, -1] of <RoutedExperts "x"> {place = #cpu} : !h, !e, !w
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op shares its experts with another op; expected slots of as many experts on both}}
  %y = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x"> {place = #cpu} : !h, !e, !w
  %z = kt.experts swiglu %h, %e, %w @b of <RoutedExperts "x"> {place = #cpu} : !h, !e, !w
  kt.return %ids : !i
}
