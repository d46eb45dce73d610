// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-plan-memory

// expected-error@+1 {{'kt.entry' op has no bounds; run kt-specialise-entries first}}
kt.entry @e generic {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op has no place; run kt-place first}}
  %n = kt.sample %l of <Head "h"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

// Logits that are some columns of a product have no buffer that is theirs.
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %positions: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #place} : !i -> tensor<?x8xf32, #kt.dim<tokens>>
  %x = kt.select_rows %h, %rows of <Norm "n"> {place = #place} : tensor<?x8xf32, #kt.dim<tokens>>, !r -> !s
  %a, %b = kt.linear %x @w of <Head "h"> {place = #place} : !s -> !s, !s
  // expected-error@+1 {{'kt.return' op returns an argument or a part of a product; expected a value of its own}}
  kt.return %b : !s
}

// -----

// 2^24 tokens of 2^31 hidden columns each
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @gu [1, 2147483648, 8] bf16 from [#kt.piece<slot = "gu", rows = 2147483648>] on "cpu" as "bf16" packed "row_major"
kt.weight @d [1, 8, 1073741824] bf16 from [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.weight @bank_router [1, 16777216, 8] bf16 from [#kt.piece<slot = "r", rows = 16777216>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @bank experts 16777216 hidden 8 intermediate 1073741824 bf16 gate_up [#kt.piece<slot = "s", rows = 2147483648>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @e decode bounds <tokens = 16777216, rows = 16777216, sequences = 16777216> {
^bb0(%ids: !i, %positions: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #place} : !i -> !h
  %x = kt.mlp swiglu %h gate_up @gu down @d of <DenseMlp "m"> {place = #place} : !h
  %e, %w = kt.route softmax_topk %x @bank_router of <Router "r"> {place = #place, experts = 16777216 : i64, top_k = 65536 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x65536xi32, #kt.dim<tokens>>, tensor<?x65536xf32, #kt.dim<tokens>>
  // expected-error@+1 {{'kt.experts' op needs more scratch than 2^60 bytes; lower batch.chunk in the policy}}
  %y = kt.experts swiglu %x, %e, %w @bank of <RoutedExperts "x"> {place = #place} : !h, tensor<?x65536xi32, #kt.dim<tokens>>, tensor<?x65536xf32, #kt.dim<tokens>>
  %z = kt.select_rows %y, %rows of <Norm "n"> {place = #place} : !h, !r -> !s
  %l = kt.lm_head %z @w of <Head "h"> {place = #place} : !s -> tensor<?x16xf32, #kt.dim<rows>>
  kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
}

// -----

// A weight of an unknown packing has no size.
// expected-error@+1 {{the account has a size that cannot be counted; expected placed weights and caches that steps use}}
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "spiral"
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}
