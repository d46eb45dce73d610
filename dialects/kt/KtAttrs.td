// Attributes of the kt dialect. Formats, packings and devices are words here: runtime/formats has the tables, and the
// kt-verify-* passes look them up there, so that a new format needs no new IR.
#ifndef KTC_DIALECTS_KT_ATTRS_TD
#define KTC_DIALECTS_KT_ATTRS_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/TensorEncoding.td"
include "dialects/kt/KtEnums.td"

class Kt_Attr<string name, string mnem, list<Trait> traits = []> : AttrDef<Kt_Dialect, name, traits> {
  let mnemonic = mnem;
}

// ------------------------------------------------------------------------------------------------------- enums as attributes

class Kt_EnumAttr<EnumInfo info, string mnem> : EnumAttr<Kt_Dialect, info, mnem> {
  let assemblyFormat = "$value";
}
def Kt_EntryKindAttr : Kt_EnumAttr<Kt_EntryKind, "entry_kind">;
def Kt_NormKindAttr : Kt_EnumAttr<Kt_NormKind, "norm_kind">;
def Kt_RouterKindAttr : Kt_EnumAttr<Kt_RouterKind, "router_kind">;
def Kt_TableKindAttr : Kt_EnumAttr<Kt_TableKind, "table_kind">;
def Kt_ActivationAttr : Kt_EnumAttr<Kt_Activation, "activation">;

def Kt_PhaseAttr : EnumAttr<Kt_Dialect, Kt_Phase, "phase"> {
  let assemblyFormat = "`<` $value `>`";
}

// ------------------------------------------------------------------------------------------------------------- value types

def Kt_DimAttr : Kt_Attr<"Dim", "dim", [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "names the symbol behind the rows of a value";
  let description = [{
    The encoding of every value: `tensor<?x192xf32, #kt.dim<tokens>>` has one row per token of the step. The tensor has two
    dimensions, the first is `?`, the second is fixed, elements are f32, bf16 or i32.
  }];
  let parameters = (ins EnumParameter<Kt_Dim>:$value);
  let assemblyFormat = "`<` $value `>`";
}

// ----------------------------------------------------------------------------------------------------------------- recipes

def Kt_PieceAttr : Kt_Attr<"Piece", "piece"> {
  let summary = "rows of a checkpoint slot and where they go";
  let description = [{
    Takes rows `src_row + i * row_step`, i in [0, rows), of the slot's matrix; `transpose` turns that block of
    [rows, columns] into [columns, rows]. The block goes to rows [dst_row, ...) of destination matrix `dst_batch`.
    `repeat` does this `repeat` times: repetition r reads from `src_row + r * repeat_src_row` and writes to matrix
    `dst_batch + r * repeat_dst_batch`, row `dst_row + r * repeat_dst_row`; that is how heads are told apart.
    In a `kt.expert_bank` the slot has one matrix per expert and every piece is applied to each of them.
    `compiler/weights/recipe.h` has the C++ form.
  }];
  let parameters = (ins
    StringRefParameter<"slot of ModelDesc, by name">:$slot,
    "uint64_t":$rows,
    DefaultValuedParameter<"uint64_t", "0">:$src_row,
    DefaultValuedParameter<"uint64_t", "1">:$row_step,
    DefaultValuedParameter<"bool", "false">:$transpose,
    DefaultValuedParameter<"uint64_t", "0">:$dst_batch,
    DefaultValuedParameter<"uint64_t", "0">:$dst_row,
    DefaultValuedParameter<"uint64_t", "1">:$repeat,
    DefaultValuedParameter<"uint64_t", "0">:$repeat_src_row,
    DefaultValuedParameter<"uint64_t", "0">:$repeat_dst_batch,
    DefaultValuedParameter<"uint64_t", "0">:$repeat_dst_row);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}
def Kt_RecipeAttr : TypedArrayAttrBase<Kt_PieceAttr, "array of #kt.piece">;

// --------------------------------------------------------------------------------------------------------- modules, places

def Kt_ModuleAttr : Kt_Attr<"Module", "module"> {
  let summary = "the checkpoint's module that an op belongs to";
  let description = [{
    What policy rules match: class and dotted name. `layer` is absent outside the decoder layers. The additions of a layer
    belong to the module whose output they add.
  }];
  let parameters = (ins EnumParameter<Kt_ModuleClass>:$cls, StringRefParameter<"dotted name">:$name,
                        DefaultValuedParameter<"int64_t", "-1">:$layer);
  let assemblyFormat = "`<` $cls $name (`layer` $layer^)? `>`";
}

def Kt_PlaceAttr : Kt_Attr<"Place", "place"> {
  let summary = "where an op runs and in which formats";
  let description = [{
    `weights` is the format of the matrices that the op multiplies by, `activations` the one its left operands are taken in.
    Weights and banks say the same about their bytes in their own `device` and `format`; vectors (norm weights, biases) keep
    the checkpoint's precision whatever the op's place says.
  }];
  let parameters = (ins StringRefParameter<"\"cpu\", \"cuda:0\"">:$device, StringRefParameter<"a format">:$weights,
                        StringRefParameter<"a format">:$activations);
  let assemblyFormat = "`<` $device `,` `weights` `=` $weights `,` `activations` `=` $activations `>`";
}

// MLIR prints an array of f32 with seven digits, which changes bits on the way through text.
def Kt_Floats : AttrOrTypeParameter<"::mlir::DenseF32ArrayAttr", "f32 numbers that text keeps to the bit"> {
  let parser = "parseFloats($_parser)";
  let printer = "printFloats($_printer, $_self)";
}

def Kt_TileAttr : Kt_Attr<"Tile", "tile"> {
  let summary = "how a product with packed weights is cut";
  let description = [{
    `x` and `h`: input features that share a scale of int8 activations, 64 or 128, or 0 for one scale per row; x is the left
    operand, h the hidden value of a gated block. `rows`: from how many rows of one matrix tile kernels serve; 0: never.
  }];
  let parameters = (ins "uint32_t":$x, DefaultValuedParameter<"uint32_t", "0">:$h, DefaultValuedParameter<"uint32_t", "0">:$rows);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def Kt_RopeAttr : Kt_Attr<"Rope", "rope"> {
  let summary = "rotary embedding, resolved to numbers";
  let description = [{
    Element pairs turn by `position * inv_freq[i]`; cosine and sine are both multiplied by `factor`. `inv_freq` has one
    value per pair, so the rotated width is twice its length.
  }];
  let parameters = (ins EnumParameter<Kt_RopeStyle>:$style, "::mlir::FloatAttr":$factor, Kt_Floats:$inv_freq);
  let assemblyFormat = "`<` $style `,` `factor` `=` $factor `,` `inv_freq` `=` $inv_freq `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    int64_t getDim() const { return 2 * static_cast<int64_t>(getInvFreq().size()); }
  }];
}

// --------------------------------------------------------------------------------------------------- hot and late experts

def Kt_HotAttr : Kt_Attr<"Hot", "hot"> {
  let summary = "the experts of a bank that live on a GPU, until kt-split-experts moves them into a bank of their own";
  let description = [{
    `experts`: ascending ids. Device and formats are theirs; `group` 0 is one scale per row, or none. `line` is the place in
    the policy that asked for them.
  }];
  let parameters = (ins StringRefParameter<"\"cuda:0\"">:$device, StringRefParameter<"a format">:$weights,
                        StringRefParameter<"a format">:$activations, DefaultValuedParameter<"uint32_t", "0">:$group,
                        "::mlir::DenseI32ArrayAttr":$experts, StringRefParameter<"\"policy.yaml:9:5\"">:$line);
  let assemblyFormat = "`<` struct(params) `>`";
}

def Kt_HotListAttr : TypedArrayAttrBase<Kt_HotAttr, "hot experts, by device">;

def Kt_LateAttr : Kt_Attr<"Late", "late"> {
  let summary = "how many experts of a deferred token are late, and which part an op computes";
  let description = [{
    Of a token whose `deferred` flag is not 0 the `count` pairs of lowest weight are late (of equal weights the one with the
    higher id is lower), chosen among the op's own pairs or, with `among_all`, among all of the router's.
  }];
  let parameters = (ins "uint32_t":$count, EnumParameter<Kt_ExpertsPart>:$part,
                        DefaultValuedParameter<"bool", "false">:$among_all);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def Kt_DeferAttr : Kt_Attr<"Defer", "defer"> {
  let summary = "what the policy says about late experts";
  let description = [{
    `max_per_token` as in the policy; `decode` and `prefill`: whose tokens have the flag; `all`: chosen among all experts of a
    token, not those of the CPU alone. `line` is the place in the policy.
  }];
  let parameters = (ins "uint32_t":$max_per_token, "bool":$decode, "bool":$prefill, "bool":$all,
                        StringRefParameter<"\"policy.yaml:9:5\"">:$line);
  let assemblyFormat = "`<` struct(params) `>`";
}

def Kt_StreamAttr : Kt_Attr<"Stream", "stream"> {
  let summary = "which steps of prefill let the CPU's experts pass through a GPU";
  let description = [{
    `from`: the fewest tokens of such a step; 0: none pays. `why`: what was predicted, for people. `line` is the place in the
    policy.
  }];
  let parameters = (ins "uint32_t":$from, StringRefParameter<"for people">:$why, StringRefParameter<"\"policy.yaml:9:5\"">:$line);
  let assemblyFormat = "`<` struct(params) `>`";
}

def Kt_ShareAttr : Kt_Attr<"Share", "share"> {
  let summary = "the rates by which the CPU takes a share of a bank that passes through a GPU";
  let description = [{
    In ns; `runtime/formats/expert_share.h` has the rule and says what each of them is.
  }];
  let parameters = (ins
    "uint32_t":$ahead, "uint32_t":$ahead_row, "uint32_t":$copy, "uint32_t":$gpu, "uint32_t":$gpu_row, "uint32_t":$cpu,
    "uint32_t":$cpu_row, "uint32_t":$values, "uint32_t":$values_row);
  let assemblyFormat = "`<` struct(params) `>`";
}

// ------------------------------------------------------------------------------------------------------------------ caches

def Kt_PartAttr : Kt_Attr<"Part", "part"> {
  let summary = "one array of a cache page";
  let description = "`width` elements per head and token: \"k\" and \"v\" for grouped queries, \"latent\" and \"rope\" for MLA.";
  let parameters = (ins StringRefParameter<"name">:$name, "uint64_t":$heads, "uint64_t":$width);
  let assemblyFormat = "`<` $name `heads` `=` $heads `,` `width` `=` $width `>`";
}
def Kt_PartsAttr : TypedArrayAttrBase<Kt_PartAttr, "array of #kt.part">;

// ----------------------------------------------------------------------------------------------------------- entries, memory

def Kt_BoundsAttr : Kt_Attr<"Bounds", "bounds"> {
  let summary = "the largest value of each symbol in an entry";
  let parameters = (ins "uint64_t":$tokens, "uint64_t":$rows, "uint64_t":$sequences);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    uint64_t of(Dim dim) const {
      switch (dim) {
        case Dim::tokens: return getTokens();
        case Dim::rows: return getRows();
        case Dim::sequences: return getSequences();
        case Dim::first_half: return getTokens() - getTokens() / 2;
        case Dim::second_half: return getTokens() / 2;
      }
      return getTokens();
    }
  }];
}

def Kt_BufferAttr : Kt_Attr<"Buffer", "buffer"> {
  let summary = "a range of a device's arena, for the length of a live range";
  let description = [{
    Row r starts at `offset + r * row_bytes` of the arena. `bytes` is the size at the symbol's bound. A workspace has no
    rows: its columns and row_bytes are 0 and its dimension says nothing.
  }];
  let parameters = (ins StringRefParameter<"for people">:$name, StringRefParameter<"device">:$device,
                        EnumParameter<Kt_BufferRole>:$role, EnumParameter<Kt_Dim>:$dim,
                        StringRefParameter<"a format">:$format, "uint64_t":$columns, "uint64_t":$row_bytes,
                        "uint64_t":$offset, "uint64_t":$bytes);
  let assemblyFormat = "`<` struct(params) `>`";
}
def Kt_BuffersAttr : TypedArrayAttrBase<Kt_BufferAttr, "array of #kt.buffer">;

def Kt_GraphAttr : Kt_Attr<"Graph", "graph"> {
  let summary = "steps of one device that are replayed as one chain, in the order of the body";
  let parameters = (ins StringRefParameter<"for people">:$name, StringRefParameter<"device">:$device);
  let assemblyFormat = "`<` $name `on` $device `>`";
}
def Kt_GraphsAttr : TypedArrayAttrBase<Kt_GraphAttr, "array of #kt.graph">;

def Kt_ViewAttr : Kt_Attr<"View", "view"> {
  let summary = "columns [column, column + columns) of every row of a buffer";
  let parameters = (ins "uint64_t":$buffer, "uint64_t":$column, "uint64_t":$columns);
  let assemblyFormat = "`<` $buffer `[` $column `,` $columns `]` `>`";
}
def Kt_ViewsAttr : TypedArrayAttrBase<Kt_ViewAttr, "array of #kt.view">;

// ---------------------------------------------------------------------------------------------------------- facts of a module

def Kt_ModelAttr : Kt_Attr<"Model", "model"> {
  let summary = "facts of the model that no op carries";
  let parameters = (ins
    StringRefParameter<"folder of the checkpoint">:$name, StringRefParameter<"family file">:$family,
    StringRefParameter<"architecture">:$architecture,
    "uint64_t":$hidden, "uint64_t":$vocab, "uint64_t":$layers, "uint64_t":$max_positions,
    DefaultValuedParameter<"int64_t", "-1">:$bos_token,
    OptionalParameter<"::mlir::DenseI32ArrayAttr">:$stop_tokens,
    OptionalParameter<"::mlir::DictionaryAttr", "sampling defaults that the checkpoint states">:$sampling);
  let assemblyFormat = "`<` struct(params) `>`";
}

def Kt_DeviceAttr : Kt_Attr<"Device", "device"> {
  let summary = "a device that the module uses, with the size of its arena";
  let parameters = (ins StringRefParameter<"\"cpu\", \"cuda:0\"">:$name, "uint64_t":$arena);
  let assemblyFormat = "`<` $name `,` `arena` `=` $arena `>`";
}
def Kt_DevicesAttr : TypedArrayAttrBase<Kt_DeviceAttr, "array of #kt.device">;

def Kt_AccountAttr : Kt_Attr<"Account", "account"> {
  let summary = "one line of the memory account";
  let parameters = (ins StringRefParameter<"device">:$device, StringRefParameter<"weights, kv-cache, arena, step-block or records">:$category,
                        StringRefParameter<"which one">:$name, "uint64_t":$bytes);
  let assemblyFormat = "`<` $device $category $name `=` $bytes `>`";
}
def Kt_AccountsAttr : TypedArrayAttrBase<Kt_AccountAttr, "array of #kt.account">;

#endif
