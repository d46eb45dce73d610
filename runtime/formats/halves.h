// How the tokens of a step are cut in two, in extend entries whose steps a GPU and a CPU take in turns: while one device computes a
// half, the other one computes the other. Depends on the step's tokens and the entry's bound alone.
#pragma once

#include <cstdint>

namespace ktc {

// Most tokens of each half. second_half_bound is 0 where there is nothing to cut: max_tokens below 2.
constexpr std::uint64_t first_half_bound(std::uint64_t max_tokens) { return max_tokens - max_tokens / 2; }
constexpr std::uint64_t second_half_bound(std::uint64_t max_tokens) { return max_tokens / 2; }

// Tokens [0, n) of the step are its first half, the others its second. A step that has room in one half is not cut: nothing is read
// twice for a few tokens.
constexpr std::uint64_t first_half_tokens(std::uint64_t tokens, std::uint64_t max_tokens) {
  return tokens <= first_half_bound(max_tokens) ? tokens : tokens - tokens / 2;
}

}  // namespace ktc
