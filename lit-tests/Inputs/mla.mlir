// A toy of the deepseek_v3 family as import writes it: one layer with latent attention, a sigmoid router and shared experts.
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x6xf32, #kt.dim<tokens>>
!q = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x4xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
#embed = #kt.module<Embedding "embed">
#norm1 = #kt.module<Norm "l0.norm1" layer 0>
#attn = #kt.module<Attention "l0.attn" layer 0>
#norm2 = #kt.module<Norm "l0.norm2" layer 0>
#gate = #kt.module<Router "l0.gate" layer 0>
#experts = #kt.module<RoutedExperts "l0.experts" layer 0>
#shared = #kt.module<SharedExperts "l0.shared" layer 0>
#final = #kt.module<Norm "norm">
#head = #kt.module<Head "lm_head">
module attributes {kt.model = #kt.model<name = "toy", family = "deepseek_v3", architecture = "DeepseekV3ForCausalLM", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  kt.weight @embed.weight [1, 16, 8] bf16 from [#kt.piece<slot = "embed.weight", rows = 16>]
  kt.weight @l0.norm1.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l0.norm1.weight", rows = 1>]
  kt.weight @l0.attn.q_a [1, 6, 8] bf16 from [#kt.piece<slot = "l0.attn.q_a", rows = 6>]
  kt.weight @l0.attn.q_a_norm [1, 1, 6] bf16 from [#kt.piece<slot = "l0.attn.q_a_norm", rows = 1>]
  kt.weight @l0.attn.q_b [1, 16, 6] bf16 from [#kt.piece<slot = "l0.attn.q_b", rows = 16>]
  kt.weight @l0.attn.kv_a [1, 12, 8] bf16 from [#kt.piece<slot = "l0.attn.kv_a", rows = 12>]
  kt.weight @l0.attn.kv_a_norm [1, 1, 8] bf16 from [#kt.piece<slot = "l0.attn.kv_a_norm", rows = 1>]
  kt.weight @l0.attn.kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "l0.attn.kv_b", rows = 16>]
  kt.weight @l0.attn.o [1, 8, 8] bf16 from [#kt.piece<slot = "l0.attn.o", rows = 8>]
  kt.weight @l0.norm2.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l0.norm2.weight", rows = 1>]
  kt.weight @l0.gate.weight [1, 4, 8] bf16 from [#kt.piece<slot = "l0.gate.weight", rows = 4>]
  kt.weight @l0.gate.bias [1, 1, 4] f32 from [#kt.piece<slot = "l0.gate.bias", rows = 1>]
  kt.expert_bank @l0.experts experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "l0.experts.gate_up", rows = 12>] down [#kt.piece<slot = "l0.experts.down", rows = 8>]
  kt.weight @l0.shared.gate_up [1, 12, 8] bf16 from [#kt.piece<slot = "l0.shared.gate_up", rows = 12>]
  kt.weight @l0.shared.down [1, 8, 6] bf16 from [#kt.piece<slot = "l0.shared.down", rows = 8>]
  kt.weight @norm.weight [1, 1, 8] bf16 from [#kt.piece<slot = "norm.weight", rows = 1>]
  kt.weight @lm_head.weight [1, 16, 8] bf16 from [#kt.piece<slot = "lm_head.weight", rows = 16>]
  kt.table @kv.pages pages [2, 4]
  kt.cache @kv paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>] layers 1 page 4 tokens 16 sequences 2 pages @kv.pages
  kt.entry @model generic {
  ^bb0(%ids: !i, %positions: !i):
    %h0 = kt.embed %ids @embed.weight of #embed : !i -> !h
    %x = kt.norm rms %h0 @l0.norm1.weight eps 1.0e-06 of #norm1 : !h
    %qa = kt.linear %x @l0.attn.q_a of #attn : !h -> !r
    %qn = kt.norm rms %qa @l0.attn.q_a_norm eps 1.0e-06 of #attn : !r
    %q = kt.linear %qn @l0.attn.q_b of #attn : !r -> !q
    %c, %p = kt.linear %x @l0.attn.kv_a of #attn : !h -> !h, !p
    %cn = kt.norm rms %c @l0.attn.kv_a_norm eps 1.0e-06 of #attn : !h
    %a = kt.mla %q, %cn, %p, %positions cache @kv[0] order 0 kv_b @l0.attn.kv_b of #attn {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.25 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!q, !h, !p, !i) -> !h
    %o = kt.linear %a @l0.attn.o of #attn : !h -> !h
    %h1 = kt.add %h0, %o of #attn : !h, !h -> !h
    %y = kt.norm rms %h1 @l0.norm2.weight eps 1.0e-06 of #norm2 : !h
    %e, %w = kt.route sigmoid_group %y @l0.gate.weight bias @l0.gate.bias of #gate {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 2.5 : f32, groups = 2 : i64, topk_groups = 1 : i64} : !h -> !e, !w
    %z = kt.experts swiglu %y, %e, %w @l0.experts of #experts : !h, !e, !w
    %s = kt.mlp swiglu %y gate_up @l0.shared.gate_up down @l0.shared.down of #shared : !h
    %h2 = kt.add %h1, %z, %s of #experts : !h, !h, !h -> !h
    %n = kt.norm rms %h2 @norm.weight eps 1.0e-06 of #final : !h
    %logits = kt.lm_head %n @lm_head.weight of #head : !h -> !q
    %next = kt.sample %logits of #head : !q -> !i
    kt.return %next : !i
  }
}
