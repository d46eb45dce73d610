// First match wins; everything is matched; formats and their refusals; notes.
#include "placement/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using test::build_model;
using test::ModelShape;
using test::module_named;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kWithGpu[] =
    "version: 1\nname: test box\ncpu: {cores: 4, memory: 64GiB}\ngpus: [{device: cuda:0, name: g, sm: 80, memory: "
    "8GiB}]\n";
constexpr char kCpuOnly[] = "version: 1\nname: laptop\ncpu: {cores: 4, memory: 64GiB}\n";

Expected<Placement> try_place(const ModelDesc& model, const std::string& rules, const std::string& rest = {},
                              const char* target = kWithGpu, const ExpertCounts& counts = {}) {
  const auto policy = parse_policy("version: 1\nrules:\n" + rules + rest, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  if (!policy.ok()) return policy.status();
  return place(model, *policy, *parse_target(target, "t.yaml"), counts);
}

Placement place_ok(const ModelDesc& model, const std::string& rules, const std::string& rest = {},
                   const ExpertCounts& counts = {}) {
  auto placed = try_place(model, rules, rest, kWithGpu, counts);
  EXPECT_TRUE(placed.ok()) << placed.status().message();
  return placed.ok() ? *placed : Placement();
}

std::string error_of(const Expected<Placement>& placed) {
  EXPECT_FALSE(placed.ok());
  return placed.ok() ? "" : placed.status().message();
}

std::string rule(const std::string& match, const std::string& place) {
  return "  - {match: " + match + ", place: " + place + "}\n";
}
const std::string kRest = rule("{class: \"*\"}", "{device: cpu}");

TEST(PlaceTest, FirstMatchWinsByClassAndWholeName) {
  const ModelDesc model = build_model({.layers = 3});
  const Placement placed = place_ok(
      model, rule("{class: RoutedExperts, name: \"model[.]layers[.]1[.].*\"}", "{device: cuda:0, pin: true}") +
                 rule("{class: RoutedExperts}", "{device: cpu, weights: f32}") +
                 rule("{name: \".*layers[.]1[.].*\"}", "{device: cpu}") + rule("{class: \"*\"}", "{device: cuda:0}"));
  auto at = [&](const char* name) { return placed.modules[module_named(model, name)]; };
  EXPECT_EQ(at("model.layers.0.mlp.experts").rule, 1);
  EXPECT_EQ(at("model.layers.0.mlp.experts").weights, Format::f32);
  EXPECT_EQ(at("model.layers.1.mlp.experts").rule, 0);
  EXPECT_EQ(at("model.layers.1.mlp.experts").device, "cuda:0");
  EXPECT_TRUE(at("model.layers.1.mlp.experts").pin);
  EXPECT_FALSE(at("model.layers.2.mlp.experts").pin);
  EXPECT_EQ(at("model.layers.1.self_attn").rule, 2);
  EXPECT_EQ(at("model.layers.2.self_attn").rule, 3);
  EXPECT_EQ(placed.kv_device, "cuda:0");
  ASSERT_EQ(placed.rules.size(), 4u);
  EXPECT_EQ(placed.rules[1].matched, 3u);
  EXPECT_EQ(placed.rules[1].decided, 2u);
  EXPECT_EQ(placed.rules[2].matched, 5u);
  EXPECT_EQ(placed.rules[2].decided, 4u);
  EXPECT_THAT(placed.notes, IsEmpty());
}

TEST(PlaceTest, EveryModuleMustBeMatched) {
  const ModelDesc model = build_model({.layers = 1});
  EXPECT_EQ(error_of(try_place(model, rule("{class: RoutedExperts}", "{device: cpu}"))),
            "p.yaml: modules that no rule matches: found Embedding 'model.embed_tokens', Norm "
            "'model.layers.0.input_layernorm', Attention 'model.layers.0.self_attn' and 4 more, expected a rule for "
            "every module; end the rules with one for class: \"*\"");
  EXPECT_EQ(error_of(try_place(model, rule("{name: \"model[.].*\"}", "{device: cpu}"))),
            "p.yaml: modules that no rule matches: found Head 'lm_head', expected a rule for every module; end the "
            "rules with one for class: \"*\"");
}

TEST(PlaceTest, ARuleWithANameMustMatch) {
  const ModelDesc model = build_model({.layers = 1});
  EXPECT_EQ(error_of(try_place(model, rule("{class: Attention, name: \"layers[.]0.*\"}", "{device: cpu}") + kRest)),
            "p.yaml:3:5: a rule that matches nothing: found class Attention, name 'layers[.]0.*', expected a module "
            "whose whole name matches; names look like 'model.layers.0.self_attn'");
  EXPECT_EQ(error_of(try_place(model, rule("{class: DenseMlp, name: \".*\"}", "{device: cpu}") + kRest)),
            "p.yaml:3:5: a rule that matches nothing: found class DenseMlp, name '.*', expected a module whose whole "
            "name matches; this model has no DenseMlp");
  EXPECT_EQ(error_of(try_place(model, rule("{name: \"nothing\"}", "{device: cpu}") + kRest)),
            "p.yaml:3:5: a rule that matches nothing: found class *, name 'nothing', expected a module whose whole "
            "name matches; names look like 'model.embed_tokens'");
}

TEST(PlaceTest, ARuleByClassMayMatchNothing) {
  const Placement placed = place_ok(build_model({.layers = 1}), rule("{class: Indexer}", "{device: cpu}") + kRest);
  EXPECT_THAT(placed.notes, ElementsAre("rule p.yaml:3:5 (class Indexer) matches nothing in this model"));
}

TEST(PlaceTest, AShadowedRuleIsNoted) {
  const Placement placed =
      place_ok(build_model({.layers = 2}), kRest + rule("{name: \".*self_attn\"}", "{device: cuda:0, weights: int4}"));
  EXPECT_THAT(
      placed.notes,
      ElementsAre(
          "rule p.yaml:4:5 (class *, name '.*self_attn') decides nothing: earlier rules match all 2 of its modules"));
}

TEST(PlaceTest, UnknownDevicesAreErrorsEverywhere) {
  const ModelDesc model = build_model({.layers = 1});
  EXPECT_EQ(error_of(try_place(model, rule("{class: \"*\"}", "{device: cuda:1}"))),
            "p.yaml:3:43: a device that target 'test box' does not have: found cuda:1, expected one of its devices: "
            "cpu, cuda:0; name one of these, compile for another target with --target, or write best-effort: true to take what there is");
  EXPECT_EQ(error_of(try_place(model, kRest + rule("{class: Indexer}", "{device: cuda:0}"), {}, kCpuOnly)),
            "p.yaml:4:47: a device that target 'laptop' does not have: found cuda:0, expected one of its devices: cpu; "
            "name one of these, compile for another target with --target, or write best-effort: true to take what there is");
  EXPECT_EQ(error_of(try_place(model, kRest, "experts: {gpu: {devices: [cuda:3]}}\n")),
            "p.yaml:4:27: a device that target 'test box' does not have: found cuda:3, expected one of its devices: "
            "cpu, cuda:0; name one of these, compile for another target with --target, or write best-effort: true to take what there is");
  EXPECT_EQ(error_of(try_place(model, kRest, "limits: {cuda:9: 1GiB}\n")),
            "p.yaml:4:18: a device that target 'test box' does not have: found cuda:9, expected one of its devices: "
            "cpu, cuda:0; name one of these, compile for another target with --target, or write best-effort: true to take what there is");
}

TEST(PlaceTest, NativeKeepsTheCheckpointsPrecision) {
  auto experts = [](models::TensorType type, const char* weights) {
    const ModelDesc model = build_model({.layers = 1, .type = type});
    const Placement placed =
        place_ok(model, rule("{class: \"*\"}", std::string("{device: cpu, weights: ") + weights + "}"));
    return std::pair(placed.modules[module_named(model, "model.layers.0.mlp.experts")].weights, placed.notes);
  };
  EXPECT_EQ(experts(models::TensorType::bf16, "native").first, Format::bf16);
  EXPECT_EQ(experts(models::TensorType::f32, "native").first, Format::f32);
  EXPECT_EQ(experts(models::TensorType::f16, "native").first, Format::f32) << "f16 fits f32, not bf16";
  EXPECT_EQ(experts(models::TensorType::bf16, "f32").first, Format::f32);
  EXPECT_THAT(experts(models::TensorType::bf16, "bf16").second, IsEmpty());
  EXPECT_THAT(experts(models::TensorType::bf16, "f32").second, IsEmpty());
  const auto rounded = experts(models::TensorType::f32, "bf16");
  EXPECT_EQ(rounded.first, Format::bf16);
  // embedding, attention, experts, head; the router keeps f32
  EXPECT_THAT(rounded.second, ElementsAre("rule p.yaml:3:5 (class *) rounds the weights of 4 modules to bf16"));
}

TEST(PlaceTest, ActivationsDefaultToWhatTheDeviceHas) {
  const ModelDesc model = build_model({.layers = 1});
  const Placement placed = place_ok(model, rule("{class: Attention}", "{device: cuda:0}") +
                                               rule("{class: Head}", "{device: cuda:0, weights: f32}") +
                                               rule("{class: DenseMlp}", "{device: cpu, activations: f32}") + kRest);
  EXPECT_EQ(placed.modules[module_named(model, "model.layers.0.self_attn")].activations, Format::bf16);
  EXPECT_EQ(placed.modules[module_named(model, "lm_head")].activations, Format::f32);
  EXPECT_EQ(placed.modules[module_named(model, "model.layers.0.mlp.experts")].activations, Format::bf16);
  EXPECT_EQ(placed.modules[module_named(model, "model.embed_tokens")].activations, Format::f32) << "a lookup";
  const Placement exact = place_ok(model, rule("{class: \"*\"}", "{device: cpu, activations: f32}"));
  for (const ModulePlacement& module : exact.modules) EXPECT_EQ(module.activations, Format::f32);
}

// One matrix for the lookup and for the product, unless the policy says what makes it two.
TEST(PlaceTest, ATiedHeadTakesTheRowsOfItsEmbedding) {
  const ModelDesc tied = build_model({.layers = 1, .tied = true});
  const auto head = [&](const ModelDesc& model, const std::string& rules) {
    return place_ok(model, rules).modules[module_named(model, "lm_head")].activations;
  };
  EXPECT_EQ(head(tied, kRest), Format::f32);
  EXPECT_EQ(head(tied, rule("{class: Head}", "{device: cpu, activations: bf16}") + kRest), Format::bf16);
  EXPECT_EQ(head(tied, rule("{class: Embedding}", "{device: cuda:0}") + kRest), Format::bf16) << "two matrices anyhow";
  EXPECT_EQ(head(build_model({.layers = 1}), kRest), Format::bf16);
}

TEST(PlaceTest, RouterAndNormKeepTheirPrecisionWhateverARuleSaysOfAll) {
  for (models::TensorType router : {models::TensorType::bf16, models::TensorType::f32}) {
    const ModelDesc model = build_model({.layers = 1, .router_type = router});
    const Placement placed =
        place_ok(model, rule("{class: \"*\"}", "{device: cuda:0, weights: bf16, activations: bf16}"));
    const ModulePlacement gate = placed.modules[module_named(model, "model.layers.0.mlp.gate")];
    EXPECT_EQ(gate.weights, router == models::TensorType::bf16 ? Format::bf16 : Format::f32);
    EXPECT_EQ(gate.activations, Format::f32);
    EXPECT_EQ(gate.device, "cuda:0");
    const ModulePlacement norm = placed.modules[module_named(model, "model.norm")];
    EXPECT_EQ(norm.weights, Format::f32);
    EXPECT_EQ(norm.activations, Format::f32);
    EXPECT_THAT(placed.notes, IsEmpty());
  }
}

TEST(PlaceTest, ARuleThatNamesRouterOrNormMustRespectThem) {
  const ModelDesc model = build_model({.layers = 1, .router_type = models::TensorType::f32});
  EXPECT_EQ(error_of(try_place(model, rule("{class: Router}", "{device: cpu, weights: bf16}") + kRest)),
            "p.yaml:3:60: Router keeps the checkpoint's precision: found bf16, expected native or f32; remove weights "
            "from this rule");
  EXPECT_EQ(error_of(try_place(model, rule("{class: Norm}", "{device: cuda:0, activations: bf16}") + kRest)),
            "p.yaml:3:65: Norm computes in f32: found bf16, expected f32; remove activations from this rule");
  const ModelDesc bf16 = build_model({.layers = 1});
  EXPECT_EQ(error_of(try_place(bf16, rule("{class: Router}", "{device: cpu, weights: int8}") + kRest)),
            "p.yaml:3:60: Router keeps the checkpoint's precision: found int8, expected native, bf16 or f32; remove "
            "weights from this rule");
  const Placement wide = place_ok(bf16, rule("{class: Router}", "{device: cpu, weights: f32}") + kRest);
  EXPECT_EQ(wide.modules[module_named(bf16, "model.layers.0.mlp.gate")].weights, Format::f32);
}

TEST(PlaceTest, FormatsWithoutKernelsAreRefusedWithWhatThereIs) {
  const ModelDesc model = build_model({.layers = 1});
  EXPECT_EQ(
      error_of(try_place(model, rule("{class: RoutedExperts}", "{device: cpu, weights: mxfp4}") + kRest)),
      "p.yaml:3:67: weights of RoutedExperts on cpu: found mxfp4, expected one of native, f32, bf16, fp8, int8, int4; "
      "this version's kernels take no mxfp4 there");
  EXPECT_EQ(error_of(try_place(model, rule("{class: Attention}", "{device: cuda:0, weights: mxfp4}") + kRest)),
            "p.yaml:3:66: weights of Attention on cuda:0: found mxfp4, expected one of native, f32, bf16, fp8, int8, int4; this "
            "version's kernels take no mxfp4 there");
  EXPECT_EQ(error_of(try_place(model, rule("{class: Attention}", "{device: cpu, activations: int8}") + kRest)),
            "p.yaml:3:67: activations for bf16 weights of Attention on cpu: found int8, expected one of bf16, f32; this version's "
            "kernels take no int8 there");
  EXPECT_EQ(error_of(try_place(model, rule("{class: Attention}", "{device: cpu, weights: f32, activations: bf16}") + kRest)),
            "p.yaml:3:81: activations for f32 weights of Attention on cpu: found bf16, expected f32; this version's "
            "kernels take no bf16 there");
  EXPECT_EQ(error_of(try_place(model, rule("{class: Attention}", "{device: cuda:0, activations: int8}") + kRest)),
            "p.yaml:3:70: activations for bf16 weights of Attention on cuda:0: found int8, expected one of f32, bf16; this "
            "version's kernels take no int8 there");
  EXPECT_EQ(try_place(model, rule("{class: Attention}", "{device: cpu, weights: mxfp4}") + kRest).status().code(),
            StatusCode::unsupported);
}

TEST(PlaceTest, IntegerWeightsBringTheirGroupAndInt8Activations) {
  const ModelDesc model = build_model({.layers = 1});
  const auto experts = [&](const char* place) {
    const Placement placed = place_ok(model, rule("{class: RoutedExperts}", place) + kRest);
    return placed.modules[module_named(model, "model.layers.0.mlp.experts")];
  };
  const ModulePlacement int4 = experts("{device: cpu, weights: int4}");
  EXPECT_EQ(int4.weights, Format::int4);
  EXPECT_EQ(int4.group, 64u);
  EXPECT_EQ(int4.activations, Format::int8);
  EXPECT_EQ(int4.unrounded, Format::bf16);
  EXPECT_EQ(experts("{device: cpu, weights: int4, group: row}").group, 0u);
  EXPECT_EQ(experts("{device: cpu, weights: int4, group: 32}").group, 32u);
  EXPECT_EQ(experts("{device: cpu, weights: int8}").group, 0u);
  EXPECT_EQ(experts("{device: cpu, weights: int8, group: row, activations: int8}").group, 0u);
  EXPECT_EQ(experts("{device: cpu}").group, 0u);
  EXPECT_EQ(error_of(try_place(model, rule("{class: RoutedExperts}", "{device: cpu, weights: int8, group: 64}") + kRest)),
            "p.yaml:3:67: group of int8 weights: found 64, expected row; int8 has one scale per row: remove group, or take int4");
  EXPECT_EQ(error_of(try_place(model, rule("{class: RoutedExperts}", "{device: cpu, weights: int8, activations: f32}") + kRest)),
            "p.yaml:3:86: activations for int8 weights of RoutedExperts on cpu: found f32, expected int8; this version's "
            "kernels take no f32 there");
}

TEST(PlaceTest, Fp8KeepsItsCodesOnACpuUnlessActivationsAreF32) {
  const ModelDesc model = build_model({.layers = 1, .mla = true, .type = models::TensorType::f8_e4m3});
  const auto attention = [&](const char* place) {
    const Placement placed = place_ok(model, rule("{class: Attention}", place) + kRest);
    return placed.modules[module_named(model, "model.layers.0.self_attn")];
  };
  const ModulePlacement native = attention("{device: cpu}");
  EXPECT_EQ(native.weights, Format::fp8);
  EXPECT_EQ(native.group, 128u);
  EXPECT_EQ(native.activations, Format::bf16);
  EXPECT_EQ(native.unrounded, Format::bf16) << "of W_UK and W_UV";
  EXPECT_EQ(attention("{device: cpu, weights: fp8, group: row}").group, 0u);
  EXPECT_EQ(attention("{device: cpu, weights: native, activations: f32}").weights, Format::bf16);
  EXPECT_EQ(attention("{device: cpu, weights: bf16}").weights, Format::bf16);
  EXPECT_EQ(attention("{device: cuda:0}").weights, Format::fp8);
  EXPECT_EQ(attention("{device: cuda:0, activations: f32}").weights, Format::bf16);
  const ModelDesc bf16 = build_model({.layers = 1});
  const Placement asked = place_ok(bf16, rule("{class: \"*\"}", "{device: cpu, weights: fp8}"));
  EXPECT_EQ(asked.modules[module_named(bf16, "model.layers.0.mlp.experts")].weights, Format::fp8);
  EXPECT_EQ(asked.modules[module_named(bf16, "model.embed_tokens")].weights, Format::bf16);
  EXPECT_EQ(asked.modules[module_named(bf16, "model.layers.0.mlp.gate")].weights, Format::bf16);
  EXPECT_EQ(error_of(try_place(bf16, rule("{class: RoutedExperts}", "{device: cpu, weights: fp8, group: 64}") + kRest)),
            "p.yaml:3:67: group of fp8 weights: found 64, expected row or 128; remove group for 128");
  EXPECT_EQ(error_of(try_place(bf16, rule("{class: RoutedExperts}", "{device: cpu, weights: fp8, activations: f32}") + kRest)),
            "p.yaml:3:85: activations for fp8 weights of RoutedExperts on cpu: found f32, expected bf16; this version's "
            "kernels take no f32 there");
}

TEST(PlaceTest, AnEmbeddingKeepsItsRowsAndATiedHeadIsPackedOnceMore) {
  const std::string rules = "  - {match: {class: \"*\"}, place: {device: cpu, weights: int4, activations: int8}}\n";
  const ModelDesc apart = build_model({.layers = 1});
  const Placement placed = place_ok(apart, rules);
  const ModulePlacement& embedding = placed.modules[module_named(apart, "model.embed_tokens")];
  EXPECT_EQ(embedding.weights, Format::bf16);
  EXPECT_EQ(embedding.activations, Format::f32);
  EXPECT_EQ(embedding.group, 0u);
  EXPECT_EQ(placed.modules[module_named(apart, "lm_head")].weights, Format::int4);
  EXPECT_EQ(placed.modules[module_named(apart, "model.layers.0.mlp.gate")].weights, Format::bf16);
  EXPECT_THAT(placed.notes, ElementsAre("rule p.yaml:3:5 (class *) asks for int4, 'model.embed_tokens' keeps bf16: a lookup "
                                        "reads single rows"));
  EXPECT_THAT(place_ok(build_model({.layers = 1, .tied = true}), rules).notes,
              ElementsAre("rule p.yaml:3:5 (class *) asks for int4, 'model.embed_tokens' keeps bf16: a lookup reads single "
                          "rows; 'lm_head' is tied to it and packed once more as int4/64"));
}

TEST(PlaceTest, SizesThatAreProbablyNotMeantAreNoted) {
  const Placement placed =
      place_ok(build_model({.layers = 1, .max_positions = 2048}), kRest,
               "kv_cache: {tokens: 4096, sequences: 4}\nbatch: {decode: [1, 8]}\nlimits: {cpu: 65GiB}\n");
  EXPECT_THAT(placed.notes,
              ElementsAre("kv_cache.tokens is 4096, the model has 2048 positions",
                          "batch.decode goes to 8, kv_cache.sequences is 4: larger buckets are never filled",
                          "limits.cpu is 65.0 GiB, the target has 64.0 GiB"));
}

TEST(PlaceTest, MorePagesThanAPlanCanNumber) {
  EXPECT_EQ(error_of(try_place(build_model({.layers = 1}), kRest,
                               "kv_cache: {tokens: 16777216, sequences: 65536, page: 1}\n")),
            "p.yaml:4:11: more KV pages than a plan can number: found 1099511627776, expected at most 4294967295; take "
            "fewer tokens or sequences, or a larger page");
}

// Flags override keys after parsing.
TEST(PlaceTest, SizesAreCheckedAgain) {
  const ModelDesc model = build_model({.layers = 1});
  const Policy good = *parse_policy("version: 1\nrules:\n" + kRest, "p.yaml");
  const Target target = *parse_target(kCpuOnly, "t.yaml");
  ASSERT_TRUE(place(model, good, target).ok());
  std::vector<Policy> bad(8, good);
  bad[0].kv_cache.page = 0;
  bad[1].kv_cache.page = 12;
  bad[2].kv_cache.tokens = 0;
  bad[3].kv_cache.sequences = 0;
  bad[4].batch.chunk = 0;
  bad[5].batch.decode = {};
  bad[6].batch.decode = {0};
  bad[7].batch.decode = {2, 2};
  for (const Policy& policy : bad)
    EXPECT_EQ(
        error_of(place(model, policy, target)),
        "p.yaml: sizes of kv_cache and batch: found a zero, a page that is no power of two, or buckets that do not "
        "ascend, expected what docs/policy.md allows; correct the flag or the key");
}

TEST(PlaceTest, EqualInputsGiveEqualPlacements) {
  const ModelDesc model = build_model({.layers = 4, .shared_expert = true});
  const std::string rest = "experts: {strategy: random, on_gpu: 30%, gpu: {devices: [cuda:0]}}\n";
  const Placement a = place_ok(model, kRest, rest), b = place_ok(model, kRest, rest);
  ASSERT_EQ(a.hot.size(), b.hot.size());
  for (std::size_t i = 0; i < a.hot.size(); ++i) EXPECT_EQ(a.hot[i].ids, b.hot[i].ids);
  ASSERT_EQ(a.memory.size(), b.memory.size());
  for (std::size_t i = 0; i < a.memory.size(); ++i) EXPECT_EQ(a.memory[i].bytes, b.memory[i].bytes);
}

// ------------------------------------------------------------------------------------------------- hot experts

std::vector<std::size_t> hot_sizes(const ModelDesc& model, const Placement& placed) {
  std::vector<std::size_t> sizes(model.layers.size(), 0);
  for (const HotExperts& hot : placed.hot)
    sizes[static_cast<std::size_t>(model.modules[hot.module].layer)] = hot.ids.size();
  return sizes;
}

TEST(HotExpertsTest, SharesCountsAndBytes) {
  const ModelDesc model = build_model({.layers = 5, .dense_layers = 1});  // 4 MoE layers of 8
  auto sizes = [&](const std::string& on_gpu) {
    return hot_sizes(model, place_ok(model, kRest, "experts: {on_gpu: " + on_gpu + ", gpu: {devices: [cuda:0]}}\n"));
  };
  EXPECT_THAT(sizes("0%"), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(sizes("25%"), ElementsAre(0, 2, 2, 2, 2));
  EXPECT_THAT(sizes("29%"), ElementsAre(0, 3, 2, 2, 2));
  EXPECT_THAT(sizes("100%"), ElementsAre(0, 8, 8, 8, 8));
  EXPECT_THAT(sizes("3"), ElementsAre(0, 3, 3, 3, 3));
  // an expert takes 64 * 128 + 64 * 64 = 12288 bytes
  EXPECT_THAT(sizes("{max: 12287B}"), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(sizes("{max: 60KiB}"), ElementsAre(0, 2, 1, 1, 1));
}

TEST(HotExpertsTest, CountOnTheirGpuAndNoLongerOnTheCpu) {
  const ModelDesc model = build_model({.layers = 2});
  const Placement placed = place_ok(model, kRest, "experts: {on_gpu: 3, gpu: {devices: [cuda:0]}}\n");
  std::uint64_t hot = 0, cold = 0;
  for (const MemoryLine& line : placed.memory) {
    if (line.category == "hot-experts") {
      hot += line.bytes;
      EXPECT_EQ(line.device, "cuda:0");
    }
    if (line.category == "weights" && line.name.ends_with("mlp.experts")) cold += line.bytes;
  }
  EXPECT_EQ(hot, 2u * 3 * 12288);
  EXPECT_EQ(cold, 2u * 5 * 16384) << "panels of down [64, 32], K padded to 64";
  const Placement moving =
      place_ok(model, kRest, "experts: {on_gpu: 3, gpu: {devices: [cuda:0]}, update: {every_tokens: 256}}\n");
  hot = cold = 0;
  for (const MemoryLine& line : moving.memory) {
    if (line.category == "hot-experts") hot += line.bytes;
    if (line.category == "weights" && line.name.ends_with("mlp.experts")) cold += line.bytes;
  }
  EXPECT_EQ(hot, 2u * 3 * 12288 + 32 * 16384) << "spare slots, as the CPU packs";
  EXPECT_EQ(cold, 2u * 8 * 16384) << "the host keeps every expert that may move";
}

TEST(HotExpertsTest, PinnedAndRuledExpertsStay) {
  const ModelDesc model = build_model({.layers = 4});
  const Placement placed = place_ok(model,
                                    rule("{name: \".*0[.]mlp[.]experts\"}", "{device: cuda:0, pin: true}") +
                                        rule("{name: \".*2[.]mlp[.]experts\"}", "{device: cpu, pin: true}") + kRest,
                                    "experts: {on_gpu: 50%, gpu: {devices: [cuda:0]}}\n");
  EXPECT_THAT(hot_sizes(model, placed), ElementsAre(0, 4, 0, 4));
}

TEST(HotExpertsTest, FrequencyUsesTheCounts) {
  const ModelDesc model = build_model({.layers = 2, .experts = 4});
  const std::string experts =
      "experts: {strategy: frequency, statistics: s.json, on_gpu: 50%, gpu: {devices: [cuda:0]}}\n";
  const Placement placed = place_ok(model, kRest, experts, {{1, 9, 2, 8}, {3, 4, 9, 1}});
  ASSERT_EQ(placed.hot.size(), 2u);
  EXPECT_THAT(placed.hot[0].ids, ElementsAre(1, 3));
  EXPECT_THAT(placed.hot[1].ids, ElementsAre(1, 2));
  EXPECT_EQ(placed.hot[0].weights, Format::bf16);
  EXPECT_EQ(placed.hot[0].activations, Format::bf16);
  EXPECT_EQ(error_of(try_place(model, kRest, experts)),
            "p.yaml:4:10: experts.strategy: frequency without counts; give statistics, or take uniform");
  EXPECT_EQ(error_of(try_place(model, kRest, experts, kWithGpu, {{1, 2, 3, 4}})),
            "expert statistics: counts of another model: found 1 rows, expected 2, one for each MoE layer; record them "
            "with this model");
}

TEST(HotExpertsTest, RefusalsSayWhy) {
  const ModelDesc model = build_model({.layers = 2});
  EXPECT_EQ(error_of(try_place(model, kRest, "experts: {on_gpu: 9, gpu: {devices: [cuda:0]}}\n")),
            "p.yaml:4:19: experts.on_gpu per layer: found 9, expected at most 8, the number of experts of a layer");
  EXPECT_EQ(error_of(try_place(model, kRest,
                               "experts: {on_gpu: 10%, gpu: {devices: [cuda:0], weights: mxfp4}}\n")),
            "p.yaml:4:58: weights of hot experts on cuda:0: found mxfp4, expected one of native, f32, bf16, fp8, int8, int4; this "
            "version's kernels take no mxfp4 there");
  EXPECT_EQ(error_of(try_place(model, kRest, "experts: {on_gpu: 10%, gpu: {devices: [cuda:0], activations: int8}}\n")),
            "p.yaml:4:62: activations of hot experts on cuda:0: found int8, expected one of f32, bf16; this version's kernels take "
            "no int8 there");
  EXPECT_EQ(error_of(try_place(model, kRest, "experts: {on_gpu: 10%, gpu: {devices: [cuda:0], weights: int8, group: 64}}\n")),
            "p.yaml:4:58: group of int8 weights: found 64, expected row; remove group");
}

}  // namespace
}  // namespace ktc::placement
