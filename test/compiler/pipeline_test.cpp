// Import and pipeline on the demo checkpoint: what import states, that no phase loses anything, and that each can be
// resumed.
#include "compiler/pipeline/Pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "compiler/import/Import.h"
#include "dialects/kt/KtWalk.h"
#include "models/read_model.h"
#include "placement/place.h"

namespace ktc::compiler {
namespace {

const std::string kSource = KTC_SOURCE_DIR;

models::ModelDesc read(const std::string& folder) {
  auto model = models::read_model(folder, kSource + "/models/families");
  if (!model.ok()) throw std::runtime_error(model.status().message());
  return std::move(*model);
}

placement::Policy policyOf(const std::string& name) {
  auto policy = placement::read_policy(kSource + "/placement/policies/" + name);
  if (!policy.ok()) throw std::runtime_error(policy.status().message());
  return std::move(*policy);
}

placement::Target bigCpu() {
  placement::Target target;
  target.name = "a big machine";
  target.cpu.memory = std::uint64_t{1} << 40;
  return target;
}

class PipelineTest : public ::testing::Test {
 protected:
  PipelineTest() : context_(mlir::MLIRContext::Threading::DISABLED) {}

  std::string compile(const models::ModelDesc& model, const placement::Policy& policy, Phase stop) {
    auto module = compileTo(context_, model, policy, bigCpu(), {.stop = stop});
    EXPECT_TRUE(module.ok()) << module.status().message();
    return module.ok() ? printModule(**module) : "";
  }

  mlir::MLIRContext context_;
};

TEST_F(PipelineTest, LowersTheDemoModel) {
  const models::ModelDesc model = read(kSource + "/models/demo");
  auto module = compileTo(context_, model, policyOf("exact.yaml"), bigCpu(), {});
  ASSERT_TRUE(module.ok()) << module.status().message();
  EXPECT_EQ(kt::phaseOf(**module), Phase::lowered);
  std::vector<std::string> entries;
  for (auto entry : (*module)->getOps<kt::EntryOp>()) entries.push_back(entry.getSymName().str());
  EXPECT_EQ(entries, (std::vector<std::string>{"extend[512]", "decode[1]", "decode[2]", "decode[4]", "decode[8]",
                                               "sample[1]", "sample[2]", "sample[4]", "sample[8]"}));
}

TEST_F(PipelineTest, LogitsLieAtOneAddress) {
  auto module = compileTo(context_, read(kSource + "/models/demo"), policyOf("exact.yaml"), bigCpu(), {});
  ASSERT_TRUE(module.ok()) << module.status().message();
  unsigned found = 0;
  for (auto entry : (*module)->getOps<kt::EntryOp>()) {
    for (auto buffer : entry.getBuffersAttr().getAsRange<kt::BufferAttr>()) {
      if (buffer.getRole() != kt::BufferRole::logits) continue;
      EXPECT_EQ(buffer.getOffset(), 0u) << entry.getSymName().str();
      EXPECT_EQ(buffer.getRowBytes(), 4096u * 4) << entry.getSymName().str();
      ++found;
    }
  }
  EXPECT_EQ(found, 9u);
}

TEST_F(PipelineTest, IsDeterministic) {
  const models::ModelDesc model = read(kSource + "/models/demo");
  const std::string first = compile(model, policyOf("cpu.yaml"), Phase::lowered);
  mlir::MLIRContext other;
  auto again = compileTo(other, model, policyOf("cpu.yaml"), bigCpu(), {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first, printModule(**again));
  EXPECT_EQ(first.find(kSource), std::string::npos) << "a path of this machine is in the IR";
}

TEST_F(PipelineTest, EveryPhaseResumesFromItsText) {
  const models::ModelDesc model = read(kSource + "/models/demo");
  const placement::Policy policy = policyOf("exact.yaml");
  const std::string whole = compile(model, policy, Phase::lowered);
  for (Phase phase :
       {Phase::imported, Phase::placed, Phase::transferred, Phase::optimised, Phase::tiled, Phase::lowered}) {
    const std::string text = compile(model, policy, phase);
    auto module = parseModule(context_, text, "text");
    ASSERT_TRUE(module.ok()) << module.status().message();
    EXPECT_EQ(kt::phaseOf(**module), phase);
    const Status status = resume(**module, phase, policy, bigCpu(), {});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(printModule(**module), whole) << kt::stringifyPhase(phase).str();
  }
}

TEST_F(PipelineTest, ResumeRefusesAnotherPhase) {
  const models::ModelDesc model = read(kSource + "/models/demo");
  const placement::Policy policy = policyOf("exact.yaml");
  auto module = parseModule(context_, compile(model, policy, Phase::optimised), "text");
  ASSERT_TRUE(module.ok());
  EXPECT_EQ(resume(**module, Phase::placed, policy, bigCpu(), {}).message(),
            "--start-from: the IR is in another phase: found optimised, expected placed; name the phase that kt.phase "
            "states");
  EXPECT_EQ(
      resume(**module, std::nullopt, policy, bigCpu(), {.stop = Phase::placed}).message(),
      "--stop-after: the IR is past that phase: found optimised, expected at most placed; stop later, or start from an "
      "earlier text");
}

TEST_F(PipelineTest, TextThatDoesNotParseNamesItsLine) {
  auto module = parseModule(context_, "module {\n  kt.nothing\n}\n", "broken.mlir");
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(module.status().message().find("broken.mlir:2"), std::string::npos) << module.status().message();
}

TEST_F(PipelineTest, TextWithoutEntriesIsRefused) {
  auto module = parseModule(context_, "module { module {} }", "nested.mlir");
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(
      module.status().message(),
      "nested.mlir: no kt.entry in the module: expected one module, with nothing outside its braces; write it with "
      "--stop-after, or correct it");
}

// The IR of phase imported states everything that placement asks of a model.
TEST_F(PipelineTest, ModelComesBackFromTheIr) {
  const models::ModelDesc model = read(kSource + "/models/demo");
  auto module = importModel(context_, model, policyOf("exact.yaml"), bigCpu());
  ASSERT_TRUE(module.ok()) << module.status().message();
  // through text, so that a number that loses bits there shows
  auto parsed = parseModule(context_, printModule(**module), "text");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  auto back = modelFromIr(**parsed);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->name, model.name);
  EXPECT_EQ(back->hidden, model.hidden);
  EXPECT_EQ(back->stop_tokens, model.stop_tokens);
  EXPECT_EQ(back->tied_head, model.tied_head);
  EXPECT_EQ(back->sampling.temperature, model.sampling.temperature);
  EXPECT_EQ(back->sampling.top_k, model.sampling.top_k);
  ASSERT_EQ(back->modules.size(), model.modules.size());
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    EXPECT_EQ(back->modules[i].name, model.modules[i].name);
    EXPECT_EQ(back->modules[i].cls, model.modules[i].cls);
    EXPECT_EQ(back->modules[i].layer, model.modules[i].layer);
    EXPECT_EQ(back->modules[i].line.file, model.modules[i].line.file);
    EXPECT_EQ(back->modules[i].line.line, model.modules[i].line.line);
    ASSERT_EQ(back->modules[i].attributes.index(), model.modules[i].attributes.index());
    if (const auto* gqa = std::get_if<models::GqaDesc>(&model.modules[i].attributes)) {
      const auto& again = std::get<models::GqaDesc>(back->modules[i].attributes);
      EXPECT_EQ(again.rope.inv_freq, gqa->rope.inv_freq);
      EXPECT_EQ(again.rope.factor, gqa->rope.factor);
      EXPECT_EQ(again.scale, gqa->scale);
      EXPECT_EQ(again.norm_eps, gqa->norm_eps);
    }
  }
  ASSERT_EQ(back->layers.size(), model.layers.size());
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(back->layers[i].attention_norm, model.layers[i].attention_norm);
    EXPECT_EQ(back->layers[i].ffn_norm, model.layers[i].ffn_norm);
    EXPECT_EQ(back->layers[i].experts, model.layers[i].experts);
    EXPECT_EQ(back->layers[i].router, model.layers[i].router);
  }
  EXPECT_EQ(back->slots.size(), model.slots.size());
  auto account = placement::place(*back, policyOf("exact.yaml"), bigCpu());
  auto expected = placement::place(model, policyOf("exact.yaml"), bigCpu());
  ASSERT_TRUE(account.ok() && expected.ok());
  ASSERT_EQ(account->memory.size(), expected->memory.size());
  for (std::size_t i = 0; i < expected->memory.size(); ++i) {
    EXPECT_EQ(account->memory[i].name, expected->memory[i].name);
    EXPECT_EQ(account->memory[i].bytes, expected->memory[i].bytes) << expected->memory[i].name;
  }
}

// placement reserves an upper bound before the pipeline runs; the final account must stay below it.
TEST_F(PipelineTest, FinalAccountStaysWithinPlacementsBound) {
  const models::ModelDesc model = read(kSource + "/models/demo");
  const placement::Policy policy = policyOf("exact.yaml");
  auto bound = placement::place(model, policy, bigCpu());
  ASSERT_TRUE(bound.ok());
  std::map<std::string, std::uint64_t> reserved, found;
  for (const placement::MemoryLine& line : bound->memory) reserved[line.category] += line.bytes;
  auto module = compileTo(context_, model, policy, bigCpu(), {});
  ASSERT_TRUE(module.ok());
  for (auto line : (**module)->getAttrOfType<mlir::ArrayAttr>(kt::kAccount).getAsRange<kt::AccountAttr>()) {
    found[line.getCategory().str()] += line.getBytes();
  }
  EXPECT_EQ(found["weights"], reserved["weights"]);
  EXPECT_EQ(found["kv-cache"], reserved["kv-cache"]);
  EXPECT_LE(found["arena"], reserved["arena"]);
  EXPECT_GT(found["arena"], 0u);
}

// Text that was made for a larger machine is compared with this one.
TEST_F(PipelineTest, FinalAccountIsComparedWithTheLimit) {
  placement::Policy policy = policyOf("exact.yaml");
  auto module = parseModule(context_, compile(read(kSource + "/models/demo"), policy, Phase::tiled), "text");
  ASSERT_TRUE(module.ok());
  policy.limits["cpu"] = {std::uint64_t{100} << 20, {"exact.yaml", 9, 14}};
  const Status status = resume(**module, std::nullopt, policy, bigCpu(), {});
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message().rfind("exact.yaml:9:14: cpu is too small: found 15", 0), 0u) << status.message();
}

TEST_F(PipelineTest, PolicyTextReadsBack) {
  for (const char* name : {"exact.yaml", "cpu.yaml", "hybrid.yaml"}) {
    const placement::Policy policy = policyOf(name);
    const std::string text = policyText(policy);
    auto back = placement::parse_policy(text, name);
    ASSERT_TRUE(back.ok()) << back.status().message() << "\n" << text;
    EXPECT_EQ(policyText(*back), text);
    EXPECT_EQ(back->rules.size(), policy.rules.size());
    EXPECT_EQ(back->batch.decode, policy.batch.decode);
  }
}

TEST_F(PipelineTest, PolicyTextKeepsEveryKey) {
  const char* text = R"(version: 1
rules:
  - match: {class: RoutedExperts, name: "a\\.\"b\" #c"}
    place: {device: "cpu", weights: int4, group: 64, activations: int8, pin: true}
  - match: {class: "*"}
    place: {device: "cuda:0", weights: int8, group: row}
experts:
  strategy: frequency
  on_gpu: {max: 1024B}
  gpu: {devices: ["cuda:0", "cuda:1"], weights: int4, group: 128}
  statistics: "a b.json"
  seed: 7
  update: {every_tokens: 256}
defer: {max_per_token: 2, phases: [prefill, decode], scope: all}
kv_cache: {dtype: f32, tokens: 128, sequences: 3, page: 8}
batch: {decode: [1, 4], chunk: 64, stream_chunk: 128}
limits:
  "cuda:0": 25769803776B
)";
  auto policy = placement::parse_policy(text, "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ(policyText(*policy), text);
}

TEST_F(PipelineTest, RemarksSayWhatWasFolded) {
  std::vector<std::string> remarks;
  auto module =
      compileTo(context_, read(kSource + "/models/demo"), policyOf("exact.yaml"), bigCpu(), {.remarks = &remarks});
  ASSERT_TRUE(module.ok());
  bool folded = false;
  for (const std::string& remark : remarks) {
    folded |= remark.find("kt-fold-weights: Concatenated: model.layers.0.self_attn.") != std::string::npos;
    EXPECT_EQ(remark.find('\n'), std::string::npos);
  }
  EXPECT_TRUE(folded);
}

// What a user's policy causes is the user's error, at the user's line.
TEST_F(PipelineTest, PlacementErrorsKeepTheirCodeAndLine) {
  placement::Policy policy = policyOf("exact.yaml");
  policy.rules[0].place.device = "cuda:0";
  auto module = compileTo(context_, read(kSource + "/models/demo"), policy, bigCpu(), {});
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(module.status().message().rfind("exact.yaml:", 0), 0u) << module.status().message();
}

TEST(Phases, NamesAreParsedAndListed) {
  EXPECT_EQ(parsePhase("tiled"), Phase::tiled);
  EXPECT_EQ(parsePhase("tilted"), std::nullopt);
  EXPECT_EQ(listPhases(), "imported, placed, transferred, optimised, tiled, lowered, planned");
}

}  // namespace
}  // namespace ktc::compiler
