// Symbols of a module: weights, expert banks, caches, tables.
#ifndef KTC_DIALECTS_KT_SYMBOLS_TD
#define KTC_DIALECTS_KT_SYMBOLS_TD

include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/CommonAttrConstraints.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "dialects/kt/KtInterfaces.td"

class Kt_SymbolOp<string mnemonic, list<Trait> traits = []>
    : Op<Kt_Dialect, mnemonic, traits # [Symbol, HasParent<"::mlir::ModuleOp">]>;

def Kt_CheckpointType : TypeAttrOf<AnyTypeOf<[F32, BF16, F16, F8E4M3FN]>>;
def Kt_PositiveI64 : ConfinedAttr<I64Attr, [IntPositive]>;

def Kt_WeightOp : Kt_SymbolOp<"weight"> {
  let summary = "declare a packed [batch, rows, columns] matrix stack";
  let description = [{
    `shape` is [batch, output features, input features]; a vector is [1, 1, columns]. `source` is the element type in the
    checkpoint. The pieces of `recipe` cover every row of every matrix exactly once and name slots of one matrix each.
    Device, format and packing come together, from `kt-place`; `group` stands beside them where a scale belongs to so many
    input features instead of a row. `kt-tile-cpu` pairs gate and up: packing `panel_paired`.

    Example:
    ```mlir
    kt.weight @model.layers.0.self_attn.q_proj [1, 384, 192] bf16
        from [#kt.piece<slot = "model.layers.0.self_attn.q_proj", rows = 384>]
    kt.weight @model.norm [1, 1, 192] bf16 from [#kt.piece<slot = "model.norm", rows = 1>]
        on "cpu" as "bf16" packed "row_major"
    kt.weight @lm_head [1, 4096, 192] bf16 from [#kt.piece<slot = "lm_head", rows = 4096>]
        on "cpu" as "int4" packed "panel" group 64
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, DenseI64ArrayAttr:$shape, Kt_CheckpointType:$source, Kt_RecipeAttr:$recipe,
                       OptionalAttr<StrAttr>:$device, OptionalAttr<StrAttr>:$format, OptionalAttr<StrAttr>:$packing,
                       OptionalAttr<Kt_PositiveI64>:$group, OptionalAttr<StrAttr>:$sym_visibility);
  let assemblyFormat = [{
    $sym_name $shape $source `from` $recipe (`on` $device^ `as` $format `packed` $packing)? (`group` $group^)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    uint64_t getBatch() { return getShape()[0]; }
    uint64_t getRows() { return getShape()[1]; }
    uint64_t getColumns() { return getShape()[2]; }
    bool isVector() { return getBatch() == 1 && getRows() == 1; }
  }];
}

def Kt_ExpertBankOp : Kt_SymbolOp<"expert_bank"> {
  let summary = "declare all routed experts of one layer";
  let description = [{
    Two matrix stacks: `gate_up` [experts, 2 * intermediate, hidden], gate rows first, and `down` [experts, hidden,
    intermediate]. Their recipes name slots with one matrix per expert; a piece is applied to every matrix. `packing` is that
    of gate_up; down is packed `panel` where gate_up is `panel_paired`. `group` as in kt.weight.
    With `ids`, ascending, the bank holds these matrices of the slots only. `hot` says which of its experts belong on GPUs, one
    attribute for each of them; `kt-split-experts` makes each a bank of its own.

    Example:
    ```mlir
    kt.expert_bank @model.layers.0.mlp.experts experts 32 hidden 192 intermediate 64 bf16
        gate_up [#kt.piece<slot = "model.layers.0.mlp.experts.gate_up", rows = 128>]
        down [#kt.piece<slot = "model.layers.0.mlp.experts.down", rows = 192>]
        on "cpu" as "bf16" packed "row_major"
    kt.expert_bank @model.layers.0.mlp.experts.hot experts 2 ids [3, 17] hidden 192 intermediate 64 bf16
        gate_up [#kt.piece<slot = "model.layers.0.mlp.experts.gate_up", rows = 128>]
        down [#kt.piece<slot = "model.layers.0.mlp.experts.down", rows = 192>]
        on "cuda:0" as "bf16" packed "row_major"
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Kt_PositiveI64:$experts, OptionalAttr<DenseI32ArrayAttr>:$ids,
                       Kt_PositiveI64:$hidden, Kt_PositiveI64:$intermediate, Kt_CheckpointType:$source, Kt_RecipeAttr:$gate_up, Kt_RecipeAttr:$down,
                       OptionalAttr<StrAttr>:$device, OptionalAttr<StrAttr>:$format, OptionalAttr<StrAttr>:$packing,
                       OptionalAttr<Kt_PositiveI64>:$group, OptionalAttr<Kt_HotListAttr>:$hot, OptionalAttr<Kt_ShareAttr>:$share,
                       OptionalAttr<StrAttr>:$sym_visibility);
  let assemblyFormat = [{
    $sym_name `experts` $experts (`ids` $ids^)? `hidden` $hidden `intermediate` $intermediate $source `gate_up` $gate_up `down` $down
    (`on` $device^ `as` $format `packed` $packing)? (`group` $group^)? (`hot` $hot^)? (`share` $share^)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = "::llvm::StringRef getDownPacking();";
}

def Kt_CacheOp : Kt_SymbolOp<"cache", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "declare a paged cache of past tokens";
  let description = [{
    A pool of pages of `page` tokens, `sequences * ceil(tokens / page)` of them in each of `layers` layers. A page holds every
    part behind the other. `pages` names the table that maps the tokens of a sequence to page ids. Device and format come
    from `kt-place`.

    Example:
    ```mlir
    kt.table @kv.pages pages [2, 16]
    kt.cache @kv paged parts [#kt.part<"k" heads = 2, width = 64>, #kt.part<"v" heads = 2, width = 64>]
        layers 8 page 16 tokens 256 sequences 2 pages @kv.pages on "cpu" as "f32"
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Kt_PartsAttr:$parts, Kt_PositiveI64:$layers, Kt_PositiveI64:$page,
                       Kt_PositiveI64:$tokens, Kt_PositiveI64:$sequences, FlatSymbolRefAttr:$pages,
                       OptionalAttr<StrAttr>:$device, OptionalAttr<StrAttr>:$format, OptionalAttr<StrAttr>:$sym_visibility);
  let assemblyFormat = [{
    $sym_name `paged` `parts` $parts `layers` $layers `page` $page `tokens` $tokens `sequences` $sequences `pages` $pages
    (`on` $device^ `as` $format)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    uint64_t getPagesPerSequence() { return (getTokens() + getPage() - 1) / getPage(); }
    uint64_t getPoolPages() { return getSequences() * getPagesPerSequence(); }
    // elements of one token in one layer, over all parts
    uint64_t getTokenElements();
  }];
}

def Kt_TableOp : Kt_SymbolOp<"table"> {
  let summary = "declare a small table that the host writes between steps";
  let description = [{
    `pages` [sequences, pages per sequence]: the page ids of each sequence, i32. Entries read it and never write it.

    Example:
    ```mlir
    kt.table @kv.pages pages [2, 16]
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Kt_TableKindAttr:$kind, DenseI64ArrayAttr:$shape,
                       OptionalAttr<StrAttr>:$sym_visibility);
  let assemblyFormat = "$sym_name `` $kind $shape attr-dict";
  let hasVerifier = 1;
}

#endif
