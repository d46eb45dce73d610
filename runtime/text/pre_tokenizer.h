// Pre-tokenisers of tokenizer.json: cut a normalised text into words, none of which merges with its neighbour.
// Immutable and thread-safe with one scratch per thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json_node.h"
#include "runtime/text/regex.h"

namespace ktc::text {

// {"Regex": "..."} or {"String": "..."}; used by Split and Replace.
Expected<Regex> load_pattern(const JsonNode& node);

enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// What becomes of the gaps and matches of a pattern. `matches` are in order and do not overlap; `invert` exchanges the
// roles of match and gap.
void split_by_matches(std::size_t size, const std::vector<Span>& matches, SplitBehavior behavior, bool invert,
                      std::vector<Span>& words);

class PreTokenizer {
 public:
  // null, Split, ByteLevel, Digits, Sequence. Error: any other type.
  static Expected<PreTokenizer> load(const JsonNode& node);

  // Rewrites `text` where a step does (ByteLevel) and fills `words` with its parts in order, none of them empty.
  // Error: a pattern that exceeds the limits of regex.h.
  Status apply(std::string& text, RegexScratch& scratch, std::vector<Span>& words) const;

 private:
  struct Step {
    std::shared_ptr<const Regex> pattern;  // null: no cut
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    bool byte_level = false;    // afterwards every byte becomes its character
    bool prefix_space = false;  // before: every word that lacks one gets a leading space
  };
  Status load_into(const JsonNode& node, int depth);
  Status cut(const Step& step, std::string_view text, RegexScratch& scratch, std::vector<Span>& words) const;
  std::vector<Step> steps_;
};

}  // namespace ktc::text
