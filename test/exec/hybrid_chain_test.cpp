// Decode steps that run ahead of their tokens, on the emulated device: the same ids as with a host that chooses.
#include <algorithm>

#include "runtime/exec/generator.h"
#include "test/exec/hybrid_fixture.h"

namespace ktc::test {
namespace {

using exec::Completion;
using exec::ExecutorOptions;
using exec::FinishReason;
using exec::HandoffKind;
using exec::Request;
using Ids = std::vector<std::int32_t>;

HybridOptions model(bool mla, std::uint32_t hot, std::uint32_t late = 0) {
  HybridOptions o;
  o.tiny.mla = mla;
  o.hot = hot;
  o.late = late;
  o.skip_empty = hot != 0;
  return o;
}

// Prompts and answers of different lengths, every way to choose, and some that end before their length.
std::vector<Request> requests(bool with_penalty = false) {
  std::vector<Request> all(7);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].prompt = random_ids(1 + i * 4, static_cast<std::uint32_t>(i + 1));
    all[i].max_tokens = static_cast<std::uint32_t>(1 + i * 5 % 17);
    all[i].sampling.seed = i;
  }
  all[1].sampling.temperature = 0.9f;
  all[2].sampling = {.temperature = 0.7f, .top_k = 20, .top_p = 0.95f, .seed = 5};
  all[3].sampling = {.temperature = 1.3f, .min_p = 0.02f, .seed = 6};
  all[5].sampling = {.temperature = 0.8f, .top_p = 0.6f, .seed = 8};
  if (with_penalty) all[4].sampling.repetition_penalty = 1.3f;
  return all;
}

struct Answers {
  std::vector<Ids> ids;
  std::vector<FinishReason> reasons;
  bool operator==(const Answers&) const = default;
};

Answers run(exec::Executor& executor, std::vector<Request> requests) {
  Answers answers;
  auto result = exec::generate(executor, std::move(requests));
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (!result.ok()) return answers;
  for (Completion& c : result->completions) {
    EXPECT_TRUE(c.status.ok()) << c.status.message();
    answers.ids.push_back(std::move(c.ids));
    answers.reasons.push_back(c.reason);
  }
  return answers;
}

ExecutorOptions on_host() {
  ExecutorOptions options = HybridOnDisk::defaults();
  options.device_sampling = false;
  return options;
}

class Chain : public testing::TestWithParam<HybridOptions> {
 protected:
  const HybridOnDisk disk_{GetParam()};
};

TEST_P(Chain, TheDeviceChoosesWhatTheHostChooses) {
  const auto host = disk_.open(on_host());
  ASSERT_NE(host, nullptr);
  EXPECT_EQ(host->most_begun(), 0u);
  const Answers expected = run(*host, requests()), penalised = run(*host, requests(true));
  // stop tokens in the middle of answers, and callbacks that end them
  std::vector<Request> ending = requests();
  for (std::size_t i = 0; i < ending.size(); ++i) {
    const Ids& ids = expected.ids[i];
    if (i % 2 == 0) ending[i].stop_ids = {ids[ids.size() / 2]};
    if (i % 2 == 1) ending[i].on_token = [count = std::size_t{0}, end = ids.size() / 2](exec::RequestId, std::int32_t) mutable { return ++count < end; };
  }
  const Answers ended = run(*host, ending);
  EXPECT_NE(ended, expected);
  for (const HandoffKind handoff : {HandoffKind::doorbell, HandoffKind::hostnode})
    for (const bool graphs : {true, false}) {
      ExecutorOptions options = HybridOnDisk::defaults();
      options.handoff = handoff;
      options.graphs = graphs;
      const auto device = disk_.open(options);
      ASSERT_NE(device, nullptr);
      EXPECT_EQ(device->most_begun(), 2u);
      EXPECT_EQ(run(*device, requests()), expected) << graphs;
      EXPECT_EQ(run(*device, requests(true)), penalised) << "a row that needs the host";
      for (std::size_t i = 0; i < ending.size(); i += 2) ending[i].on_token = nullptr;
      std::vector<Request> again = ending;
      for (std::size_t i = 1; i < again.size(); i += 2)
        again[i].on_token = [count = std::size_t{0}, end = expected.ids[i].size() / 2](exec::RequestId, std::int32_t) mutable { return ++count < end; };
      EXPECT_EQ(run(*device, again), ended) << "steps that were begun in vain";
      EXPECT_EQ(run(*device, requests()), expected) << "and what they left behind harms nobody";
    }
}

INSTANTIATE_TEST_SUITE_P(All, Chain,
                         testing::Values(model(false, 0), model(false, 2), model(true, 0), model(true, 2), model(false, 3, 1)),
                         [](const auto& info) {
                           return std::string(info.param.tiny.mla ? "mla" : "gqa") + "_hot" + std::to_string(info.param.hot) + "_late" +
                                  std::to_string(info.param.late);
                         });

TEST(ChainSteps, WhatTheHostMustSeeKeepsThemApart) {
  const HybridOnDisk disk(model(false, 2));
  const auto host = disk.open(on_host());
  ASSERT_NE(host, nullptr);
  const Answers expected = run(*host, requests());
  std::vector<std::uint64_t> counts(TinyModel::kLayers * TinyModel::kExperts), counted(counts.size());
  ExecutorOptions options = HybridOnDisk::defaults();
  options.expert_counts = counts;
  const auto counting = disk.open(options);
  ASSERT_NE(counting, nullptr);
  EXPECT_EQ(counting->most_begun(), 1u);
  EXPECT_EQ(run(*counting, requests()), expected);
  options.expert_counts = counted;
  options.device_sampling = false;
  EXPECT_EQ(run(*disk.open(options), requests()), expected);
  EXPECT_EQ(counts, counted);

  ExecutorOptions traced = HybridOnDisk::defaults();
  std::vector<std::string> steps;
  traced.tracer.context = &steps;
  traced.tracer.report = [](void* context, const exec::TraceSlice& slice) {
    if (slice.track == exec::Track::step) static_cast<std::vector<std::string>*>(context)->emplace_back(slice.name);
  };
  const auto tracing = disk.open(traced);
  ASSERT_NE(tracing, nullptr);
  EXPECT_EQ(tracing->most_begun(), 1u);
  EXPECT_EQ(run(*tracing, requests()), expected);
  EXPECT_TRUE(std::ranges::any_of(steps, [](const std::string& name) { return name.starts_with("decode["); }));
}

TEST(ChainSteps, APlanWithoutSampleEntriesLeavesItToTheHost) {
  HybridOptions o = model(false, 2);
  const HybridOnDisk with(o);
  o.samples = false;
  const HybridOnDisk without(o);
  const auto executor = without.open(), device = with.open();
  ASSERT_TRUE(executor != nullptr && device != nullptr);
  EXPECT_EQ(executor->most_begun(), 0u);
  EXPECT_EQ(run(*executor, requests()), run(*device, requests()));
}

TEST(ChainSteps, ExpertsMoveBetweenStepsThatOverlap) {
  HybridOptions o = model(false, 2);
  o.update_every_tokens = 8;
  const HybridOnDisk disk(o);
  ExecutorOptions options = HybridOnDisk::defaults();
  options.update = exec::UpdateKind::on;
  options.update_rules.doubt = 0;
  ExecutorOptions still = on_host();
  still.update = exec::UpdateKind::off;
  std::vector<Request> many = requests();
  for (Request& request : many) request.max_tokens = 40;
  const auto moving = disk.open(options), fixed = disk.open(still);
  ASSERT_TRUE(moving != nullptr && fixed != nullptr);
  EXPECT_EQ(moving->most_begun(), 2u);
  EXPECT_EQ(run(*moving, many), run(*fixed, many));
  ASSERT_TRUE(moving->updates().has_value());
  EXPECT_GT(moving->updates()->moves, 0u);
}

TEST(ChainSteps, WrongUseIsAnErrorAndHarmsNobody) {
  const HybridOnDisk disk(model(false, 2));
  const auto executor = disk.open();
  ASSERT_NE(executor, nullptr);
  const Ids ids = {3};
  const std::vector<std::uint32_t> pages = make_sequence(*executor, ids, 0).pages;
  exec::StepSequence first{ids, 0, pages, 0}, next{ids, 1, pages, 0};
  const SampleRow greedy = {.greedy = 1};
  next.fed_by = 0;
  EXPECT_EQ(executor->finish().status().message(), "step: none was begun");
  EXPECT_EQ(executor->begin({&next, 1}, {&greedy, 1}).message(),
            "step: an id from a row that the step before does not have: found 0, expected less than 0");
  ASSERT_TRUE(executor->begin({&first, 1}, {&greedy, 1}).ok());
  EXPECT_EQ(executor->run({&first, 1}).status().message(), "step: run before the one under way was finished");
  next.fed_by = 1;
  EXPECT_EQ(executor->begin({&next, 1}, {&greedy, 1}).code(), StatusCode::invalid_argument);
  next.fed_by = 0;
  ASSERT_TRUE(executor->begin({&next, 1}, {&greedy, 1}).ok());
  EXPECT_EQ(executor->begin({&next, 1}, {&greedy, 1}).message(),
            "step: begun before another one was finished: found 2 under way, expected fewer than 2");
  const auto chosen = executor->finish();
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  const std::int32_t token = (*chosen)[0];
  ASSERT_TRUE(executor->finish(true).ok());
  const auto fresh = disk.open(on_host());
  const auto logits = fresh->run({&first, 1});
  ASSERT_TRUE(logits.ok());
  const float* row = logits->row(0);
  EXPECT_EQ(token, std::max_element(row, row + TinyModel::kVocabulary) - row);
  // one that is left under way ends with the executor
  ASSERT_TRUE(executor->begin({&first, 1}, {&greedy, 1}).ok());
}

// Lost somewhere in a chain: every request ends with the error, in time.
TEST(ChainSteps, ALostDeviceEndsAllRequests) {
  const HybridOnDisk disk(model(false, 0));
  int failed = 0;
  for (const std::uint64_t after : {160u, 175u, 190u, 230u, 300u}) {
    ExecutorOptions options = HybridOnDisk::defaults();
    options.watchdog = std::chrono::milliseconds(1000);
    options.open_device = [after](const planfb::DeviceT&, std::uint64_t memory) { return device::open_emulated(memory, {.lose_after = after}); };
    auto executor = exec::Executor::open(disk.plan, options);
    if (!executor.ok()) continue;
    const auto start = std::chrono::steady_clock::now();
    const auto result = exec::generate(**executor, requests());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    ASSERT_TRUE(result.ok());
    for (const Completion& c : result->completions)
      if (c.reason == FinishReason::error) {
        ++failed;
        EXPECT_EQ(c.status.code(), StatusCode::unavailable);
      }
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace ktc::test
