// The tiny models in double precision, written from the equations: one sequence, one token after the other, keys and values of
// every head kept in full. Shares nothing with the executor but the values of the weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "test/support/tiny_model.h"

namespace ktc::test {

// Logits [ids.size()][vocabulary]. With a bf16 cache, what the cache holds is rounded as the cache does.
std::vector<std::vector<double>> reference_logits(const TinyModel& model, std::span<const std::int32_t> ids);

}  // namespace ktc::test
