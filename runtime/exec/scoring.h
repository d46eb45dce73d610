// Teacher forcing: the logits of every position of a given sequence, for perplexity and for dumping.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "runtime/exec/executor.h"

namespace ktc::exec {

// index: of the id that the logits follow, so row `index` predicts ids[index + 1]. logits: f32 [vocab], valid in the
// call.
using LogitsVisitor = std::function<Status(std::size_t index, std::span<const float> logits)>;

// Runs one sequence from an empty cache in extend steps and visits its rows in order. Uses the executor alone
// meanwhile. Errors: an empty sequence, one longer than tokens_per_sequence (names both numbers), those of
// Executor::run, the visitor's.
Status visit_logits(Executor& executor, std::span<const std::int32_t> ids, const LogitsVisitor& visit);

// -log softmax(logits)[id], in double. Infinite or NaN logits give an error that names the id.
Expected<double> negative_log_likelihood(std::span<const float> logits, std::int32_t id);

// Mean over all predictions of all sequences; perplexity = exp(mean).
struct Likelihood {
  double negative_sum = 0;    // natural logarithm
  std::uint64_t tokens = 0;   // predicted ids
  double perplexity() const;  // 0 when nothing was predicted
};

// Adds one sequence: the first id conditions, the others are predicted. At least two ids.
Status add_likelihood(Executor& executor, std::span<const std::int32_t> ids, Likelihood& sum);

}  // namespace ktc::exec
