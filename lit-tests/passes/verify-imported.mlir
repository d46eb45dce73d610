// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-specialise-entries --kt-verify-imported | FileCheck %s
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-imported

// CHECK: kt.phase = #kt.phase<imported>

// expected-error@+1 {{no kt.model: expected the facts of the model, as import writes them}}
module {}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  // expected-error@+1 {{'kt.entry' op is generic; expected bounded entries, run kt-specialise-entries}}
  kt.entry @model generic {
  ^bb0(%ids: !i, %positions: !i):
    kt.return %ids : !i
  }
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 4, vocab = 16, layers = 1, max_positions = 64>} {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.entry @"extend[4]" extend bounds <tokens = 4, rows = 4, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    // expected-error@+1 {{'kt.embed' op makes 8 columns, expected the model's hidden size, 4}}
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> tensor<?x8xf32, #kt.dim<tokens>>
    %s = kt.select_rows %h, %rows of <Norm "n"> : tensor<?x8xf32, #kt.dim<tokens>>, !r -> tensor<?x8xf32, #kt.dim<rows>>
    %l = kt.lm_head %s @w of <Head "h"> : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
    kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 8, vocab = 32, layers = 1, max_positions = 64>} {
  // expected-error@+1 {{'kt.entry' op has logits of 16 columns, expected the model's vocabulary, 32}}
  kt.entry @"sample[1]" sample bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %logits of <Head "h"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

// expected-error@+1 {{no kt.entry of kind extend; expected extend, decode and sample, run kt-specialise-entries}}
module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  kt.entry @"sample[1]" sample bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %logits of <Head "h"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.entry @a extend bounds <tokens = 4, rows = 4, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %s = kt.select_rows %h, %rows of <Norm "n"> : !h, !r -> !s
    %l = kt.lm_head %s @w of <Head "h"> : !s -> !l
    kt.return %l : !l
  }
  // expected-error@+1 {{'kt.entry' op is bounded by 4 tokens, expected more than @a, which comes before it}}
  kt.entry @b extend bounds <tokens = 4, rows = 4, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %s = kt.select_rows %h, %rows of <Norm "n"> : !h, !r -> !s
    %l = kt.lm_head %s @w of <Head "h"> : !s -> !l
    kt.return %l : !l
  }
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  // expected-error@+1 {{'kt.weight' op is used by no step; expected every part of the model in some entry, remove it}}
  kt.weight @unused [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.entry @a extend bounds <tokens = 4, rows = 4, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %s = kt.select_rows %h, %rows of <Norm "n"> : !h, !r -> !s
    %l = kt.lm_head %s @w of <Head "h"> : !s -> !l
    kt.return %l : !l
  }
  kt.entry @b decode bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %s = kt.select_rows %h, %rows of <Norm "n"> : !h, !r -> !s
    %l = kt.lm_head %s @w of <Head "h"> : !s -> !l
    kt.return %l : !l
  }
  kt.entry @c sample bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%l: !l):
    %n = kt.sample %l of <Head "h"> : !l -> !r
    kt.return %n : !r
  }
}

// -----

!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.model = #kt.model<name = "m", family = "f", architecture = "A", hidden = 8, vocab = 16, layers = 1, max_positions = 64>} {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>]
  kt.entry @a extend bounds <tokens = 4, rows = 4, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %s = kt.select_rows %h, %rows of <Norm "n"> : !h, !r -> !s
    %l = kt.lm_head %s @w of <Head "h"> : !s -> !l
    kt.return %l : !l
  }
  kt.entry @b decode bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> : !i -> !h
    %s = kt.select_rows %h, %rows of <Norm "n"> : !h, !r -> !s
    %l = kt.lm_head %s @w of <Head "h"> : !s -> !l
    kt.return %l : !l
  }
  kt.entry @c sample bounds <tokens = 1, rows = 1, sequences = 1> {
  ^bb0(%l: !l):
    // expected-error@+1 {{'kt.sample' op has a place; expected none before kt-place}}
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">} : !l -> !r
    kt.return %n : !r
  }
}
