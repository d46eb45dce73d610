// Every diagnostic of attributes, symbols, steps and entries.
// RUN: ktc-opt %s --verify-diagnostics --split-input-file

// ==== attributes

// expected-error@+1 {{'builtin.module' op attribute 'kt.phase': found "placed", expected #kt.phase}}
module attributes {kt.phase = "placed"} {}

// -----

// expected-error@+1 {{'builtin.module' op attribute 'kt.devices': found [1], expected an array of #kt.device}}
module attributes {kt.devices = [1]} {}

// -----

// expected-error@+1 {{unknown attribute 'kt.polici': expected kt.phase, kt.model, kt.policy, kt.target, kt.defer, kt.stream, kt.update, kt.devices or kt.account}}
module attributes {kt.polici = "version: 1"} {}

// -----

// expected-error@+1 {{'kt.table' op carries the attribute 'kt.phase'; only a module may carry attributes of kt}}
kt.table @t pages [1, 1] {kt.phase = #kt.phase<placed>}

// -----

// expected-error@+1 {{#kt.piece names no slot}}
kt.weight @w [1, 1, 8] bf16 from [#kt.piece<slot = "", rows = 1>]

// -----

// expected-error@+1 {{#kt.piece of 's': rows, row_step and repeat are at least 1, found 1, 0, 1}}
kt.weight @w [1, 1, 8] bf16 from [#kt.piece<slot = "s", rows = 1, row_step = 0>]

// -----

// expected-error@+1 {{#kt.piece of 's': found 4294967296, expected at most 2147483648}}
kt.weight @w [1, 1, 8] bf16 from [#kt.piece<slot = "s", rows = 1, src_row = 4294967296>]

// -----

// expected-error@+1 {{#kt.tile: found a granule of 32, expected 0 (a row), 64 or 128}}
module attributes {kt.x = #kt.tile<x = 64, h = 32>} {}

// -----

// expected-error@+1 {{#kt.tile: found rows = 65536, expected at most 65535}}
module attributes {kt.x = #kt.tile<x = 64, rows = 65536>} {}

// -----

// expected-error@+1 {{#kt.rope: inv_freq is empty, expected one value per rotated pair}}
module attributes {kt.x = #kt.rope<half, factor = 1.0 : f32, inv_freq = []>} {}

// -----

// expected-error@+1 {{#kt.rope: factor is f32, found 'f64'}}
module attributes {kt.x = #kt.rope<half, factor = 1.0 : f64, inv_freq = [1.0]>} {}

// -----

// expected-error@+1 {{#kt.bounds: found tokens = 4, rows = 8, sequences = 1, expected each at least 1, rows and sequences at most tokens, tokens at most 16777216}}
module attributes {kt.x = #kt.bounds<tokens = 4, rows = 8, sequences = 1>} {}

// -----

// expected-error@+1 {{a tensor with #kt.dim has rows `?` and from 1 to 2147483648 columns: expected tensor<?xNxf32, #kt.dim<rows>>}}
module attributes {x = tensor<4x8xf32, #kt.dim<rows>>} {}

// -----

// expected-error@+1 {{a tensor with #kt.dim has elements f32, bf16 or i32: found 'f64'}}
module attributes {x = tensor<?x8xf64, #kt.dim<rows>>} {}

// -----

// ==== symbols

// expected-error@+1 {{'kt.weight' op shape: found 2 extents, expected [batch, rows, columns]}}
kt.weight @w [1, 8] bf16 from [#kt.piece<slot = "s", rows = 1>]

// -----

// expected-error@+1 {{'kt.weight' op extent: found 0, expected from 1 to 2147483648}}
kt.weight @w [1, 0, 8] bf16 from [#kt.piece<slot = "s", rows = 1>]

// -----

// expected-error@+1 {{'kt.weight' op has a group and no format; expected one beside the other}}
kt.weight @w [1, 1, 8] bf16 from [#kt.piece<slot = "s", rows = 1>] group 64

// -----

// expected-error@+1 {{'kt.weight' op is placed by halves: expected device, format and packing, or none of them}}
"kt.weight"() <{sym_name = "w", shape = array<i64: 1, 1, 8>, source = bf16, recipe = [#kt.piece<slot = "s", rows = 1>], device = "cpu"}> : () -> ()

// -----

// expected-error@+1 {{'kt.weight' op recipe: matrix 0, row 2 is made by no piece; expected every row exactly once}}
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "s", rows = 2>, #kt.piece<slot = "s", rows = 1, dst_row = 3>]

// -----

// expected-error@+1 {{'kt.weight' op recipe: matrix 1, row 0 is made by no piece; expected every row exactly once}}
kt.weight @w [2, 4, 8] bf16 from [#kt.piece<slot = "s", rows = 4>]

// -----

// expected-error@+1 {{'kt.weight' op recipe: matrix 0, row 1 is made twice; expected every row exactly once}}
kt.weight @w [1, 3, 8] bf16 from [#kt.piece<slot = "s", rows = 2>, #kt.piece<slot = "s", rows = 2, dst_row = 1>]

// -----

// expected-error@+1 {{'kt.weight' op recipe: rows of 's' go to matrix 0, rows 2 to 6, expected inside [1, 4]}}
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "s", rows = 4, dst_row = 2>]

// -----

// expected-error@+1 {{'kt.weight' op recipe: transposed rows of 's': found 4, expected 8 as the weight has columns}}
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "s", rows = 4, transpose = true>]

// -----

// a recipe cannot make the verifier run for ever
// expected-error@+1 {{'kt.weight' op recipe: found more than 1048576 pieces; expected fewer, larger ones}}
kt.weight @w [1, 4, 8] bf16 from [#kt.piece<slot = "s", rows = 1, repeat = 2147483648>]

// -----

// expected-error@+1 {{'kt.expert_bank' op piece of 's' repeats or names a matrix; expected neither, since a piece is applied to every expert}}
kt.expert_bank @b experts 4 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 2, repeat = 2, repeat_dst_row = 2>] down [#kt.piece<slot = "d", rows = 8>]

// -----

// expected-error@+1 {{'kt.expert_bank' op gate_up: matrix 0, row 2 is made by no piece; expected every row exactly once}}
kt.expert_bank @b experts 4 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 2>] down [#kt.piece<slot = "d", rows = 8>]

// -----

// expected-error@+1 {{'kt.expert_bank' op attribute 'experts' failed to satisfy constraint: 64-bit signless integer attribute whose value is positive}}
kt.expert_bank @b experts 0 hidden 8 intermediate 2 bf16 gate_up [#kt.piece<slot = "s", rows = 4>] down [#kt.piece<slot = "d", rows = 8>]

// -----

kt.table @t pages [2, 4]
// expected-error@+1 {{'kt.cache' op has no parts; expected what attention stores of a token, such as "k" and "v"}}
kt.cache @kv paged parts [] layers 1 page 4 tokens 16 sequences 2 pages @t

// -----

kt.table @t pages [2, 4]
// expected-error@+1 {{'kt.cache' op part "k": found heads = 0, width = 8, expected each from 1 to 16777216}}
kt.cache @kv paged parts [#kt.part<"k" heads = 0, width = 8>] layers 1 page 4 tokens 16 sequences 2 pages @t

// -----

kt.table @t pages [2, 4]
// expected-error@+1 {{'kt.cache' op has two parts "k"; expected each name once}}
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 8>, #kt.part<"k" heads = 1, width = 8>] layers 1 page 4 tokens 16 sequences 2 pages @t

// -----

kt.table @t pages [2, 4]
// expected-error@+1 {{'kt.cache' op pages: found @t of [2, 4], expected [2, 5] = [sequences, ceil(tokens / page)]}}
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 8>] layers 1 page 4 tokens 17 sequences 2 pages @t

// -----

// expected-error@+1 {{'kt.cache' op pages: @t is no kt.table of this module; declare it}}
kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 8>] layers 1 page 4 tokens 16 sequences 2 pages @t

// -----

kt.table @t pages [2, 4]
// expected-error@+1 {{'kt.cache' op is placed by halves: expected device and format, or neither}}
"kt.cache"() <{sym_name = "kv", parts = [#kt.part<"k" heads = 1, width = 8>], layers = 1 : i64, page = 4 : i64, tokens = 16 : i64, sequences = 2 : i64, pages = @t, device = "cpu"}> : () -> ()

// -----

// expected-error@+1 {{'kt.table' op shape: found 1 extents, expected [sequences, pages per sequence]}}
kt.table @t pages [2]

// -----

// ==== steps

kt.entry @e sample bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op mixes rows of different symbols; expected one #kt.dim for all operands and results, use kt.select_rows to change it}}
  %next = kt.sample %logits of <Head "h"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<tokens>>
  kt.return %next : tensor<?x1xi32, #kt.dim<tokens>>
}

// -----

kt.entry @e sample bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op columns of the result: found 2, expected 1 = one id per row}}
  %next = kt.sample %logits of <Head "h"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x2xi32, #kt.dim<rows>>
  kt.return %next : tensor<?x2xi32, #kt.dim<rows>>
}

// -----

kt.entry @e sample bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op in_views: found 0 views, expected 1}}
  %next = kt.sample %logits of <Head "h"> {in_views = []} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

kt.entry @e sample bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op out_views: found a view of 8 columns, expected 1 as the value has}}
  %next = kt.sample %logits of <Head "h"> {out_views = [#kt.view<0[0, 8]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

kt.entry @e sample bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%ids: tensor<?x16xi32, #kt.dim<rows>>):
  // expected-error@+1 {{'kt.sample' op operand #0 must be tensor<?xNxf32, #kt.dim>, but got 'tensor<?x16xi32, #kt.dim<rows>>'}}
  %next = kt.sample %ids of <Head "h"> : tensor<?x16xi32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
}

// -----

// a plain tensor has no rows that anybody counts
kt.entry @e sample bounds <tokens = 2, rows = 2, sequences = 2> {
^bb0(%logits: tensor<?x16xf32>):
  // expected-error@+1 {{'kt.sample' op operand #0 must be tensor<?xNxf32, #kt.dim>, but got 'tensor<?x16xf32>'}}
  %next = kt.sample %logits of <Head "h"> : tensor<?x16xf32> -> tensor<?x1xi32, #kt.dim<rows>>
  kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
}
