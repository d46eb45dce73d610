// Diagnostics of gqa and mla.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op heads: found 2, expected a multiple of kv_heads = 3}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 3 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op rope turns: found 2, expected 4 = head_dim}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op columns of q: found 4, expected 8 = heads * head_dim}}
  %o = kt.gqa %k, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!k, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op columns of k: found 8, expected 4 = kv_heads * head_dim}}
  %o = kt.gqa %q, %q, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op columns of v: found 8, expected 4 = kv_heads * head_dim}}
  %o = kt.gqa %q, %k, %q, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !h, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: tensor<?x2xi32, #kt.dim<tokens>>):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op columns of positions: found 2, expected 1 = one position per row}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, tensor<?x2xi32, #kt.dim<tokens>>) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op columns of the result: found 4, expected 8 = heads * head_dim}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
// expected-note@+1 {{declared here}}
kt.weight @n [1, 1, 3] f32 from [#kt.piece<slot = "n", rows = 1>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op @n: found [1, 1, 3], expected [1, 1, 4] from the operands and attributes}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 q_norm @n of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op @nothing is no kt.cache of this module; declare it}}
  %o = kt.gqa %q, %k, %k, %pos cache @nothing[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op cache layer: found 1, expected below 1, the layers of @kv}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[1] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op part 1 of cache @kv: found none, expected #kt.part<"v" heads = 1, width = 4>}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 2>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op part 0 of cache @kv: found #kt.part<"k" heads = 1, width = 2>, expected #kt.part<"k" heads = 1, width = 4>}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 8] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>, #kt.part<"x" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.gqa' op parts of the cache: found 3, expected 2 = what the op stores}}
  %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op holds kv_b and its split, or neither; expected kv_b as imported, or w_uk and w_uv after kt-fold-weights}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0  of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op holds kv_b and its split, or neither; expected kv_b as imported, or w_uk and w_uv after kt-fold-weights}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0 kv_b @kv_b w_uk @kv_b w_uv @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op rope turns: found 2, expected 4 = rope_dim}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op columns of q: found 8, expected 16 = heads * (nope_dim + rope_dim)}}
  %o = kt.mla %l, %l, %r, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op columns of latent: found 4, expected 8 = latent_dim}}
  %o = kt.mla %q, %r, %r, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !k, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op columns of k_rope: found 8, expected 4 = rope_dim}}
  %o = kt.mla %q, %l, %l, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !h, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: tensor<?x2xi32, #kt.dim<tokens>>):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op columns of positions: found 2, expected 1 = one position per row}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, tensor<?x2xi32, #kt.dim<tokens>>) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op columns of the result: found 4, expected 8 = heads * v_dim}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, !i) -> !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
// expected-note@+1 {{declared here}}
kt.weight @uk [2, 4, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 4, repeat = 2, repeat_src_row = 8, repeat_dst_batch = 1>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op @uk: found [2, 4, 8], expected [2, 8, 4] from the operands and attributes}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0 w_uk @uk w_uv @uk of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, !i) -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @q [1, 16, 16] bf16 from [#kt.piece<slot = "q", rows = 16>]
kt.weight @l [1, 16, 8] bf16 from [#kt.piece<slot = "l", rows = 16>]
kt.weight @r [1, 16, 4] bf16 from [#kt.piece<slot = "r", rows = 16>]
kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %q = kt.embed %ids @q of <Embedding "e"> : !i -> tensor<?x16xf32, #kt.dim<tokens>>
  %l = kt.embed %ids @l of <Embedding "e"> : !i -> !h
  %r = kt.embed %ids @r of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.mla' op part 0 of cache @kv: found #kt.part<"k" heads = 1, width = 4>, expected #kt.part<"latent" heads = 1, width = 8>}}
  %o = kt.mla %q, %l, %r, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x16xf32, #kt.dim<tokens>>, !h, !k, !i) -> !h
  kt.return %ids : !i
}
