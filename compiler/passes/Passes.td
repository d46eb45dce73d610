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
    checkpoint type exactly), device and format on the cache; where attention is on several devices each gets a cache of its own, with
    the layers that are there. Two modules that share a weight in different places or formats
    get a copy each. The rule that decided becomes part of an op's location.

    The sum that takes the experts' result stays on the device of the residual. Experts that belong on a GPU (`experts.on_gpu`)
    are noted on their bank, a `#kt.hot` for each GPU, for `kt-split-experts`; what the policy defers in `kt.defer` of the module, for
    `kt-defer-experts`.

    The pipeline hands policy and target over as objects; `ktc-opt` reads them from files. What a policy asks for and no pass
    does yet (updates) is an error here, not silence.

    Before: `kt.norm rms %x @norm eps … of <Norm "model.norm"> : …`
    After:  `kt.norm rms %x @norm eps … of <Norm "model.norm"> {place = #kt.place<"cpu", weights = "bf16", …>} : …`
  }];
  let options = [
    Option<"policy", "policy", "std::string", "\"\"", "policy file">,
    Option<"target", "target", "std::string", "\"\"", "target file; empty: this machine, without its GPUs">,
  ];
}

def SplitExperts : Kt_Pass<"kt-split-experts"> {
  let summary = "give the hot experts of a layer a bank and an op on their GPU";
  let description = [{
    A bank with `#kt.hot` becomes several: the cold one keeps the other matrices, a new one for each GPU takes the hot ones there, with
    the formats that the policy states for them. So does every op over the bank: all choose by `slots` which pairs of a token
    are theirs, and the layer's sum, on the GPU of the residual, takes terms more, in the order of the list. When all experts of a layer
    are hot, the bank keeps those of the first GPU; on one alone, bank and ops move as they are. Switched off, all experts stay with the
    cold ones.

    Before: `kt.experts swiglu %x, %ids, %w @b …` with `kt.expert_bank @b experts 4 … hot [#kt.hot<device = "cuda:0", …, experts = [1]>]`
    After:  `kt.experts … @b slots [0, -1, 1, 2]`, `kt.experts … @b.hot slots [-1, 0, -1, -1]` with
            `kt.expert_bank @b experts 3 ids [0, 2, 3] …` and `kt.expert_bank @b.hot experts 1 ids [1] … on "cuda:0"`
  }];
  let options = [
    Option<"enable", "enable", "bool", "true", "false: experts that could be hot stay cold">,
  ];
}

def VerifyPlaced : Kt_Pass<"kt-verify-placed"> {
  let summary = "check that everything has a device and formats that exist";
  let description = [{
    Every op has a place; every weight, bank and cache a device; formats are those of runtime/formats and serve their purpose;
    the weights of an op have the format of its place, vectors f32; no bank has experts that wait to be split. Of the ops over
    one router's choice every expert has a matrix in exactly one. Sets `kt.phase` to `placed`.
  }];
}

// ------------------------------------------------------------------------------------------------------------------ transferred

def DeferExperts : Kt_Pass<"kt-defer-experts"> {
  let summary = "let the least experts of a token arrive with the next MoE layer";
  let description = [{
    Of a token whose flag is set the experts of lowest weight are late: their part of the sum is added in the next MoE layer instead of their own, wherever that layer's experts are. Each op over experts, but for the
    last layer's, becomes two over the same operands, one for the part in time and one for the late part; the late result is
    added to the next layer's on the same device, or to that layer's sum where the device has no experts of it. The entry
    gets the argument `deferred`, which the host sets per token.

    Runs on values, in front of everything that moves or fuses them. `kt.defer` of the module, from `kt-place`, says how many,
    and whether ops of the CPU alone have late parts. Nothing to defer changes nothing.

    Before: `%a = kt.experts … %x, %ids, %w @l0`, `%b = kt.experts … @l1`, `kt.add %h, %b`
    After:  `%a = kt.experts … deferred %d @l0 late <count = 2, part = in_time>`, `%l = kt.experts … late <…, part = late>`,
            `%b = kt.experts … @l1`, `%c = kt.add %b, %l`, `kt.add %h, %c`
  }];
  let options = [
    Option<"enable", "enable", "bool", "true", "false: nothing is deferred">,
  ];
}

def StreamExperts : Kt_Pass<"kt-stream-experts"> {
  let summary = "let the CPU's experts pass through the GPU in long steps of prefill";
  let description = [{
    In extend entries of `chunk` tokens or more, experts of the CPU whose router is on a GPU run there: their bank stays in the
    CPU's memory and is copied through, layer by layer, while the layers before are computed. All of them are copied however few
    tokens there are, and the CPU's time grows with the tokens: from how many on a step runs in that entry was predicted by the cost
    model (`kt.stream` of the module, from `kt-place`) and becomes `from` of the entry. Where it says that this never pays, nothing
    is streamed. What the CPU adds up of such experts moves along. Products take bf16 on the left where the CPU would take int8, and
    f32 where it takes f32. Runs behind `kt-defer-experts`: what is late is the same in every entry.

    A bank with `#kt.share` has the same op once more on the CPU, whose result the sum takes too: at run time a rule says which
    experts that one takes, by how many rows chose them. Ops with late parts are not shared.

    Before: `%y = kt.experts swiglu %x, %e, %w @b …` on the CPU in `extend[8192]`, `%e, %w = kt.route %x …` on cuda:0
    After:  `%y = kt.experts swiglu %x, %e, %w @b stream …` on cuda:0, with `kt.expert_bank @b … on "cpu"` as before;
            with a share `%y = kt.experts … @b stream share <…>` on cuda:0, `%z = kt.experts … @b share <…>` on the CPU
  }];
  let options = [
    Option<"chunk", "chunk", "uint32_t", "0", "tokens of the smallest step that streams experts, 0: none">,
  ];
}

def InsertTransfers : Kt_Pass<"kt-insert-transfers"> {
  let summary = "move values to the devices that use them";
  let description = [{
    A value that is used on another device than it is made on gets there by `kt.transfer`, once for all its users; arguments
    need none, since the host writes them everywhere. Those from GPUs come before those from the CPU. In decode entries what the
    CPU's experts take from a GPU, and give back, goes by a record instead: `kt.submit` and `kt.await`, which cost a fraction of two copies. A record without pairs takes late
    experts along into a layer that has none on the CPU. x and result are bf16 in records, or f32 where the experts' activations
    are f32.

    Before: `%e, %w = kt.route …` on cuda:0, `%y = kt.experts swiglu %x, %e, %w …` on the CPU, `kt.add %h, %y` on cuda:0
    After:  `%a, %b, %c = kt.submit %x, %e, %w record 0 …`, `%y = kt.experts swiglu %a, %b, %c …`,
            `%z = kt.await %y record 0 …`, `kt.add %h, %z`
  }];
}

def VerifyTransferred : Kt_Pass<"kt-verify-transferred"> {
  let summary = "check that operands and weights live where they are used";
  let description = [{
    Every operand was made on the device of its user, and every weight, bank and cache of an op lives there, but for banks of the
    CPU that are streamed to a GPU. Each record of an
    entry has exactly one submit and one await, in decode entries alone. Deferral loses nothing: an op for the part in time has
    exactly one for the late part over the same operands, whose result is added exactly once, in the next MoE layer, and
    nowhere else. What streams a bank with a share has exactly one op of the CPU over the same values. Sets `kt.phase` to `transferred`.
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

    Weights that nothing uses any more are removed. Switched off, only 1 happens.

    Before: `%q = kt.linear %x @q …`, `%k = kt.linear %x @k …`
    After:  `%q, %k = kt.linear %x @q.k …` with `kt.weight @q.k … from [<slot = "q", rows = 8>, <slot = "k", rows = 4, dst_row = 8>]`
  }];
  let options = [
    Option<"enable", "enable", "bool", "true", "false: only what kernels need, the split of kv_b">,
  ];
}

def Fuse : Kt_Pass<"kt-fuse"> {
  let summary = "put steps together that have one kernel";
  let description = [{
    A sum and the norm of it become `kt.add_norm`, on one device: the sum is read once and need not be read again. The pattern
    is the whole list so far; values do not change, to the bit.

    Before: `%h = kt.add %a, %b …`, `%y = kt.norm rms %h @norm …`
    After:  `%h, %y = kt.add_norm rms %a, %b @norm …`
  }];
  let options = [
    Option<"cpu", "cpu", "bool", "true", "false: only on GPUs">,
  ];
}

def HalveBatches : Kt_Pass<"kt-halve-batches"> {
  let summary = "let a GPU and the CPU take turns over two halves of a prompt's tokens";
  let description = [{
    In an extend entry each layer waits twice: the CPU for the router of the GPU, the GPU for the experts of the CPU. Cut in halves,
    one device computes a half while the other one computes the other. Every step over tokens is there twice, each over rows of its
    half (`#kt.dim<first_half>`, `#kt.dim<second_half>`), and so are the inputs; `kt.select_rows` takes both, and what follows is
    whole again. Attention of the second half comes behind that of the first one in the same layer: a sequence may be in both.

    What a layer reads it reads twice, and each expert has half of its rows. So the pass makes both bodies, has both ordered by
    critical path under the cost model as `kt-schedule` will, and keeps the halves where their predicted time is below `below` of the
    whole's. Entries whose experts pass through a GPU stay whole, and so do all of one device and of decode. `runtime/formats/halves.h` says
    how a step is cut.

    The pipeline hands the target over as an object; `ktc-opt` reads it from a file.

    Before: `%e, %w = kt.route %x …`, `%t… = kt.transfer %x, %e, %w …`, `kt.experts %t…` (CPU)
    After:  `%e1, %w1 = kt.route %x1 …`, `%e2, %w2 = kt.route %x2 …`, `%t1… = kt.transfer …`, `%t2… = kt.transfer …`,
            `kt.experts %t1…` (CPU), `kt.experts %t2…` (CPU)
  }];
  let options = [
    Option<"target", "target", "std::string", "\"\"", "target file; empty: this machine, without its GPUs">,
    Option<"rowScales", "row-scales", "bool", "false", "int8 activations have one scale per row">,
    Option<"below", "below", "double", "0.95", "halves take at most this share of the whole's predicted time">,
  ];
}

def Schedule : Kt_Pass<"kt-schedule"> {
  let summary = "order the steps so that devices wait for each other as little as possible";
  let description = [{
    A list schedule by critical path: the rates of the target predict every step's time (the cost model of placement), and of what
    can begin on a device at once comes first what gives the CPU work, then the step with the most work behind it; where a device would have to wait for such a
    step, another one goes before it if at least half of that fits into the wait. So the CPU's work begins as soon as its operands
    exist, shared and hot experts lie between a layer's submit and its await, and whether late ones do depends on how long the CPU
    takes. The CPU's late experts come behind the await of their own layer. In the list, which the host walks, the GPU's steps that
    begin while the CPU computes come in front of that. An order that is predicted to be no faster than the given one is not taken,
    nor is anything on one device moved.

    The pipeline hands the target over as an object; `ktc-opt` reads it from a file.

    Before: `kt.submit`, `kt.experts` (CPU), `kt.await`, `kt.experts` (GPU, hot), `kt.mlp` (GPU, shared), `kt.add`
    After:  `kt.submit`, `kt.experts` (GPU, hot), `kt.mlp` (GPU, shared), `kt.experts` (CPU), `kt.await`, `kt.add`
  }];
  let options = [
    Option<"target", "target", "std::string", "\"\"", "target file; empty: this machine, without its GPUs">,
    Option<"rowScales", "row-scales", "bool", "false", "int8 activations have one scale per row">,
  ];
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

def FormCudaGraphs : Kt_Pass<"kt-form-cuda-graphs"> {
  let summary = "collect the GPU's steps of decode and sample entries in one chain per device";
  let description = [{
    The steps of a GPU in a decode entry become one graph, launched once per step, and so does its sample entry behind it. Submits
    and awaits belong to it; a `kt.transfer`, in which the host or another GPU takes part, cuts it in two. Extend entries have varying
    shapes and stay eager.

    Before: `kt.entry @"decode[1]" decode … { kt.norm … on cuda:0 }`
    After:  `kt.entry @"decode[1]" decode … graphs [#kt.graph<"decode[1].cuda:0" on "cuda:0">] { kt.norm … {graph = 0 : i64} }`
  }];
}

def JoinLaunches : Kt_Pass<"kt-join-launches"> {
  let summary = "mark steps of a GPU that are one launch together";
  let description = [{
    Steps of one GPU and one graph of a decode entry that follow each other there and have one kernel together get one
    `launch_group`, a number within the entry. Which sequences those are, and what one step has to hand on to the next, is the table
    of `runtime/formats/launch_groups.h`: so far an await and the sum and norm of which it is a term, and a router and its submit with
    the sum and norm in front of them. From the first step on, the longest sequence that begins there is taken.

    Only marks: `kt-plan-memory` keeps what members of a group touch apart, and a runtime that cannot do a group as one launch (host
    nodes, rows that it cannot read in vectors) does its steps one by one. Nothing moves, so remarks say what lies between steps
    that would have gone together.

    Before: `%r = kt.await %y … {graph = 0 : i64}`, `%h, %n = kt.add_norm rms %x, %r @norm … {graph = 0 : i64}`
    After:  `%r = kt.await %y … {graph = 0 : i64, launch_group = 3 : i64}`,
            `%h, %n = kt.add_norm rms %x, %r @norm … {graph = 0 : i64, launch_group = 3 : i64}`
  }];
}

def PlanMemory : Kt_Pass<"kt-plan-memory"> {
  let summary = "give every value, input and scratch area a fixed address";
  let description = [{
    Each entry gets buffers at offsets of its devices' arenas, sized at the bound of their symbol. The results of one
    `kt.linear` are columns of one buffer. A norm or a sum writes into its first operand where that dies there. Buffers whose
    live ranges meet never share bytes; the others reuse them, largest first, each at the lowest offset that fits. Members of a
    launch group are alive together: what one touches on their device is taken until the last one is done. The
    logits lie at offset 0 in every entry, so what decode leaves there sample finds. Inputs are live from before the first
    step, results until after the last, scratch during its step. An argument has one buffer on every device that reads it.

    Sets `kt.devices` with one arena per device, the CPU first, as large as the largest entry needs, and `kt.account`: weights
    by module class, caches, arena, and with a GPU its step block and the CPU's records.

    Before: `%y = kt.norm rms %x … : …`
    After:  `%y = kt.norm rms %x … {in_views = [#kt.view<3[0, 192]>], out_views = [#kt.view<4[0, 192]>]} : …`
  }];
}

def VerifyLowered : Kt_Pass<"kt-verify-lowered"> {
  let summary = "check addresses, live ranges, scratch and account";
  let description = [{
    Every operand and result has a view inside a buffer of its type on the op's device; every buffer lies in its device's
    arena, aligned to 64 bytes; members of a launch group follow each other on their GPU, in one graph of a decode entry, and are a
    sequence of the table; buffers whose live ranges meet do not share bytes; scratch is large enough
    (runtime/formats/workspace.h); roles are complete; the account's lines equal what weights, caches and arenas need.
    Derived anew from the IR, not from the plan that kt-plan-memory made. Sets `kt.phase` to `lowered`.
  }];
}

#endif
