// Normalisers of tokenizer.json: what happens to a text before it is cut into words.
// Immutable and thread-safe. Input and output are valid UTF-8.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json_node.h"
#include "runtime/text/regex.h"

namespace ktc::text {

class Normalizer {
 public:
  // null, NFC, NFD, NFKC, NFKD, Sequence, Prepend, Replace, Lowercase, Strip. Error: any other type.
  static Expected<Normalizer> load(const JsonNode& node);

  bool is_identity() const { return steps_.empty(); }
  // Replaces `text`. Error: a Replace pattern that exceeds the limits of regex.h.
  Status apply(std::string& text, RegexScratch& scratch) const;

 private:
  enum class Kind { nfc, nfd, nfkc, nfkd, prepend, replace, lowercase, strip };
  struct Step {
    Kind kind;
    std::string content;                   // of prepend and replace
    std::shared_ptr<const Regex> pattern;  // of replace
    bool left = false, right = false;      // of strip
  };
  Status load_into(const JsonNode& node, int depth);
  std::vector<Step> steps_;
};

// Unicode normalisation, linear in the length of `text` but for sorting runs of marks (n log n).
void normalize_unicode(std::string& text, bool compose, bool compatible);

}  // namespace ktc::text
