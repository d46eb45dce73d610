// Diagnostics of route and experts.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op experts: found 4, expected a multiple of groups = 3}}
  %a, %b = kt.route sigmoid_group %x @w of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 3 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op found top_k = 3 of 4 experts in 1 of 2 groups, expected topk_groups at most groups and top_k at most the experts in them}}
  %a, %b = kt.route sigmoid_group %x @w of <Router "r"> {experts = 4 : i64, top_k = 3 : i64, normalise = true, scale = 1.0 : f32, groups = 2 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op of kind softmax_topk has groups or a bias; expected neither, or kind sigmoid_group}}
  %a, %b = kt.route softmax_topk %x @w bias @b of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op columns of ids: found 1, expected 2 = top_k}}
  %a, %b = kt.route softmax_topk %x @w of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !i, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op columns of the scores: found 4, expected 2 = top_k}}
  %a, %b = kt.route softmax_topk %x @w of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
// expected-note@+1 {{declared here}}
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op @e: found [1, 16, 8], expected [1, 4, 8] from the operands and attributes}}
  %a, %b = kt.route softmax_topk %x @e of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
// expected-note@+1 {{declared here}}
kt.weight @e [1, 16, 8] bf16 from [#kt.piece<slot = "e", rows = 16>]
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "w", rows = 4>]
kt.weight @b [1, 1, 4] f32 from [#kt.piece<slot = "b", rows = 1>]
kt.entry @entry generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @e of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.route' op @e: found [1, 16, 8], expected [1, 1, 4] from the operands and attributes}}
  %a, %b = kt.route sigmoid_group %x @w bias @e of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.weight @r [1, 8, 8] bf16 from [#kt.piece<slot = "r", rows = 8>]
kt.expert_bank @bank experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  %chosen, %scores = kt.route softmax_topk %x @r of <Router "r"> {experts = 8 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  %four = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  // expected-error@+1 {{'kt.experts' op columns of ids: found 2, expected 4 = columns of the scores}}
  %y = kt.experts swiglu %x, %chosen, %four @bank of <RoutedExperts "x"> : !h, tensor<?x2xi32, #kt.dim<tokens>>, !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.weight @r [1, 8, 8] bf16 from [#kt.piece<slot = "r", rows = 8>]
kt.expert_bank @bank experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  %chosen, %scores = kt.route softmax_topk %x @r of <Router "r"> {experts = 8 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  // expected-error@+1 {{'kt.experts' op @w is no kt.expert_bank of this module; declare it}}
  %y = kt.experts swiglu %x, %chosen, %scores @w of <RoutedExperts "x"> : !h, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.weight @r [1, 8, 8] bf16 from [#kt.piece<slot = "r", rows = 8>]
kt.expert_bank @bank experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  %chosen, %scores = kt.route softmax_topk %x @r of <Router "r"> {experts = 8 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  // expected-error@+1 {{'kt.experts' op @bank: found hidden 8, expected 4 as x has columns}}
  %y = kt.experts swiglu %k, %chosen, %scores @bank of <RoutedExperts "x"> : !k, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @k [1, 16, 4] bf16 from [#kt.piece<slot = "k", rows = 16>]
kt.weight @r [1, 8, 8] bf16 from [#kt.piece<slot = "r", rows = 8>]
kt.expert_bank @bank experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %k = kt.embed %ids @k of <Embedding "e"> : !i -> !k
  %chosen, %scores = kt.route softmax_topk %x @r of <Router "r"> {experts = 8 : i64, top_k = 5 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> tensor<?x5xi32, #kt.dim<tokens>>, tensor<?x5xf32, #kt.dim<tokens>>
  // expected-error@+1 {{'kt.experts' op ids: found 5 per row, expected at most the 4 experts of @bank}}
  %y = kt.experts swiglu %x, %chosen, %scores @bank of <RoutedExperts "x"> : !h, tensor<?x5xi32, #kt.dim<tokens>>, tensor<?x5xf32, #kt.dim<tokens>>
  kt.return %ids : !i
}
