// The step block: everything that changes from step to step, written by the host into pinned memory and copied to a GPU in one
// copy before the step. All fields are 32-bit; offsets are in bytes, each area aligned to 64. One layout per entry; a device
// reserves the largest.
//
// Padding: an entry computes max_tokens tokens in decode. Tokens from live[0] on have id 0, position 0, deferred 0 and belong to
// sequence `max_sequences`, the dummy, which has one cached token on the dummy page (page number `pages`, one behind the pool).
#pragma once

#include <cstdint>

#include "runtime/formats/halves.h"
#include "runtime/formats/workspace.h"

namespace ktc {

struct StepBlockLayout {
  std::uint64_t epoch;        // u32 [1]: counts steps of the device from 1, skips 0
  std::uint64_t live;         // i32 [3]: tokens, rows, sequences
  std::uint64_t ids;          // i32 [tokens]
  std::uint64_t positions;    // i32 [tokens]
  std::uint64_t output_rows;  // i32 [rows]
  std::uint64_t deferred;     // i32 [tokens]
  std::uint64_t sequence;     // i32 [tokens]
  std::uint64_t q_first;      // i32 [sequences + 2]: the dummy sequence is the last
  std::uint64_t kv_length;    // i32 [sequences + 1]
  std::uint64_t page_first;   // i32 [sequences + 2]
  std::uint64_t pages;        // i32 [sequences * pages_per_sequence + 1]
  std::uint64_t bytes;        // where it ends
};
// Starts at byte `at`, a multiple of 64.
constexpr StepBlockLayout step_block_layout(std::uint64_t tokens, std::uint64_t rows, std::uint64_t sequences,
                                            std::uint64_t pages_per_sequence, std::uint64_t at = 0) {
  StepBlockLayout l = {};
  const auto area = [&at](std::uint64_t items) {
    const std::uint64_t here = at;
    at += align64(items * 4);
    return here;
  };
  l.epoch = area(1);
  l.live = area(3);
  l.ids = area(tokens);
  l.positions = area(tokens);
  l.output_rows = area(rows);
  l.deferred = area(tokens);
  l.sequence = area(tokens);
  l.q_first = area(sequences + 2);
  l.kv_length = area(sequences + 1);
  l.page_first = area(sequences + 2);
  l.pages = area(sequences * pages_per_sequence + 1);
  l.bytes = at;
  return l;
}

// An entry cut in halves has a block for all tokens, and behind it one for each half, as if that were the step: its tokens count
// from 0, a sequence that the cut goes through is in both. Halves have no rows.
struct StepBlocks {
  StepBlockLayout whole, half[2];
  std::uint64_t bytes;
};
constexpr StepBlocks step_blocks(std::uint64_t tokens, std::uint64_t rows, std::uint64_t sequences, std::uint64_t pages_per_sequence, bool cut) {
  StepBlocks b = {};
  b.whole = step_block_layout(tokens, rows, sequences, pages_per_sequence);
  b.bytes = b.whole.bytes;
  if (!cut) return b;
  b.half[0] = step_block_layout(first_half_bound(tokens), 0, sequences, pages_per_sequence, b.bytes);
  b.half[1] = step_block_layout(second_half_bound(tokens), 0, sequences, pages_per_sequence, b.half[0].bytes);
  b.bytes = b.half[1].bytes;
  return b;
}

}  // namespace ktc
