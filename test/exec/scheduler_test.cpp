#include "runtime/exec/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "test/exec/fake_executor.h"

namespace ktc::exec {
namespace {

using Ids = std::vector<std::int32_t>;
using Part = FakeExecutor::Part;
using testing::ElementsAre;

Ids prompt_of(std::size_t length, int first = 1) {
  Ids ids;
  for (std::size_t i = 0; i < length; ++i) ids.push_back((first + static_cast<int>(i) * 3) % 50);
  return ids;
}

// A scheduler with its results.
class SchedulerTest : public testing::Test {
 protected:
  RequestId submit(Ids prompt, std::uint32_t max_tokens, Request request = {}) {
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.on_finish = [this](RequestId id, Completion&& completion) {
      EXPECT_FALSE(results.contains(id)) << "finished twice";
      results[id] = std::move(completion);
      order.push_back(id);
    };
    const Expected<RequestId> id = scheduler().submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    return id.ok() ? *id : 0;
  }

  Scheduler& scheduler() {
    if (!scheduler_) scheduler_ = std::make_unique<Scheduler>(executor, options);
    return *scheduler_;
  }

  void run_all() {
    for (int steps = 0; !scheduler().idle(); ++steps) {
      ASSERT_LT(steps, 10000) << "does not come to an end";
      scheduler().step();
    }
    EXPECT_EQ(scheduler().pool().free(), scheduler().pool().total());
  }

  FakeExecutor executor;
  SchedulerOptions options;
  std::map<RequestId, Completion> results;
  std::vector<RequestId> order;

 private:
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, GeneratesOneSequence) {
  Ids streamed;
  Request request;
  request.on_token = [&](RequestId id, std::int32_t token) {
    EXPECT_EQ(id, 1u);
    streamed.push_back(token);
    return true;
  };
  const RequestId id = submit(prompt_of(5), 7, std::move(request));
  EXPECT_FALSE(scheduler().idle());
  run_all();
  EXPECT_EQ(results[id].ids, executor.continuation(prompt_of(5), 7));
  EXPECT_EQ(results[id].reason, FinishReason::length);
  EXPECT_TRUE(results[id].status.ok());
  EXPECT_EQ(streamed, results[id].ids);
  // one extend of the prompt with one row, then six decodes
  ASSERT_EQ(executor.steps.size(), 7u);
  EXPECT_THAT(executor.steps[0], ElementsAre(Part{0, 5, 1}));
  EXPECT_THAT(executor.steps[1], ElementsAre(Part{5, 1, 1}));
  EXPECT_THAT(executor.steps[6], ElementsAre(Part{10, 1, 1}));
  EXPECT_EQ(scheduler().step().kind, StepKind::idle);
}

// Whatever entry a token runs in: the executor is told where decode began.
TEST_F(SchedulerTest, SaysFromWhichPositionTokensWereGenerated) {
  submit(prompt_of(5), 7);       // three pages
  scheduler().step();
  submit(prompt_of(3, 9), 4);    // its prompt runs beside a decode of the first
  scheduler().step();
  EXPECT_THAT(executor.generated_from, testing::UnorderedElementsAre(testing::Pair(0u, 5u), testing::Pair(3u, 3u)));
  scheduler().step();
  EXPECT_THAT(executor.steps.back(), ElementsAre(Part{6, 1, 1}, Part{3, 1, 1}));
  EXPECT_THAT(executor.generated_from, testing::UnorderedElementsAre(testing::Pair(0u, 5u), testing::Pair(3u, 3u)));
  run_all();
}

TEST_F(SchedulerTest, CutsLongPromptsAndAsksForRowsOnlyAtTheirEnd) {
  submit(prompt_of(35), 1);
  const StepReport first = scheduler().step();
  EXPECT_EQ(first.kind, StepKind::extend);
  EXPECT_EQ(first.prompt_tokens, 16u);
  run_all();
  ASSERT_EQ(executor.steps.size(), 3u);
  EXPECT_THAT(executor.steps[0], ElementsAre(Part{0, 16, 0}));
  EXPECT_THAT(executor.steps[1], ElementsAre(Part{16, 16, 0}));
  EXPECT_THAT(executor.steps[2], ElementsAre(Part{32, 3, 1}));
  EXPECT_EQ(results[1].ids, executor.continuation(prompt_of(35), 1));
}

TEST_F(SchedulerTest, DecodesGoOnBesideALongPrompt) {
  submit(prompt_of(3), 6);
  scheduler().step();
  submit(prompt_of(20, 9), 2);
  submit(prompt_of(11, 4), 2);
  const StepReport mixed = scheduler().step();
  EXPECT_EQ(mixed.decode_tokens, 1u);
  EXPECT_EQ(mixed.prompt_tokens, 15u);
  run_all();
  EXPECT_THAT(executor.steps[1], ElementsAre(Part{3, 1, 1}, Part{0, 15, 0}));
  EXPECT_THAT(executor.steps[2], ElementsAre(Part{4, 1, 1}, Part{15, 5, 1}, Part{0, 10, 0}));
  EXPECT_THAT(executor.steps[3], ElementsAre(Part{5, 1, 1}, Part{20, 1, 1}, Part{10, 1, 1}));
  EXPECT_EQ(results[1].ids, executor.continuation(prompt_of(3), 6));
  EXPECT_EQ(results[2].ids, executor.continuation(prompt_of(20, 9), 2));
  EXPECT_EQ(results[3].ids, executor.continuation(prompt_of(11, 4), 2));
}

TEST_F(SchedulerTest, ObeysASmallerStepBudget) {
  options.max_step_tokens = 4;
  submit(prompt_of(10), 2);
  run_all();
  EXPECT_THAT(executor.steps[0], ElementsAre(Part{0, 4, 0}));
  EXPECT_THAT(executor.steps[2], ElementsAre(Part{8, 2, 1}));
}

TEST_F(SchedulerTest, ServesFirstComeFirstServed) {
  EXPECT_EQ(scheduler().slots(), 4u);
  for (int i = 0; i < 10; ++i) submit(prompt_of(3, i), 5);
  run_all();
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(results[static_cast<RequestId>(i + 1)].ids, executor.continuation(prompt_of(3, i), 5));
  }
}

// 40 pages of 4 tokens: two sequences of 40 tokens take 20, a third of 40 makes 30; with 13 tokens of prompt and 28 new
// each.
TEST_F(SchedulerTest, WaitsForPagesAndNobodyOvertakes) {
  executor = FakeExecutor({.pages = 20});
  submit(prompt_of(30), 11);       // 10 pages
  submit(prompt_of(30, 2), 11);  // 10 pages: the pool is empty
  submit(prompt_of(30, 3), 3);   // waits
  submit(prompt_of(1, 4), 1);    // would fit sooner, but is behind
  scheduler().step();
  EXPECT_EQ(scheduler().pool().free(), 0u);
  run_all();
  EXPECT_THAT(order, ElementsAre(1, 2, 4, 3));
  for (const auto& step : executor.steps) EXPECT_LE(step.size(), 2u);
  EXPECT_EQ(results[3].ids, executor.continuation(prompt_of(30, 3), 3));
}

TEST_F(SchedulerTest, StopsAtAStopIdWhichIsTheLastId) {
  const Ids all = executor.continuation(prompt_of(4), 12);
  Request request;
  request.stop_ids = {1000, all[5]};
  submit(prompt_of(4), 12, request);
  request.ignore_eos = true;
  submit(prompt_of(4), 12, request);
  run_all();
  const auto first = std::ranges::find(all, all[5]);
  EXPECT_EQ(results[1].ids, Ids(all.begin(), first + 1));
  EXPECT_EQ(results[1].reason, FinishReason::stop);
  EXPECT_EQ(results[2].ids, all);
  EXPECT_EQ(results[2].reason, FinishReason::length);
}

TEST_F(SchedulerTest, TheTokenCallbackCanEndARequest) {
  Request request;
  int left = 3;
  request.on_token = [&](RequestId, std::int32_t) { return --left > 0; };
  submit(prompt_of(4), 12, request);
  run_all();
  EXPECT_EQ(results[1].ids.size(), 3u);
  EXPECT_EQ(results[1].reason, FinishReason::stop);
}

TEST_F(SchedulerTest, EndsWithLengthWhereTheCacheEnds) {
  submit(prompt_of(38), 100);
  submit(prompt_of(40), 100);  // fits exactly: its next id needs no place in the cache
  submit(prompt_of(1), 4000000000u);
  run_all();
  EXPECT_EQ(results[1].ids, executor.continuation(prompt_of(38), 3));
  EXPECT_EQ(results[2].ids, executor.continuation(prompt_of(40), 1));
  EXPECT_EQ(results[3].ids.size(), 40u);
  for (const auto& [id, result] : results) EXPECT_EQ(result.reason, FinishReason::length) << id;
}

TEST_F(SchedulerTest, RefusesBadRequestsBeforeAnythingRuns) {
  auto message = [&](Ids prompt, std::uint32_t max_tokens, SamplingParameters sampling = {}) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.sampling = sampling;
    const Expected<RequestId> id = scheduler().submit(std::move(request));
    return id.ok() ? "accepted" : id.status().message();
  };
  EXPECT_EQ(message(prompt_of(41), 1),
            "request: prompt longer than the KV cache: found 41 tokens, expected at most 40; "
            "shorten the prompt, or compile with a larger kv_cache.tokens in the policy");
  EXPECT_EQ(message({}, 1), "request: empty prompt: found 0 tokens, expected at least 1");
  EXPECT_EQ(message({1}, 0), "request: max_tokens: found 0, expected at least 1");
  EXPECT_EQ(message({1, 50}, 1), "request: token id outside the vocabulary: found 50, expected 0 to 49");
  EXPECT_EQ(message({-1}, 1), "request: token id outside the vocabulary: found -1, expected 0 to 49");
  EXPECT_EQ(message({1}, 1, {.temperature = -2}),
            "request: temperature: found -2, expected a finite number of at least 0");
  EXPECT_TRUE(scheduler().idle());
  EXPECT_TRUE(executor.steps.empty());
}

TEST_F(SchedulerTest, RefusesAPlanWithoutExtend) {
  executor = FakeExecutor({.extend = {}});
  Request request;
  request.prompt = {1};
  request.max_tokens = 1;
  EXPECT_EQ(scheduler().submit(request).status().message(),
            "plan: no entry can process a prompt; compile the model again with this version of ktc");
}

TEST_F(SchedulerTest, DecodesWithExtendWhereThePlanHasNoDecodeEntry) {
  executor = FakeExecutor({.decode = {}});
  submit(prompt_of(4), 5);
  EXPECT_EQ(scheduler().slots(), 8u);
  run_all();
  EXPECT_EQ(results[1].ids, executor.continuation(prompt_of(4), 5));
}

TEST_F(SchedulerTest, FailsARequestThatThePoolCanNeverServe) {
  executor = FakeExecutor({.pages = 3});
  submit(prompt_of(10), 4);
  submit(prompt_of(3), 4);
  run_all();
  EXPECT_EQ(results[1].reason, FinishReason::error);
  EXPECT_EQ(results[1].status.message(),
            "KV cache: found 3 pages, expected pages for one sequence; ask for fewer tokens");
  EXPECT_EQ(results[2].ids, executor.continuation(prompt_of(3), 4));
}

TEST_F(SchedulerTest, CancelsInTheQueueInPrefillAndInDecode) {
  for (int i = 0; i < 4; ++i) submit(prompt_of(2, i), 8);
  const RequestId queued = submit(prompt_of(2, 5), 8);
  scheduler().step();
  EXPECT_TRUE(scheduler().cancel(queued));
  EXPECT_TRUE(scheduler().cancel(2));  // is decoding
  scheduler().step();
  EXPECT_EQ(results[queued].reason, FinishReason::cancelled);
  EXPECT_TRUE(results[queued].ids.empty());
  EXPECT_EQ(results[2].reason, FinishReason::cancelled);
  EXPECT_EQ(results[2].ids, executor.continuation(prompt_of(2, 1), 1));
  EXPECT_FALSE(scheduler().cancel(2)) << "it has finished";
  EXPECT_FALSE(scheduler().cancel(77)) << "it never was";
  const RequestId prefilling = submit(prompt_of(35), 3);
  scheduler().step();
  EXPECT_TRUE(scheduler().cancel(prefilling));
  EXPECT_TRUE(scheduler().cancel(prefilling)) << "twice is harmless";
  scheduler().step();
  EXPECT_EQ(results[prefilling].reason, FinishReason::cancelled);
  run_all();
  for (const RequestId id : {1, 3, 4}) {
    EXPECT_EQ(results[id].ids, executor.continuation(prompt_of(2, static_cast<int>(id) - 1), 8)) << id;
  }
}

TEST_F(SchedulerTest, ACancelDuringAStepWithholdsItsToken) {
  Ids streamed;
  Request request;
  request.on_token = [&](RequestId, std::int32_t id) {
    streamed.push_back(id);
    return true;
  };
  const RequestId id = submit(prompt_of(4), 10, std::move(request));
  executor.before_run = [&](std::size_t step) {
    if (step == 3) scheduler().cancel(id);
    return Status();
  };
  run_all();
  EXPECT_EQ(executor.steps.size(), 4u);
  EXPECT_EQ(results[id].reason, FinishReason::cancelled);
  EXPECT_EQ(results[id].ids, executor.continuation(prompt_of(4), 3));
  EXPECT_EQ(streamed, results[id].ids);
}

TEST_F(SchedulerTest, CallbacksMaySubmitAndCancel) {
  Request request;
  RequestId second = 0;
  request.on_token = [&](RequestId id, std::int32_t) {
    if (second == 0)
      second = submit(prompt_of(3), 2);
    else
      scheduler().cancel(id);
    return true;
  };
  submit(prompt_of(2), 10, std::move(request));
  run_all();
  EXPECT_EQ(results[1].reason, FinishReason::cancelled);
  EXPECT_EQ(results[second].ids, executor.continuation(prompt_of(3), 2));
}

TEST_F(SchedulerTest, ANonFiniteLogitFailsItsRequestAlone) {
  const Ids bad = prompt_of(6, 8);
  executor.edit_row = [&](std::span<const std::int32_t> ids, std::span<float> row) {
    if (ids.size() == 8 && std::equal(bad.begin(), bad.end(), ids.begin())) row[3] = std::nanf("");
  };
  submit(prompt_of(6, 1), 5);
  submit(bad, 5);
  submit(prompt_of(6, 2), 5);
  run_all();
  EXPECT_EQ(results[2].reason, FinishReason::error);
  EXPECT_EQ(results[2].status.message(),
            "logits at position 8, id 3: found nan, expected finite numbers; "
            "check the weights with ktc-plan verify --weights");
  EXPECT_EQ(results[2].ids, executor.continuation(bad, 2));
  EXPECT_EQ(results[1].ids, executor.continuation(prompt_of(6, 1), 5));
  EXPECT_EQ(results[3].ids, executor.continuation(prompt_of(6, 2), 5));
}

TEST_F(SchedulerTest, AFailedStepEndsItsRequestsAndNoOthers) {
  for (int i = 0; i < 6; ++i) submit(prompt_of(2, i), 3);
  executor.before_run = [](std::size_t step) {
    return step == 1 ? Status(StatusCode::internal, "kernel failed") : Status();
  };
  run_all();
  for (const RequestId id : {1, 2, 3, 4}) {
    EXPECT_EQ(results[id].reason, FinishReason::error);
    EXPECT_EQ(results[id].status.message(), "kernel failed");
    EXPECT_EQ(results[id].ids.size(), 1u);
  }
  for (const RequestId id : {5, 6}) {
    EXPECT_EQ(results[id].ids, executor.continuation(prompt_of(2, static_cast<int>(id) - 1), 3));
  }
}

// What a request gets does not depend on the company it is in nor on how prompts are cut.
TEST_F(SchedulerTest, BatchNeighboursAndChunksDoNotMatter) {
  std::mt19937 random(5);
  std::vector<Request> requests(20);
  for (Request& r : requests) {
    r.prompt = prompt_of(1 + random() % 30, static_cast<int>(random() % 50));
    r.max_tokens = 1 + random() % 12;
    r.sampling = {.temperature = random() % 2 ? 0.0f : 4.0f, .top_k = 20, .repetition_penalty = 1.2f, .seed = random()};
  }
  std::vector<Ids> alone;
  for (const Request& r : requests) {
    FakeExecutor fresh;
    Scheduler one(fresh);
    Request copy = r;
    copy.on_finish = [&](RequestId, Completion&& c) { alone.push_back(std::move(c.ids)); };
    ASSERT_TRUE(one.submit(std::move(copy)).ok());
    while (!one.idle()) one.step();
  }
  for (const std::uint32_t budget : {0u, 5u, 7u}) {
    options.max_step_tokens = budget;
    FakeExecutor fresh;
    Scheduler together(fresh, options);
    std::map<RequestId, Ids> found;
    for (const Request& r : requests) {
      Request copy = r;
      copy.on_finish = [&](RequestId id, Completion&& c) { found[id] = std::move(c.ids); };
      ASSERT_TRUE(together.submit(std::move(copy)).ok());
    }
    while (!together.idle()) together.step();
    for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(found[i + 1], alone[i]) << i << ", budget " << budget;
  }
}

// Random arrivals, lengths, cancellations and failures: everything ends once, and every page comes back.
TEST_F(SchedulerTest, PagesComeBackWhateverHappens) {
  std::mt19937 random(1);
  executor = FakeExecutor({.pages = 17});
  executor.before_run = [&](std::size_t) {
    return random() % 50 == 0 ? Status(StatusCode::internal, "injected") : Status();
  };
  std::map<FinishReason, int> reasons;
  RequestId submitted = 0;
  for (int round = 0; round < 10000; ++round) {
    if (random() % 4 == 0) submitted = submit(prompt_of(1 + random() % 40, round % 50), 1 + random() % 20);
    if (random() % 10 == 0 && submitted > 0) scheduler().cancel(1 + random() % submitted);
    scheduler().step();
  }
  run_all();
  ASSERT_EQ(results.size(), submitted);
  for (const auto& [id, result] : results) {
    ++reasons[result.reason];
    EXPECT_EQ(result.status.ok(), result.reason != FinishReason::error);
  }
  EXPECT_GT(reasons[FinishReason::length], 100);
  EXPECT_GT(reasons[FinishReason::cancelled], 20);
  EXPECT_GT(reasons[FinishReason::error], 20);
}

TEST_F(SchedulerTest, SubmitAndCancelFromOtherThreads) {
  std::atomic<int> finished{0}, running{4};
  scheduler();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        Request request;
        request.prompt = prompt_of(1 + static_cast<std::size_t>(i % 9), t);
        request.max_tokens = 5;
        request.on_finish = [&](RequestId, Completion&&) { ++finished; };
        const Expected<RequestId> id = scheduler().submit(std::move(request));
        if (i % 3 == 0) scheduler().cancel(*id);
      }
      --running;
    });
  }
  while (running > 0 || !scheduler().idle()) scheduler().step();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished, 400);
  EXPECT_EQ(scheduler().pool().free(), scheduler().pool().total());
}

TEST(FinishReasons, HaveTheNamesOfTheOpenAiApi) {
  EXPECT_EQ(to_string(FinishReason::stop), "stop");
  EXPECT_EQ(to_string(FinishReason::length), "length");
  EXPECT_EQ(to_string(FinishReason::cancelled), "cancelled");
  EXPECT_EQ(to_string(FinishReason::error), "error");
}

// The executor says how many of the tokens that wait a step should take.
TEST_F(SchedulerTest, TakesAsManyTokensAsTheExecutorLikes) {
  std::vector<std::uint32_t> asked;
  executor.best = [&](std::uint32_t waiting) {
    asked.push_back(waiting);
    return waiting >= 6 ? std::min(waiting, 8u) : std::min(waiting, 2u);
  };
  options.max_step_tokens = 8;
  submit(prompt_of(13), 1);
  run_all();
  std::vector<std::uint32_t> taken;
  for (const auto& step : executor.steps) taken.push_back(step[0].tokens);
  EXPECT_EQ(taken, (std::vector<std::uint32_t>{8, 2, 2, 1}));
  EXPECT_EQ(asked, (std::vector<std::uint32_t>{8, 5, 3, 1})) << "never more than a step takes";
  EXPECT_EQ(results[1].ids, executor.continuation(prompt_of(13), 1));
}

}  // namespace
}  // namespace ktc::exec
