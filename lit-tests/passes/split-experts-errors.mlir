// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-split-experts
#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x1xi32, #kt.dim<tokens>>
!w = tensor<?x1xf32, #kt.dim<tokens>>
module {
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @r [1, 2, 8] bf16 from [#kt.piece<slot = "r", rows = 2>] on "cpu" as "bf16" packed "row_major"
  kt.expert_bank @b experts 2 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major" hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1], line = "p.yaml:7:11">]
  kt.entry @m generic {
  ^bb0(%ids: !i, %pos: !i):
    %h = kt.embed %ids @embed of <Embedding "e"> {place = #cpu} : !i -> !h
    %e, %w = kt.route softmax_topk %h @r of <Router "r" layer 0> {experts = 2 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
    // expected-error@+1 {{'kt.experts' op uses @b, which is to be split; expected kt.experts over all of it, as import makes it}}
    %y = kt.experts swiglu %h, %e, %w @b slots [1, 0] of <RoutedExperts "x" layer 0> {place = #cpu} : !h, !e, !w
    kt.return %ids : !i
  }
}
