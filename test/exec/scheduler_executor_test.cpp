// The scheduler on the real executor: company, chunks and page order change nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/exec/generator.h"
#include "runtime/exec/scoring.h"
#include "test/exec/executor_fixture.h"

namespace ktc::exec {
namespace {

using Ids = std::vector<std::int32_t>;

class SchedulerExecutor : public testing::TestWithParam<bool> {
 protected:
  static std::vector<Request> requests() {
    std::vector<Request> result(11);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i].prompt = test::random_ids(1 + i * 5, static_cast<std::uint32_t>(i + 1));
      result[i].max_tokens = static_cast<std::uint32_t>(3 + i * 7 % 20);
      result[i].sampling = {.temperature = i % 2 ? 0.0f : 0.9f, .top_k = 30, .top_p = 0.95f, .seed = i};
    }
    return result;
  }

  static std::vector<Ids> run(Executor& executor, std::vector<Request> requests, SchedulerOptions options = {}) {
    std::vector<Ids> ids;
    Expected<GenerateResult> result = generate(executor, std::move(requests), nullptr, options);
    EXPECT_TRUE(result.ok()) << result.status().message();
    if (!result.ok()) return ids;
    for (Completion& c : result->completions) {
      EXPECT_TRUE(c.status.ok()) << c.status.message();
      EXPECT_EQ(c.reason, FinishReason::length);
      ids.push_back(std::move(c.ids));
    }
    return ids;
  }
};

TEST_P(SchedulerExecutor, ABatchGivesEachSequenceWhatItGetsAlone) {
  const test::OnDisk disk({.mla = GetParam()});
  const auto executor = disk.open(2);
  ASSERT_NE(executor, nullptr);
  std::vector<Ids> alone;
  for (const Request& request : requests()) {
    const auto fresh = disk.open(1);
    for (Ids& ids : run(*fresh, {request})) alone.push_back(std::move(ids));
  }
  EXPECT_EQ(run(*executor, requests()), alone);
  EXPECT_EQ(run(*executor, requests()), alone);  // pages are taken in another order now
  EXPECT_EQ(run(*executor, requests(), {.max_step_tokens = 9}), alone);
}

// The likelihood of generated ids, scored at once, has its largest logits where greedy decoding found them.
TEST_P(SchedulerExecutor, TeacherForcingAgreesWithDecoding) {
  const test::OnDisk disk({.mla = GetParam()});
  const auto executor = disk.open(2);
  ASSERT_NE(executor, nullptr);
  Request request;
  request.prompt = test::random_ids(20, 3);
  request.max_tokens = 40;
  const Ids generated = run(*executor, {request})[0];
  Ids ids = request.prompt;
  ids.insert(ids.end(), generated.begin(), generated.end());
  std::size_t visited = 0;
  const Status status = visit_logits(*executor, ids, [&](std::size_t index, std::span<const float> logits) {
    if (index + 1 >= 20 && index + 1 < ids.size()) {
      const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      EXPECT_EQ(best, ids[index + 1]) << index;
    }
    ++visited;
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(visited, ids.size());
}

INSTANTIATE_TEST_SUITE_P(Attention, SchedulerExecutor, testing::Bool(),
                         [](const auto& info) { return info.param ? "mla" : "gqa"; });

}  // namespace
}  // namespace ktc::exec
