#include "runtime/exec/scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace ktc::exec {

Status visit_logits(Executor& executor, std::span<const std::int32_t> ids, const LogitsVisitor& visit) {
  const std::uint32_t capacity = executor.tokens_per_sequence();
  if (ids.empty()) {
    return make_error(StatusCode::invalid_argument, {.place = "sequence", .found = "0 ids", .expected = "at least 1"});
  }
  if (ids.size() > capacity) {
    return make_error(StatusCode::invalid_argument,
                      {.place = "sequence",
                       .what = "longer than the KV cache",
                       .found = fmt::format("{} ids", ids.size()),
                       .expected = fmt::format("at most {}", capacity),
                       .remedy = "shorten it, or compile with a larger kv_cache.tokens in the policy"});
  }
  const StepLimits limits = executor.extend_limits();
  const std::size_t chunk = std::min(limits.max_tokens, limits.max_rows);  // every id needs its row of logits
  if (chunk == 0) {
    return make_error(StatusCode::incompatible, {.place = "plan",
                                                 .what = "no entry can process a prompt",
                                                 .remedy = "compile the model again with this version of ktc"});
  }
  std::vector<std::uint32_t> pages((ids.size() + executor.page_tokens() - 1) / executor.page_tokens());
  std::iota(pages.begin(), pages.end(), 0u);
  const std::uint32_t vocabulary = executor.plan().plan.model->vocab_size;
  for (std::size_t done = 0; done < ids.size(); done += chunk) {
    const StepSequence sequence{.ids = ids.subspan(done, std::min(chunk, ids.size() - done)),
                                .position = static_cast<std::uint32_t>(done),
                                .pages = pages,
                                .logits_from = 0};
    KTC_ASSIGN_OR_RETURN(const StepResult result, executor.run(std::span(&sequence, 1)));
    for (std::uint32_t row = 0; row < result.rows; ++row) {
      KTC_RETURN_IF_ERROR(visit(done + row, {result.row(row), vocabulary}));
    }
  }
  return {};
}

Expected<double> negative_log_likelihood(std::span<const float> logits, std::int32_t id) {
  if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) {
    return make_error(StatusCode::invalid_argument, {.place = "token id outside the vocabulary",
                                                     .found = fmt::format("{}", id),
                                                     .expected = fmt::format("0 to {}", logits.size() - 1)});
  }
  float best = logits[0];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return make_error(StatusCode::data_corrupt, {.place = fmt::format("logits of id {}", i),
                                                   .found = fmt::format("{}", logits[i]),
                                                   .expected = "finite numbers",
                                                   .remedy = "check the weights with ktc-plan verify --weights"});
    }
    best = std::max(best, logits[i]);
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  // the difference first: a large common offset must not cost digits
  return std::log(sum) + (static_cast<double>(best) - logits[static_cast<std::size_t>(id)]);
}

double Likelihood::perplexity() const {
  return tokens > 0 ? std::exp(negative_sum / static_cast<double>(tokens)) : 0;
}

Status add_likelihood(Executor& executor, std::span<const std::int32_t> ids, Likelihood& sum) {
  if (ids.size() < 2) {
    return make_error(StatusCode::invalid_argument, {.place = "sequence",
                                                     .found = fmt::format("{} ids", ids.size()),
                                                     .expected = "at least 2",
                                                     .remedy = "the first id conditions and is not predicted"});
  }
  // the last id is only predicted, so it is not run
  return visit_logits(executor, ids.first(ids.size() - 1), [&](std::size_t index, std::span<const float> logits) {
    KTC_ASSIGN_OR_RETURN(const double nll, negative_log_likelihood(logits, ids[index + 1]));
    sum.negative_sum += nll;
    ++sum.tokens;
    return Status();
  });
}

}  // namespace ktc::exec
