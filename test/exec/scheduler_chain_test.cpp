// The scheduler over an executor that chooses tokens: steps are begun before the tokens of the last one are read.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/exec/scheduler.h"
#include "test/exec/fake_executor.h"

namespace ktc::exec {
namespace {

using Ids = std::vector<std::int32_t>;

struct Driven {
  FakeExecutor executor;
  std::unique_ptr<Scheduler> scheduler;
  std::map<RequestId, Completion> done;
  std::uint32_t decode_tokens = 0;

  explicit Driven(std::uint32_t ahead) {
    executor.ahead = ahead;
    scheduler = std::make_unique<Scheduler>(executor);
  }
  RequestId submit(Request request) {
    request.on_finish = [this](RequestId id, Completion&& completion) { done[id] = std::move(completion); };
    const auto id = scheduler->submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    return *id;
  }
  void finish() {
    for (int steps = 0; !scheduler->idle(); ++steps) {
      ASSERT_LT(steps, 1000);
      decode_tokens += scheduler->step().decode_tokens;
    }
    EXPECT_EQ(executor.under_way(), 0u);
  }
};

Request request(Ids prompt, std::uint32_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

class SchedulerChain : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ahead, SchedulerChain, testing::Values(0u, 1u, 2u), [](const auto& info) { return std::to_string(info.param); });

TEST_P(SchedulerChain, EverySequenceGetsItsOwnContinuation) {
  Driven run(GetParam());
  std::map<RequestId, Ids> expected;
  std::uint32_t decoded = 0;  // all tokens but the first of each
  for (std::int32_t i = 0; i < 12; ++i) {
    Ids prompt(static_cast<std::size_t>(1 + i % 7), i);
    const auto count = static_cast<std::uint32_t>(1 + i * 5 % 13);
    expected[run.submit(request(prompt, count))] = run.executor.continuation(prompt, count);
    decoded += count - 1;
  }
  run.finish();
  EXPECT_EQ(run.decode_tokens, decoded);
  for (const auto& [id, ids] : expected) {
    EXPECT_EQ(run.done[id].ids, ids) << id;
    EXPECT_EQ(run.done[id].reason, FinishReason::length);
  }
  EXPECT_EQ(run.executor.discarded, 0) << "ends by length are known beforehand";
  EXPECT_EQ(run.scheduler->pool().free(), run.scheduler->pool().total());
}

TEST_P(SchedulerChain, SequencesThatEndEarlyAreCarriedAlongAndTheirPagesGoBack) {
  Driven run(GetParam());
  std::map<RequestId, Ids> expected;
  for (std::int32_t i = 0; i < 10; ++i) {
    const Ids prompt = {i, 3, i + 1};
    Ids ids = run.executor.continuation(prompt, 9);
    Request r = request(prompt, 30);
    r.stop_ids = {ids[static_cast<std::size_t>(i % 5)]};
    ids.resize(static_cast<std::size_t>(std::find(ids.begin(), ids.end(), r.stop_ids[0]) - ids.begin()) + 1);
    expected[run.submit(r)] = ids;
  }
  run.finish();
  for (const auto& [id, ids] : expected) {
    EXPECT_EQ(run.done[id].ids, ids) << id;
    EXPECT_EQ(run.done[id].reason, FinishReason::stop);
  }
  EXPECT_EQ(run.scheduler->pool().free(), run.scheduler->pool().total());
}

// One sequence alone: step N + 1 is begun before token N is delivered, and only then.
TEST(SchedulerChainOrder, AStepIsBegunBeforeTheTokenOfTheLastIsDelivered) {
  Driven run(2);
  std::vector<std::size_t> under_way;
  Request r = request({1, 2}, 5);
  r.on_token = [&](RequestId, std::int32_t) { return under_way.push_back(run.executor.under_way()), true; };
  run.submit(r);
  run.finish();
  EXPECT_EQ(under_way, (std::vector<std::size_t>{0, 1, 1, 1, 0}));  // the prompt's token; three steps with one behind; the last
  EXPECT_EQ(run.executor.steps.size(), 5u);
}

TEST(SchedulerChainOrder, AStepInVainIsEndedAtOnce) {
  Driven run(2);
  Request r = request({1, 2}, 20);
  r.stop_ids = {run.executor.continuation({1, 2}, 4)[3]};
  run.submit(r);
  run.finish();
  EXPECT_EQ(run.executor.discarded, 1);
  // a callback that ends it, a cancellation between steps, and a scheduler that dies meanwhile
  r.stop_ids.clear();
  r.on_token = [count = 0](RequestId, std::int32_t) mutable { return ++count < 3; };
  run.submit(r);
  run.finish();
  EXPECT_EQ(run.executor.discarded, 2);
  r.on_token = nullptr;
  const RequestId id = run.submit(r);
  for (int i = 0; i < 3; ++i) run.scheduler->step();
  EXPECT_EQ(run.executor.under_way(), 1u);
  run.scheduler->cancel(id);
  run.finish();
  EXPECT_EQ(run.done[id].reason, FinishReason::cancelled);
  EXPECT_EQ(run.executor.discarded, 3);
  run.submit(r);
  for (int i = 0; i < 3; ++i) run.scheduler->step();
  EXPECT_EQ(run.executor.under_way(), 1u);
  run.scheduler.reset();
  EXPECT_EQ(run.executor.under_way(), 0u);
}

TEST(SchedulerChainOrder, APromptGoesFirst) {
  Driven run(2);
  const RequestId a = run.submit(request({1, 2}, 12));
  for (int i = 0; i < 3; ++i) run.scheduler->step();
  const RequestId b = run.submit(request({5, 6, 7}, 6));
  EXPECT_EQ(run.scheduler->step().kind, StepKind::decode);  // was under way
  EXPECT_EQ(run.executor.under_way(), 0u);
  EXPECT_EQ(run.scheduler->step().kind, StepKind::extend);
  run.finish();
  EXPECT_EQ(run.done[a].ids, run.executor.continuation({1, 2}, 12));
  EXPECT_EQ(run.done[b].ids, run.executor.continuation({5, 6, 7}, 6));
}

TEST(SchedulerChainOrder, RowsThatNeedTheHostKeepTheStepThere) {
  Driven run(2);
  Request r = request({1, 2}, 6);
  r.sampling.repetition_penalty = 1.5f;
  run.submit(r);
  const RequestId other = run.submit(request({4}, 8));
  run.finish();
  EXPECT_EQ(run.done[other].ids, run.executor.continuation({4}, 8));
}

TEST(SchedulerChainErrors, ALogitThatIsNotFiniteEndsItsSequenceAlone) {
  Driven run(2);
  run.executor.edit_row = [](std::span<const std::int32_t> ids, std::span<float> row) {
    if (ids[0] == 9 && ids.size() == 5) row[7] = std::numeric_limits<float>::quiet_NaN();
  };
  const RequestId good = run.submit(request({1, 2}, 10)), bad = run.submit(request({9, 2}, 10));
  run.finish();
  EXPECT_EQ(run.done[good].ids, run.executor.continuation({1, 2}, 10));
  EXPECT_EQ(run.done[bad].ids.size(), 3u);
  EXPECT_EQ(run.done[bad].status.message(),
            "logits at position 5, id 7: found infinity or nan, expected finite numbers; check the weights with ktc-plan verify --weights");
}

TEST(SchedulerChainErrors, AFailedStepEndsItsSequencesAndNoOthers) {
  for (std::size_t at = 1; at < 6; ++at) {
    Driven run(2);
    run.executor.before_run = [at](std::size_t step) { return step == at ? Status(StatusCode::internal, "it broke") : Status(); };
    const RequestId a = run.submit(request({1, 2}, 12));
    run.finish();
    EXPECT_EQ(run.done[a].reason, FinishReason::error);
    EXPECT_EQ(run.done[a].status.message(), "it broke");
    const RequestId b = run.submit(request({3}, 5));
    run.finish();
    EXPECT_EQ(run.done[b].ids, run.executor.continuation({3}, 5));
  }
}

}  // namespace
}  // namespace ktc::exec
