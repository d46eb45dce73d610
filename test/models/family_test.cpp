// Family files: the shipped ones are sound; every mistake is found with file, line and column.
#include "models/family.h"

#include "model_test_support.h"

namespace ktc::models {
namespace {

using ktc::test::read_text;
using ktc::test::TemporaryFolder;
using ktc::test::write_text;

// A small sound family; each test breaks one line of it.
const char* const kFamily = R"(version: 1
family: toy
architectures: [ToyForCausalLM]
config:
  values:
    vocab: {keys: [vocab_size], type: integer, least: 1}
    hidden: {keys: [hidden_size], type: integer, least: 1}
    layers: {keys: [num_hidden_layers], type: integer, least: 1}
    max_positions: {keys: [max_position_embeddings], type: integer, least: 1}
    heads: {keys: [num_attention_heads], type: integer, least: 1}
    head_dim: {keys: [head_dim], type: integer, default: hidden // heads}
    width: {keys: [intermediate_size], type: integer, least: 1}
    tied: {keys: [tie_word_embeddings], type: boolean, optional: true}
  restricted:
    hidden_act: [silu]
  ignored: [model_type]
  rope: {parameters: [rope_parameters], scaling: [rope_scaling], theta: [rope_theta], types: [default]}
derived:
  odd: layer % 2 == 1
require:
  - {that: hidden % heads == 0, say: heads must divide hidden}
before_layers:
  - name: embed
    class: Embedding
    slots: {weight: {tensor: weight, shape: [vocab, hidden]}}
layer_prefix: h.{layer}
layer_modules:
  - name: norm1
    class: Norm
    kind: rms
    attributes: {eps: 1e-5}
    slots: {weight: {tensor: weight, shape: [hidden]}}
  - name: attn
    class: Attention
    kind: gqa
    attributes: {heads: heads, kv_heads: heads, head_dim: head_dim}
    rope: {style: half, dim: head_dim}
    slots:
      q: {tensor: q.weight, shape: [heads * head_dim, hidden]}
      k: {tensor: k.weight, shape: [heads * head_dim, hidden]}
      v: {tensor: v.weight, shape: [heads * head_dim, hidden]}
      o: {tensor: o.weight, shape: [hidden, heads * head_dim]}
  - name: norm2
    class: Norm
    kind: rms
    attributes: {eps: 1e-5}
    slots: {weight: {tensor: weight, shape: [hidden]}}
  - name: mlp
    class: DenseMlp
    kind: swiglu
    attributes: {intermediate: width}
    slots:
      gate_up: {tensor: up.weight, shape: [2 * width, hidden]}
      down: {tensor: down.weight, shape: [hidden, width]}
after_layers:
  - name: norm
    class: Norm
    kind: rms
    attributes: {eps: 1e-5}
    slots: {weight: {tensor: weight, shape: [hidden]}}
  - name: head
    class: Head
    tied: {flag: tied, to: embed}
    slots: {weight: {tensor: weight, shape: [vocab, hidden]}}
)";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kFamily;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error(const std::string& from, const std::string& to) {
  auto family = parse_family(with(from, to), "toy.yaml");
  return family.ok() ? "" : family.status().message();
}

TEST(Family, ShippedFilesAreSound) {
  for (const char* name : {"qwen3_moe", "deepseek_v3"}) {
    auto family = parse_family(read_text(kFamilies / (std::string(name) + ".yaml")), std::string(name) + ".yaml");
    ASSERT_TRUE(family.ok()) << family.status().message();
    EXPECT_EQ(family->name, name);
  }
}

TEST(Family, ToyIsSound) {
  auto family = parse_family(kFamily, "toy.yaml");
  ASSERT_TRUE(family.ok()) << family.status().message();
  EXPECT_EQ(family->layer_modules.size(), 4u);
}

TEST(Family, MistakesAtTheTop) {
  EXPECT_EQ(error("version: 1", "version: 2"),
            "toy.yaml:1:10: version: found '2', expected 1, the version that this build reads");
  EXPECT_EQ(error("derived:", "derivde:"),
            "toy.yaml:18:1: unknown key: found 'derivde', expected one of version, family, architectures, config, "
            "derived, require, "
            "before_layers, layer_prefix, layer_modules, after_layers, skip; did you mean 'derived'?");
  EXPECT_EQ(error("layer_prefix: h.{layer}\n", ""), "toy.yaml:1:1: key 'layer_prefix' is missing");
  EXPECT_EQ(
      error("h.{layer}", "h.layer"),
      "toy.yaml:26:15: layer_prefix: found 'h.layer', expected a name with {layer}, such as model.layers.{layer}");
}

TEST(Family, MistakesInValues) {
  EXPECT_EQ(error("type: integer, least: 1}\n    hidden", "type: intger}\n    hidden"),
            "toy.yaml:6:39: config.values.vocab.type: found 'intger', expected one of integer, boolean, number, "
            "integers, texts; did "
            "you mean 'integer'?");
  EXPECT_EQ(error("default: hidden // heads", "default: hiden // heads"),
            "toy.yaml:11:58: unknown name: found 'hiden', expected a value declared above; did you mean 'hidden'?");
  EXPECT_EQ(error("default: hidden // heads", "default: head_dim"),
            "toy.yaml:11:58: unknown name: found 'head_dim', expected a value declared above");
  EXPECT_EQ(error("default: hidden // heads", "default: hidden / heads"),
            "toy.yaml:11:65: '/' is not in the language: divide integers with '//'");
  EXPECT_EQ(error("default: hidden // heads", "default: layer"),
            "toy.yaml:11:58: 'layer' has a value only within a layer");
  EXPECT_EQ(error("optional: true", "optional: true, default: true"),
            "toy.yaml:13:81: config.values.tied.default: found 'true', expected either a default or `optional: true`");
  EXPECT_EQ(error("optional: true", "least: 1"),
            "toy.yaml:13:63: config.values.tied.least: found '1', expected no bound: only an integer has one");
  EXPECT_EQ(error("    heads: {keys", "    layer: {keys"),
            "toy.yaml:10:5: name of a value: found 'layer', expected a word that the expression language does not use");
  EXPECT_EQ(error("    vocab: {keys", "    vocabulary: {keys"),
            "toy.yaml:6:5: config.values: found none, expected an integer value 'vocab', which every family has");
  EXPECT_EQ(error("ignored: [model_type]", "ignored: [model_type, hidden_size]"),
            "toy.yaml: config key 'hidden_size' is listed twice; keep one of the two");
  EXPECT_EQ(error("types: [default]", "types: [dynamic]"),
            "toy.yaml:17:95: config.rope.types[0]: found 'dynamic', expected one of default, linear, yarn, llama3");
  EXPECT_EQ(error("  odd: layer", "  hidden: layer"),
            "toy.yaml:19:3: name of a value: found 'hidden', expected a name that is not declared yet");
}

TEST(Family, MistakesInModules) {
  EXPECT_EQ(error("class: DenseMlp", "class: LinearAttention"),
            "toy.yaml:49:12: layer_modules[3].class: found 'LinearAttention', expected one of Embedding, Attention, "
            "DenseMlp, "
            "SharedExperts, Router, RoutedExperts, Norm, Head");
  EXPECT_EQ(error("kind: gqa", "kind: gla"),
            "toy.yaml:35:11: layer_modules[1].kind: found 'gla', expected one of gqa, mla");
  EXPECT_EQ(error("    kind: gqa\n", ""),
            "toy.yaml:33:5: layer_modules[1]: a module of class Attention: found no kind, expected one of gqa, mla");
  EXPECT_EQ(error("kv_heads: heads", "kv_haeds: heads"),
            "toy.yaml:36:32: unknown key in layer_modules[1].attributes: found 'kv_haeds', expected one of heads, "
            "kv_heads, head_dim, "
            "norm_eps; did you mean 'kv_heads'?");
  EXPECT_EQ(error(", kv_heads: heads", ""), "toy.yaml:36:17: key 'kv_heads' is missing in layer_modules[1].attributes");
  EXPECT_EQ(error("      k: {tensor", "      x: {tensor"),
            "toy.yaml:40:7: unknown key in layer_modules[1].slots: found 'x', expected one of q, k, v, o, q_bias, "
            "k_bias, v_bias, "
            "o_bias, q_norm, k_norm");
  EXPECT_EQ(error("      k: {tensor: k.weight, shape: [heads * head_dim, hidden]}\n", ""),
            "toy.yaml:39:7: key 'k' is missing in layer_modules[1].slots");
  EXPECT_EQ(error("    rope: {style: half, dim: head_dim}\n", ""),
            "toy.yaml:33:5: layer_modules[1]: a module of class Attention: found none, expected a map 'rope'");
  EXPECT_EQ(error("style: half", "style: quarter"),
            "toy.yaml:37:19: layer_modules[1].rope.style: found 'quarter', expected one of half, interleaved");
  EXPECT_EQ(error("shape: [2 * width, hidden]", "shape: [2 * widht, hidden]"),
            "toy.yaml:53:48: unknown name: found 'widht', expected a value declared above; did you mean 'width'?");
  EXPECT_EQ(error("tensor: up.weight", "tensor: \"{expert}.weight\""),
            "toy.yaml:53:25: layer_modules[3].slots.gate_up.tensor: found '{expert}.weight', expected a name without "
            "{expert}, or a "
            "storage with a batch");
  EXPECT_EQ(error("gate_up: {tensor: up.weight, shape: [2 * width, hidden]}", "gate_up: {when: odd}"),
            "toy.yaml:53:16: layer_modules[3].slots.gate_up: storage: found neither, expected either 'tensor' with "
            "'shape' or 'stacked'");
  EXPECT_EQ(error("tied: {flag: tied", "tied: {flag: heads"),
            "toy.yaml:63:18: after_layers[1].tied.flag: found 'heads', expected the name of a boolean value");
  EXPECT_EQ(
      error("to: embed", "to: norm1"),
      "toy.yaml:63:28: after_layers[1].tied.to: found 'norm1', expected the name of an Embedding of before_layers");
  EXPECT_EQ(error("    class: Head\n", "    class: Head\n    when: odd\n"),
            "toy.yaml:63:11: 'odd' has a value only within a layer");
}

TEST(Family, MistakesInSkips) {
  auto skip = [](const std::string& line) {
    auto family = parse_family(std::string(kFamily) + "skip:\n  - " + line + "\n", "toy.yaml");
    return family.ok() ? "" : family.status().message();
  };
  EXPECT_EQ(skip("{reason: x, prefixes: [mtp.]}"), "");
  EXPECT_EQ(skip("{reason: x}"),
            "toy.yaml:66:5: skip[0]: skip: found 0, expected exactly one of prefixes, suffixes, layers_beyond: true");
  EXPECT_EQ(
      skip("{reason: x, prefixes: [\"\"]}"),
      "toy.yaml:66:5: skip[0]: skip: found an empty one, expected prefixes and suffixes of one character or more");
  EXPECT_EQ(
      skip("{reason: x, prefixes: [a], markers: [b]}"),
      "toy.yaml:66:5: skip[0]: skip: found them elsewhere, expected announced and markers with layers_beyond only");
  EXPECT_EQ(skip("{reason: x, layers_beyond: true, announced: tied}"),
            "toy.yaml:66:49: skip[0].announced: found 'tied', expected the name of an integer value with a default or "
            "required");
}

// A family folder with the toy alone, and a checkpoint of it.
struct ToyCheckpoint {
  TemporaryFolder folder;
  ktc::test::FakeCheckpoint checkpoint;

  ToyCheckpoint() {
    checkpoint.config = {{"architectures", {"ToyForCausalLM"}},
                         {"vocab_size", 8},
                         {"hidden_size", 12},
                         {"num_hidden_layers", 2},
                         {"max_position_embeddings", 16},
                         {"num_attention_heads", 3},
                         {"intermediate_size", 10},
                         {"rope_theta", 100.0},
                         {"eos_token_id", 0}};
    checkpoint.add("embed.weight", {8, 12});
    for (const char* p : {"h.0.", "h.1."}) {
      checkpoint.add(p + std::string("norm1.weight"), {12});
      for (const char* m : {"q", "k", "v", "o"}) checkpoint.add(p + std::string("attn.") + m + ".weight", {12, 12});
      checkpoint.add(p + std::string("norm2.weight"), {12});
      checkpoint.add(p + std::string("mlp.up.weight"), {20, 12});
      checkpoint.add(p + std::string("mlp.down.weight"), {12, 10});
    }
    checkpoint.add("norm.weight", {12});
  }
  std::string read(const std::string& family) {
    checkpoint.write(folder.path() / "model");
    std::filesystem::create_directories(folder.path() / "families");
    write_text(folder.path() / "families" / "toy.yaml", family);
    auto model = read_model(folder.path() / "model", folder.path() / "families");
    if (model.ok()) expect_exact_cover(*model);
    return model.ok() ? "" : shorten(model.status().message(), folder.path());
  }
};

TEST(Family, AFamilyIsOneFile) {
  ToyCheckpoint toy;
  EXPECT_EQ(toy.read(kFamily), "");
}

// What only a checkpoint can show.
TEST(Family, MistakesFoundWhileBuilding) {
  ToyCheckpoint toy;
  EXPECT_EQ(
      toy.read(with("shape: [hidden, width]", "shape: [width, hidden]")),
      "toy.yaml:54:22: tensors of slot h.0.mlp.down: found [10, 12], expected [12, 10] from the module's attributes");
  EXPECT_EQ(toy.read(with("shape: [2 * width, hidden]", "shape: [width - 10, hidden]")),
            "toy.yaml:53:44: size 'width - 10': found 0, expected a positive size");
  EXPECT_EQ(toy.read(with("half, dim: head_dim}", "half, dim: head_dim + 2}")),
            "toy.yaml:37:30: rotary dimension: found 6, expected an even number from 2 to 4");
  EXPECT_EQ(toy.read(with("    class: DenseMlp\n", "    class: DenseMlp\n    when: odd\n")),
            "toy.yaml:28:5: layer 0: expected either a DenseMlp, or a Router and RoutedExperts");
  EXPECT_EQ(toy.read(with("tensor: k.weight", "tensor: q.weight")),
            "M/model: 4 of the checkpoint's tensors do not fit family toy: 'h.0.attn.q.weight' is asked for by two "
            "slots, the second is "
            "h.0.attn.k; 'h.1.attn.q.weight' is asked for by two slots, the second is h.1.attn.k; unknown "
            "'h.0.attn.k.weight' [12, 12]; "
            "unknown 'h.1.attn.k.weight' [12, 12]; config.json and tensors must describe the same model");
}

TEST(Family, FolderOfFamilies) {
  ToyCheckpoint toy;
  ASSERT_EQ(toy.read(kFamily), "");
  write_text(toy.folder.path() / "families" / "copy.yaml", kFamily);
  EXPECT_EQ(toy.read(kFamily),
            "toy.yaml: architecture 'ToyForCausalLM' is declared by two families; remove one of the two");
  write_text(toy.folder.path() / "families" / "copy.yaml", "version: [");
  EXPECT_THAT(toy.read(kFamily), testing::StartsWith("copy.yaml:"));
  auto model = read_model(toy.folder.path() / "model", toy.folder.path() / "none");
  EXPECT_EQ(shorten(model.status().message(), toy.folder.path()),
            "M/none: no family declarations: expected a folder with *.yaml files");
}

}  // namespace
}  // namespace ktc::models
