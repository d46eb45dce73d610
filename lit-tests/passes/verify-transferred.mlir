// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-transferred | FileCheck %s

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
// CHECK: kt.phase = #kt.phase<transferred>
module {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @e generic {
  ^bb0(%ids: !i, %positions: !i):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
    kt.return %ids : !i
  }
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %positions: !i):
  // expected-error@+1 {{'kt.embed' op has no place; run kt-place}}
  %h = kt.embed %ids @w of <Embedding "e"> : !i -> tensor<?x8xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.entry @e generic {
^bb0(%ids: !i, %positions: !i):
  // expected-note@+1 {{made here}}
  %h = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
  // expected-error@+1 {{'kt.add' op takes its operands on cuda:0, but one is made on cpu; run kt-insert-transfers}}
  %s = kt.add %h, %h of <DenseMlp "m"> {place = #kt.place<"cuda:0", weights = "bf16", activations = "f32">} : !h, !h -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.entry @e generic {
^bb0(%ids: !i, %positions: !i):
  // expected-error@+1 {{'kt.embed' op runs on cpu, but @w lives on cuda:0}}
  %h = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> tensor<?x8xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t on "cuda:0" as "f32"
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !i -> !h
  // expected-error@+1 {{'kt.gqa' op runs on cpu, but @kv lives on cuda:0}}
  %o = kt.gqa %x, %x, %x, %pos cache @kv[0] order 0 of <Attention "a"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">, heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  kt.return %ids : !i
}

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.transfer' op device: found "tpu", expected cpu, cuda:0, cuda:1, ...}}
  %a = kt.transfer %l from "tpu" to "cuda:0" of <Head "h"> {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">} : !l -> !l
  %n = kt.sample %l of <Head "h"> {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">} : !l -> !n
  kt.return %n : !n
}

// -----

#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!w = tensor<?x1xf32, #kt.dim<tokens>>
kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @r [1, 2, 8] bf16 from [#kt.piece<slot = "r", rows = 2>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 2 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cuda:0" as "bf16" packed "row_major"
kt.entry @e generic {
^bb0(%ids: !i, %positions: !i):
  %h = kt.embed %ids @embed of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 2 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !i, !w
  // expected-error@+1 {{'kt.experts' op streams a bank of cuda:0 to cuda:0; expected one of the cpu to a GPU}}
  %y = kt.experts swiglu %h, %e, %w @b stream of <RoutedExperts "x" layer 0> {place = #gpu} : !h, !i, !w
  kt.return %ids : !i
}
