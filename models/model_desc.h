// ModelDesc: what a checkpoint is, read from config.json, the safetensors headers and one families/*.yaml. No weight data.
//
// Everything is concrete: shapes are numbers, every tensor of the checkpoint is claimed by exactly one slot or listed as
// skipped, attributes are resolved. Shapes are [rows, columns] = [out_features, in_features] as in the checkpoint.
// Threading: immutable after read_model; plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ktc::models {

// Where a declaration stands, relative: "qwen3_moe.yaml", line 40. Goes into IR locations and diagnostics.
struct SourceLine {
  std::string file;
  int line = 0;
};

// ------------------------------------------------------------------------------------------------------ checkpoint tensors

// Element types of checkpoint tensors that a family may use as they are. `other` occurs in skipped tensors only.
// f8_e4m3 comes with scales in a tensor of their own (TensorPiece::scales).
enum class TensorType : std::uint8_t { f32, bf16, f16, f8_e4m3, other };
std::string_view to_string(TensorType type);
int tensor_type_bytes(TensorType type);  // 0 for other

struct Tensor {
  std::string name;
  TensorType type;
  std::vector<std::uint64_t> shape;
  std::uint32_t shard;         // index in Checkpoint::shards
  std::uint64_t offset;        // of the first byte in the shard file
  std::uint64_t bytes;
};

// A rectangle of a slot that one tensor fills: the tensor, seen as [batch, rows, columns], is copied whole to
// slot[batch_begin + b, row_begin + r, c]. Column counts are equal.
struct TensorPiece {
  std::uint32_t tensor;        // index in ModelDesc::tensors
  std::uint64_t batch_begin = 0;
  std::uint64_t row_begin = 0;
  // f8_e4m3 alone: element [r, c] is code * scale[r / scale_rows, c / scale_columns], scales f32
  std::uint32_t scales = UINT32_MAX;  // index in ModelDesc::tensors
  std::uint64_t scale_rows = 0, scale_columns = 0;
};

// A weight as the model's mathematics knows it: [batch, rows, columns]. Vectors are [1, 1, columns].
// Experts of a layer are one slot with batch = experts, whatever the storage in the checkpoint; gate and up of experts and
// MLPs are one slot of 2 * intermediate rows, gate rows first.
struct WeightSlot {
  std::string name;            // module name and role, unique: "model.layers.3.mlp.experts.gate_up", "model.norm.weight"
  std::uint64_t batch = 1;
  std::uint64_t rows = 1;
  std::uint64_t columns = 0;
  TensorType type = TensorType::bf16;  // of all its tensors
  std::vector<TensorPiece> pieces;     // cover the slot exactly, without overlap; none: read_model_shapes
  SourceLine line;
};

constexpr std::uint32_t kNoSlot = UINT32_MAX;

// ----------------------------------------------------------------------------------------------------------------- modules

// The policy's vocabulary (DESIGN section 5).
enum class ModuleClass : std::uint8_t {
  Embedding, Attention, LinearAttention, Indexer, DenseMlp, SharedExperts, Router, RoutedExperts, Norm, Head
};
std::string_view to_string(ModuleClass cls);
std::optional<ModuleClass> parse_module_class(std::string_view name);

enum class NormKind : std::uint8_t { rms };
enum class RopeStyle : std::uint8_t { half, interleaved };
enum class RouterKind : std::uint8_t { softmax_topk, sigmoid_group };
enum class ActivationKind : std::uint8_t { swiglu };

// Rotary embedding, resolved: angle = position * inv_freq[i]; cos and sin are both times `factor`.
// softmax_factor multiplies the attention scale (DeepSeek's YaRN temperature, models.md 1.2.2).
struct RopeDesc {
  RopeStyle style = RopeStyle::half;
  std::uint32_t dim = 0;
  std::vector<float> inv_freq;   // dim / 2 values
  float factor = 1.0f;
  float softmax_factor = 1.0f;
  std::string type = "default";  // as the config spells it, for reports: default, linear, yarn, llama3
};

struct EmbeddingDesc { std::uint32_t weight = kNoSlot; };                                  // [vocab, hidden]
struct NormDesc { NormKind kind = NormKind::rms; float eps = 1e-6f; std::uint32_t weight = kNoSlot; };
struct GqaDesc {
  std::uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;                                                                         // softmax_factor included
  RopeDesc rope;
  float norm_eps = 1e-6f;
  std::uint32_t q = kNoSlot, k = kNoSlot, v = kNoSlot, o = kNoSlot;                        // [heads*d, H], [kv*d, H], .., [H, heads*d]
  std::uint32_t q_bias = kNoSlot, k_bias = kNoSlot, v_bias = kNoSlot, o_bias = kNoSlot;    // optional
  std::uint32_t q_norm = kNoSlot, k_norm = kNoSlot;                                        // optional, per head [head_dim]
};
struct MlaDesc {
  std::uint32_t heads = 0, q_rank = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0, v_dim = 0; // q_rank 0: q is projected directly
  float scale = 0;
  RopeDesc rope;
  float latent_eps = 1e-6f;
  std::uint32_t q = kNoSlot;                                                               // q_rank == 0: [heads*(nope+rope), H]
  std::uint32_t q_a = kNoSlot, q_a_norm = kNoSlot, q_b = kNoSlot;                          // otherwise
  std::uint32_t kv_a = kNoSlot;                                                            // [kv_rank + rope, H]
  std::uint32_t kv_a_norm = kNoSlot;                                                       // [kv_rank]
  std::uint32_t kv_b = kNoSlot;                                                            // [heads*(nope + v), kv_rank]
  std::uint32_t o = kNoSlot;                                                               // [H, heads*v]
};
struct RouterDesc {
  RouterKind kind = RouterKind::softmax_topk;
  std::uint32_t experts = 0, top_k = 0, groups = 1, topk_groups = 1;
  bool normalise = true;
  float scale = 1.0f;
  std::uint32_t weight = kNoSlot, bias = kNoSlot;                                          // [experts, H], [experts] optional
};
struct ExpertsDesc {
  ActivationKind activation = ActivationKind::swiglu;
  std::uint32_t experts = 0, intermediate = 0;
  std::uint32_t gate_up = kNoSlot, down = kNoSlot;                                         // [E, 2I, H], [E, H, I]
};
struct MlpDesc {
  ActivationKind activation = ActivationKind::swiglu;
  std::uint32_t intermediate = 0;
  std::uint32_t gate_up = kNoSlot, down = kNoSlot;                                         // [2I, H], [H, I]
};
struct HeadDesc { std::uint32_t weight = kNoSlot; };                                       // [vocab, hidden]; the embedding's slot when tied

using ModuleAttributes =
    std::variant<EmbeddingDesc, NormDesc, GqaDesc, MlaDesc, RouterDesc, ExpertsDesc, MlpDesc, HeadDesc>;

struct Module {
  ModuleClass cls;
  std::string name;            // the checkpoint's dotted module name, what policy rules match: "model.layers.3.self_attn"
  int layer = -1;              // -1: not in a layer
  ModuleAttributes attributes;
  SourceLine line;
};

constexpr std::uint32_t kNoModule = UINT32_MAX;

// One decoder layer: h += attention(attention_norm(h)); h += ffn(ffn_norm(h)), where ffn is `mlp` (dense layer) or
// experts routed by `router`, plus `shared` where present. Indices in ModelDesc::modules.
struct Layer {
  std::uint32_t attention_norm = kNoModule, attention = kNoModule, ffn_norm = kNoModule;
  std::uint32_t mlp = kNoModule;
  std::uint32_t router = kNoModule, experts = kNoModule, shared = kNoModule;
  bool is_moe() const { return experts != kNoModule; }
};

// Tensors left out on purpose.
struct SkippedTensors {
  std::string reason;          // "MTP layer, not used for generation"
  std::vector<std::uint32_t> tensors;
  std::uint64_t bytes = 0;
  std::uint32_t layers = 0;    // distinct layer numbers among them; 0 where the names have none
};

struct SamplingDefaults {      // generation_config.json; unset where the file is silent
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

struct ModelDesc {
  std::string name;            // the folder's name
  std::string family;          // "qwen3_moe"
  std::string architecture;    // "Qwen3MoeForCausalLM"
  std::filesystem::path folder;

  std::uint32_t hidden = 0, vocab = 0, max_positions = 0;
  std::int32_t bos_token = -1;
  std::vector<std::int32_t> stop_tokens;   // union of config.json, generation_config.json and tokenizer_config.json, sorted
  SamplingDefaults sampling;

  std::vector<std::filesystem::path> shards;   // absolute or relative to the caller's folder, sorted by name
  std::vector<Tensor> tensors;                 // sorted by name
  std::vector<WeightSlot> slots;
  std::vector<Module> modules;                 // in the order of execution
  std::uint32_t embedding = kNoModule, final_norm = kNoModule, head = kNoModule;
  std::vector<Layer> layers;
  bool tied_head = false;

  std::vector<SkippedTensors> skipped;
  std::vector<std::string> text_files;         // tokenizer.json, tokenizer_config.json, chat_template.jinja, ... that exist
  std::vector<std::string> warnings;           // one line each, to be shown to the user
};

}  // namespace ktc::models
