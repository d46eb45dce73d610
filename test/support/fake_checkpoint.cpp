#include "test/support/fake_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

namespace ktc::test {

namespace fs = std::filesystem;
using nlohmann::json;

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "ktc-test-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

namespace {

std::uint64_t dtype_size(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "I64") return 8;
  if (dtype.starts_with("F8") || dtype == "U8" || dtype == "I8") return 1;
  return 2;
}

void write_shard(const fs::path& path, const FakeTensor* first, const FakeTensor* last) {
  json header = json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t offset = 0;
  for (const FakeTensor* t = first; t != last; ++t) {
    header[t->name] = {{"dtype", t->dtype}, {"shape", t->shape}, {"data_offsets", {offset, offset + t->bytes()}}};
    offset += t->bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = text.size();  // little-endian machines only, like the project
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << text;
  offset = 8 + length;
  for (const FakeTensor* t = first; t != last; ++t) {
    if (!t->data.empty()) {
      file.seekp(static_cast<std::streamoff>(offset));
      file.write(reinterpret_cast<const char*>(t->data.data()), static_cast<std::streamsize>(t->data.size()));
    }
    offset += t->bytes();
  }
  file.close();
  fs::resize_file(path, offset);
}

}  // namespace

std::uint64_t FakeTensor::bytes() const {
  std::uint64_t bytes = dtype_size(dtype);
  for (std::uint64_t size : shape) bytes *= size;
  return bytes;
}

std::string shard_name(std::size_t shard, std::size_t shards) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
  return name;
}

void FakeCheckpoint::write(const fs::path& folder) const {
  fs::create_directories(folder);
  write_text(folder / "config.json", config.dump(2));
  for (const auto& [name, text] : files) write_text(folder / name, text);
  const FakeTensor* first = tensors.data();
  if (shards == 1) return write_shard(folder / "model.safetensors", first, first + tensors.size());
  json map = json::object();
  std::uint64_t bytes = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::size_t begin = tensors.size() * shard / shards, end = tensors.size() * (shard + 1) / shards;
    write_shard(folder / shard_name(shard, shards), first + begin, first + end);
    for (std::size_t i = begin; i < end; ++i) {
      map[tensors[i].name] = shard_name(shard, shards);
      bytes += tensors[i].bytes();
    }
  }
  write_text(folder / "model.safetensors.index.json",
             json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump());
}

void FakeCheckpoint::add(std::string name, std::vector<std::uint64_t> shape, std::string dtype) {
  tensors.push_back({std::move(name), std::move(dtype), std::move(shape)});
}

FakeTensor& FakeCheckpoint::at(const std::string& name) {
  for (FakeTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::out_of_range("no tensor " + name);
}

bool FakeCheckpoint::has(const std::string& name) const {
  return std::any_of(tensors.begin(), tensors.end(), [&](const FakeTensor& t) { return t.name == name; });
}

void FakeCheckpoint::remove(const std::string& name) {
  tensors.erase(tensors.begin() + (&at(name) - tensors.data()));
}

void FakeCheckpoint::rename(const std::string& from, const std::string& to) {
  at(from).name = to;
}

void FakeCheckpoint::fill(std::uint32_t seed) {
  for (FakeTensor& tensor : tensors) {
    if (!tensor.data.empty()) continue;
    std::vector<std::uint32_t> words{seed};
    for (char c : tensor.name) words.push_back(static_cast<unsigned char>(c));
    std::seed_seq sequence(words.begin(), words.end());
    std::mt19937 random(sequence);
    const float centre = tensor.name.find("norm") != std::string::npos ? 1.0f : 0.0f;
    tensor.data.resize(tensor.bytes());
    for (std::size_t i = 0; i < tensor.data.size(); i += dtype_size(tensor.dtype)) {
      // a sum of uniform numbers: the same on every standard library, unlike std::normal_distribution
      float value = -2;
      for (int k = 0; k < 4; ++k) value += static_cast<float>(random() >> 8) / 16777216.0f;
      value = centre + 0.087f * value;
      const auto bits = __builtin_bit_cast(std::uint32_t, value);
      const std::uint16_t high = static_cast<std::uint16_t>(bits >> 16);
      if (tensor.dtype == "F32")
        std::memcpy(&tensor.data[i], &bits, 4);
      else if (tensor.dtype == "BF16")
        std::memcpy(&tensor.data[i], &high, 2);
    }
  }
}

void FakeCheckpoint::pack_experts() {
  std::vector<FakeTensor> rest;
  std::map<std::string, std::map<std::size_t, std::map<std::string, FakeTensor>>>
      layers;  // "…mlp.experts" -> expert -> matrix
  for (FakeTensor& tensor : tensors) {
    const std::size_t at = tensor.name.find(".mlp.experts.");
    if (at == std::string::npos) {
      rest.push_back(std::move(tensor));
      continue;
    }
    const std::string prefix = tensor.name.substr(0, at + 12), tail = tensor.name.substr(at + 13);
    const std::size_t dot = tail.find('.');
    layers[prefix][std::stoul(tail)][tail.substr(dot + 1)] = std::move(tensor);
  }
  for (auto& [prefix, experts] : layers) {
    const FakeTensor& gate = experts[0].at("gate_proj.weight");
    const std::uint64_t intermediate = gate.shape[0], hidden = gate.shape[1];
    FakeTensor gate_up{prefix + ".gate_up_proj", gate.dtype, {experts.size(), 2 * intermediate, hidden}};
    FakeTensor down{prefix + ".down_proj", gate.dtype, {experts.size(), hidden, intermediate}};
    for (auto& [expert, matrices] : experts)
      for (const auto& [name, target] : {std::pair{"gate_proj.weight", &gate_up}, std::pair{"up_proj.weight", &gate_up},
                                         std::pair{"down_proj.weight", &down}}) {
        const auto& data = matrices.at(name).data;
        target->data.insert(target->data.end(), data.begin(), data.end());
      }
    rest.push_back(std::move(gate_up));
    rest.push_back(std::move(down));
  }
  tensors = std::move(rest);
}

namespace {

void add_mlp(FakeCheckpoint& c, const std::string& prefix, std::uint64_t intermediate, std::uint64_t hidden) {
  c.add(prefix + "gate_proj.weight", {intermediate, hidden});
  c.add(prefix + "up_proj.weight", {intermediate, hidden});
  c.add(prefix + "down_proj.weight", {hidden, intermediate});
}

void add_text_files(FakeCheckpoint& c) {
  c.files["tokenizer.json"] = R"({"version": "1.0", "added_tokens": [{"id": 0, "content": "<|end|>", "special": true},
    {"id": 1, "content": "<|turn|>", "special": true}], "model": {"type": "BPE", "vocab": {}, "merges": []}})";
  c.files["tokenizer_config.json"] = R"({"eos_token": "<|end|>"})";
  c.files["generation_config.json"] = R"({"eos_token_id": [0, 1], "temperature": 0.7, "top_p": 0.9, "top_k": 20})";
}

}  // namespace

FakeCheckpoint make_qwen3_moe(const FakeQwen3& d) {
  FakeCheckpoint c;
  c.config = {{"architectures", {"Qwen3MoeForCausalLM"}},
              {"model_type", "qwen3_moe"},
              {"attention_bias", false},
              {"bos_token_id", 0},
              {"eos_token_id", 0},
              {"decoder_sparse_step", 1},
              {"mlp_only_layers", d.dense_layers},
              {"head_dim", d.head_dim},
              {"hidden_act", "silu"},
              {"hidden_size", d.hidden},
              {"intermediate_size", d.dense_intermediate},
              {"max_position_embeddings", 256},
              {"moe_intermediate_size", d.intermediate},
              {"norm_topk_prob", true},
              {"num_attention_heads", d.heads},
              {"num_experts", d.experts},
              {"num_experts_per_tok", d.top_k},
              {"num_hidden_layers", d.layers},
              {"num_key_value_heads", d.kv_heads},
              {"rms_norm_eps", 1e-6},
              {"rope_scaling", nullptr},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", d.tied},
              {"torch_dtype", "bfloat16"},
              {"vocab_size", d.vocab}};
  c.add("model.embed_tokens.weight", {d.vocab, d.hidden});
  for (std::uint64_t layer = 0; layer < d.layers; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    c.add(p + "input_layernorm.weight", {d.hidden});
    c.add(p + "self_attn.q_proj.weight", {d.heads * d.head_dim, d.hidden});
    c.add(p + "self_attn.k_proj.weight", {d.kv_heads * d.head_dim, d.hidden});
    c.add(p + "self_attn.v_proj.weight", {d.kv_heads * d.head_dim, d.hidden});
    c.add(p + "self_attn.o_proj.weight", {d.hidden, d.heads * d.head_dim});
    c.add(p + "self_attn.q_norm.weight", {d.head_dim});
    c.add(p + "self_attn.k_norm.weight", {d.head_dim});
    c.add(p + "post_attention_layernorm.weight", {d.hidden});
    if (std::count(d.dense_layers.begin(), d.dense_layers.end(), static_cast<int>(layer)) > 0) {
      add_mlp(c, p + "mlp.", d.dense_intermediate, d.hidden);
      continue;
    }
    c.add(p + "mlp.gate.weight", {d.experts, d.hidden});
    for (std::uint64_t e = 0; e < d.experts; ++e)
      add_mlp(c, p + "mlp.experts." + std::to_string(e) + ".", d.intermediate, d.hidden);
  }
  c.add("model.norm.weight", {d.hidden});
  if (!d.tied) c.add("lm_head.weight", {d.vocab, d.hidden});
  add_text_files(c);
  return c;
}

FakeCheckpoint make_deepseek_v3(const FakeDeepseek& d) {
  FakeCheckpoint c;
  c.config = {{"architectures", {"DeepseekV3ForCausalLM"}},
              {"model_type", "deepseek_v3"},
              {"attention_bias", false},
              {"bos_token_id", 0},
              {"eos_token_id", 1},
              {"first_k_dense_replace", d.dense_layers},
              {"hidden_act", "silu"},
              {"hidden_size", d.hidden},
              {"intermediate_size", d.dense_intermediate},
              {"kv_lora_rank", d.kv_rank},
              {"max_position_embeddings", 163840},
              {"moe_intermediate_size", d.intermediate},
              {"moe_layer_freq", 1},
              {"n_group", d.groups},
              {"n_routed_experts", d.experts},
              {"n_shared_experts", d.shared},
              {"norm_topk_prob", true},
              {"num_attention_heads", d.heads},
              {"num_experts_per_tok", d.top_k},
              {"num_hidden_layers", d.layers},
              {"num_key_value_heads", d.heads},
              {"q_lora_rank", d.q_rank},
              {"qk_nope_head_dim", d.nope},
              {"qk_rope_head_dim", d.rope},
              {"rms_norm_eps", 1e-6},
              {"rope_scaling",
               {{"type", "yarn"},
                {"factor", 40},
                {"original_max_position_embeddings", 4096},
                {"beta_fast", 32},
                {"beta_slow", 1},
                {"mscale", 1.0},
                {"mscale_all_dim", 1.0}}},
              {"rope_theta", 10000},
              {"routed_scaling_factor", 2.5},
              {"scoring_func", "sigmoid"},
              {"tie_word_embeddings", false},
              {"topk_group", d.topk_groups},
              {"topk_method", "noaux_tc"},
              {"torch_dtype", "bfloat16"},
              {"v_head_dim", d.v},
              {"vocab_size", d.vocab}};
  if (d.q_rank == 0) c.config["q_lora_rank"] = nullptr;
  c.add("model.embed_tokens.weight", {d.vocab, d.hidden});
  for (std::uint64_t layer = 0; layer < d.layers; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    c.add(p + "input_layernorm.weight", {d.hidden});
    const std::uint64_t q_rows = d.heads * (d.nope + d.rope);
    if (d.q_rank == 0) {
      c.add(p + "self_attn.q_proj.weight", {q_rows, d.hidden});
    } else {
      c.add(p + "self_attn.q_a_proj.weight", {d.q_rank, d.hidden});
      c.add(p + "self_attn.q_a_layernorm.weight", {d.q_rank});
      c.add(p + "self_attn.q_b_proj.weight", {q_rows, d.q_rank});
    }
    c.add(p + "self_attn.kv_a_proj_with_mqa.weight", {d.kv_rank + d.rope, d.hidden});
    c.add(p + "self_attn.kv_a_layernorm.weight", {d.kv_rank});
    c.add(p + "self_attn.kv_b_proj.weight", {d.heads * (d.nope + d.v), d.kv_rank});
    c.add(p + "self_attn.o_proj.weight", {d.hidden, d.heads * d.v});
    c.add(p + "post_attention_layernorm.weight", {d.hidden});
    if (layer < d.dense_layers) {
      add_mlp(c, p + "mlp.", d.dense_intermediate, d.hidden);
      continue;
    }
    c.add(p + "mlp.gate.weight", {d.experts, d.hidden});
    c.add(p + "mlp.gate.e_score_correction_bias", {d.experts}, "F32");
    for (std::uint64_t e = 0; e < d.experts; ++e)
      add_mlp(c, p + "mlp.experts." + std::to_string(e) + ".", d.intermediate, d.hidden);
    if (d.shared > 0) add_mlp(c, p + "mlp.shared_experts.", d.shared * d.intermediate, d.hidden);
  }
  c.add("model.norm.weight", {d.hidden});
  c.add("lm_head.weight", {d.vocab, d.hidden});
  add_text_files(c);
  return c;
}

}  // namespace ktc::test
