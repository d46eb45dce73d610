// The account, against sums worked out by hand from the shapes in model_builder.h.
#include "placement/memory.h"

#include <gtest/gtest.h>

#include "placement/place.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using test::build_model;
using test::module_named;

constexpr char kCpuOnly[] = "version: 1\nname: box\ncpu: {cores: 4, memory: 64GiB}\n";
constexpr char kWithGpu[] =
    "version: 1\nname: box\ncpu: {cores: 4, memory: 64GiB}\ngpus: [{device: cuda:0, name: g, sm: 80, memory: 8GiB}]\n";

Placement place_text(const ModelDesc& model, const std::string& rules, const std::string& rest = {}) {
  const auto policy = parse_policy("version: 1\nrules:\n" + rules + rest, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  const auto placement = place(model, *policy, *parse_target(kWithGpu, "t.yaml"));
  EXPECT_TRUE(placement.ok()) << placement.status().message();
  return placement.ok() ? *placement : Placement();
}

std::uint64_t bytes_of(const Placement& placement, const std::string& device, const std::string& category,
                       const std::string& name = {}) {
  std::uint64_t sum = 0;
  for (const MemoryLine& line : placement.memory)
    if (line.device == device && line.category == category && (name.empty() || line.name == name)) sum += line.bytes;
  return sum;
}

constexpr char kAllCpu[] = "  - {match: {class: \"*\"}, place: {device: cpu}}\n";
constexpr char kAllRows[] = "  - {match: {class: \"*\"}, place: {device: cpu, activations: f32}}\n";

TEST(MemoryTest, WeightsOfEveryModuleAreExact) {
  const Placement placed = place_text(build_model({.layers = 1, .shared_expert = true, .router_bias = true}), kAllRows);
  auto weights = [&](const char* name) { return bytes_of(placed, "cpu", "weights", name); };
  // rows of 64 bf16 columns are 128 bytes
  EXPECT_EQ(weights("model.embed_tokens"), 256u * 128);
  EXPECT_EQ(weights("model.layers.0.input_layernorm"), 64u * 4);
  // q [64, 64], k and v [32, 64], o [64, 64], two norms of 16 f32
  EXPECT_EQ(weights("model.layers.0.self_attn"), (64 + 32 + 32 + 64) * 128u + 2 * 64);
  // [8, 64], and 8 f32 in a row of 64 bytes
  EXPECT_EQ(weights("model.layers.0.mlp.gate"), 8u * 128 + 64);
  // per expert: gate and up [64, 64], down [64, 32] in rows of 64 bytes
  EXPECT_EQ(weights("model.layers.0.mlp.experts"), 8u * (64 * 128 + 64 * 64));
  EXPECT_EQ(weights("model.layers.0.mlp.shared_experts"), 64u * 128 + 64 * 64);
  EXPECT_EQ(weights("lm_head"), 256u * 128);
}

TEST(MemoryTest, MlaCountsTheTwoHalvesOfKvB) {
  const Placement placed = place_text(build_model({.layers = 1, .mla = true}), kAllRows);
  const std::uint64_t q_a = 40 * 128 + 192, q_b = 4 * 48 * 128;  // rows of 40 columns are padded from 80 to 128 bytes
  const std::uint64_t kv_a = 64 * 128 + 192;                     // latent 48 and rope 16; norm of 48 f32
  const std::uint64_t w_uk = 4 * 48 * 64, w_uv = 4 * 24 * 128;   // rows of 32 and of 48 columns
  const std::uint64_t o = 64 * 192;                              // rows of 4 * 24 columns
  EXPECT_EQ(bytes_of(placed, "cpu", "weights", "model.layers.0.self_attn"), q_a + q_b + kv_a + w_uk + w_uv + o);
}

TEST(MemoryTest, F32WeightsTakeTwice) {
  const ModelDesc model = build_model({.layers = 1});
  const Placement placed = place_text(model, "  - {match: {class: \"*\"}, place: {device: cpu, weights: f32}}\n");
  EXPECT_EQ(bytes_of(placed, "cpu", "weights", "model.layers.0.mlp.experts"), 8u * (64 * 256 + 64 * 128));
  EXPECT_EQ(bytes_of(placed, "cpu", "weights", "model.layers.0.mlp.gate"), 8u * 128) << "a router keeps its precision";
}

// Panels of 32 rows: K padded to 64, a head of 32 f32 scales, or of 32 bf16 for each group.
TEST(MemoryTest, PanelsAndGroupsAreExact) {
  const ModelDesc model = build_model({.layers = 1, .shared_expert = true, .tied = true});
  const auto weights = [&](const char* place, const char* name) {
    return bytes_of(place_text(model, std::string("  - {match: {class: \"*\"}, place: {device: cpu, ") + place + "}}\n"), "cpu",
                    "weights", name);
  };
  const std::uint64_t int8 = 128 + 32 * 64, int4_64 = 64 + 32 * 32, int4_32 = 128 + 32 * 32, int4_row = 128 + 32 * 32;
  // gate and up [64, 64] are 2 panels, down [64, 32] is 2 panels of 32 columns padded to 64
  EXPECT_EQ(weights("weights: int8", "model.layers.0.mlp.experts"), 8u * (2 + 2) * int8);
  EXPECT_EQ(weights("weights: int4", "model.layers.0.mlp.experts"), 8u * (2 + 2) * int4_64);
  EXPECT_EQ(weights("weights: int4, group: 32", "model.layers.0.mlp.experts"), 8u * (2 + 2) * int4_32);
  EXPECT_EQ(weights("weights: int4, group: row", "model.layers.0.mlp.experts"), 8u * (2 + 2) * int4_row);
  EXPECT_EQ(weights("weights: int8", "model.layers.0.mlp.shared_experts"), 4u * int8);
  // q and o are 2 panels, k and v one; the norms of q and k stay f32
  EXPECT_EQ(weights("weights: int8", "model.layers.0.self_attn"), 6u * int8 + 2 * 64);
  EXPECT_EQ(weights("weights: int8", "model.embed_tokens"), 256u * 128) << "rows, for the lookup";
  EXPECT_EQ(weights("weights: int8", "lm_head"), 8u * int8) << "panels, for the product";
  EXPECT_EQ(weights("weights: int8", "model.layers.0.mlp.gate"), 8u * 128);
  // bf16 has no head
  EXPECT_EQ(weights("weights: bf16", "model.layers.0.mlp.experts"), 8u * (2 + 2) * 4096);
  EXPECT_EQ(weights("weights: bf16", "model.layers.0.self_attn"), 6u * 4096 + 2 * 64);
  EXPECT_EQ(weights("weights: bf16", "model.embed_tokens"), 256u * 128);
  EXPECT_EQ(weights("weights: bf16", "lm_head"), 0u) << "the rows of the embedding";
  EXPECT_EQ(weights("weights: bf16, activations: bf16", "lm_head"), 8u * 4096) << "as the policy says";
  EXPECT_EQ(weights("weights: bf16", "model.layers.0.mlp.gate"), 8u * 128);
}

TEST(MemoryTest, LatentAttentionKeepsItsPerHeadMatrices) {
  const auto attention = [](const std::string& weights) {
    const std::string rules = "  - {match: {class: \"*\"}, place: {device: cpu, weights: " + weights + "}}\n";
    return bytes_of(place_text(build_model({.layers = 1, .mla = true}), rules), "cpu", "weights", "model.layers.0.self_attn");
  };
  const auto expected = [](std::uint64_t panel, std::uint64_t panel_96) {  // o has 96 columns, padded to 128
    const std::uint64_t products = 2 * panel /* q_a [40, 64] */ + 6 * panel /* q_b [192, 40] */ + 2 * panel /* kv_a [64, 64] */ +
                                   2 * panel_96 /* o [64, 96] */;
    return products + 4 * 48 * 64 + 4 * 24 * 128 + 2 * 192;  // W_UK, W_UV, two norms
  };
  EXPECT_EQ(attention("int8"), expected(128 + 32 * 64, 128 + 32 * 128));
  EXPECT_EQ(attention("bf16"), expected(32 * 128, 32 * 256));
}

TEST(MemoryTest, ATiedHeadCountsOnceOnEachDevice) {
  const ModelDesc model = build_model({.layers = 1, .tied = true});
  const Placement together = place_text(model, kAllCpu);
  EXPECT_EQ(bytes_of(together, "cpu", "weights", "model.embed_tokens"), 256u * 128);
  EXPECT_EQ(bytes_of(together, "cpu", "weights", "lm_head"), 0u);
  const Placement apart =
      place_text(model, std::string("  - {match: {class: Head}, place: {device: cuda:0}}\n") + kAllCpu);
  EXPECT_EQ(bytes_of(apart, "cuda:0", "weights", "lm_head"), 256u * 128);
  const Placement two_formats =
      place_text(model, std::string("  - {match: {class: Head}, place: {device: cpu, weights: f32}}\n") + kAllCpu);
  EXPECT_EQ(bytes_of(two_formats, "cpu", "weights", "lm_head"), 256u * 256);
}

TEST(MemoryTest, KvCacheIsExact) {
  const std::string kv = "kv_cache: {dtype: bf16, tokens: 100, sequences: 3, page: 16}\n";
  // 100 tokens are 7 pages; k and v of 2 heads of 16; 5 layers
  EXPECT_EQ(bytes_of(place_text(build_model({.layers = 5}), kAllCpu, kv), "cpu", "kv-cache"),
            7u * 3 * 16 * (2 * 2 * 16) * 2 * 5);
  // latent 48 and rope 16, whatever the number of heads; f32 is twice bf16
  const std::string f32 = "kv_cache: {dtype: f32, tokens: 100, sequences: 3, page: 16}\n";
  EXPECT_EQ(bytes_of(place_text(build_model({.layers = 5, .mla = true}), kAllCpu, f32), "cpu", "kv-cache"),
            7u * 3 * 16 * 64 * 4 * 5);
}

TEST(MemoryTest, KvCacheFollowsItsAttention) {
  const Placement placed = place_text(
      build_model({.layers = 3}),
      std::string("  - {match: {class: Attention, name: \".*[12][.]self_attn\"}, place: {device: cuda:0}}\n") + kAllCpu,
      "kv_cache: {tokens: 16, sequences: 1, page: 16}\n");
  EXPECT_EQ(placed.kv_device, "cpu");
  EXPECT_EQ(bytes_of(placed, "cpu", "kv-cache"), 16u * 64 * 2);
  EXPECT_EQ(bytes_of(placed, "cuda:0", "kv-cache"), 2u * 16 * 64 * 2 * 2) << "a page more, for padding tokens";
}

TEST(MemoryTest, TheArenaGrowsWithTheLargestEntryAndStaysABound) {
  const ModelDesc model = build_model({.layers = 2, .shared_expert = true});
  auto arena = [&](const std::string& batch) {
    return bytes_of(place_text(model, kAllCpu, "kv_cache: {sequences: 64}\nbatch: " + batch + "\n"), "cpu", "arena");
  };
  const std::uint64_t at_64 = arena("{chunk: 64}");
  EXPECT_GT(arena("{chunk: 128}"), at_64);
  EXPECT_GT(arena("{chunk: 64, stream_chunk: 128}"), at_64);
  EXPECT_GT(arena("{decode: [1, 128], chunk: 64}"), at_64);
  EXPECT_EQ(arena("{decode: [1, 64], chunk: 64}"), at_64);
  // what certainly lives at once: residual and its norm, q, k, v and attention's output, or the hidden activations of
  // experts
  EXPECT_GE(at_64, 64u * 4 * (64 + 64 + 128 + 64));
  EXPECT_GE(at_64, 64u * 4 * 256) << "logits of every row";
}

TEST(MemoryTest, RowsWithLogitsAreBoundedByTheirBytes) {
  EXPECT_EQ(extend_rows(512, 8, 4096), 512u) << "8 MiB";
  EXPECT_EQ(extend_rows(2048, 8, 131072), 128u) << "64 MiB of 512 KiB rows";
  EXPECT_EQ(extend_rows(2048, 200, 131072), 200u) << "one for each sequence";
  EXPECT_EQ(extend_rows(4, 200, 131072), 4u) << "never more than tokens";
  EXPECT_EQ(extend_rows(16, 8, 0), 16u);
}

TEST(MemoryTest, AbsurdShapesAreRefusedNotWrapped) {
  ModelDesc model = build_model({.layers = 1});
  model.slots[0].rows = std::uint64_t{1} << 62;
  const auto policy = parse_policy(std::string("version: 1\nrules:\n") + kAllCpu, "p.yaml");
  const auto placed = place(model, *policy, *parse_target(kCpuOnly, "t.yaml"));
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.status().message(),
            "model.embed_tokens: weight too large: found [1, 4611686018427387904, 64], expected a size below 2^64 "
            "bytes; check config.json");
  ModelDesc wide = build_model({.layers = 1});
  auto& gqa = std::get<models::GqaDesc>(wide.modules[module_named(wide, "model.layers.0.self_attn")].attributes);
  gqa.heads = gqa.kv_heads = gqa.head_dim = UINT32_MAX;
  wide.hidden = wide.vocab = UINT32_MAX;
  const auto too_wide = place(wide, *policy, *parse_target(kCpuOnly, "t.yaml"));
  ASSERT_FALSE(too_wide.ok());
  EXPECT_EQ(too_wide.status().code(), StatusCode::resource_exhausted);
}

}  // namespace
}  // namespace ktc::placement
