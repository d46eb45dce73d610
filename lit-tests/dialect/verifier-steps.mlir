// Diagnostics of embed, norm, linear, mlp, add, select_rows and lm_head.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %many: tensor<?x8xi32, #kt.dim<tokens>>):
  // expected-error@+1 {{'kt.embed' op columns of ids: found 8, expected 1 = one id per row}}
  %y = kt.embed %many @w of <Embedding "e"> : tensor<?x8xi32, #kt.dim<tokens>> -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  // expected-error@+1 {{'kt.embed' op @nothing is no kt.weight of this module; declare it}}
  %x = kt.embed %ids @nothing of <Embedding "e"> : !i -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
// expected-note@+1 {{declared here}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  // expected-error@+1 {{'kt.embed' op @w: found [1, 16, 8], expected [1, 16, 4] from the operands and attributes}}
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
// expected-note@+1 {{declared here}}
kt.weight @n [1, 1, 4] f32 from [#kt.piece<slot = "n", rows = 1>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.norm' op @n: found [1, 1, 4], expected [1, 1, 8] from the operands and attributes}}
  %y = kt.norm rms %x @n eps 1.0e-06 of <Norm "n"> : !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.linear' op has no results; expected one per column range of the product}}
  "kt.linear"(%x) <{weight = @w, module = #kt.module<Attention "a">}> : (!h) -> ()
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
// expected-note@+1 {{declared here}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.linear' op @w: found [1, 16, 8], expected [1, 12, 8] from the operands and attributes}}
  %y, %z = kt.linear %x @w of <Attention "a"> : !h -> !h, !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
// expected-note@+1 {{declared here}}
kt.weight @n [1, 1, 4] f32 from [#kt.piece<slot = "n", rows = 1>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.linear' op @n: found [1, 1, 4], expected [1, 1, 16] from the operands and attributes}}
  %y, %z = kt.linear %x @w bias @n of <Attention "a"> : !h -> !h, !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
// expected-note@+1 {{declared here}}
kt.weight @gu [1, 4, 8] bf16 from [#kt.piece<slot = "gu", rows = 4>]
kt.weight @d [1, 8, 6] bf16 from [#kt.piece<slot = "d", rows = 8>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.mlp' op @gu: found [1, 4, 8], expected [1, 12, 8] from the operands and attributes}}
  %y = kt.mlp swiglu %x gate_up @gu down @d of <DenseMlp "m"> : !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.mlp' op @d is no kt.weight of this module; declare it}}
  %y = kt.mlp swiglu %x gate_up @w down @d of <DenseMlp "m"> : !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.add' op operands: found 1, expected two or more}}
  %y = kt.add %x of <DenseMlp "m"> : !h -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.add' op adds 'tensor<?x8xf32, #kt.dim<tokens>>' into 'tensor<?x4xf32, #kt.dim<tokens>>'; expected one type}}
  %y = kt.add %x, %x of <DenseMlp "m"> : !h, !h -> !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
// expected-note@+1 {{declared here}}
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e generic {
^bb0(%ids: !i, %pos: !i):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.lm_head' op @w: found [1, 16, 8], expected [1, 4, 8] from the operands and attributes}}
  %y = kt.lm_head %x @w of <Head "l"> : !h -> !k
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: tensor<?x1xi32, #kt.dim<rows>>):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.select_rows' op goes from tokens to rows: expected x in #kt.dim<tokens>, the indices and the result in #kt.dim<rows>}}
  %y = kt.select_rows %x, %rows of <Norm "n"> : !h, tensor<?x1xi32, #kt.dim<rows>> -> !h
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: tensor<?x1xi32, #kt.dim<rows>>):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.select_rows' op elements of the result: found 'bf16', expected 'f32' as x has}}
  %y = kt.select_rows %x, %rows of <Norm "n"> : !h, tensor<?x1xi32, #kt.dim<rows>> -> tensor<?x8xbf16, #kt.dim<rows>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: tensor<?x2xi32, #kt.dim<rows>>):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.select_rows' op columns of the indices: found 2, expected 1 = one index per row}}
  %y = kt.select_rows %x, %rows of <Norm "n"> : !h, tensor<?x2xi32, #kt.dim<rows>> -> tensor<?x8xf32, #kt.dim<rows>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!k = tensor<?x4xf32, #kt.dim<tokens>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: tensor<?x1xi32, #kt.dim<rows>>):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.select_rows' op columns of the result: found 4, expected 8 = columns of x}}
  %y = kt.select_rows %x, %rows of <Norm "n"> : !h, tensor<?x1xi32, #kt.dim<rows>> -> tensor<?x4xf32, #kt.dim<rows>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<first_half>>
!j = tensor<?x1xi32, #kt.dim<second_half>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<first_half>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e extend bounds <tokens = 2, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r, %ids2: !j, %pos2: !j):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.select_rows' op goes from tokens to rows: expected x in #kt.dim<tokens>, the indices and the result in #kt.dim<rows>}}
  %y = kt.select_rows %x, %rows of <Norm "n"> : !h, !r -> tensor<?x8xf32, #kt.dim<rows>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<first_half>>
!j = tensor<?x1xi32, #kt.dim<second_half>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!h = tensor<?x8xf32, #kt.dim<first_half>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e extend bounds <tokens = 2, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: !r, %ids2: !j, %pos2: !j):
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> !h
  // expected-error@+1 {{'kt.select_rows' op the second half: found 'tensor<?x8xf32, #kt.dim<first_half>>', expected x's in #kt.dim<second_half>}}
  %y = kt.select_rows %x, %rows then %x of <Norm "n"> : !h, !r then !h -> tensor<?x8xf32, #kt.dim<rows>>
  kt.return %ids : !i
}

// -----

!i = tensor<?x1xi32, #kt.dim<first_half>>
!j = tensor<?x1xi32, #kt.dim<second_half>>
kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
kt.entry @e extend bounds <tokens = 2, rows = 1, sequences = 1> {
^bb0(%ids: !i, %pos: !i, %rows: tensor<?x1xi32, #kt.dim<rows>>, %ids2: !j, %pos2: !j):
  // expected-error@+1 {{mixes rows of different symbols; expected one #kt.dim for all operands and results, use kt.select_rows to change it}}
  %x = kt.embed %ids @w of <Embedding "e"> : !i -> tensor<?x8xf32, #kt.dim<second_half>>
  kt.return %ids : !i
}
