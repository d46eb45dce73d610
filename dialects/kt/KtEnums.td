// Closed lists of words. Spellings equal those of policies, families and the plan.
#ifndef KTC_DIALECTS_KT_ENUMS_TD
#define KTC_DIALECTS_KT_ENUMS_TD

include "mlir/IR/EnumAttr.td"
include "dialects/kt/KtDialect.td"

class Kt_Enum<string name, string summary, list<I32EnumCase> cases> : I32Enum<name, summary, cases> {
  let cppNamespace = "::ktc::kt";
}

def Kt_Dim : Kt_Enum<"Dim", "what the rows of a value count", [
  I32EnumCase<"tokens", 0>,     // rows of this step, over all sequences
  I32EnumCase<"rows", 1>,       // rows that need logits
  I32EnumCase<"sequences", 2>,  // sequences in this step
  I32EnumCase<"first_half", 3>, // of an entry cut in halves (kt-halve-batches): the first tokens of this step
  I32EnumCase<"second_half", 4> // and the others, if there are any
]>;

def Kt_Phase : Kt_Enum<"Phase", "last seam of the pipeline whose checks passed", [
  I32EnumCase<"imported", 0>, I32EnumCase<"placed", 1>, I32EnumCase<"transferred", 2>, I32EnumCase<"optimised", 3>,
  I32EnumCase<"tiled", 4>, I32EnumCase<"lowered", 5>, I32EnumCase<"planned", 6>
]>;

def Kt_EntryKind : Kt_Enum<"EntryKind", "kind of step", [
  I32EnumCase<"extend", 0>,     // a ragged mix of prompt chunks and single tokens
  I32EnumCase<"decode", 1>,     // one token per sequence
  I32EnumCase<"sample", 2>,     // logits to the next ids
  I32EnumCase<"generic", 3>     // as imported: no bounds, logits for every token
]>;

def Kt_ModuleClass : Kt_Enum<"ModuleClass", "module classes of policies", [
  I32EnumCase<"Embedding", 0>, I32EnumCase<"Attention", 1>, I32EnumCase<"LinearAttention", 2>, I32EnumCase<"Indexer", 3>,
  I32EnumCase<"DenseMlp", 4>, I32EnumCase<"SharedExperts", 5>, I32EnumCase<"Router", 6>, I32EnumCase<"RoutedExperts", 7>,
  I32EnumCase<"Norm", 8>, I32EnumCase<"Head", 9>
]>;

def Kt_NormKind : Kt_Enum<"NormKind", "normalisation", [
  I32EnumCase<"rms", 0>         // x * rsqrt(mean(x^2) + eps) * w
]>;

def Kt_RouterKind : Kt_Enum<"RouterKind", "how scores become experts and weights", [
  I32EnumCase<"softmax_topk", 0>,   // p = softmax(l); the k largest
  I32EnumCase<"sigmoid_group", 1>   // s = sigmoid(l); chosen by s + bias within topk_groups of groups; weights from s
]>;

def Kt_Activation : Kt_Enum<"Activation", "gated activation", [
  I32EnumCase<"swiglu", 0>      // silu(gate) * up
]>;

def Kt_ExpertsPart : Kt_Enum<"ExpertsPart", "which of its pairs an experts op computes", [
  I32EnumCase<"in_time", 1>,    // all but the late ones
  I32EnumCase<"late", 2>        // of a deferred token those of lowest weight; of other tokens none
]>;

def Kt_RopeStyle : Kt_Enum<"RopeStyle", "which elements rotate together", [
  I32EnumCase<"half", 0>,       // (i, i + dim / 2)
  I32EnumCase<"interleaved", 1> // (2i, 2i + 1)
]>;

def Kt_TableKind : Kt_Enum<"TableKind", "what a table holds", [
  I32EnumCase<"pages", 0>       // page ids of each sequence, written by the host between steps
]>;

def Kt_BufferRole : Kt_Enum<"BufferRole", "who writes and reads a buffer", [
  I32EnumCase<"value", 0>,        // an intermediate result
  I32EnumCase<"ids", 1>,          // input, i32 [tokens, 1]
  I32EnumCase<"positions", 2>,    // input, i32 [tokens, 1]
  I32EnumCase<"output_rows", 3>,  // input, i32 [rows, 1]: which token rows need logits
  I32EnumCase<"logits", 4>,       // result of extend and decode, input of sample
  I32EnumCase<"next_ids", 5>,     // result of sample
  I32EnumCase<"workspace", 6>,    // scratch of one step, no rows
  I32EnumCase<"deferred", 7>      // input, i32 [tokens, 1]: 1 for a token whose late experts come with the next MoE layer
]>;

#endif
