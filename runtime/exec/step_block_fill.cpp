#include "runtime/exec/step_block_fill.h"

namespace ktc::exec {

std::uint64_t fill_step_block(const planfb::PlanT& plan, const EntryBounds& bounds, const StepBlockLayout& layout,
                              std::span<const StepSequence> sequences, std::uint32_t epoch, std::byte* to) {
  const planfb::CacheT& cache = *plan.caches[0];
  const auto area = [to](std::uint64_t offset) { return reinterpret_cast<std::int32_t*>(to + offset); };
  std::int32_t* ids = area(layout.ids);
  std::int32_t* positions = area(layout.positions);
  std::int32_t* output_rows = area(layout.output_rows);
  std::int32_t* deferred = area(layout.deferred);
  std::int32_t* sequence_of = area(layout.sequence);
  std::int32_t* q_first = area(layout.q_first);
  std::int32_t* kv_length = area(layout.kv_length);
  std::int32_t* page_first = area(layout.page_first);
  std::int32_t* pages = area(layout.pages);

  std::int32_t t = 0, r = 0, p = 0;
  std::uint32_t s = 0;
  for (const StepSequence& sequence : sequences) {
    q_first[s] = t;
    page_first[s] = p;
    for (std::size_t i = 0; i < sequence.ids.size(); ++i, ++t) {
      const std::uint32_t position = sequence.position + static_cast<std::uint32_t>(i);
      ids[t] = sequence.ids[i];
      positions[t] = static_cast<std::int32_t>(position);
      deferred[t] = is_deferred(plan, sequence, position);
      sequence_of[t] = static_cast<std::int32_t>(s);
      if (i >= sequence.logits_from) output_rows[r++] = t;
    }
    const std::uint64_t length = sequence.position + sequence.ids.size();
    kv_length[s] = static_cast<std::int32_t>(length);
    for (std::uint64_t page = 0; page * cache.page_tokens < length; ++page) pages[p++] = static_cast<std::int32_t>(sequence.pages[page]);
    ++s;
  }
  std::int32_t* live = area(layout.live);
  live[0] = t;
  live[1] = r;
  live[2] = static_cast<std::int32_t>(s);
  *reinterpret_cast<std::uint32_t*>(to + layout.epoch) = epoch;

  // sequences that are not there have no tokens; the dummy behind them has all padding and one cached token on a page of its own
  for (; s < bounds.max_sequences; ++s) {
    q_first[s] = t;
    page_first[s] = p;
    kv_length[s] = 0;
  }
  q_first[s] = t;
  page_first[s] = p;
  kv_length[s] = 1;
  pages[p++] = static_cast<std::int32_t>(cache.pages);
  if (bounds.decode) {
    for (; t < static_cast<std::int32_t>(bounds.max_tokens); ++t) {
      ids[t] = positions[t] = deferred[t] = 0;
      sequence_of[t] = static_cast<std::int32_t>(bounds.max_sequences);
    }
    for (; r < static_cast<std::int32_t>(bounds.max_rows); ++r) output_rows[r] = r;
  }
  q_first[s + 1] = t;
  page_first[s + 1] = p;
  return layout.pages + align64(static_cast<std::uint64_t>(p) * sizeof(std::int32_t));
}

}  // namespace ktc::exec
