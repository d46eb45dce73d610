// A toy with three MoE layers, each with shared experts, as import writes it: for passes that move experts. Hidden 8, vocabulary 16.
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
!l = tensor<?x16xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
#embed = #kt.module<Embedding "embed">
#final = #kt.module<Norm "norm">
#head = #kt.module<Head "lm_head">
#norm1_0 = #kt.module<Norm "l0.norm1" layer 0>
#attn_0 = #kt.module<Attention "l0.attn" layer 0>
#norm2_0 = #kt.module<Norm "l0.norm2" layer 0>
#gate_0 = #kt.module<Router "l0.gate" layer 0>
#experts_0 = #kt.module<RoutedExperts "l0.experts" layer 0>
#shared_0 = #kt.module<SharedExperts "l0.shared" layer 0>
#norm1_1 = #kt.module<Norm "l1.norm1" layer 1>
#attn_1 = #kt.module<Attention "l1.attn" layer 1>
#norm2_1 = #kt.module<Norm "l1.norm2" layer 1>
#gate_1 = #kt.module<Router "l1.gate" layer 1>
#experts_1 = #kt.module<RoutedExperts "l1.experts" layer 1>
#shared_1 = #kt.module<SharedExperts "l1.shared" layer 1>
#norm1_2 = #kt.module<Norm "l2.norm1" layer 2>
#attn_2 = #kt.module<Attention "l2.attn" layer 2>
#norm2_2 = #kt.module<Norm "l2.norm2" layer 2>
#gate_2 = #kt.module<Router "l2.gate" layer 2>
#experts_2 = #kt.module<RoutedExperts "l2.experts" layer 2>
#shared_2 = #kt.module<SharedExperts "l2.shared" layer 2>
module attributes {kt.model = #kt.model<name = "toy", family = "toy", architecture = "Toy", hidden = 8, vocab = 16, layers = 3, max_positions = 64>} {
  kt.weight @embed.weight [1, 16, 8] bf16 from [#kt.piece<slot = "embed.weight", rows = 16>]
  kt.weight @l0.norm1.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l0.norm1.weight", rows = 1>]
  kt.weight @l0.attn.q [1, 8, 8] bf16 from [#kt.piece<slot = "l0.attn.q", rows = 8>]
  kt.weight @l0.attn.k [1, 4, 8] bf16 from [#kt.piece<slot = "l0.attn.k", rows = 4>]
  kt.weight @l0.attn.v [1, 4, 8] bf16 from [#kt.piece<slot = "l0.attn.v", rows = 4>]
  kt.weight @l0.attn.o [1, 8, 8] bf16 from [#kt.piece<slot = "l0.attn.o", rows = 8>]
  kt.weight @l0.norm2.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l0.norm2.weight", rows = 1>]
  kt.weight @l0.gate.weight [1, 4, 8] bf16 from [#kt.piece<slot = "l0.gate.weight", rows = 4>]
  kt.expert_bank @l0.experts experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "l0.experts.gate_up", rows = 12>] down [#kt.piece<slot = "l0.experts.down", rows = 8>]
  kt.weight @l0.shared.gate_up [1, 12, 8] bf16 from [#kt.piece<slot = "l0.shared.gate_up", rows = 12>]
  kt.weight @l0.shared.down [1, 8, 6] bf16 from [#kt.piece<slot = "l0.shared.down", rows = 8>]
  kt.weight @l1.norm1.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l1.norm1.weight", rows = 1>]
  kt.weight @l1.attn.q [1, 8, 8] bf16 from [#kt.piece<slot = "l1.attn.q", rows = 8>]
  kt.weight @l1.attn.k [1, 4, 8] bf16 from [#kt.piece<slot = "l1.attn.k", rows = 4>]
  kt.weight @l1.attn.v [1, 4, 8] bf16 from [#kt.piece<slot = "l1.attn.v", rows = 4>]
  kt.weight @l1.attn.o [1, 8, 8] bf16 from [#kt.piece<slot = "l1.attn.o", rows = 8>]
  kt.weight @l1.norm2.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l1.norm2.weight", rows = 1>]
  kt.weight @l1.gate.weight [1, 4, 8] bf16 from [#kt.piece<slot = "l1.gate.weight", rows = 4>]
  kt.expert_bank @l1.experts experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "l1.experts.gate_up", rows = 12>] down [#kt.piece<slot = "l1.experts.down", rows = 8>]
  kt.weight @l1.shared.gate_up [1, 12, 8] bf16 from [#kt.piece<slot = "l1.shared.gate_up", rows = 12>]
  kt.weight @l1.shared.down [1, 8, 6] bf16 from [#kt.piece<slot = "l1.shared.down", rows = 8>]
  kt.weight @l2.norm1.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l2.norm1.weight", rows = 1>]
  kt.weight @l2.attn.q [1, 8, 8] bf16 from [#kt.piece<slot = "l2.attn.q", rows = 8>]
  kt.weight @l2.attn.k [1, 4, 8] bf16 from [#kt.piece<slot = "l2.attn.k", rows = 4>]
  kt.weight @l2.attn.v [1, 4, 8] bf16 from [#kt.piece<slot = "l2.attn.v", rows = 4>]
  kt.weight @l2.attn.o [1, 8, 8] bf16 from [#kt.piece<slot = "l2.attn.o", rows = 8>]
  kt.weight @l2.norm2.weight [1, 1, 8] bf16 from [#kt.piece<slot = "l2.norm2.weight", rows = 1>]
  kt.weight @l2.gate.weight [1, 4, 8] bf16 from [#kt.piece<slot = "l2.gate.weight", rows = 4>]
  kt.expert_bank @l2.experts experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "l2.experts.gate_up", rows = 12>] down [#kt.piece<slot = "l2.experts.down", rows = 8>]
  kt.weight @l2.shared.gate_up [1, 12, 8] bf16 from [#kt.piece<slot = "l2.shared.gate_up", rows = 12>]
  kt.weight @l2.shared.down [1, 8, 6] bf16 from [#kt.piece<slot = "l2.shared.down", rows = 8>]
  kt.weight @norm.weight [1, 1, 8] bf16 from [#kt.piece<slot = "norm.weight", rows = 1>]
  kt.table @kv.pages pages [2, 4]
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 3 page 4 tokens 16 sequences 2 pages @kv.pages
  kt.entry @model generic {
  ^bb0(%ids: !i, %positions: !i):
    %h0 = kt.embed %ids @embed.weight of #embed : !i -> !h
    %x0 = kt.norm rms %h0 @l0.norm1.weight eps 1.0e-06 of #norm1_0 : !h
    %q0 = kt.linear %x0 @l0.attn.q of #attn_0 : !h -> !h
    %k0 = kt.linear %x0 @l0.attn.k of #attn_0 : !h -> !k
    %v0 = kt.linear %x0 @l0.attn.v of #attn_0 : !h -> !k
    %a0 = kt.gqa %q0, %k0, %v0, %positions cache @kv[0] order 0 of #attn_0 {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
    %o0 = kt.linear %a0 @l0.attn.o of #attn_0 : !h -> !h
    %h1 = kt.add %h0, %o0 of #attn_0 : !h, !h -> !h
    %y0 = kt.norm rms %h1 @l0.norm2.weight eps 1.0e-06 of #norm2_0 : !h
    %e0, %w0 = kt.route softmax_topk %y0 @l0.gate.weight of #gate_0 {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
    %z0 = kt.experts swiglu %y0, %e0, %w0 @l0.experts of #experts_0 : !h, !e, !w
    %s0 = kt.mlp swiglu %y0 gate_up @l0.shared.gate_up down @l0.shared.down of #shared_0 : !h
    %h2 = kt.add %h1, %z0, %s0 of #experts_0 : !h, !h, !h -> !h
    %x1 = kt.norm rms %h2 @l1.norm1.weight eps 1.0e-06 of #norm1_1 : !h
    %q1 = kt.linear %x1 @l1.attn.q of #attn_1 : !h -> !h
    %k1 = kt.linear %x1 @l1.attn.k of #attn_1 : !h -> !k
    %v1 = kt.linear %x1 @l1.attn.v of #attn_1 : !h -> !k
    %a1 = kt.gqa %q1, %k1, %v1, %positions cache @kv[1] order 1 of #attn_1 {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
    %o1 = kt.linear %a1 @l1.attn.o of #attn_1 : !h -> !h
    %h3 = kt.add %h2, %o1 of #attn_1 : !h, !h -> !h
    %y1 = kt.norm rms %h3 @l1.norm2.weight eps 1.0e-06 of #norm2_1 : !h
    %e1, %w1 = kt.route softmax_topk %y1 @l1.gate.weight of #gate_1 {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
    %z1 = kt.experts swiglu %y1, %e1, %w1 @l1.experts of #experts_1 : !h, !e, !w
    %s1 = kt.mlp swiglu %y1 gate_up @l1.shared.gate_up down @l1.shared.down of #shared_1 : !h
    %h4 = kt.add %h3, %z1, %s1 of #experts_1 : !h, !h, !h -> !h
    %x2 = kt.norm rms %h4 @l2.norm1.weight eps 1.0e-06 of #norm1_2 : !h
    %q2 = kt.linear %x2 @l2.attn.q of #attn_2 : !h -> !h
    %k2 = kt.linear %x2 @l2.attn.k of #attn_2 : !h -> !k
    %v2 = kt.linear %x2 @l2.attn.v of #attn_2 : !h -> !k
    %a2 = kt.gqa %q2, %k2, %v2, %positions cache @kv[2] order 2 of #attn_2 {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>} : (!h, !k, !k, !i) -> !h
    %o2 = kt.linear %a2 @l2.attn.o of #attn_2 : !h -> !h
    %h5 = kt.add %h4, %o2 of #attn_2 : !h, !h -> !h
    %y2 = kt.norm rms %h5 @l2.norm2.weight eps 1.0e-06 of #norm2_2 : !h
    %e2, %w2 = kt.route softmax_topk %y2 @l2.gate.weight of #gate_2 {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
    %z2 = kt.experts swiglu %y2, %e2, %w2 @l2.experts of #experts_2 : !h, !e, !w
    %s2 = kt.mlp swiglu %y2 gate_up @l2.shared.gate_up down @l2.shared.down of #shared_2 : !h
    %h6 = kt.add %h5, %z2, %s2 of #experts_2 : !h, !h, !h -> !h
    %n = kt.norm rms %h6 @norm.weight eps 1.0e-06 of #final : !h
    %logits = kt.lm_head %n @embed.weight of #head : !h -> !l
    %next = kt.sample %logits of #head : !l -> !i
    kt.return %next : !i
  }
}
