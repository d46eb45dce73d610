// The account of tensors: user problems 3 (packed experts) and 4 (MTP layers), tied heads, and every misfit by name.
#include "models/account.h"

#include "model_test_support.h"
#include "models/dump.h"

namespace ktc::models {
namespace {

using ktc::test::FakeCheckpoint;
using ktc::test::make_deepseek_v3;
using ktc::test::make_qwen3_moe;
using ktc::test::TemporaryFolder;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Account, LayerNumbers) {
  EXPECT_EQ(layer_number("model.layers.61.enorm.weight").number, 61);
  EXPECT_EQ(layer_number("model.layers.61.enorm.weight").prefix, "model.layers.61.");
  EXPECT_EQ(layer_number("model.mtp_block.layers.2.x").prefix, "model.mtp_block.layers.2.");
  EXPECT_EQ(layer_number("layers.0.x").number, 0);
  EXPECT_EQ(layer_number("model.norm.weight").number, -1);
  EXPECT_EQ(layer_number("model.sublayers.3.x").number, -1);
  EXPECT_EQ(layer_number("model.layers.x.layers.7.y").number, 7);
  EXPECT_EQ(layer_number("model.layers.99999999999999999999.x").number, -1);
  EXPECT_EQ(layer_number("model.layers.7").number, -1);
  EXPECT_EQ(layer_number("").number, -1);
}

// ---------------------------------------------------------------------------------------- user problem 3: expert
// storage

TEST(Account, BothExpertStoragesFillTheSameSlots) {
  for (const auto& make : std::vector<std::function<FakeCheckpoint()>>{[] { return make_qwen3_moe(); },
                                                                       [] { return make_deepseek_v3(); }}) {
    FakeCheckpoint one = make();
    FakeCheckpoint packed = make();
    packed.pack_experts();
    EXPECT_LT(packed.tensors.size(), one.tensors.size());
    const ReadOutcome a = read(one), b = read(packed);
    ASSERT_EQ(a.error, "");
    ASSERT_EQ(b.error, "");
    expect_exact_cover(*a.model);
    expect_exact_cover(*b.model);
    ASSERT_EQ(a.model->slots.size(), b.model->slots.size());
    for (std::size_t i = 0; i < a.model->slots.size(); ++i) {
      const WeightSlot &x = a.model->slots[i], &y = b.model->slots[i];
      EXPECT_EQ(std::tie(x.name, x.batch, x.rows, x.columns, x.type),
                std::tie(y.name, y.batch, y.rows, y.columns, y.type));
    }
  }
}

TEST(Account, PlacesOfExpertPieces) {
  const ReadOutcome o = read(make_qwen3_moe());
  ASSERT_EQ(o.error, "");
  const WeightSlot* slot = find_slot(*o.model, "model.layers.1.mlp.experts.gate_up");
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(slot->batch, 4u);
  EXPECT_EQ(slot->rows, 48u);
  EXPECT_EQ(slot->columns, 48u);
  for (const TensorPiece& piece : slot->pieces) {
    const bool up = o.model->tensors[piece.tensor].name.find("up_proj") != std::string::npos;
    EXPECT_EQ(piece.row_begin, up ? 24u : 0u);  // gate rows first
    EXPECT_EQ(o.model->tensors[piece.tensor].name, "model.layers.1.mlp.experts." + std::to_string(piece.batch_begin) +
                                                       (up ? ".up_proj.weight" : ".gate_proj.weight"));
  }
}

TEST(Account, StorageIsDecidedPerGroup) {
  FakeCheckpoint one = make_qwen3_moe(), packed = make_qwen3_moe();
  packed.pack_experts();
  FakeCheckpoint mixed = make_qwen3_moe();
  std::erase_if(mixed.tensors, [](const auto& t) { return t.name.starts_with("model.layers.1.mlp.experts."); });
  mixed.tensors.push_back(packed.at("model.layers.1.mlp.experts.gate_up_proj"));
  mixed.tensors.push_back(packed.at("model.layers.1.mlp.experts.down_proj"));
  const ReadOutcome o = read(mixed);
  ASSERT_EQ(o.error, "");
  expect_exact_cover(*o.model);
}

TEST(Account, MisspelledPackedTensor) {
  FakeCheckpoint packed = make_qwen3_moe();
  packed.pack_experts();
  packed.rename("model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_porj");
  EXPECT_EQ(read(packed).error,
            "M: 2 of the checkpoint's tensors do not fit family qwen3_moe: missing "
            "'model.layers.1.mlp.experts.0.down_proj.weight' [48, 24] and 3 more or "
            "'model.layers.1.mlp.experts.down_proj' [4, 48, "
            "24] (slot model.layers.1.mlp.experts.down); unknown 'model.layers.1.mlp.experts.down_porj' [4, 48, 24] "
            "(did you mean "
            "'model.layers.1.mlp.experts.down_proj'?); config.json and tensors must describe the same model");
}

TEST(Account, TransposedPackedExpertsAreRefused) {
  FakeCheckpoint packed = make_qwen3_moe({.hidden = 32});
  packed.pack_experts();
  packed.at("model.layers.0.mlp.experts.gate_up_proj").shape = {4, 32, 48};
  EXPECT_EQ(read(packed).error,
            "M: 1 of the checkpoint's tensors do not fit family qwen3_moe: misshapen "
            "'model.layers.0.mlp.experts.gate_up_proj': found "
            "[4, 32, 48], expected [4, 48, 32]; config.json and tensors must describe the same model");
}

// -------------------------------------------------------------------------------------------- user problem 4: MTP
// layers

FakeCheckpoint with_mtp(const std::string& prefix) {
  FakeCheckpoint c = make_deepseek_v3();
  c.config["num_nextn_predict_layers"] = 1;
  c.add(prefix + "enorm.weight", {48});
  c.add(prefix + "hnorm.weight", {48});
  c.add(prefix + "eh_proj.weight", {48, 96}, "F8_E4M3");
  c.add(prefix + "eh_proj.weight_scale_inv", {1, 1}, "F32");
  c.add(prefix + "input_layernorm.weight", {48});
  c.add(prefix + "shared_head.head.weight", {64, 48});
  return c;
}

TEST(Account, MtpLayersAreSkippedWhateverTheirPrefix) {
  const ReadOutcome plain = read(make_deepseek_v3());
  ASSERT_EQ(plain.error, "");
  for (const char* prefix : {"model.layers.3.", "model.extra.layers.3.", "mtp.layers.0.", "model.mtp.0."}) {
    SCOPED_TRACE(prefix);
    const ReadOutcome o = read(with_mtp(prefix));
    ASSERT_EQ(o.error, "");
    EXPECT_THAT(o.warnings, IsEmpty());
    expect_exact_cover(*o.model);
    ASSERT_EQ(o.model->skipped.size(), 1u);
    const std::uint64_t bytes = 2 * 48 * 3 + 48 * 96 + 4 + 2 * 64 * 48;
    const std::string layers = std::string(prefix).find("layers") != std::string::npos ? " 1 layer," : "";
    EXPECT_EQ(describe(o.model->skipped[0]),
              "MTP layer, not used for generation:" + layers + " 6 tensors, " + std::to_string(bytes) + " bytes");
    // the main model does not notice
    ASSERT_EQ(o.model->slots.size(), plain.model->slots.size());
    ASSERT_EQ(o.model->modules.size(), plain.model->modules.size());
    for (std::size_t i = 0; i < plain.model->slots.size(); ++i)
      EXPECT_EQ(o.model->slots[i].name, plain.model->slots[i].name);
  }
}

TEST(Account, AnnouncedMtpLayerThatIsAbsent) {
  FakeCheckpoint c = make_deepseek_v3();
  c.config["num_nextn_predict_layers"] = 1;
  const ReadOutcome o = read(c);
  EXPECT_EQ(o.error, "");
  EXPECT_THAT(o.warnings,
              ElementsAre("M/config.json: num_nextn_predict_layers = 1 announces layers that the checkpoint does not "
                          "have; generation does not need them"));
}

TEST(Account, UnannouncedLayerIsSkippedOnlyIfItLooksLikeMtp) {
  FakeCheckpoint c = with_mtp("model.layers.3.");
  c.config["num_nextn_predict_layers"] = 0;
  EXPECT_EQ(read(c).error, "");
  // a real layer beyond a wrong num_hidden_layers must not vanish
  FakeCheckpoint q = make_qwen3_moe();
  q.config["num_hidden_layers"] = 1;
  const std::string error = read(q).error;
  EXPECT_THAT(error, testing::StartsWith(
                         "M: 21 of the checkpoint's tensors do not fit family qwen3_moe: unknown "
                         "'model.layers.1.input_layernorm.weight' [48] (of layer 1, but num_hidden_layers = 1); "));
  EXPECT_THAT(error, testing::EndsWith("; and 11 more; config.json and tensors must describe the same model"));
}

TEST(Account, BuffersAndVisionTowersAreSkipped) {
  FakeCheckpoint c = make_qwen3_moe();
  c.add("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, "F32");
  c.add("visual.blocks.40.attn.weight", {4, 4});
  c.add("visual.layers.40.position_ids", {4}, "I64");
  const ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  expect_exact_cover(*o.model);
  std::vector<std::string> skipped;
  for (const auto& s : o.model->skipped) skipped.push_back(describe(s));
  EXPECT_THAT(skipped, ElementsAre("vision tower: 1 layer, 2 tensors, 64 bytes",
                                   "rotary frequencies are computed: 1 layer, 1 tensor, 32 bytes"));
}

// ------------------------------------------------------------------------------------------------------------ tied
// heads

TEST(Account, TiedHead) {
  FakeCheckpoint c = make_qwen3_moe({.tied = true});
  for (const nlohmann::json& flag : {nlohmann::json(true), nlohmann::json(nullptr)}) {
    c.config["tie_word_embeddings"] = flag;
    const ReadOutcome o = read(c);
    ASSERT_EQ(o.error, "");
    EXPECT_TRUE(o.model->tied_head);
    EXPECT_THAT(o.warnings, IsEmpty());
    const auto& head = std::get<HeadDesc>(o.model->modules[o.model->head].attributes);
    EXPECT_EQ(o.model->slots[head.weight].name, "model.embed_tokens.weight");
    EXPECT_EQ(find_slot(*o.model, "lm_head.weight"), nullptr);
  }
  c.config["tie_word_embeddings"] = false;
  EXPECT_EQ(read(c).error,
            "M: 1 of the checkpoint's tensors do not fit family qwen3_moe: missing 'lm_head.weight' although "
            "tie_word_embeddings is "
            "false: set tie_word_embeddings to true if the head shares the embedding, or fetch the tensor again; "
            "config.json and "
            "tensors must describe the same model");
}

TEST(Account, HeadOfItsOwn) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config.erase("tie_word_embeddings");
  const ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_FALSE(o.model->tied_head);
  const auto& head = std::get<HeadDesc>(o.model->modules[o.model->head].attributes);
  EXPECT_EQ(o.model->slots[head.weight].name, "lm_head.weight");
}

TEST(Account, RedundantHead) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config["tie_word_embeddings"] = true;
  c.fill(5);
  c.at("lm_head.weight").data = c.at("model.embed_tokens.weight").data;
  ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_TRUE(o.model->tied_head);
  EXPECT_THAT(o.warnings,
              ElementsAre("M/config.json: tie_word_embeddings is true and 'lm_head.weight' repeats the embedding: the "
                          "tensor is not used"));
  ASSERT_EQ(o.model->skipped.size(), 1u);
  EXPECT_EQ(describe(o.model->skipped[0]), "output head, tied to the embedding: 1 tensor, 6144 bytes");
  expect_exact_cover(*o.model);

  c.at("lm_head.weight").data.back() ^= std::byte{1};  // one bit
  o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_TRUE(o.model->tied_head);
  EXPECT_THAT(
      o.warnings,
      ElementsAre("M/config.json: tie_word_embeddings is true, but 'lm_head.weight' differs from the embedding: "
                  "the embedding is used; set tie_word_embeddings to false to use the tensor"));
}

// ---------------------------------------------------------------------------------------------------------------
// misfits

TEST(Account, MissingTensor) {
  FakeCheckpoint c = make_qwen3_moe();
  c.remove("model.layers.1.self_attn.q_norm.weight");
  c.remove("model.layers.0.mlp.experts.2.up_proj.weight");
  EXPECT_EQ(
      read(c).error,
      "M: 2 of the checkpoint's tensors do not fit family qwen3_moe: missing "
      "'model.layers.0.mlp.experts.2.up_proj.weight' "
      "[24, 48] (slot model.layers.0.mlp.experts.gate_up); missing 'model.layers.1.self_attn.q_norm.weight' [16] (slot "
      "model.layers.1.self_attn.q_norm); incomplete download? fetch the checkpoint again");
}

TEST(Account, UnknownMisshapenAndWrongType) {
  FakeCheckpoint c = make_qwen3_moe();
  c.rename("model.norm.weight", "model.nrom.weight");
  c.at("model.layers.0.self_attn.q_proj.weight").shape = {48, 48};
  c.at("model.layers.0.self_attn.k_proj.weight").dtype = "F8_E5M2";
  c.at("model.layers.1.mlp.experts.3.up_proj.weight").dtype = "F32";
  EXPECT_EQ(read(c).error,
            "M: 5 of the checkpoint's tensors do not fit family qwen3_moe: missing 'model.norm.weight' [48] (slot "
            "model.norm.weight); misshapen 'model.layers.0.self_attn.q_proj.weight': found [48, 48], expected [64, "
            "48]; type of "
            "'model.layers.0.self_attn.k_proj.weight': found F8_E5M2, expected BF16, F32, F16 or F8_E4M3; type of "
            "'model.layers.1.mlp.experts.3.up_proj.weight': found F32, expected BF16 like the other tensors of slot "
            "model.layers.1.mlp.experts.gate_up; unknown 'model.nrom.weight' [48] (did you mean 'model.norm.weight'?); "
            "config.json "
            "and tensors must describe the same model");
}

// Experts, shared expert and attention in FP8 with blocks of 128, as released; router, norms, embedding and head in BF16.
FakeCheckpoint fp8_checkpoint() {
  FakeCheckpoint c = make_deepseek_v3({.hidden = 160, .kv_rank = 144, .intermediate = 130});
  for (auto& tensor : std::vector(c.tensors)) {
    const bool matrix = tensor.shape.size() == 2 && tensor.name.find(".layers.") != std::string::npos &&
                        tensor.name.find("mlp.gate.") == std::string::npos;
    if (!matrix) continue;
    c.at(tensor.name).dtype = "F8_E4M3";
    c.add(tensor.name + "_scale_inv", {(tensor.shape[0] + 127) / 128, (tensor.shape[1] + 127) / 128}, "F32");
  }
  c.config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  return c;
}

TEST(Account, Fp8TensorsBringTheirScales) {
  const auto o = read(fp8_checkpoint());
  ASSERT_EQ(o.error, "");
  const WeightSlot& bank = *find_slot(*o.model, "model.layers.1.mlp.experts.gate_up");
  EXPECT_EQ(bank.type, TensorType::f8_e4m3);
  for (const TensorPiece& piece : bank.pieces) {
    EXPECT_EQ(o.model->tensors[piece.scales].name, o.model->tensors[piece.tensor].name + "_scale_inv");
    EXPECT_EQ(piece.scale_rows, 128u);
    EXPECT_EQ(piece.scale_columns, 128u);
  }
  const WeightSlot& head = *find_slot(*o.model, "lm_head.weight");
  EXPECT_EQ(head.type, TensorType::bf16) << "what is not FP8 needs no scales";
  EXPECT_EQ(head.pieces.front().scales, kNoTensor);
}

TEST(Account, Fp8WithoutOrWithWrongScalesIsNamed) {
  const std::string q = "model.layers.0.self_attn.o_proj.weight";
  FakeCheckpoint missing = fp8_checkpoint();
  missing.remove(q + "_scale_inv");
  EXPECT_EQ(read(missing).error,
            "M: 1 of the checkpoint's tensors do not fit family deepseek_v3: missing '" + q +
                "_scale_inv' [2, 1] (scales of an FP8 tensor of slot model.layers.0.self_attn.o); incomplete download? fetch "
                "the checkpoint again");
  FakeCheckpoint misshapen = fp8_checkpoint();
  misshapen.at(q + "_scale_inv").shape = {1, 1};
  misshapen.at("model.layers.0.self_attn.kv_b_proj.weight_scale_inv").dtype = "BF16";
  EXPECT_EQ(read(misshapen).error,
            "M: 2 of the checkpoint's tensors do not fit family deepseek_v3: type of "
            "'model.layers.0.self_attn.kv_b_proj.weight_scale_inv': found BF16, expected F32; misshapen '" + q +
                "_scale_inv': found [1, 1], expected [2, 1] for blocks of 128 x 128; config.json and tensors must describe the "
                "same model");
  FakeCheckpoint extra = fp8_checkpoint();
  extra.at(q).dtype = "BF16";
  EXPECT_EQ(read(extra).error, "M: 1 of the checkpoint's tensors do not fit family deepseek_v3: unknown '" + q +
                                   "_scale_inv' [2, 1]; config.json and tensors must describe the same model");
}

TEST(Account, Fp8ScalesPerRowAndPerTensor) {
  FakeCheckpoint c = fp8_checkpoint();
  const std::string row = "model.layers.0.self_attn.o_proj.weight", all = "model.layers.0.self_attn.kv_b_proj.weight";
  c.rename(row + "_scale_inv", row + "_scale");
  c.at(row + "_scale").shape = {160, 1};
  c.rename(all + "_scale_inv", all + "_scale");
  c.at(all + "_scale").shape = {1};
  const auto o = read(c);
  ASSERT_EQ(o.error, "");
  const TensorPiece& o_proj = find_slot(*o.model, "model.layers.0.self_attn.o")->pieces.front();
  EXPECT_EQ(o_proj.scale_rows, 1u);
  EXPECT_EQ(o_proj.scale_columns, 40u);
  const TensorPiece& kv_b = find_slot(*o.model, "model.layers.0.self_attn.kv_b")->pieces.front();
  EXPECT_EQ(kv_b.scale_rows, 72u);
  EXPECT_EQ(kv_b.scale_columns, 144u);
}

TEST(Account, TenAreNamedAndTheRestCounted) {
  FakeCheckpoint c = make_qwen3_moe();
  for (int i = 0; i < 30; ++i) c.add("other." + std::to_string(i), {3});
  for (int i = 0; i < 4; ++i) c.remove("model.layers.0.mlp.experts." + std::to_string(i) + ".down_proj.weight");
  const std::string error = read(c).error;
  EXPECT_THAT(error, testing::StartsWith("M: 31 of the checkpoint's tensors do not fit family qwen3_moe: missing "
                                         "'model.layers.0.mlp.experts.0.down_proj.weight' [48, 24] and 3 more or "));
  EXPECT_THAT(error, testing::HasSubstr("; unknown 'other.0' [3]; "));
  EXPECT_THAT(error, testing::HasSubstr("; and 21 more; "));
}

TEST(Account, F32AndF16AreServed) {
  FakeCheckpoint c = make_qwen3_moe();
  for (auto& tensor : c.tensors) tensor.dtype = tensor.name.find("norm") != std::string::npos ? "F32" : "F16";
  const ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_EQ(find_slot(*o.model, "model.norm.weight")->type, TensorType::f32);
  EXPECT_EQ(find_slot(*o.model, "lm_head.weight")->type, TensorType::f16);
}

TEST(Account, AHostileNumberOfLayersOrExpertsEndsQuickly) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config["num_hidden_layers"] = 2'000'000'000;
  EXPECT_THAT(read(c).error, testing::StartsWith("M: more than "));
  c = make_qwen3_moe();
  c.config["num_experts"] = 2'000'000'000;
  EXPECT_THAT(read(c).error,
              testing::MatchesRegex("qwen3_moe.yaml:[0-9]+:[0-9]+: batch: found 2000000000, expected 1 to 16384"));
  c.config["num_experts"] = 16384;
  c.config["num_hidden_layers"] = 2'000'000'000;
  EXPECT_THAT(read(c).error, testing::StartsWith("M: more than "));
}

}  // namespace
}  // namespace ktc::models
