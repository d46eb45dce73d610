// Added tokens: texts that are cut out of the input before anything else sees it, and map to one id each.
//
// Those with `normalized` false are looked for in the raw text, the others in the normalised text; always the leftmost
// and among those the longest. A *special* token is markup: where the caller marks text as ordinary, it is not
// recognised.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json_node.h"
#include "runtime/text/regex.h"

namespace ktc::text {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool single_word = false;             // only where no word character touches it
  bool lstrip = false, rstrip = false;  // swallows white space on that side
  bool normalized = false;
  bool special = false;
};

Expected<AddedToken> load_added_token(const JsonNode& node);

// A part of a text: one added token, or (id -1) text in between.
struct Segment {
  Span span;
  std::int32_t id = -1;
};

// Where special tokens count: everywhere, nowhere, or outside the spans of ordinary text (sorted, disjoint).
struct SpecialScope {
  bool everywhere = true;
  const std::vector<Span>* ordinary = nullptr;  // used when `everywhere` is true; null: none

  enum class Verdict { accept, inside_ordinary, straddles };
  Verdict judge(Span match) const;
};

// Finds tokens by their patterns in one pass (a trie, walked where its first byte occurs).
class AddedTokenFinder {
 public:
  static constexpr std::size_t kMaxPattern = 1024;  // bytes

  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }
  // Segments that cover `text` in order; there are no empty ones.
  void split(std::string_view text, const SpecialScope& scope, std::vector<Segment>& segments) const;
  // True when a special token's pattern occurs anywhere in `text`.
  bool has_special(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> children;  // sorted by byte
    std::int32_t token = -1;                                       // index into tokens_
  };
  struct Match {
    std::size_t end;
    std::int32_t token;
  };
  void matches_at(std::string_view text, std::size_t at, std::vector<Match>& matches) const;

  std::vector<Node> nodes_{1};
  std::array<bool, 256> first_{};
  std::vector<AddedToken> tokens_;
};

}  // namespace ktc::text
