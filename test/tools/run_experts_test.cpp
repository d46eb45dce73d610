#include "tools/ktc/run_experts.h"

#include <gtest/gtest.h>

#include <fstream>

namespace ktc::run {
namespace {

// Layers 1 and 3 of four have three experts each, two per token.
planfb::PlanT small_plan(std::uint32_t experts = 3) {
  planfb::PlanT plan;
  plan.model = std::make_unique<planfb::ModelT>();
  plan.model->name = "small";
  plan.model->layers = 4;
  plan.model->experts = experts;
  plan.entries.push_back(std::make_unique<planfb::EntryT>());
  for (const std::uint32_t layer : {1u, 3u}) {
    auto step = std::make_unique<planfb::StepT>();
    planfb::ExpertsOpT op;
    op.layer = layer;
    step->op.Set(std::move(op));
    for (int i = 0; i < 3; ++i) step->inputs.push_back(planfb::View(0, 0, 2));
    plan.entries[0]->steps.push_back(std::move(step));
  }
  return plan;
}

class RunExperts : public testing::Test {
 protected:
  RunExperts() { std::filesystem::remove(file_); }
  ~RunExperts() override { std::filesystem::remove(file_); }

  void put(const std::string& text) { std::ofstream(file_) << text; }
  std::string text() const {
    std::ifstream in(file_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string error(const planfb::PlanT& plan) const {
    const auto recorder = ExpertRecorder::open(file_, plan);
    return recorder.ok() ? "accepted" : recorder.status().message();
  }
  // One run that chose these.
  void record(std::vector<std::uint64_t> first, std::vector<std::uint64_t> second) {
    const planfb::PlanT plan = small_plan();
    auto recorder = ExpertRecorder::open(file_, plan);
    ASSERT_TRUE(recorder.ok()) << recorder.status().message();
    const auto counts = (*recorder)->counts();
    ASSERT_EQ(counts.size(), 12u);
    std::copy(first.begin(), first.end(), counts.begin() + 3);
    std::copy(second.begin(), second.end(), counts.begin() + 9);
    const Status written = (*recorder)->write();
    EXPECT_TRUE(written.ok()) << written.message();
    EXPECT_TRUE((*recorder)->write().ok()) << "writing again changes nothing";
  }

  const std::filesystem::path file_ = std::filesystem::path(testing::TempDir()) / (std::string("run_experts_") + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json");
};

TEST_F(RunExperts, WritesCountsOfLayersWithExperts) {
  record({4, 0, 2}, {3, 3, 0});
  EXPECT_EQ(text(), "{\"tokens\": 3, \"layers\": {\n\"1\": [4, 0, 2],\n\"3\": [3, 3, 0]\n}}\n");
}

TEST_F(RunExperts, AddsToAFileThatExists) {
  record({4, 0, 2}, {3, 3, 0});
  record({1, 1, 0}, {0, 1, 1});
  EXPECT_EQ(text(), "{\"tokens\": 4, \"layers\": {\n\"1\": [5, 1, 2],\n\"3\": [3, 4, 1]\n}}\n");
}

TEST_F(RunExperts, RefusesFilesOfAnotherKindOrModel) {
  const std::string place = "--record-experts " + file_.string();
  const std::string remedy = "; name another file, or remove this one to begin again";
  put("[1]");
  EXPECT_EQ(error(small_plan()), place + ": expert statistics: found [1], expected an object of tokens and layers" + remedy);
  put("{");
  EXPECT_EQ(error(small_plan()), place + ": expert statistics: found no JSON, expected an object of tokens and layers" + remedy);
  put(R"({"tokens": 1, "layers": {"x": []}})");
  EXPECT_EQ(error(small_plan()), place + ": layers: found key \"x\", expected numbers of layers" + remedy);
  put(R"({"tokens": 1, "layers": {"1": [1, -1, 0]}})");
  EXPECT_EQ(error(small_plan()), place + ": layer 1: found -1, expected integers from 0" + remedy);
  put(R"({"tokens": 1, "layers": {"1": [1, 1, 0], "2": [1, 1, 0]}})");
  EXPECT_EQ(error(small_plan()), place + ": layer 2: found 3 counts, expected no such layer: small has no experts there" + remedy);
  put(R"({"tokens": 1, "layers": {"1": [1, 1, 0]}})");
  EXPECT_EQ(error(small_plan()), place + ": layer 3: found no counts, expected those of small" + remedy);
  put(R"({"tokens": 1, "layers": {"1": [1, 1, 0], "3": [1, 1, 0]}})");
  EXPECT_EQ(error(small_plan(4)), place + ": layer 1: found 3 counts, expected 4, as small has experts" + remedy);
  put(R"({"tokens": 1, "layers": {"1": [18446744073709551615, 1, 0], "3": [1, 1, 0]}})");
  EXPECT_EQ(error(small_plan()), place + ": sum of the counts: found more than 2^64, expected less" + remedy);
  EXPECT_EQ(error(small_plan()).find('\n'), std::string::npos);
}

TEST_F(RunExperts, RefusesModelsWithoutExpertsAndFoldersThatAreNotThere) {
  planfb::PlanT dense = small_plan();
  dense.entries.clear();
  EXPECT_EQ(error(dense), "--record-experts: the model has no routed experts: found small, expected a mixture of experts");
  const auto nowhere = ExpertRecorder::open(std::filesystem::path(testing::TempDir()) / "absent" / "f.json", small_plan());
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace ktc::run
