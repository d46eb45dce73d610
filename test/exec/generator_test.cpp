#include "runtime/exec/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/exec/scoring.h"
#include "test/exec/fake_executor.h"

namespace ktc::exec {
namespace {

using Ids = std::vector<std::int32_t>;
using namespace std::chrono_literals;

Request request_of(Ids prompt, std::uint32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(Generator, ReturnsCompletionsInTheOrderOfTheRequests) {
  FakeExecutor executor;
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) requests.push_back(request_of({i, 2 * i}, static_cast<std::uint32_t>(10 - i)));
  const Expected<GenerateResult> result = generate(executor, std::move(requests));
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->completions.size(), 9u);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(result->completions[static_cast<std::size_t>(i)].ids,
              executor.continuation({i, 2 * i}, static_cast<std::size_t>(10 - i)));
  }
  EXPECT_EQ(result->throughput.prompt_tokens, 18u);
  EXPECT_GT(result->throughput.decode_tokens, 0u);
}

TEST(Generator, NamesTheRefusedPromptAndRunsNothing) {
  FakeExecutor executor;
  EXPECT_EQ(generate(executor, {request_of({1}, 1), request_of({}, 1)}).status().message(),
            "prompt 2: request: empty prompt: found 0 tokens, expected at least 1");
  EXPECT_EQ(generate(executor, {request_of({}, 1)}).status().message(),
            "request: empty prompt: found 0 tokens, expected at least 1");
  EXPECT_TRUE(executor.steps.empty());
}

TEST(Generator, EndsEveryRequestWhenStopped) {
  FakeExecutor executor;
  std::atomic<bool> stop{false};
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(request_of({i}, 30));
  requests[0].on_token = [&, left = 5](RequestId, std::int32_t) mutable {
    if (--left == 0) stop = true;
    return true;
  };
  const Expected<GenerateResult> result = generate(executor, std::move(requests), &stop);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->completions[0].ids.size(), 5u);
  for (const Completion& c : result->completions) EXPECT_EQ(c.reason, FinishReason::cancelled);
  EXPECT_TRUE(result->completions[5].ids.empty());  // it was queued
}

TEST(Throughput, KeepsPrefillAndDecodeApart) {
  Throughput t;
  EXPECT_EQ(t.prefill_tokens_per_second(), 0);
  EXPECT_EQ(t.decode_tokens_per_second(), 0);
  t.add({.kind = StepKind::extend, .prompt_tokens = 100, .decode_tokens = 3, .duration = 500ms});
  t.add({.kind = StepKind::decode, .decode_tokens = 4, .duration = 100ms});
  t.add({.kind = StepKind::idle});
  EXPECT_DOUBLE_EQ(t.prefill_tokens_per_second(), 200);
  EXPECT_DOUBLE_EQ(t.decode_tokens_per_second(), 40);
}

TEST(Scoring, VisitsEveryRowInOrderAcrossChunks) {
  FakeExecutor executor;  // 8 rows at most
  Ids ids(19);
  std::iota(ids.begin(), ids.end(), 3);
  std::size_t visited = 0;
  const Status status = visit_logits(executor, ids, [&](std::size_t index, std::span<const float> logits) {
    EXPECT_EQ(index, visited++);
    EXPECT_EQ(logits.size(), 50u);
    const std::int32_t best = executor.next(std::span(ids).first(index + 1));
    EXPECT_EQ(logits[static_cast<std::size_t>(best)], 3);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(visited, 19u);
  EXPECT_EQ(executor.steps.size(), 3u);
}

TEST(Scoring, LikelihoodOfHandWorkedLogits) {
  const std::vector<float> logits = {0, static_cast<float>(std::log(3.0)), 0, -1000};
  EXPECT_NEAR(*negative_log_likelihood(logits, 1), std::log(5.0 / 3), 1e-7);
  EXPECT_NEAR(*negative_log_likelihood(logits, 3), 1000 + std::log(5.0), 1e-6);
  EXPECT_NEAR(*negative_log_likelihood(std::vector<float>{3e38f, 3e38f}, 0), std::log(2.0), 1e-9);
  EXPECT_EQ(negative_log_likelihood(logits, 4).status().message(),
            "token id outside the vocabulary: found 4, expected 0 to 3");
  EXPECT_EQ(negative_log_likelihood(std::vector<float>{0, std::nanf("")}, 0).status().message(),
            "logits of id 1: found nan, expected finite numbers; check the weights with ktc-plan verify --weights");
}

// A uniform model over V ids has perplexity V, whatever the text.
TEST(Scoring, PerplexityOfAUniformModelIsItsVocabulary) {
  FakeExecutor executor;
  executor.edit_row = [](std::span<const std::int32_t>, std::span<float> row) {
    std::fill(row.begin(), row.end(), -7.25f);
  };
  Likelihood sum;
  EXPECT_EQ(sum.perplexity(), 0);
  ASSERT_TRUE(add_likelihood(executor, Ids{1, 2, 3, 4, 5}, sum).ok());
  ASSERT_TRUE(add_likelihood(executor, Ids{9, 8}, sum).ok());
  EXPECT_EQ(sum.tokens, 5u);
  EXPECT_NEAR(sum.perplexity(), 50, 1e-9);
  // 41 ids fit a cache of 40: the last is only predicted
  ASSERT_TRUE(add_likelihood(executor, Ids(41, 1), sum).ok());
  EXPECT_EQ(sum.tokens, 45u);
}

TEST(Scoring, RefusesWhatDoesNotFit) {
  FakeExecutor executor;
  Likelihood sum;
  EXPECT_EQ(add_likelihood(executor, Ids{1}, sum).message(),
            "sequence: found 1 ids, expected at least 2; the first id conditions and is not predicted");
  EXPECT_EQ(add_likelihood(executor, Ids(42, 1), sum).message(),
            "sequence: longer than the KV cache: found 41 ids, expected at most 40; "
            "shorten it, or compile with a larger kv_cache.tokens in the policy");
  EXPECT_EQ(visit_logits(executor, {}, nullptr).message(), "sequence: found 0 ids, expected at least 1");
  EXPECT_EQ(sum.tokens, 0u);
}

}  // namespace
}  // namespace ktc::exec
