// What is not folded, and why: each remark once.
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-fold-weights --remarks-filter-missed=kt-fold-weights --remarks-filter-passed=kt-fold-weights --remark-format=emitRemark --mlir-print-local-scope | FileCheck %s

// A norm of q or k has one weight per element, so its elements may not change places: rope stays interleaved.
// CHECK-LABEL: module @norm_before_rope
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @norm_before_rope {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.weight @n [1, 1, 4] bf16 from [#kt.piece<slot = "n", rows = 1>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    // expected-remark@+1 {{a norm lies between projection and rope}}
    %o = kt.gqa %q, %q, %q, %pos cache @kv[0] order 0 q_norm @n of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// CHECK-LABEL: module @q_is_no_projection
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @q_is_no_projection {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    // expected-remark@+1 {{q or k is not the whole result of a projection}}
    %o = kt.gqa %x, %x, %x, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// CHECK-LABEL: module @shared_projection
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @shared_projection {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    // expected-remark@+1 {{q and k share a projection}}
    %o = kt.gqa %q, %q, %q, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// A recipe that is not the whole slot was made by somebody else.
// CHECK-LABEL: module @rearranged_before
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @rearranged_before {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 2, row_step = 2>, #kt.piece<slot = "q", rows = 2, src_row = 1, row_step = 2, dst_row = 2>]
  kt.weight @k [1, 4, 4] bf16 from [#kt.piece<slot = "k", rows = 4>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    // expected-remark@+1 {{the projections belong to different modules}}
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    %k = kt.linear %x @k of <Attention "b"> : !h -> !h
    // expected-remark@+1 {{a projection is not one whole slot}}
    %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// CHECK-LABEL: module @bias_before_rope
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @bias_before_rope {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.weight @k [1, 4, 4] bf16 from [#kt.piece<slot = "k", rows = 4>]
  kt.weight @b [1, 1, 4] bf16 from [#kt.piece<slot = "b", rows = 1>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    // expected-remark@+1 {{a projection has a bias}}
    %q = kt.linear %x @q bias @b of <Attention "a"> : !h -> !h
    %k = kt.linear %x @k of <Attention "a"> : !h -> !h
    // expected-remark@+1 {{a projection has a bias, or results that something else uses}}
    %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// v is k: reordering the rows of k would reorder the values.
// CHECK-LABEL: module @k_is_used_elsewhere
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @k_is_used_elsewhere {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  // expected-remark@+1 {{q.k}}
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.weight @k [1, 4, 4] bf16 from [#kt.piece<slot = "k", rows = 4>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    %k = kt.linear %x @k of <Attention "a"> : !h -> !h
    // expected-remark@+1 {{a projection has a bias, or results that something else uses}}
    %o = kt.gqa %q, %k, %k, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// One weight serves both entries, so it is rearranged for both or for none.
// CHECK-LABEL: module @entries_disagree
// CHECK: rope = #kt.rope<interleaved
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @entries_disagree {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  // expected-remark@+1 {{q.k.v}}
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.weight @k [1, 4, 4] bf16 from [#kt.piece<slot = "k", rows = 4>]
  kt.weight @v [1, 4, 4] bf16 from [#kt.piece<slot = "v", rows = 4>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    %k = kt.linear %x @k of <Attention "a"> : !h -> !h
    %v = kt.linear %x @v of <Attention "a"> : !h -> !h
    // expected-remark@+1 {{entries disagree on heads or rope}}
    %o = kt.gqa %q, %k, %v, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
  kt.entry @f generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    %k = kt.linear %x @k of <Attention "a"> : !h -> !h
    %v = kt.linear %x @v of <Attention "a"> : !h -> !h
    // expected-remark@+1 {{entries disagree on heads or rope}}
    %o = kt.gqa %q, %k, %v, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.25]>} : (!h, !h, !h, !i) -> !h
    kt.return %ids : !i
  }
}

// -----

// Projections in two places stay two.
// CHECK-LABEL: module @two_places
// CHECK-COUNT-2: kt.linear
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @two_places {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.weight @k [1, 4, 4] bf16 from [#kt.piece<slot = "k", rows = 4>]
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    // expected-remark@+1 {{the projections are in different places}}
    %q = kt.linear %x @q of <Attention "a"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">} : !h -> !h
    %k = kt.linear %x @k of <Attention "a"> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : !h -> !h
    kt.return %ids : !i
  }
}

// -----

// A weight of another checkpoint type is decoded on its own.
// CHECK-LABEL: module @two_types
// CHECK-COUNT-2: kt.linear
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @two_types {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.weight @k [1, 4, 4] f16 from [#kt.piece<slot = "k", rows = 4>]
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    // expected-remark@+1 {{the weights differ in checkpoint type, device, format, group or packing}}
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    %k = kt.linear %x @k of <Attention "a"> : !h -> !h
    kt.return %ids : !i
  }
}

// -----

// A weight that an embedding reads as well would be there twice.
// CHECK-LABEL: module @used_elsewhere
// CHECK-COUNT-2: kt.linear
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
module @used_elsewhere {
  kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @q [1, 4, 4] bf16 from [#kt.piece<slot = "q", rows = 4>]
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    // expected-remark@+1 {{something else uses one of the weights}}
    %a = kt.linear %x @w of <Attention "a"> : !h -> tensor<?x16xf32, #kt.dim<tokens>>
    %q = kt.linear %x @q of <Attention "a"> : !h -> !h
    kt.return %ids : !i
  }
}

// -----

// kv_b that is not as imported cannot be split.
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
module @split_twice {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
  kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "a", rows = 8>, #kt.piece<slot = "b", rows = 8, dst_row = 8>]
  kt.table @t pages [1, 4]
  kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
  kt.entry @e generic {
  ^bb0(%ids: !i, %pos: !i):
    %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %k = kt.embed %ids @k of <Embedding "e"> : !i -> tensor<?x4xf32, #kt.dim<tokens>>
    // expected-error@+1 {{'kt.mla' op @kv_b is not one whole slot; expected kv_b as imported}}
    %o = kt.mla %x, %x, %k, %pos cache @kv[0] order 0 kv_b @kv_b of <Attention "a"> {heads = 1 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 12 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !h, tensor<?x4xf32, #kt.dim<tokens>>, !i) -> tensor<?x12xf32, #kt.dim<tokens>>
    kt.return %ids : !i
  }
}
