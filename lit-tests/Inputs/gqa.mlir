// A toy of the qwen3_moe family as import writes it: one MoE layer, tied embeddings. Hidden 8, vocabulary 16.
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!q = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
!l = tensor<?x16xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
#embed = #kt.module<Embedding "embed">
#norm1 = #kt.module<Norm "l0.norm1" layer 0>
#attn = #kt.module<Attention "l0.attn" layer 0>
#norm2 = #kt.module<Norm "l0.norm2" layer 0>
#gate = #kt.module<Router "l0.gate" layer 0>
#experts = #kt.module<RoutedExperts "l0.experts" layer 0>
#final = #kt.module<Norm "norm">
#head = #kt.module<Head "lm_head">
module attributes {kt.model = #kt.model<name = "toy", family = "qwen3_moe", architecture = "Qwen3MoeForCausalLM", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  kt.weight @embed.weight [1, 16, 8] bf16 from [#kt.piece<slot = "embed.weight", rows = 16>]
  kt.weight @l0.norm1.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l0.norm1.weight", rows = 1>]
  kt.weight @l0.attn.q [1, 8, 8] bf16 from [#kt.piece<slot = "l0.attn.q", rows = 8>]
  kt.weight @l0.attn.k [1, 4, 8] bf16 from [#kt.piece<slot = "l0.attn.k", rows = 4>]
  kt.weight @l0.attn.v [1, 4, 8] bf16 from [#kt.piece<slot = "l0.attn.v", rows = 4>]
  kt.weight @l0.attn.q_norm [1, 1, 4] bf16 from [#kt.piece<slot = "l0.attn.q_norm", rows = 1>]
  kt.weight @l0.attn.k_norm [1, 1, 4] bf16 from [#kt.piece<slot = "l0.attn.k_norm", rows = 1>]
  kt.weight @l0.attn.o [1, 8, 8] bf16 from [#kt.piece<slot = "l0.attn.o", rows = 8>]
  kt.weight @l0.norm2.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l0.norm2.weight", rows = 1>]
  kt.weight @l0.gate.weight [1, 4, 8] bf16 from [#kt.piece<slot = "l0.gate.weight", rows = 4>]
  kt.expert_bank @l0.experts experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "l0.experts.gate_up", rows = 12>] down [#kt.piece<slot = "l0.experts.down", rows = 8>]
  kt.weight @norm.weight [1, 1, 8] bf16 from [#kt.piece<slot = "norm.weight", rows = 1>]
  kt.table @kv.pages pages [2, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 2 pages @kv.pages
  kt.entry @model generic {
  ^bb0(%ids: !i, %positions: !i):
    %h0 = kt.embed %ids @embed.weight of #embed : !i -> !h
    %x = kt.norm rms %h0 @l0.norm1.weight eps 1.0e-06 of #norm1 : !h
    %q = kt.linear %x @l0.attn.q of #attn : !h -> !q
    %k = kt.linear %x @l0.attn.k of #attn : !h -> !k
    %v = kt.linear %x @l0.attn.v of #attn : !h -> !k
    %a = kt.gqa %q, %k, %v, %positions cache @kv[0] order 0 q_norm @l0.attn.q_norm k_norm @l0.attn.k_norm of #attn {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!q, !k, !k, !i) -> !q
    %o = kt.linear %a @l0.attn.o of #attn : !q -> !h
    %h1 = kt.add %h0, %o of #attn : !h, !h -> !h
    %y = kt.norm rms %h1 @l0.norm2.weight eps 1.0e-06 of #norm2 : !h
    %e, %w = kt.route softmax_topk %y @l0.gate.weight of #gate {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
    %z = kt.experts swiglu %y, %e, %w @l0.experts of #experts : !h, !e, !w
    %h2 = kt.add %h1, %z of #experts : !h, !h -> !h
    %n = kt.norm rms %h2 @norm.weight eps 1.0e-06 of #final : !h
    %logits = kt.lm_head %n @embed.weight of #head : !h -> !l
    %next = kt.sample %logits of #head : !l -> !i
    kt.return %next : !i
  }
}
