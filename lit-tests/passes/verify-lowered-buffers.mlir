// Entries, buffers, roles and the account.
// RUN: ktc-opt %s --split-input-file --verify-diagnostics --kt-verify-lowered

// expected-error@+1 {{no kt.devices or no kt.account; run kt-plan-memory}}
module attributes {kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "logits": device "cuda:0" is not in kt.devices}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cuda:0", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "next_ids": offset: found 132, expected a multiple of 64}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 132, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "next_ids": found bytes 192 + 8, expected inside the 192 bytes of the arena}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 192, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "logits": format "f31" is not in runtime/formats}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f31", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "logits": row_bytes: found 68, expected a multiple of 64 that holds 16 columns of f32}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 68, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "logits": bytes: found 64, expected at least 2 rows of 64}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 64>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffers of role next_ids: found 0, expected 1}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = value, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op buffer "next_ids": shares bytes with "logits" while both are live, in step 1}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 64, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    // expected-error@+1 {{'kt.sample' op has no place or no views; run kt-place and kt-plan-memory}}
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    // expected-error@+1 {{'kt.sample' op in_views: found buffer 2, expected below 2}}
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<2[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    // expected-error@+1 {{'kt.sample' op in_views: buffer "next_ids" does not hold 'tensor<?x16xf32, #kt.dim<rows>>'}}
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<1[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    // expected-error@+1 {{'kt.sample' op in_views: buffer "logits" lies on cpu, expected cuda:0}}
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cuda:0", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    // expected-error@+1 {{'kt.sample' op in_views: found columns 1 + 16, expected inside the 16 of "logits"}}
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[1, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

// The account is not the sum of what is there.
// expected-error@+1 {{kt.account: found }}
module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 200>]} {
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> buffers [
      #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>,
      #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>] {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = []} {
  // expected-error@+1 {{'kt.entry' op has no bounds; run kt-specialise-entries}}
  kt.entry @g generic {
  ^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
    kt.return %ids : tensor<?x1xi32, #kt.dim<tokens>>
  }
}

// -----

module attributes {kt.devices = [#kt.device<"cpu", arena = 192>], kt.account = [#kt.account<"cpu" "arena" "activations" = 192>]} {
  // expected-error@+1 {{'kt.entry' op has no buffers; run kt-plan-memory}}
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%l: tensor<?x16xf32, #kt.dim<rows>>):
    %n = kt.sample %l of <Head "h"> {place = #kt.place<"cpu", weights = "f32", activations = "f32">, in_views = [#kt.view<0[0, 16]>], out_views = [#kt.view<1[0, 1]>]} : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %n : tensor<?x1xi32, #kt.dim<rows>>
  }
}
