// Byte-pair encoding: a vocabulary, merges with ranks, and the few options of the "BPE" model of tokenizer.json.
//
// A word starts as its characters; the adjacent pair with the lowest rank merges, leftmost first, until none is left.
// Short words are scanned, long ones use a heap: O(n log n) for a word of n characters. Immutable after load;
// encode_word is thread-safe with one scratch per thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json_node.h"

namespace ktc::text {

// An id above this in tokenizer.json is refused: tables are indexed by id.
inline constexpr std::int64_t kMaxTokenId = (1 << 22) - 1;

class Bpe {
 public:
  struct Scratch {
    struct Symbol {
      std::int32_t id, previous, next;  // -1: none; `id` < 0: merged away
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t position;
      std::int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::unordered_map<std::string, std::vector<std::int32_t>> cache;
  };

  // `node` is the "model" object. Errors: another model type, tokens or merges that contradict each other, options that
  // change results in ways not implemented (dropout, subword prefix, word suffix).
  static Expected<std::unique_ptr<Bpe>> load(const JsonNode& node);

  // Appends the ids of one word of the pre-tokeniser. Characters that the vocabulary lacks become byte tokens or the
  // unknown token where the model has them, else nothing.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  std::optional<std::int32_t> id_of(std::string_view token) const;
  const std::string* token_of(std::int32_t id) const;  // null: not in the vocabulary
  std::int32_t max_id() const { return max_id_; }
  std::size_t size() const { return vocabulary_.size(); }

 private:
  struct Merge {
    std::uint64_t pair;  // left id in the upper half
    std::uint32_t rank;
    std::int32_t merged;
  };

  Status load_vocabulary(const JsonNode& node);
  Status load_merges(const JsonNode& node);
  void index_merges(std::vector<Merge> merges);
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void split_into_symbols(std::string_view word, Scratch& scratch) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::vector<std::string> tokens_;                                // in the order of `vocab`
  std::unordered_map<std::string_view, std::int32_t> vocabulary_;  // views into tokens_
  std::vector<std::int32_t> index_of_id_;                          // into tokens_; -1: no token
  std::vector<std::int32_t> character_ids_;                        // of characters below U+0400; -1: none
  std::vector<Merge> table_;                                       // open addressing; pair kEmpty: free
  std::vector<std::int32_t> byte_ids_;                             // of <0x00>..<0xFF> when byte_fallback; -1: none
  std::int32_t max_id_ = -1;
  std::int32_t unknown_ = -1;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

}  // namespace ktc::text
