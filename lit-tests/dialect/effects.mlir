// The order of accesses to caches: what may move, and what may not.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @a paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 2 page 4 tokens 16 sequences 1 pages @t
kt.cache @b paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 2 page 4 tokens 16 sequences 1 pages @t

// Orders are per cache: accesses to different ones may change places, and both read one page table.
kt.entry @different_caches_commute generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %o = kt.gqa %x, %x, %x, %pos cache @a[0] order 1 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  %p = kt.gqa %x, %x, %x, %pos cache @b[0] order 0 of <Attention "b"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @a paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 2 page 4 tokens 16 sequences 1 pages @t

kt.entry @exchanged generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-note@+1 {{the access before it}}
  %o = kt.gqa %x, %x, %x, %pos cache @a[1] order 1 of <Attention "b"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  // expected-error@+1 {{'kt.gqa' op accesses @a with order 0 after an access with order 1 that it conflicts with; expected ascending orders, move it back before it}}
  %p = kt.gqa %x, %x, %x, %pos cache @a[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @a paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 2 page 4 tokens 16 sequences 1 pages @t

// A write done twice is caught as well: the copy has the same order.
kt.entry @duplicated generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-note@+1 {{the access before it}}
  %o = kt.gqa %x, %x, %x, %pos cache @a[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  // expected-error@+1 {{'kt.gqa' op accesses @a with order 0 after an access with order 0 that it conflicts with}}
  %p = kt.gqa %x, %x, %x, %pos cache @a[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
  kt.return %ids : !i
}
