// The passes in the order of the pipeline. One def is one .cpp of the same name here and one lit file of the same stem in
// lit-tests/passes; a test compares the three lists.
#ifndef KTC_COMPILER_PASSES_TD
#define KTC_COMPILER_PASSES_TD

include "mlir/Pass/PassBase.td"

// Counts are reported as remarks (Remarks.h). MLIR's own pass statistics are compiled out of Debian's LLVM, and their class has
// another layout in a debug build of ours than in that library: a pass that declares one writes over itself.

class Kt_Pass<string flag> : Pass<flag, "::mlir::ModuleOp"> {
  let dependentDialects = ["::ktc::kt::KtDialect"];
}

// --------------------------------------------------------------------------------------------------------------------- imported

def SpecialiseEntries : Kt_Pass<"kt-specialise-entries"> {
  let summary = "make one bounded body per kind of step from the generic one";
  let description = [{
    The generic body computes logits and the next id of every token. A plan needs bodies whose buffers have a size: this pass
    makes `extend[N]` for the prefill chunk (and the stream chunk), `decode[B]` and `sample[B]` for every bucket, and removes
    the generic entry. In extend and decode, `kt.select_rows` in front of the final norm leaves the rows that need logits, so
    the head, often the largest matrix of a step, never runs for a prompt's inner tokens.

    Bounds, with S = sequences of the cache:
    extend[N]: tokens N, sequences min(S, N), rows as many as give 64 MiB of logits, but at least min(S, N) and at most N;
    decode[B], sample[B]: B of each.

    Before: `kt.entry @model generic { … %h … kt.norm; kt.lm_head; kt.sample; kt.return %next }`
    After:  `kt.entry @"decode[1]" decode bounds <…> { … %h … kt.select_rows %h, %rows; kt.norm; kt.lm_head; kt.return %logits }`
            `kt.entry @"sample[1]" sample bounds <…> { kt.sample %logits; kt.return %next }`
  }];
  let options = [
    ListOption<"decode", "decode", "uint32_t", "buckets of decode and sample, in sequences (default: 1)">,
    Option<"chunk", "chunk", "uint32_t", "512", "tokens of an extend step">,
    Option<"streamChunk", "stream-chunk", "uint32_t", "0", "tokens of a streamed extend step, 0: none">,
  ];
}

def VerifyImported : Kt_Pass<"kt-verify-imported"> {
  let summary = "check that the model is complete, bounded and not yet placed";
  let description = [{
    Facts of the model are there and agree with the bodies (hidden size, vocabulary); every weight, bank and cache is used;
    there are extend, decode and sample entries, in ascending order of their bounds, and no generic one; nothing is placed.
    Sets `kt.phase` to `imported`.
  }];
}

// ----------------------------------------------------------------------------------------------------------------------- placed

def Place : Kt_Pass<"kt-place"> {
  let summary = "give every op, weight, bank and cache its device and formats";
  let description = [{
    Asks `placement::place` with the model as the IR describes it, the policy and the target, and writes the answer down:
    `#kt.place` on every op of a module, device, format and packing on its weights (vectors are f32, which holds every
    checkpoint type exactly), device and format on the cache. Two modules that share a weight in different places or formats
    get a copy each. The rule that decided becomes part of an op's location.

    The pipeline hands policy and target over as objects; `ktc-opt` reads them from files. What a policy asks for and no pass
    does yet (experts on GPUs, deferral, updates) is an error here, not silence.

    Before: `kt.norm rms %x @norm eps … of <Norm "model.norm"> : …`
    After:  `kt.norm rms %x @norm eps … of <Norm "model.norm"> {place = #kt.place<"cpu", weights = "bf16", …>} : …`
  }];
  let options = [
    Option<"policy", "policy", "std::string", "\"\"", "policy file">,
    Option<"target", "target", "std::string", "\"\"", "target file; empty: this machine, without its GPUs">,
  ];
}

def VerifyPlaced : Kt_Pass<"kt-verify-placed"> {
  let summary = "check that everything has a device and formats that exist";
  let description = [{
    Every op has a place; every weight, bank and cache a device; formats are those of runtime/formats and serve their purpose;
    the weights of an op have the format of its place, vectors f32. Sets `kt.phase` to `placed`.
  }];
}

// ------------------------------------------------------------------------------------------------------------------ transferred

def VerifyTransferred : Kt_Pass<"kt-verify-transferred"> {
  let summary = "check that operands and weights live where they are used";
  let description = [{
    Every operand was made on the device of its user, and every weight, bank and cache of an op lives there. Sets `kt.phase`
    to `transferred`.
  }];
}

// -------------------------------------------------------------------------------------------------------------------- optimised

def FoldWeights : Kt_Pass<"kt-fold-weights"> {
  let summary = "rearrange weights where that is exact and saves work";
  let description = [{
    Only permutations, concatenations and splits of rows: no value changes, so results do not either.

    1. `kv_b` of latent attention becomes W_UK, transposed per head, and W_UV: what kernels take, one copy for prefill and
       decode. This is legalisation, the others are not.
    2. Interleaved rope becomes half: the rope rows of the projections of q and k are reordered, even ones first, once per
       head. Scores are sums over the same products. Only where no norm and no bias lies between projection and rope, and
       where every user of both weights agrees.
    3. Projections of one value in one place without a bias (q, k and v; q_a and kv_a) become one `kt.linear` with several
       results over the rows of both, one behind the other.

    Weights that nothing uses any more are removed.

    Before: `%q = kt.linear %x @q …`, `%k = kt.linear %x @k …`
    After:  `%q, %k = kt.linear %x @q.k …` with `kt.weight @q.k … from [<slot = "q", rows = 8>, <slot = "k", rows = 4, dst_row = 8>]`
  }];
}

def VerifyOptimised : Kt_Pass<"kt-verify-optimised"> {
  let summary = "check that every op is one kernel";
  let description = [{
    Latent attention holds W_UK and W_UV; every weight and bank is used. Sets `kt.phase` to `optimised`.
  }];
}

// ------------------------------------------------------------------------------------------------------------------------ tiled

def TileCpu : Kt_Pass<"kt-tile-cpu"> {
  let summary = "choose packings, scales of activations and tile thresholds of products on the CPU";
  let description = [{
    Weights in f32 and bf16 stay rows. Integer weights are panels; gate and up of a gated block are paired, so that one pass
    makes both and their product. Every op that multiplies by panels gets a `#kt.tile`: how many input features of its
    activations share a scale, which fixes its results on every machine, and from how many rows of one matrix tile kernels
    serve, which the target's instruction sets decide and which changes speed alone.

    The pipeline hands the target over as an object; `ktc-opt` reads it from a file.

    Before: `kt.mlp swiglu %x gate_up @g down @d …` with `kt.weight @g … packed "panel"`
    After:  `kt.mlp swiglu %x gate_up @g down @d … {tile = #kt.tile<x = 64, h = 64, rows = 9>}` with `packed "panel_paired"`
  }];
  let options = [
    Option<"target", "target", "std::string", "\"\"", "target file; empty: this machine, without its GPUs">,
    Option<"xGranule", "x-granule", "uint32_t", "64", "input features per scale of x: 64, 128, or 0 for a row">,
    Option<"hGranule", "h-granule", "uint32_t", "64", "the same of the hidden value of a gated block">,
    Option<"thresholds", "thresholds", "bool", "true", "choose tile kernels; false: vector kernels alone">,
  ];
}

def VerifyTiled : Kt_Pass<"kt-verify-tiled"> {
  let summary = "check that every weight has a packing";
  let description = [{
    The packing of every weight and bank is one that its format takes, and its bytes can be counted; products with panels
    have a tile, and gate and up are paired for them. Sets `kt.phase` to `tiled`.
  }];
}

// ---------------------------------------------------------------------------------------------------------------------- lowered

def PlanMemory : Kt_Pass<"kt-plan-memory"> {
  let summary = "give every value, input and scratch area a fixed address";
  let description = [{
    Each entry gets buffers at offsets of its devices' arenas, sized at the bound of their symbol. The results of one
    `kt.linear` are columns of one buffer. A norm or a sum writes into its first operand where that dies there. Buffers whose
    live ranges meet never share bytes; the others reuse them, largest first, each at the lowest offset that fits. The
    logits lie at offset 0 in every entry, so what decode leaves there sample finds. Inputs are live from before the first
    step, results until after the last, scratch during its step.

    Sets `kt.devices` with one arena per device, as large as the largest entry needs, and `kt.account`: weights by module
    class, caches, arena.

    Before: `%y = kt.norm rms %x … : …`
    After:  `%y = kt.norm rms %x … {in_views = [#kt.view<3[0, 192]>], out_views = [#kt.view<4[0, 192]>]} : …`
  }];
}

def VerifyLowered : Kt_Pass<"kt-verify-lowered"> {
  let summary = "check addresses, live ranges, scratch and account";
  let description = [{
    Every operand and result has a view inside a buffer of its type on the op's device; every buffer lies in its device's
    arena, aligned to 64 bytes; buffers whose live ranges meet do not share bytes; scratch is large enough
    (runtime/formats/workspace.h); roles are complete; the account's lines equal what weights, caches and arenas need.
    Derived anew from the IR, not from the plan that kt-plan-memory made. Sets `kt.phase` to `lowered`.
  }];
}

#endif
