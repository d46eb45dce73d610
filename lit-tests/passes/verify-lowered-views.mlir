// Views, what a step may write, scratch.
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-lowered

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    // expected-error@+1 {{'kt.add' op in_views: found #kt.view<4[8, 8]> for a value that lies in #kt.view<4[0, 8]>}}
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[8, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>,
      #kt.buffer<name = "r", device = "cpu", role = value, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    // expected-error@+1 {{'kt.select_rows' op in_views: an argument lies in "r", expected the buffer of role output_rows}}
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<9[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    // expected-error@+1 {{'kt.lm_head' op out_views: the entry's result lies in "x", expected the buffer of role logits}}
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<7[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    // expected-error@+1 {{'kt.linear' op out_views: the results of a product are not consecutive columns of one buffer}}
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[8, 8]>, #kt.view<4[0, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    // expected-error@+1 {{'kt.mlp' op out_views: a result lies on operand 0; expected columns of its own, or exactly operand 0 of a norm or a sum}}
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<3[0, 16]>], workspace = 6 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    // expected-error@+1 {{'kt.mlp' op out_views: overwrites columns of "p" that a later step reads}}
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 16]>], workspace = 6 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    // expected-error@+1 {{'kt.mlp' op workspace: expected the index of a buffer of at least 64 bytes}}
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>]} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    // expected-error@+1 {{'kt.mlp' op workspace: found "m" of 64 bytes, expected scratch of at least 64 bytes on cpu}}
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 5 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

// Scratch is live in its step.
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  // expected-error@+1 {{'kt.entry' op buffer "scratch": shares bytes with "h" while both are live, in step 3}}
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 192, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>,
      #kt.buffer<name = "r", device = "cpu", role = value, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    // expected-error@+1 {{'kt.route' op out_views: overwrites columns of "p" that a later step reads}}
    %e, %f = kt.route softmax_topk %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<9[0, 1]>, #kt.view<4[0, 1]>], workspace = 6 : i64, experts = 16 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !i, tensor<?x1xf32, #kt.dim<tokens>>
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>,
      #kt.buffer<name = "r", device = "cpu", role = value, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m = kt.mlp swiglu %h gate_up @w down @d of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<5[0, 16]>], workspace = 6 : i64} : !h
    // expected-error@+1 {{'kt.route' op out_views: writes "ids", an input of the entry}}
    %e, %f = kt.route softmax_topk %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<0[0, 1]>, #kt.view<4[0, 1]>], workspace = 6 : i64, experts = 16 : i64, top_k = 1 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : !h -> !i, tensor<?x1xf32, #kt.dim<tokens>>
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#gpu = #kt.place<"cuda:0", weights = "f32", activations = "f32">
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>, #kt.device<"cuda:0", arena = 256>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>,
      #kt.buffer<name = "moved", device = "cuda:0", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    // expected-error@+1 {{'kt.transfer' op out_views: two results share columns; expected each its own}}
    %m, %m2 = kt.transfer %h, %h from "cpu" to "cuda:0" of <DenseMlp "m"> {place = #gpu, in_views = [#kt.view<3[0, 16]>, #kt.view<3[0, 16]>], out_views = [#kt.view<9[0, 16]>, #kt.view<9[0, 16]>]} : !h, !h -> !h, !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#gpu = #kt.place<"cuda:0", weights = "f32", activations = "f32">
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>, #kt.device<"cuda:0", arena = 256>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  // expected-error@+1 {{'kt.entry' op buffer "moved": offset: found 64, expected a multiple of 256}}
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>,
      #kt.buffer<name = "moved", device = "cuda:0", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 64, bytes = 64>] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m, %m2 = kt.transfer %h, %h from "cpu" to "cuda:0" of <DenseMlp "m"> {place = #gpu, in_views = [#kt.view<3[0, 16]>, #kt.view<3[0, 16]>], out_views = [#kt.view<9[0, 16]>, #kt.view<9[0, 16]>]} : !h, !h -> !h, !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}

// -----

#gpu = #kt.place<"cuda:0", weights = "f32", activations = "f32">
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x16xf32, #kt.dim<tokens>>
!p = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x16xf32, #kt.dim<rows>>
module attributes {kt.devices = [#kt.device<"cpu", arena = 576>, #kt.device<"cuda:0", arena = 256>], kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "DenseMlp" = 1024>, #kt.account<"cpu" "arena" "activations" = 576>]} {
  kt.weight @w [1, 16, 16] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @d [1, 16, 8] bf16 from [#kt.piece<slot = "d", rows = 16>] on "cpu" as "bf16" packed "row_major"
  // expected-error@+1 {{'kt.entry' op graphs: found 1, of which 0 have steps; expected steps in each}}
  kt.entry @d1 decode bounds <tokens = 1, rows = 1, sequences = 1> buffers [
      #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 4>,
      #kt.buffer<name = "positions", device = "cpu", role = positions, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 4>,
      #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 4>,
      #kt.buffer<name = "h", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 192, bytes = 64>,
      #kt.buffer<name = "p", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 256, bytes = 64>,
      #kt.buffer<name = "m", device = "cpu", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 320, bytes = 64>,
      #kt.buffer<name = "scratch", device = "cpu", role = workspace, dim = tokens, format = "f32", columns = 0, row_bytes = 0, offset = 384, bytes = 64>,
      #kt.buffer<name = "x", device = "cpu", role = value, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 448, bytes = 64>,
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 512, bytes = 64>,
      #kt.buffer<name = "moved", device = "cuda:0", role = value, dim = tokens, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 64>] graphs [#kt.graph<"g" on "cuda:0">] {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place, in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 16]>]} : !i -> !h
    %a, %b = kt.linear %h @w of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>], out_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>]} : !h -> !p, !p
    %m, %m2 = kt.transfer %h, %h from "cpu" to "cuda:0" of <DenseMlp "m"> {place = #gpu, in_views = [#kt.view<3[0, 16]>, #kt.view<3[0, 16]>], out_views = [#kt.view<9[0, 16]>, #kt.view<9[0, 16]>]} : !h, !h -> !h, !h
    %c = kt.add %a, %b of <DenseMlp "m"> {place = #place, in_views = [#kt.view<4[0, 8]>, #kt.view<4[8, 8]>], out_views = [#kt.view<4[0, 8]>]} : !p, !p -> !p
    %o = kt.add %h, %m of <DenseMlp "m"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<5[0, 16]>], out_views = [#kt.view<3[0, 16]>]} : !h, !h -> !h
    %x = kt.select_rows %o, %rows of <Norm "n"> {place = #place, in_views = [#kt.view<3[0, 16]>, #kt.view<2[0, 1]>], out_views = [#kt.view<7[0, 16]>]} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "l"> {place = #place, in_views = [#kt.view<7[0, 16]>], out_views = [#kt.view<8[0, 16]>]} : !s -> !s
    kt.return %l : !s
  }
}
