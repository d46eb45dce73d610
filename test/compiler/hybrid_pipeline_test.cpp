// Hybrid policies on the demo model and a small DeepSeek: what is on which device, what is handed over, what is late, and that
// every optimisation can be left out.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <stdexcept>

#include "compiler/emit/PlanBuilder.h"
#include "compiler/pipeline/Pipeline.h"
#include "dialects/kt/KtWalk.h"
#include "models/read_model.h"
#include "placement/place.h"

namespace ktc::compiler {
namespace {

const std::string kSource = KTC_SOURCE_DIR;

models::ModelDesc demo() {
  auto model = models::read_model(kSource + "/models/demo", kSource + "/models/families");
  if (!model.ok()) throw std::runtime_error(model.status().message());
  return std::move(*model);
}

placement::Target h200() {
  auto target = placement::read_target(kSource + "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  if (!target.ok()) throw std::runtime_error(target.status().message());
  return std::move(*target);
}

placement::Policy hybrid(const std::string& more = "", const std::string& cold = "native",
                         const std::string& hot = "on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"]}") {
  auto policy = placement::parse_policy("version: 1\nrules:\n  - match: {class: RoutedExperts}\n    place: {device: cpu, weights: " +
                                            cold + "}\n  - match: {class: \"*\"}\n    place: {device: \"cuda:0\"}\nexperts:\n  " +
                                            hot +
                                            "\nkv_cache: {dtype: bf16, tokens: 256, sequences: 2, page: 16}\n"
                                            "batch: {decode: [1, 2], chunk: 64}\n" +
                                            more,
                                        "p.yaml");
  if (!policy.ok()) throw std::runtime_error(policy.status().message());
  return std::move(*policy);
}

class HybridTest : public ::testing::Test {
 protected:
  HybridTest() : context_(mlir::MLIRContext::Threading::DISABLED) {}

  mlir::OwningOpRef<mlir::ModuleOp> lower(const models::ModelDesc& model, const placement::Policy& policy,
                                          std::vector<std::string> disabled = {}, std::vector<std::string>* remarks = nullptr) {
    auto module = compileTo(context_, model, policy, h200(), {.remarks = remarks, .disabled = std::move(disabled), .halves_below = halvesBelow_});
    EXPECT_TRUE(module.ok()) << module.status().message();
    return module.ok() ? std::move(*module) : mlir::OwningOpRef<mlir::ModuleOp>();
  }

  // The plan that emission writes, verified; its bytes without digests of weights.
  static std::vector<std::byte> planOf(mlir::ModuleOp module, const models::ModelDesc& model, planfb::PlanT* out = nullptr) {
    auto built = buildPlan(module, model);
    EXPECT_TRUE(built.ok()) << built.status().message();
    if (!built.ok()) return {};
    const Status status = plan::verify_plan(built->plan);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<std::byte> bytes = plan::serialise_plan(built->plan);
    if (out) *out = std::move(built->plan);
    return bytes;
  }

  template <typename Op>
  static std::size_t count(mlir::ModuleOp module, llvm::StringRef entry) {
    auto body = module.lookupSymbol<kt::EntryOp>(entry);
    return body ? std::distance(body.getBody().getOps<Op>().begin(), body.getBody().getOps<Op>().end()) : 0;
  }

  mlir::MLIRContext context_;
  double halvesBelow_ = kHalvesBelow;
};

TEST_F(HybridTest, SplitsHandsOverAndComesBack) {
  const models::ModelDesc model = demo();
  auto module = lower(model, hybrid());
  ASSERT_TRUE(module);
  EXPECT_EQ(count<kt::SubmitOp>(*module, "decode[1]"), 8u);
  EXPECT_EQ(count<kt::AwaitOp>(*module, "decode[1]"), 8u);
  EXPECT_EQ(count<kt::TransferOp>(*module, "decode[1]"), 0u);
  EXPECT_EQ(count<kt::SubmitOp>(*module, "extend[64]"), 0u);
  EXPECT_EQ(count<kt::TransferOp>(*module, "extend[64]"), 16u);
  EXPECT_EQ(count<kt::ExpertsOp>(*module, "decode[1]"), 16u);
  planfb::PlanT plan;
  planOf(*module, model, &plan);
  ASSERT_EQ(plan.devices.size(), 2u);
  EXPECT_EQ(plan.devices[0]->name, "cpu");
  EXPECT_EQ(plan.devices[1]->name, "cuda:0");
  for (const auto& entry : plan.entries) {
    const bool captured = entry->kind != planfb::EntryKind::extend;  // decode and sample
    EXPECT_EQ(entry->graphs.size(), captured ? 1u : 0u) << entry->name;
    for (const auto& step : entry->steps) EXPECT_EQ(step->graph != plan::kNone, captured && step->device == 1) << step->name;
    if (entry->kind != planfb::EntryKind::decode) continue;
    // A sum and norm may run in one launch with the router behind it, whose scratch and results leave its terms alone.
    const planfb::StepT* sum = nullptr;
    int routers = 0;
    for (const auto& step : entry->steps) {
      if (step->op.AsAddNormOp() != nullptr) sum = step.get();
      if (step->op.AsRouteOp() == nullptr || sum == nullptr || step->device != 1) continue;
      ++routers;
      std::vector<std::uint32_t> written = {step->workspace};
      for (const planfb::View& view : step->outputs) written.push_back(view.buffer());
      for (const planfb::View& view : sum->inputs)
        for (const std::uint32_t b : written) {
          const planfb::BufferT &in = *entry->buffers[view.buffer()], &out = *entry->buffers[b];
          EXPECT_TRUE(in.offset + in.bytes <= out.offset || out.offset + out.bytes <= in.offset) << entry->name << ": " << in.name << ", " << out.name;
        }
    }
    EXPECT_EQ(routers, 8) << "layers";
  }
}

// The matrices of both banks are those of the layer, each once.
TEST_F(HybridTest, BanksOfALayerShareItsExperts) {
  const models::ModelDesc model = demo();
  auto module = lower(model, hybrid());
  ASSERT_TRUE(module);
  auto built = buildPlan(*module, model);
  ASSERT_TRUE(built.ok()) << built.status().message();
  std::map<std::string, std::set<std::uint32_t>> seen;
  for (const FileJobs& file : built->files) {
    for (const WeightJob& job : file.jobs) {
      ASSERT_TRUE(check_job(job, model).ok()) << check_job(job, model).message();
      if (job.matrices.empty()) continue;
      EXPECT_EQ(job.matrices.size(), job.batch);
      for (const std::uint32_t matrix : job.matrices)
        EXPECT_TRUE(seen[model.slots[job.pieces[0].slot].name].insert(matrix).second) << job.name;
    }
  }
  EXPECT_EQ(seen.size(), 16u);
  for (const auto& [slot, matrices] : seen) EXPECT_EQ(matrices.size(), 32u) << slot;
}

// Integer weights on both sides, each packed as its device reads it.
TEST_F(HybridTest, EveryDeviceHasItsPacking) {
  const models::ModelDesc model = demo();
  auto policy = hybrid("", "int8", "on_gpu: 4\n  gpu: {devices: [\"cuda:0\"], weights: int4, group: 64}");
  auto module = lower(model, policy);
  ASSERT_TRUE(module);
  planOf(*module, model);
  for (auto bank : module->getOps<kt::ExpertBankOp>()) {
    const bool cpu = *bank.getDevice() == "cpu";
    EXPECT_EQ(bank.getPacking()->str(), cpu ? "panel_paired" : "gpu_rows");
    EXPECT_EQ(bank.getFormat()->str(), cpu ? "int8" : "int4");
    EXPECT_EQ(bank.getExperts(), cpu ? 28u : 4u);
  }
  for (auto submit : module->lookupSymbol<kt::EntryOp>("decode[2]").getBody().getOps<kt::SubmitOp>())
    EXPECT_EQ(submit.getFormat(), "bf16") << "the record is rounded to what the experts take anyway";
}

TEST_F(HybridTest, AllExpertsHotNeedNoCpu) {
  const models::ModelDesc model = demo();
  auto module = lower(model, hybrid("", "native", "on_gpu: 100%\n  gpu: {devices: [\"cuda:0\"]}"));
  ASSERT_TRUE(module);
  planfb::PlanT plan;
  planOf(*module, model, &plan);
  ASSERT_EQ(plan.devices.size(), 2u);
  EXPECT_EQ(plan.devices[0]->arena_bytes, 0u);
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps) EXPECT_EQ(step->kind, planfb::StepKind::launch) << step->name;
}

TEST_F(HybridTest, LateExpertsAreDeliveredOnTheirDevice) {
  const models::ModelDesc model = demo();
  for (const bool all : {false, true}) {
    auto policy = hybrid(all ? "defer: {max_per_token: 3, phases: [decode], scope: all}\n" : "defer: {max_per_token: 3}\n");
    auto module = lower(model, policy);
    ASSERT_TRUE(module);
    planfb::PlanT plan;
    planOf(*module, model, &plan);
    EXPECT_TRUE(plan.defer_decode);
    EXPECT_FALSE(plan.defer_prefill);
    for (const auto& entry : plan.entries) {
      std::size_t inTime = 0, late = 0, whole = 0, deferred = 0;
      for (const auto& step : entry->steps) {
        const auto* op = step->op.AsExpertsOp();
        if (op == nullptr) continue;
        inTime += op->part == planfb::ExpertsPart::in_time;
        late += op->part == planfb::ExpertsPart::late;
        whole += op->part == planfb::ExpertsPart::all;
        if (op->late != 0) EXPECT_EQ(op->late_among_all, all);
      }
      for (const auto& buffer : entry->buffers) deferred += buffer->role == planfb::BufferRole::deferred;
      const bool sample = entry->kind == planfb::EntryKind::sample;
      EXPECT_EQ(inTime, sample ? 0u : all ? 14u : 7u) << entry->name;
      EXPECT_EQ(late, inTime);
      EXPECT_EQ(whole, sample ? 0u : all ? 2u : 9u) << "the last layer has none";
      EXPECT_EQ(deferred, sample ? 0u : all ? 2u : 1u) << "the flags are on every device that reads them";
    }
  }
}

// Nothing deferred is as if the pass were not there.
TEST_F(HybridTest, DeferringNothingChangesNoByte) {
  const models::ModelDesc model = demo();
  auto zero = lower(model, hybrid("defer: {max_per_token: 0}\n"));
  auto without = lower(model, hybrid("defer: {max_per_token: 0}\n"), {"defer-experts"});
  ASSERT_TRUE(zero && without);
  EXPECT_EQ(planOf(*zero, model), planOf(*without, model));
}

TEST_F(HybridTest, MoreLateExpertsThanThereAreIsAnErrorOfThePolicy) {
  auto module = compileTo(context_, demo(), hybrid("defer: {max_per_token: 9}\n"), h200(), {});
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.status().message().rfind("p.yaml:12:8: more late experts than a token has: found max_per_token: 9", 0), 0u)
      << module.status().message();
}

// Every optimisation can be left out: the plan verifies, and differs.
TEST_F(HybridTest, EveryOptimisationCanBeLeftOut) {
  const models::ModelDesc model = demo();
  placement::Policy policy = hybrid("defer: {max_per_token: 2}\n");
  halvesBelow_ = 1000;  // whatever is predicted of them
  policy.batch.stream_chunk = 2 * policy.batch.chunk;
  auto whole = lower(model, policy);
  ASSERT_TRUE(whole);
  const std::vector<std::byte> bytes = planOf(*whole, model);
  for (std::string_view pass : kSwitchable) {
    SCOPED_TRACE(pass);
    auto module = lower(model, policy, {std::string(pass)});
    ASSERT_TRUE(module);
    EXPECT_NE(planOf(*module, model), bytes);
  }
}

// Halves where they are predicted to pay, or always: the plan verifies, says so in its features, and its account is final.
TEST_F(HybridTest, PromptsAreCutInHalvesWhereThatPays) {
  const models::ModelDesc model = demo();
  for (const char* defer : {"", "defer: {max_per_token: 2, phases: [prefill, decode]}\n"}) {
    planfb::PlanT plans[3];
    const double below[] = {0, kHalvesBelow, 1000};
    for (int i = 0; i < 3; ++i) {
      halvesBelow_ = below[i];
      auto module = lower(model, hybrid(defer));
      ASSERT_TRUE(module);
      planOf(*module, model, &plans[i]);
    }
    const auto halves = static_cast<std::uint64_t>(plan::Feature::halves);
    EXPECT_EQ(plans[0].required_features & halves, 0u);
    EXPECT_EQ(plans[2].required_features & halves, halves);
    for (const auto& entry : plans[2].entries) EXPECT_EQ(plan::is_cut(*entry), entry->kind == planfb::EntryKind::extend) << entry->name;
    // what a cut plan needs beside its activations is the whole one's, but for the step blocks
    for (std::size_t i = 0; i < plans[0].account.size(); ++i) {
      const planfb::AccountLineT &whole = *plans[0].account[i], &cut = *plans[2].account[i];
      EXPECT_EQ(whole.category, cut.category);
      if (whole.category != "arena" && whole.category != "step-block") EXPECT_EQ(whole.bytes, cut.bytes) << whole.category;
    }
  }
}

TEST_F(HybridTest, NamesOfOptimisationsAreChecked) {
  EXPECT_EQ(*parseSwitchable("kt-fuse"), "fuse");
  EXPECT_EQ(*parseSwitchable("schedule"), "schedule");
  EXPECT_EQ(parseSwitchable("place").status().message(),
            "--disable-pass: no optimisation of that name: found place, expected one of defer-experts, fold-weights, "
            "form-cuda-graphs, fuse, halve-batches, join-launches, schedule, split-experts, stream-experts");
}

// Remarks begin with the line of the policy that caused what they tell.
TEST_F(HybridTest, RemarksNameTheLineOfThePolicy) {
  std::vector<std::string> remarks;
  ASSERT_TRUE(lower(demo(), hybrid("defer: {max_per_token: 2}\n"), {}, &remarks));
  const std::map<std::string, std::string> expected = {{"kt-split-experts: Hot:", "p.yaml:8:11 "},
                                                       {"kt-defer-experts: Deferred:", "p.yaml:12:8 "},
                                                       {"kt-insert-transfers: HandOff:", "p.yaml:3:5 "},
                                                       {"kt-insert-transfers: Transfer:", "p.yaml:3:5 "},
                                                       {"kt-fuse: AddNorm:", "p.yaml:5:5 "}};
  for (const auto& [what, line] : expected) {
    const auto found = std::find_if(remarks.begin(), remarks.end(),
                                    [&](const std::string& remark) { return remark.find(what) != std::string::npos; });
    ASSERT_NE(found, remarks.end()) << what;
    EXPECT_EQ(found->rfind(line, 0), 0u) << *found;
  }
}

TEST_F(HybridTest, EveryPhaseResumesFromItsText) {
  const models::ModelDesc model = demo();
  const placement::Policy policy = hybrid("defer: {max_per_token: 2, phases: [decode], scope: all}\n");
  auto whole = lower(model, policy);
  ASSERT_TRUE(whole);
  for (int phase = 0; phase <= static_cast<int>(Phase::lowered); ++phase) {
    auto stopped = compileTo(context_, model, policy, h200(), {.stop = static_cast<Phase>(phase)});
    ASSERT_TRUE(stopped.ok()) << stopped.status().message();
    auto module = parseModule(context_, printModule(**stopped), "text");
    ASSERT_TRUE(module.ok()) << module.status().message();
    const Status status = resume(**module, std::nullopt, policy, h200(), {});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(printModule(**module), printModule(*whole)) << kt::stringifyPhase(static_cast<Phase>(phase)).str();
  }
}

// The policy that ships with the program, and what placement reserved for it.
TEST_F(HybridTest, ShippedPolicyStaysWithinPlacementsBound) {
  auto policy = placement::read_policy(kSource + "/placement/policies/hybrid.yaml");
  ASSERT_TRUE(policy.ok());
  const models::ModelDesc model = demo();
  auto bound = placement::place(model, *policy, h200());
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  auto module = lower(model, *policy);
  ASSERT_TRUE(module);
  planOf(*module, model);
  std::map<std::string, std::uint64_t> reserved, found;
  for (const placement::MemoryLine& line : bound->memory) {
    const std::string category = line.category == "hot-experts" ? "weights" : line.category;
    reserved[line.device + " " + category] += line.bytes;
  }
  for (auto line : (*module)->getAttrOfType<mlir::ArrayAttr>(kt::kAccount).getAsRange<kt::AccountAttr>())
    found[(line.getDevice() + " " + line.getCategory()).str()] += line.getBytes();
  for (const auto& [line, bytes] : found) {
    // what entries are cut in halves is known at the end alone
    if (line.find("arena") != std::string::npos || line.find("step-block") != std::string::npos) EXPECT_LE(bytes, reserved[line]) << line;
    else EXPECT_EQ(bytes, reserved[line]) << line;
  }
}

}  // namespace
}  // namespace ktc::compiler
