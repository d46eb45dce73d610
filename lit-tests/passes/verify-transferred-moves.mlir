// What is handed over comes back once, and what is late arrives once.
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-transferred

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
  // expected-error@+1 {{'kt.submit' op in an entry of kind generic; expected records in decode entries alone}}
  %x, %i, %v = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  %y = kt.experts swiglu %x, %i, %v @b of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w
  %a = kt.await %y record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
  %x, %i, %v = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  // expected-error@+1 {{'kt.submit' op record 0 has another submit; expected one}}
  %x2, %i2, %v2 = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  %y = kt.experts swiglu %x, %i, %v @b of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w
  %a = kt.await %y record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h
  %sel = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
  %l = kt.lm_head %sel @w of <Head "h"> {place = #gpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
  kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
  %x, %i, %v = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  %y = kt.experts swiglu %x, %i, %v @b of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w
  %a = kt.await %y record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h
  // expected-error@+1 {{'kt.await' op record 0 has another await; expected one of each}}
  %a2 = kt.await %y record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h
  %sel = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
  %l = kt.lm_head %sel @w of <Head "h"> {place = #gpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
  kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
  %x, %i, %v = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  %y = kt.experts swiglu %x, %i, %v @b of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w
  // expected-error@+1 {{'kt.await' op record 1 has no submit before it; expected one of each}}
  %a = kt.await %y record 1 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h
  %sel = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
  %l = kt.lm_head %sel @w of <Head "h"> {place = #gpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
  kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
  // expected-error@+1 {{'kt.submit' op record 0 has no await; expected one behind it}}
  %x, %i, %v = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  %y = kt.experts swiglu %x, %i, %v @b of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w
  %sel = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
  %l = kt.lm_head %sel @w of <Head "h"> {place = #gpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
  kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cuda:0" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cuda:0" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #gpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #gpu} : !h -> !e, !w
  %x, %i, %v = kt.submit %h, %e, %w record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #gpu} : !h, !e, !w
  %y = kt.experts swiglu %x, %i, %v @b of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w
  // expected-error@+1 {{'kt.await' op record 0 was submitted on cuda:0; expected one device}}
  %a = kt.await %y record 0 as "f32" of <RoutedExperts "x0" layer 0> {place = #kt.place<"cuda:1", weights = "f32", activations = "f32">} : !h
  %sel = kt.select_rows %h, %rows of <Norm "n"> {place = #gpu} : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
  %l = kt.lm_head %sel @w of <Head "h"> {place = #gpu} : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
  kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op has 0 ops for the part late over the same operands, expected 1: deferral would lose experts}}
  %y = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = in_time> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %s = kt.add %h, %y of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !h -> !h
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  // expected-error@+1 {{'kt.experts' op has 2 ops for the part late over the same operands, expected 1: deferral would repeat experts}}
  %y = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = in_time> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %z = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = late> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %z2 = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = late> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %s = kt.add %h, %y of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !h -> !h
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  %y = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = in_time> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  // expected-error@+1 {{'kt.experts' op is late and its result is used 0 times, expected once, in the next MoE layer}}
  %z = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = late> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %s = kt.add %h, %y of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !h -> !h
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  %y = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = in_time> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  // expected-error@+1 {{'kt.experts' op is late and its result is not added in the next MoE layer; expected a sum with its experts}}
  %z = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = late> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %s = kt.add %h, %y, %z of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !h, !h -> !h
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @n [1, 1, 8] bf16 from [#kt.piece<slot = "n", rows = 1>] on "cpu" as "f32" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  %y = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = in_time> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  // expected-error@+1 {{'kt.experts' op is late and its result is not added in the next MoE layer; expected a sum with its experts}}
  %z = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = late> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %s = kt.add %h, %y of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !h -> !h
  %n = kt.norm rms %z @n eps 1.0e-06 of <Norm "n"> {place = #cpu} : !h
  kt.return %ids : !i
}

// -----

#cpu = #kt.place<"cpu", weights = "bf16", activations = "f32">
#gpu = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!e = tensor<?x2xi32, #kt.dim<tokens>>
!w = tensor<?x2xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
kt.weight @g [1, 4, 8] bf16 from [#kt.piece<slot = "g", rows = 4>] on "cpu" as "bf16" packed "row_major"
kt.expert_bank @b experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "gu", rows = 12>] down [#kt.piece<slot = "d", rows = 8>] on "cpu" as "bf16" packed "row_major"
kt.entry @d generic {
^bb0(%ids: !i, %pos: !i):
  %h = kt.embed %ids @w of <Embedding "e"> {place = #cpu} : !i -> !h
  %e, %w = kt.route softmax_topk %h @g of <Router "r" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  %y = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = in_time> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %z = kt.experts swiglu %h, %e, %w deferred %ids @b late <count = 1, part = late> of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !e, !w, !i
  %s = kt.add %h, %y of <RoutedExperts "x0" layer 0> {place = #cpu} : !h, !h -> !h
  %e1, %w1 = kt.route softmax_topk %s @g of <Router "r" layer 1> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64, place = #cpu} : !h -> !e, !w
  %y1 = kt.experts swiglu %s, %e1, %w1 @b of <RoutedExperts "x1" layer 1> {place = #cpu} : !h, !e, !w
  %p = kt.add %y1, %z of <RoutedExperts "x1" layer 1> {place = #cpu} : !h, !h -> !h
  %s1 = kt.add %s, %p of <RoutedExperts "x1" layer 1> {place = #cpu} : !h, !h -> !h
  kt.return %ids : !i
}
