// Diagnostics of what changes devices, of hot and late experts, and of graphs.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file

!h = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.transfer' op changes the values that it moves; expected as many results as operands, of the same types}}
  %a = kt.transfer %l from "cpu" to "cuda:0" of <Head "h"> : !l -> !h
  %n = kt.sample %l of <Head "h"> : !l -> !n
  kt.return %n : !n
}

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.transfer' op goes from cuda:0 to cuda:0; expected two devices}}
  %a = kt.transfer %l from "cuda:0" to "cuda:0" of <Head "h"> : !l -> !l
  %n = kt.sample %l of <Head "h"> : !l -> !n
  kt.return %n : !n
}

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.await' op format: found "int8", expected f32 or bf16}}
  %a = kt.await %l record 0 as "int8" of <Head "h"> : !l
  %n = kt.sample %l of <Head "h"> : !l -> !n
  kt.return %n : !n
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %c, %s = kt.route softmax_topk %x @r of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
  // expected-error@+1 {{'kt.submit' op columns of ids: found 2, expected 8 = columns of the scores}}
  %a, %b, %d = kt.submit %x, %c, %x record 0 as "bf16" of <RoutedExperts "x"> : !h, !e, !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @n [1, 1, 4] bf16 from [#kt.piece<slot = "n", rows = 1>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.add_norm' op operands: found 1, expected two or more}}
  %s, %y = kt.add_norm rms %x @n eps 1.0e-06 of <Norm "n"> : !h -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
// expected-note@+1 {{declared here}}
kt.weight @n [1, 1, 4] bf16 from [#kt.piece<slot = "n", rows = 1>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.add_norm' op @n: found [1, 1, 4], expected [1, 1, 8] from the operands and attributes}}
  %s, %y = kt.add_norm rms %x, %x @n eps 1.0e-06 of <Norm "n"> : !h, !h -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>]
kt.expert_bank @b experts 2 ids [1, 3] hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %c, %s = kt.route softmax_topk %x @r of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op slots: expert 3 has matrix 0, expected -1 or one of the 2 of @b that no other expert has}}
  %y = kt.experts swiglu %x, %c, %s @b slots [-1, 0, -1, 0] of <RoutedExperts "x"> : !h, !e, !w
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>]
kt.expert_bank @b experts 2 ids [1, 3] hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %c, %s = kt.route softmax_topk %x @r of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op slots: found 1 experts with a matrix, expected 2 as @b has matrices}}
  %y = kt.experts swiglu %x, %c, %s @b slots [-1, 0, -1, -1] of <RoutedExperts "x"> : !h, !e, !w
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>]
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %c, %s = kt.route softmax_topk %x @r of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op has late experts or the flags that say whose, and not both; expected both or neither}}
  %y = kt.experts swiglu %x, %c, %s @b late <count = 1, part = late> of <RoutedExperts "x"> : !h, !e, !w
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.weight @r [1, 4, 8] bf16 from [#kt.piece<slot = "r", rows = 4>]
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  %c, %s = kt.route softmax_topk %x @r of <Router "r"> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op late: found 3, expected at most the 2 experts of a token}}
  %y = kt.experts swiglu %x, %c, %s deferred %ids @b late <count = 3, part = late> of <RoutedExperts "x"> : !h, !e, !w, !i
  kt.return %ids : !i
}

// -----

// expected-error@+1 {{#kt.late: found count = 0, expected from 1 to 65535}}
module attributes {kt.x = #kt.late<count = 0, part = late>} {}

// -----

// expected-error@+1 {{'kt.expert_bank' op ids: found 2, expected 4 as the bank has experts}}
kt.expert_bank @b experts 4 ids [1, 3] hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]

// -----

// expected-error@+1 {{'kt.expert_bank' op ids: found expert 1, expected ascending ids below 2147483648}}
kt.expert_bank @b experts 2 ids [3, 1] hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>]

// -----

// expected-error@+1 {{'kt.expert_bank' op hot: found expert 4, expected ascending ids below 4}}
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [4], line = "">]

// -----

// expected-error@+1 {{'kt.expert_bank' op hot: found no devices, expected one or more}}
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] hot []

// -----

// expected-error@+1 {{'kt.expert_bank' op hot: found no experts, expected one or more}}
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [], line = "">]

// -----

// expected-error@+1 {{'kt.expert_bank' op hot: found "cuda:0" twice, expected each device once}}
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1], line = "">, #kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [2], line = "">]

// -----

// expected-error@+1 {{'kt.expert_bank' op hot: expert 2 is on "cuda:0" and on "cuda:1"; expected one of them}}
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1, 2], line = "">, #kt.hot<device = "cuda:1", weights = "bf16", activations = "bf16", experts = [2], line = "">]

// -----

// expected-error@+1 {{'kt.expert_bank' op has ids and hot experts; expected the hot ones of a whole layer}}
kt.expert_bank @b experts 2 ids [1, 3] hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] hot [#kt.hot<device = "cuda:0", weights = "bf16", activations = "bf16", experts = [1], line = "">]

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.sample' op graph: found 0, expected one of the 0 of the entry}}
  %n = kt.sample %l of <Head "h"> {graph = 0 : i64} : !l -> !n
  kt.return %n : !n
}

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> graphs [#kt.graph<"g" on "cuda:1">] {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.sample' op graph: found "g" of cuda:1, expected one of "cuda:0", where the step runs}}
  %n = kt.sample %l of <Head "h"> {graph = 0 : i64, place = #kt.place<"cuda:0", weights = "f32", activations = "f32">} : !l -> !n
  kt.return %n : !n
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
// expected-error@+1 {{'kt.entry' op of kind decode: found 5 arguments, expected 3, or 4 with late experts}}
kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: tensor<?x1xi32, #kt.dim<rows>>, %late: !i, %more: !i):
  kt.return %ids : !i
}

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.transfer' op is placed on cuda:2; expected the GPU that it copies from or to}}
  %a = kt.transfer %l from "cpu" to "cuda:1" of <Head "h"> {place = #kt.place<"cuda:2", weights = "f32", activations = "f32">} : !l -> !l
  %n = kt.sample %l of <Head "h"> : !l -> !n
  kt.return %n : !n
}

// -----

!l = tensor<?x16xf32, #kt.dim<rows>>
!n = tensor<?x1xi32, #kt.dim<rows>>
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%l: !l):
  // expected-error@+1 {{'kt.await' op is placed on the CPU; expected the GPU of the hand-off}}
  %a = kt.await %l record 0 as "f32" of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">} : !l
  %n = kt.sample %l of <Head "h"> : !l -> !n
  kt.return %n : !n
}
