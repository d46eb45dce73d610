// Steps: the ops of an entry's body, and the entry itself.
#ifndef KTC_DIALECTS_KT_STEPS_TD
#define KTC_DIALECTS_KT_STEPS_TD

include "mlir/Interfaces/SideEffectInterfaces.td"
include "dialects/kt/KtSymbols.td"

// ---------------------------------------------------------------------------------------------------------------- value types

class Kt_ValueOf<string pred, string summary>
    : Type<And<[CPred<"::ktc::kt::isValue($_self)">, CPred<pred>]>, summary, "::mlir::RankedTensorType">;
def Kt_Matrix : Kt_ValueOf<"::ktc::kt::elementOf($_self).isF32() || ::ktc::kt::elementOf($_self).isBF16()",
                           "tensor<?xNxf32 or bf16, #kt.dim>">;
def Kt_Scores : Kt_ValueOf<"::ktc::kt::elementOf($_self).isF32()", "tensor<?xNxf32, #kt.dim>">;
def Kt_Indices : Kt_ValueOf<"::ktc::kt::elementOf($_self).isInteger(32)", "tensor<?xNxi32, #kt.dim>">;

// -------------------------------------------------------------------------------------------------------------- common parts

// `weights` lists the attributes that hold weights, as C++ expressions; absent ones are left out of getWeights().
class Kt_StepOp<string mnemonic, list<string> weights = [], list<Trait> traits = [Pure]>
    : Op<Kt_Dialect, mnemonic,
         traits # [Kt_StepInterface, HasParent<"::ktc::kt::EntryOp">]
                # !if(!empty(weights), []<Trait>, [DeclareOpInterfaceMethods<SymbolUserOpInterface>])> {
  // set by the passes: kt-place, kt-plan-memory, kt-form-cuda-graphs, kt-join-launches
  dag planned = (ins OptionalAttr<Kt_PlaceAttr>:$place, OptionalAttr<Kt_ViewsAttr>:$in_views,
                     OptionalAttr<Kt_ViewsAttr>:$out_views, OptionalAttr<I64Attr>:$workspace,
                     OptionalAttr<I64Attr>:$graph, OptionalAttr<I64Attr>:$launch_group);
  let hasVerifier = 1;
  let extraClassDeclaration = "::llvm::SmallVector<::mlir::FlatSymbolRefAttr> getWeights() { return present({"
      # !interleave(weights, ", ") # "}); }";
}

// An attention op: appends this step's tokens to its layer of the cache, then attends over the cached tokens.
class Kt_AttentionOp<string mnemonic, list<string> weights>
    : Kt_StepOp<mnemonic, weights, [DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
                                    DeclareOpInterfaceMethods<Kt_SymbolEffectsInterface>]> {
  dag cached = (ins FlatSymbolRefAttr:$cache, ConfinedAttr<I64Attr, [IntNonNegative]>:$cache_layer,
                    ConfinedAttr<I64Attr, [IntNonNegative]>:$order);
}

// ---------------------------------------------------------------------------------------------------------------------- steps

// An op that multiplies by packed matrices. kt-tile-cpu sets its tile: how activations are scaled and when tiles serve.
class Kt_ProductOp<string mnemonic, list<string> weights, list<Trait> traits = [Pure]>
    : Kt_StepOp<mnemonic, weights, traits> {
  dag tiled = !con((ins OptionalAttr<Kt_TileAttr>:$tile), planned);
}

def Kt_EmbedOp : Kt_StepOp<"embed", ["getWeightAttr()"]> {
  let summary = "look up the rows of token ids";
  let description = [{
    Row r of the result is row ids[r] of the weight, [vocab, hidden].

    Example:
    ```mlir
    %h = kt.embed %ids @embed of <Embedding "model.embed_tokens"> : tensor<?x1xi32, #kt.dim<tokens>> -> tensor<?x192xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_Indices:$ids, FlatSymbolRefAttr:$weight, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = "$ids $weight `of` $module attr-dict `:` type($ids) `->` type($out)";
}

def Kt_NormOp : Kt_StepOp<"norm", ["getWeightAttr()"], [Pure, AllTypesMatch<["x", "out"]>]> {
  let summary = "normalise every row and scale its columns";
  let description = [{
    `rms`: x * rsqrt(mean(x^2) + eps) * weight, in f32.

    Example:
    ```mlir
    %y = kt.norm rms %x @norm eps 1.0e-06 of <Norm "model.norm"> : tensor<?x192xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_NormKindAttr:$kind, Kt_Matrix:$x, FlatSymbolRefAttr:$weight, F32Attr:$eps,
                            Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = "`` $kind $x $weight `eps` $eps `of` $module attr-dict `:` type($x)";
}

def Kt_LinearOp : Kt_ProductOp<"linear", ["getWeightAttr()", "getBiasAttr()"]> {
  let summary = "multiply by a weight matrix";
  let description = [{
    y = x W^T + bias. Several results are consecutive column ranges of the one product, so their columns add up to the rows of
    the weight.

    Example:
    ```mlir
    %q, %k = kt.linear %x @qk of <Attention "model.layers.0.self_attn" layer 0> : tensor<?x192xf32, #kt.dim<tokens>> -> tensor<?x384xf32, #kt.dim<tokens>>, tensor<?x128xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$x, FlatSymbolRefAttr:$weight, OptionalAttr<FlatSymbolRefAttr>:$bias,
                            Kt_ModuleAttr:$module), tiled);
  let results = (outs Variadic<Kt_Matrix>:$outs);
  let assemblyFormat = "$x $weight (`bias` $bias^)? `of` $module attr-dict `:` type($x) `->` type($outs)";
}

def Kt_GqaOp : Kt_AttentionOp<"gqa", ["getQNormAttr()", "getKNormAttr()"]> {
  let summary = "attend with grouped queries over a paged cache";
  let description = [{
    In order: normalise each head of q and k where `q_norm` / `k_norm` are given, turn both by `rope`, append k and v to layer
    `cache_layer` of the cache, then softmax(q k^T * scale) v over the sequence's tokens up to the query's position. `heads /
    kv_heads` queries share one key and value head.

    Example:
    ```mlir
    %o = kt.gqa %q, %k, %v, %positions cache @kv[0] order 0 q_norm @q_norm k_norm @k_norm of <Attention "model.layers.0.self_attn" layer 0> {heads = 6 : i64, kv_heads = 2 : i64, head_dim = 64 : i64, scale = 1.250000e-01 : f32, norm_eps = 1.000000e-06 : f32, rope = #kt.rope<half, factor = 1.000000e+00 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x384xf32, #kt.dim<tokens>>, tensor<?x128xf32, #kt.dim<tokens>>, tensor<?x128xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>) -> tensor<?x384xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$q, Kt_Matrix:$k, Kt_Matrix:$v, Kt_Indices:$positions), cached,
                       (ins OptionalAttr<FlatSymbolRefAttr>:$q_norm, OptionalAttr<FlatSymbolRefAttr>:$k_norm,
                            Kt_PositiveI64:$heads, Kt_PositiveI64:$kv_heads, Kt_PositiveI64:$head_dim, F32Attr:$scale,
                            F32Attr:$norm_eps, Kt_RopeAttr:$rope, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = [{
    operands `cache` $cache `[` $cache_layer `]` `order` $order (`q_norm` $q_norm^)? (`k_norm` $k_norm^)? `of` $module
    attr-dict `:` functional-type(operands, results)
  }];
}

def Kt_MlaOp : Kt_AttentionOp<"mla", ["getKvBAttr()", "getWUkAttr()", "getWUvAttr()"]> {
  let summary = "attend in the latent space over a paged cache";
  let description = [{
    `latent` is the normed key/value latent, `k_rope` the rope part of the key that all heads share; a head of q is
    [nope, rope]. In order: turn the rope parts, append latent and k_rope to layer `cache_layer` of the cache, then per head
    score_j = (W_UK q_nope . latent_j + q_rope . k_rope_j) * scale and out = W_UV (softmax(score) latent).
    As imported the op holds `kv_b` [heads * (nope + v), latent], each head's nope rows first; `kt-fold-weights` splits it into
    `w_uk` [heads, latent, nope] and `w_uv` [heads, v, latent], which is what kernels take.

    Example:
    ```mlir
    %o = kt.mla %q, %latent, %k_rope, %positions cache @kv[0] order 0 kv_b @kv_b of <Attention "model.layers.0.self_attn" layer 0> {heads = 4 : i64, nope_dim = 128 : i64, rope_dim = 4 : i64, v_dim = 128 : i64, latent_dim = 512 : i64, scale = 7.200000e-02 : f32, rope = #kt.rope<interleaved, factor = 1.000000e+00 : f32, inv_freq = [1.0, 0.5]>} : (tensor<?x528xf32, #kt.dim<tokens>>, tensor<?x512xf32, #kt.dim<tokens>>, tensor<?x4xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>) -> tensor<?x512xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$q, Kt_Matrix:$latent, Kt_Matrix:$k_rope, Kt_Indices:$positions), cached,
                       (ins OptionalAttr<FlatSymbolRefAttr>:$kv_b, OptionalAttr<FlatSymbolRefAttr>:$w_uk,
                            OptionalAttr<FlatSymbolRefAttr>:$w_uv, Kt_PositiveI64:$heads, Kt_PositiveI64:$nope_dim,
                            Kt_PositiveI64:$rope_dim, Kt_PositiveI64:$v_dim, Kt_PositiveI64:$latent_dim, F32Attr:$scale,
                            Kt_RopeAttr:$rope, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = [{
    operands `cache` $cache `[` $cache_layer `]` `order` $order (`kv_b` $kv_b^)? (`w_uk` $w_uk^ `w_uv` $w_uv)? `of` $module
    attr-dict `:` functional-type(operands, results)
  }];
}

def Kt_RouteOp : Kt_StepOp<"route", ["getWeightAttr()", "getBiasAttr()"]> {
  let summary = "choose experts for every row";
  let description = [{
    l = x W^T in f32. `softmax_topk`: p = softmax(l), the `top_k` largest, divided by their sum when `normalise`, times
    `scale`. `sigmoid_group`: s = sigmoid(l); chosen by s + bias within the `topk_groups` best of `groups` groups; weights are
    s of the chosen, treated alike. Ids are in descending order of the selection score, ties by the lower id.

    Example:
    ```mlir
    %ids, %weights = kt.route softmax_topk %x @gate of <Router "model.layers.0.mlp.gate" layer 0> {experts = 32 : i64, top_k = 8 : i64, normalise = true, scale = 1.000000e+00 : f32, groups = 1 : i64, topk_groups = 1 : i64} : tensor<?x192xf32, #kt.dim<tokens>> -> tensor<?x8xi32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_RouterKindAttr:$kind, Kt_Matrix:$x, FlatSymbolRefAttr:$weight,
                            OptionalAttr<FlatSymbolRefAttr>:$bias, Kt_PositiveI64:$experts, Kt_PositiveI64:$top_k,
                            BoolAttr:$normalise, F32Attr:$scale, Kt_PositiveI64:$groups, Kt_PositiveI64:$topk_groups,
                            Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Indices:$ids, Kt_Scores:$scores);
  let assemblyFormat = [{
    `` $kind $x $weight (`bias` $bias^)? `of` $module attr-dict `:` type($x) `->` type($ids) `,` type($scores)
  }];
}

def Kt_ExpertsOp : Kt_ProductOp<"experts", ["getBankAttr()"], [Pure, AllTypesMatch<["x", "out"]>]> {
  let summary = "sum the chosen experts of every row";
  let description = [{
    y = sum over the row's ids e of weight_e * down_e(activation(gate_up_e(x))), in the order of ids.
    `slots` has a number for every expert of the router: which matrix of the bank it is, or -1 for an expert that another op
    computes; without it expert e is matrix e. `late` makes the op one of two: a `part` of the pairs of the tokens whose flag
    in `deferred` is set (`#kt.late`); `kt-defer-experts` makes such pairs of ops. With `stream` the bank lies on the CPU and is
    copied through the op's GPU in every step; with `share` the CPU takes some of its experts, by a rule at run time, in another op with
    the same `share`. `kt-stream-experts` makes such ops.

    Example:
    ```mlir
    %y = kt.experts swiglu %x, %ids, %weights @experts of <RoutedExperts "model.layers.0.mlp.experts" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x8xi32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>>
    %z = kt.experts swiglu %x, %ids, %weights deferred %flags @four.cold slots [0, -1, 1, 2] late <count = 2, part = in_time> of <RoutedExperts "model.layers.0.mlp.experts" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_ActivationAttr:$activation, Kt_Matrix:$x, Kt_Indices:$ids, Kt_Scores:$scores,
                            Optional<Kt_Indices>:$deferred, FlatSymbolRefAttr:$bank,
                            OptionalAttr<DenseI32ArrayAttr>:$slots, OptionalAttr<Kt_LateAttr>:$late,
                            UnitAttr:$stream, OptionalAttr<Kt_ShareAttr>:$share, Kt_ModuleAttr:$module), tiled);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = [{
    `` $activation $x `,` $ids `,` $scores (`deferred` $deferred^)? $bank (`slots` $slots^)? (`late` $late^)? (`stream` $stream^)?
    (`share` $share^)? `of` $module attr-dict `:` type($x) `,` type($ids) `,` type($scores) (`,` type($deferred)^)?
  }];
}

def Kt_MlpOp : Kt_ProductOp<"mlp", ["getGateUpAttr()", "getDownAttr()"], [Pure, AllTypesMatch<["x", "out"]>]> {
  let summary = "apply a gated feed-forward block";
  let description = [{
    y = down(activation(gate_up(x))); `gate_up` is [2 * intermediate, hidden], gate rows first.

    Example:
    ```mlir
    %y = kt.mlp swiglu %x gate_up @gate_up down @down of <DenseMlp "model.layers.0.mlp" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_ActivationAttr:$activation, Kt_Matrix:$x, FlatSymbolRefAttr:$gate_up,
                            FlatSymbolRefAttr:$down, Kt_ModuleAttr:$module), tiled);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = "`` $activation $x `gate_up` $gate_up `down` $down `of` $module attr-dict `:` type($x)";
}

def Kt_AddOp : Kt_StepOp<"add"> {
  let summary = "add matrices, left to right";
  let description = [{
    Two or more operands of one type.

    Example:
    ```mlir
    %y = kt.add %a, %b of <Attention "model.layers.0.self_attn" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x192xf32, #kt.dim<tokens>> -> tensor<?x192xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Variadic<Kt_Matrix>:$terms, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = "$terms `of` $module attr-dict `:` type($terms) `->` type($out)";
}

def Kt_AddNormOp : Kt_StepOp<"add_norm", ["getWeightAttr()"], [Pure, AllTypesMatch<["sum", "out"]>]> {
  let summary = "add matrices and normalise the sum";
  let description = [{
    `sum` as kt.add makes it, `out` as kt.norm makes it of the sum; `kt-fuse` puts the two together.

    Example:
    ```mlir
    %h, %y = kt.add_norm rms %a, %b @norm eps 1.0e-06 of <Norm "model.layers.0.post_attention_layernorm" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x192xf32, #kt.dim<tokens>> -> tensor<?x192xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_NormKindAttr:$kind, Variadic<Kt_Matrix>:$terms, FlatSymbolRefAttr:$weight, F32Attr:$eps,
                            Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$sum, Kt_Matrix:$out);
  let assemblyFormat = [{
    `` $kind $terms $weight `eps` $eps `of` $module attr-dict `:` type($terms) `->` type($sum)
  }];
}

// ------------------------------------------------------------------------------------------- values that change their device

def Kt_TransferOp : Kt_StepOp<"transfer"> {
  let summary = "copy values to another device";
  let description = [{
    Result i is operand i, on device `to`; one of the two devices is a GPU and does the copying.

    Example:
    ```mlir
    %a, %b = kt.transfer %x, %ids from "cuda:0" to "cpu" of <RoutedExperts "model.layers.0.mlp.experts" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x8xi32, #kt.dim<tokens>> -> tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x8xi32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Variadic<AnyTypeOf<[Kt_Matrix, Kt_Indices]>>:$values, StrAttr:$from, StrAttr:$to,
                            Kt_ModuleAttr:$module), planned);
  let results = (outs Variadic<AnyTypeOf<[Kt_Matrix, Kt_Indices]>>:$outs);
  let assemblyFormat = "$values `from` $from `to` $to `of` $module attr-dict `:` type($values) `->` type($outs)";
  code devices = [{
    ::llvm::StringRef operandDevice() { return getFrom(); }
    ::llvm::StringRef resultDevice() { return getTo(); }
  }];
  let extraClassDeclaration = "::llvm::SmallVector<::mlir::FlatSymbolRefAttr> getWeights() { return {}; }" # devices;
}

// Half of a hand-off. Not pure: the GPU and the CPU meet here, so nothing may remove, merge or repeat it.
class Kt_HandOffOp<string mnemonic, list<Trait> traits> : Kt_StepOp<mnemonic, [], traits> {
  dag record = (ins ConfinedAttr<I64Attr, [IntNonNegative]>:$record, StrAttr:$format);
}

def Kt_SubmitOp : Kt_HandOffOp<"submit", [AllTypesMatch<["x", "cpu_x"]>, AllTypesMatch<["ids", "cpu_ids"]>,
                                          AllTypesMatch<["scores", "cpu_scores"]>]> {
  let summary = "hand the tokens of a layer to the experts of the CPU";
  let description = [{
    Runs on a GPU of a decode entry; the results are the operands, on the CPU. They go through record `record` of the entry, x
    rounded to `format`, and only pairs whose expert has a slot are counted (`slots` as in kt.experts: those of the CPU's op).
    Exactly one kt.await has the same record.

    Example:
    ```mlir
    %cx, %cids, %cweights = kt.submit %x, %ids, %weights record 0 as "bf16" slots [0, -1, 1, 2] of <RoutedExperts "model.layers.0.mlp.experts" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$x, Kt_Indices:$ids, Kt_Scores:$scores), record,
                       (ins OptionalAttr<DenseI32ArrayAttr>:$slots, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$cpu_x, Kt_Indices:$cpu_ids, Kt_Scores:$cpu_scores);
  let assemblyFormat = [{
    $x `,` $ids `,` $scores `record` $record `as` $format (`slots` $slots^)? `of` $module attr-dict `:` type($x) `,`
    type($ids) `,` type($scores)
  }];
  code devices = [{ ::llvm::StringRef resultDevice() { return "cpu"; } }];
  let extraClassDeclaration = "::llvm::SmallVector<::mlir::FlatSymbolRefAttr> getWeights() { return {}; }" # devices;
}

def Kt_AwaitOp : Kt_HandOffOp<"await", [AllTypesMatch<["value", "out"]>]> {
  let summary = "take the result of the CPU's experts";
  let description = [{
    Runs on a GPU of a decode entry; the result is the operand, rounded to `format`, on this GPU. With `skip_empty`, a step
    whose record has no pair does not wait: the result is zero.

    Example:
    ```mlir
    %r = kt.await %y record 0 as "bf16" skip_empty of <RoutedExperts "model.layers.0.mlp.experts" layer 0> : tensor<?x192xf32, #kt.dim<tokens>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$value), record, (ins UnitAttr:$skip_empty, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = [{
    $value `record` $record `as` $format (`skip_empty` $skip_empty^)? `of` $module attr-dict `:` type($value)
  }];
  code devices = [{ ::llvm::StringRef operandDevice() { return "cpu"; } }];
  let extraClassDeclaration = "::llvm::SmallVector<::mlir::FlatSymbolRefAttr> getWeights() { return {}; }" # devices;
}

// ------------------------------------------------------------------------------------------------------------------ the rest

def Kt_SelectRowsOp : Kt_StepOp<"select_rows"> {
  let summary = "keep the rows that need logits";
  let description = [{
    Row r of the result is row rows[r] of x: from `tokens` to `rows`. In an entry cut in halves x is the first one and `then` the
    second one; rows count through both.

    Example:
    ```mlir
    %y = kt.select_rows %x, %rows of <Norm "model.norm"> : tensor<?x192xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<rows>> -> tensor<?x192xf32, #kt.dim<rows>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$x, Kt_Indices:$rows, Optional<Kt_Matrix>:$second, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Matrix:$out);
  let assemblyFormat = [{
    $x `,` $rows (`then` $second^)? `of` $module attr-dict `:` type($x) `,` type($rows) (`then` type($second)^)? `->` type($out)
  }];
}

def Kt_LmHeadOp : Kt_ProductOp<"lm_head", ["getWeightAttr()"]> {
  let summary = "turn hidden states into logits";
  let description = [{
    The product with the vocabulary matrix, [vocab, hidden]; reported on its own.

    Example:
    ```mlir
    %logits = kt.lm_head %x @embed of <Head "lm_head"> : tensor<?x192xf32, #kt.dim<rows>> -> tensor<?x4096xf32, #kt.dim<rows>>
    ```
  }];
  let arguments = !con((ins Kt_Matrix:$x, FlatSymbolRefAttr:$weight, Kt_ModuleAttr:$module), tiled);
  let results = (outs Kt_Scores:$out);
  let assemblyFormat = "$x $weight `of` $module attr-dict `:` type($x) `->` type($out)";
}

def Kt_SampleOp : Kt_StepOp<"sample"> {
  let summary = "draw the next id of every row";
  let description = [{
    Temperature, penalties, cut-offs and the seed come with each row's request; equal logits, parameters and positions give
    equal ids.

    Example:
    ```mlir
    %next = kt.sample %logits of <Head "lm_head"> : tensor<?x4096xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    ```
  }];
  let arguments = !con((ins Kt_Scores:$logits, Kt_ModuleAttr:$module), planned);
  let results = (outs Kt_Indices:$ids);
  let assemblyFormat = "$logits `of` $module attr-dict `:` type($logits) `->` type($ids)";
}

// ------------------------------------------------------------------------------------------------------------------- entries

def Kt_EntryOp : Kt_SymbolOp<"entry", [IsolatedFromAbove, SingleBlock,
                                       DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "define the steps of one kind of call";
  let description = [{
    Arguments and results by kind, where T counts tokens and R counts rows that need logits:

    | kind           | arguments                                                | returns                       |
    |----------------|----------------------------------------------------------|-------------------------------|
    | generic        | ids i32 [T, 1], positions i32 [T, 1]                     | next ids i32 [T, 1]           |
    | extend, decode | ids i32 [T, 1], positions i32 [T, 1], rows i32 [R, 1],   | logits f32 [R, vocab]         |
    |                | and with late experts deferred i32 [T, 1]                |                               |
    | sample         | logits f32 [R, vocab]                                    | next ids i32 [R, 1]           |

    An extend entry cut in halves (`kt-halve-batches`) has ids, positions and deferred of its first half, and behind all of them
    the same of its second half: F and S instead of T, the first and the second half of the step's tokens.

    `bounds` states the largest T, R and number of sequences; a generic entry has none. `buffers` is the memory plan. `graphs`
    are the chains of steps that a GPU replays at once; a step names its graph by index. `from`: a step of at least so many tokens
    runs in this entry, also where a smaller one has room.
    Accesses to caches are in ascending `order` (see the head of `KtDialect.td`).

    Example:
    ```mlir
    kt.entry @"sample[8]" sample bounds <tokens = 8, rows = 8, sequences = 8> {
    ^bb0(%logits: tensor<?x4096xf32, #kt.dim<rows>>):
      %next = kt.sample %logits of <Head "lm_head"> : tensor<?x4096xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
      kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Kt_EntryKindAttr:$kind, OptionalAttr<Kt_BoundsAttr>:$bounds,
                       OptionalAttr<Kt_BuffersAttr>:$buffers, OptionalAttr<Kt_GraphsAttr>:$graphs,
                       OptionalAttr<Kt_PositiveI64>:$from, OptionalAttr<StrAttr>:$sym_visibility);
  let regions = (region SizedRegion<1>:$body);
  let extraClassDeclaration = "bool isCutInHalves();";
  let assemblyFormat = [{
    $sym_name `` $kind (`bounds` $bounds^)? (`buffers` $buffers^)? (`graphs` $graphs^)? (`from` $from^)?
    attr-dict-with-keyword $body
  }];
  let hasRegionVerifier = 1;
}

def Kt_ReturnOp : Op<Kt_Dialect, "return", [Pure, Terminator, HasParent<"::ktc::kt::EntryOp">]> {
  let summary = "end an entry with its results";
  let description = [{
    Example:
    ```mlir
    kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
}

#endif
