// Diagnostics of entries: arguments and results by kind, bounds, what a body may hold.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file --allow-unregistered-dialect

// expected-error@+1 {{'kt.entry' op of kind generic has bounds; expected none before kt-specialise-entries}}
kt.entry @e generic bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

// expected-error@+1 {{'kt.entry' op of kind sample has no bounds; expected bounds <tokens = …, rows = …, sequences = …>}}
kt.entry @e sample {
^bb0(%logits: tensor<?x8xf32, #kt.dim<rows>>):
  %next = kt.sample %logits of <Head "h"> : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

// expected-error@+1 {{'kt.entry' op of kind generic: found 1 arguments, expected 2}}
kt.entry @e generic {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

// expected-error@+1 {{'kt.entry' op argument 1: found 'tensor<?x2xi32, #kt.dim<tokens>>', expected positions tensor<?x1xi32, #kt.dim<tokens>>}}
kt.entry @e generic {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x2xi32, #kt.dim<tokens>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

// expected-error@+1 {{'kt.entry' op argument 0: found 'tensor<?x8xf32, #kt.dim<tokens>>', expected logits tensor<?xVOCABxf32, #kt.dim<rows>>}}
kt.entry @e sample bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%logits: tensor<?x8xf32, #kt.dim<tokens>>):
  %next = kt.sample %logits of <Head "h"> : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x1xi32, #kt.dim<tokens>>
  kt.return %next : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

kt.entry @e decode bounds <tokens = 1, rows = 1, sequences = 1> {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>, %rows: tensor<?x1xi32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.return' op of an entry of kind decode: expected one value, logits tensor<?xVOCABxf32, #kt.dim<rows>>}}
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

kt.entry @e generic {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
  // expected-error@+1 {{'builtin.unrealized_conversion_cast' op is no step; expected only steps of kt in the body of an entry}}
  %x = builtin.unrealized_conversion_cast %ids : tensor<?x1xi32, #kt.dim<tokens>> to i32
  kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

// expected-error@+1 {{'kt.entry' op does not end with kt.return}}
kt.entry @e generic {
^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
  "other.terminator"() : () -> ()
}

// -----

// expected-error@+1 {{'kt.entry' op of kind extend: found 4 arguments, expected 5, or 7 with late experts}}
kt.entry @e extend bounds <tokens = 2, rows = 1, sequences = 1> {
^bb0(%ids: tensor<?x1xi32, #kt.dim<first_half>>, %positions: tensor<?x1xi32, #kt.dim<first_half>>, %rows: tensor<?x1xi32, #kt.dim<rows>>, %ids2: tensor<?x1xi32, #kt.dim<second_half>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<first_half>>
}

// -----

// expected-error@+1 {{'kt.entry' op argument 4: found 'tensor<?x1xi32, #kt.dim<first_half>>', expected positions tensor<?x1xi32, #kt.dim<second_half>>}}
kt.entry @e extend bounds <tokens = 2, rows = 1, sequences = 1> {
^bb0(%ids: tensor<?x1xi32, #kt.dim<first_half>>, %positions: tensor<?x1xi32, #kt.dim<first_half>>, %rows: tensor<?x1xi32, #kt.dim<rows>>, %ids2: tensor<?x1xi32, #kt.dim<second_half>>, %positions2: tensor<?x1xi32, #kt.dim<first_half>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<first_half>>
}

// -----

// Steps of decode are never cut.
// expected-error@+1 {{'kt.entry' op argument 0: found 'tensor<?x1xi32, #kt.dim<first_half>>', expected ids tensor<?x1xi32, #kt.dim<tokens>>}}
kt.entry @e decode bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%ids: tensor<?x1xi32, #kt.dim<first_half>>, %positions: tensor<?x1xi32, #kt.dim<first_half>>, %rows: tensor<?x1xi32, #kt.dim<rows>>):
  kt.return %ids : tensor<?x1xi32, #kt.dim<first_half>>
}
