// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-fold-weights | FileCheck %s --check-prefix=GQA
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-fold-weights | FileCheck %s --check-prefix=MLA
// Twice is as once.
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-fold-weights > %t.once
// RUN: ktc-opt %t.once --kt-fold-weights | diff %t.once -
// The weights are made once, whatever the number of entries.
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-specialise-entries="decode=1,2 chunk=8" --kt-fold-weights | FileCheck %s --check-prefix=ENTRIES
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-fold-weights --remarks-filter-analyse="kt-.*" --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=COUNTS
// COUNTS: remark: [Analysis] Counts | Category:kt-fold-weights | concatenations=1, permutations=2, splits=1

// q, k and v read one value in one place: one product, whose rows are those of the three.
// GQA-NOT: kt.weight @l0.attn.q [
// GQA: kt.weight @l0.attn.q.k.v [1, 16, 8] bf16 from [#kt.piece<slot = "l0.attn.q", rows = 8>, #kt.piece<slot = "l0.attn.k", rows = 4, dst_row = 8>, #kt.piece<slot = "l0.attn.v", rows = 4, dst_row = 12>]
// GQA: %[[QKV:.+]]:3 = kt.linear %{{.*}} @l0.attn.q.k.v of {{.*}} -> tensor<?x8xf32, #tokens>, tensor<?x4xf32, #tokens>, tensor<?x4xf32, #tokens>
// GQA: kt.gqa %[[QKV]]#0, %[[QKV]]#1, %[[QKV]]#2, %positions

// The rope rows of kv_a, rows 8 to 12, are the even ones first; then q_a and kv_a are one.
// MLA: kt.weight @l0.attn.q_a.kv_a [1, 18, 8] bf16 from [#kt.piece<slot = "l0.attn.q_a", rows = 6>, #kt.piece<slot = "l0.attn.kv_a", rows = 8, dst_row = 6>, #kt.piece<slot = "l0.attn.kv_a", rows = 2, src_row = 8, row_step = 2, dst_row = 14>, #kt.piece<slot = "l0.attn.kv_a", rows = 2, src_row = 9, row_step = 2, dst_row = 16>]
// q_b has 2 heads of 4 + 4 rows: nope as it is, then the even and the odd rope rows of each head.
// MLA: kt.weight @l0.attn.q_b [1, 16, 6] bf16 from [#kt.piece<slot = "l0.attn.q_b", rows = 4, repeat = 2, repeat_src_row = 8, repeat_dst_row = 8>, #kt.piece<slot = "l0.attn.q_b", rows = 2, src_row = 4, row_step = 2, dst_row = 4, repeat = 2, repeat_src_row = 8, repeat_dst_row = 8>, #kt.piece<slot = "l0.attn.q_b", rows = 2, src_row = 5, row_step = 2, dst_row = 6, repeat = 2, repeat_src_row = 8, repeat_dst_row = 8>]
// kv_b has 2 heads of 4 + 4 rows over a latent of 8: a matrix per head, W_UK transposed.
// MLA: kt.weight @l0.attn.kv_b.w_uk [2, 8, 4] bf16 from [#kt.piece<slot = "l0.attn.kv_b", rows = 4, transpose = true, repeat = 2, repeat_src_row = 8, repeat_dst_batch = 1>]
// MLA: kt.weight @l0.attn.kv_b.w_uv [2, 4, 8] bf16 from [#kt.piece<slot = "l0.attn.kv_b", rows = 4, src_row = 4, repeat = 2, repeat_src_row = 8, repeat_dst_batch = 1>]
// MLA-NOT: kt.weight @l0.attn.kv_b [
// MLA: %[[A:.+]]:3 = kt.linear %{{.*}} @l0.attn.q_a.kv_a of {{.*}} -> tensor<?x6xf32, #tokens>, tensor<?x8xf32, #tokens>, tensor<?x4xf32, #tokens>
// MLA: kt.norm rms %[[A]]#0 @l0.attn.q_a_norm
// MLA: %[[LATENT:.+]] = kt.norm rms %[[A]]#1 @l0.attn.kv_a_norm
// MLA: kt.mla %{{.*}}, %[[LATENT]], %[[A]]#2, %positions cache @kv[0] order 0 w_uk @l0.attn.kv_b.w_uk w_uv @l0.attn.kv_b.w_uv of {{.*}} rope = #rope,

// ENTRIES-COUNT-1: kt.weight @l0.attn.q_a.kv_a
// ENTRIES-NOT: kt.weight @l0.attn.q_a.kv_a
// ENTRIES-COUNT-3: kt.linear {{.*}} @l0.attn.q_a.kv_a

// Grouped queries without norms: q and k are rearranged alike, v is not.
// RUN: ktc-opt %s --kt-fold-weights --mlir-print-local-scope | FileCheck %s
// CHECK: kt.weight @q.k.v [1, 16, 4] bf16 from [#kt.piece<slot = "q", rows = 2, row_step = 2, repeat = 2, repeat_src_row = 4, repeat_dst_row = 4>, #kt.piece<slot = "q", rows = 2, src_row = 1, row_step = 2, dst_row = 2, repeat = 2, repeat_src_row = 4, repeat_dst_row = 4>, #kt.piece<slot = "k", rows = 2, row_step = 2, dst_row = 8>, #kt.piece<slot = "k", rows = 2, src_row = 1, row_step = 2, dst_row = 10>, #kt.piece<slot = "v", rows = 4, dst_row = 12>]
// CHECK: rope = #kt.rope<half, factor = 1.000000e+00 : f32, inv_freq = [1.00000000e+00, 5.00000000e-01]>
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x4xf32, #kt.dim<tokens>>
!q = tensor<?x8xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 4] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @q [1, 8, 4] bf16 from [#kt.piece<slot = "q", rows = 8>]
kt.weight @k [1, 4, 4] bf16 from [#kt.piece<slot = "k", rows = 4>]
kt.weight @v [1, 4, 4] bf16 from [#kt.piece<slot = "v", rows = 4>]
kt.table @t pages [1, 4]
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 1 pages @t
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %q = kt.linear %x @q of <Attention "a"> : !h -> !q
  %k = kt.linear %x @k of <Attention "a"> : !h -> !h
  %v = kt.linear %x @v of <Attention "a"> : !h -> !h
  %o = kt.gqa %q, %k, %v, %pos cache @kv[0] order 0 of <Attention "a"> {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 0.0 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!q, !h, !h, !i) -> !q
  kt.return %ids : !i
}
