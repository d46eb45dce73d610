#include "runtime/exec/step_request.h"

#include <algorithm>
#include <string>

namespace ktc::exec {
namespace {

Status misuse(StatusCode code, std::size_t sequence, std::string what, std::string found, std::string expected,
              std::string remedy = "") {
  return make_error(code, {"sequence " + std::to_string(sequence), std::move(what), std::move(found), std::move(expected),
                           std::move(remedy)});
}

}  // namespace

std::vector<EntryBounds> entry_bounds(const planfb::PlanT& plan) {
  std::vector<EntryBounds> bounds;
  for (std::size_t e = 0; e < plan.entries.size(); ++e) {
    const planfb::EntryT& entry = *plan.entries[e];
    if (entry.kind == planfb::EntryKind::sample) continue;
    bounds.push_back({static_cast<std::uint32_t>(e), entry.kind == planfb::EntryKind::decode, entry.max_tokens, entry.max_rows,
                      entry.max_sequences, entry.from_tokens});
  }
  std::sort(bounds.begin(), bounds.end(), [](const EntryBounds& a, const EntryBounds& b) {
    return a.max_tokens != b.max_tokens ? a.max_tokens < b.max_tokens : a.entry < b.entry;
  });
  return bounds;
}

StepLimits largest(std::span<const EntryBounds> entries, bool decode) {
  StepLimits most = {0, 0, 0};
  for (const EntryBounds& e : entries)
    if (e.decode == decode) most = {e.max_tokens, e.max_rows, e.max_sequences};
  return most;
}

std::uint32_t best_tokens(std::span<const EntryBounds> entries, std::uint32_t waiting) {
  std::uint32_t most = 0, otherwise = 0;
  for (const EntryBounds& e : entries) {
    if (e.decode) continue;
    most = std::max(most, e.max_tokens);
    if (e.from_tokens <= waiting) otherwise = std::max(otherwise, e.max_tokens);
  }
  return std::max(1u, std::min(waiting, otherwise == 0 ? most : otherwise));
}

Status check_sequences(const planfb::PlanT& plan, std::span<const StepSequence> sequences) {
  const std::uint32_t vocabulary = plan.model->vocab_size;
  const planfb::CacheT& cache = *plan.caches[0];
  if (sequences.empty())
    return make_error(StatusCode::invalid_argument, {"step", "no sequences", "0", "at least 1", ""});
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& s = sequences[i];
    if (s.ids.empty()) return misuse(StatusCode::invalid_argument, i, "no ids", "0", "at least 1");
    for (const std::int32_t id : s.ids)
      if (id < 0 || static_cast<std::uint32_t>(id) >= vocabulary)
        return misuse(StatusCode::invalid_argument, i, "id outside the vocabulary", std::to_string(id),
                      "0 to " + std::to_string(vocabulary - 1), "use the tokenizer of this plan");
    if (s.logits_from > s.ids.size())
      return misuse(StatusCode::invalid_argument, i, "logits from behind the last id", std::to_string(s.logits_from),
                    "at most " + std::to_string(s.ids.size()));
    const std::uint64_t end = std::uint64_t{s.position} + s.ids.size();
    if (end > cache.tokens_per_sequence)
      return misuse(StatusCode::invalid_argument, i, "longer than the KV cache", std::to_string(end) + " tokens",
                    "at most " + std::to_string(cache.tokens_per_sequence), "compile with a larger kv_cache.tokens");
    const std::uint64_t needed = (end + cache.page_tokens - 1) / cache.page_tokens;
    if (s.pages.size() < needed)
      return misuse(StatusCode::invalid_argument, i, "too few pages for " + std::to_string(end) + " tokens",
                    std::to_string(s.pages.size()), "at least " + std::to_string(needed));
    for (std::uint64_t page = 0; page < needed; ++page)
      if (s.pages[page] >= cache.pages)
        return misuse(StatusCode::invalid_argument, i, "page outside the pool", std::to_string(s.pages[page]),
                      "less than " + std::to_string(cache.pages));
  }
  return {};
}

Expected<std::size_t> choose_entry(std::span<const EntryBounds> entries, std::span<const StepSequence> sequences) {
  std::uint64_t tokens = 0, rows = 0;
  bool decode = true;
  for (const StepSequence& s : sequences) {
    tokens += s.ids.size();
    rows += s.ids.size() - s.logits_from;
    decode = decode && s.ids.size() == 1 && s.logits_from == 0;
  }
  const auto fits = [&](const EntryBounds& e) {
    return tokens <= e.max_tokens && rows <= e.max_rows && sequences.size() <= e.max_sequences;
  };
  const auto find = [&](bool of_decode) {
    return std::find_if(entries.begin(), entries.end(), [&](const EntryBounds& e) { return e.decode == of_decode && fits(e); });
  };
  auto found = decode ? find(true) : entries.end();
  if (found == entries.end()) found = find(false);
  // a larger one that is made for so many tokens goes first; one that is made for more is the last resort
  for (auto e = found; found != entries.end() && e != entries.end() && !found->decode; ++e)
    if (!e->decode && e->from_tokens != 0 && e->from_tokens <= tokens && fits(*e)) found = e;
  if (found != entries.end()) return static_cast<std::size_t>(found - entries.begin());

  const StepLimits most = largest(entries, false);
  const auto too_many = [](const char* what, std::uint64_t count, std::uint32_t limit) {
    return make_error(StatusCode::resource_exhausted, {"step", std::string("too many ") + what, std::to_string(count),
                                                       "at most " + std::to_string(limit), "cut the step into smaller ones"});
  };
  if (tokens > most.max_tokens) return too_many("tokens", tokens, most.max_tokens);
  if (rows > most.max_rows) return too_many("rows of logits", rows, most.max_rows);
  return too_many("sequences", sequences.size(), most.max_sequences);
}

}  // namespace ktc::exec
