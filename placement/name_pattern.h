// The regular expressions of rules: ECMAScript, matched against whole module names.
//
// Patterns come from users, so their cost is bounded: matching takes time proportional to pattern times name and never
// backtracks. What cannot be matched that way (look-ahead, back-references) is refused, as is what is too long.
#pragma once

#include <memory>
#include <regex>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace ktc::placement {

constexpr std::size_t kMaxPatternLength = 256;    // bytes
constexpr std::size_t kMaxExpandedLength = 2048;  // the same with counted repetitions {n,m} written out
constexpr std::size_t kMaxNameLength = 512;       // of a module; longer names match nothing

class NamePattern {
 public:
  // The message says what is wrong with the pattern, without a place: "the '[' has no ']'".
  static Expected<NamePattern> compile(std::string_view text);

  bool matches(std::string_view name) const;  // the whole name; thread-safe

 private:
  std::shared_ptr<const std::regex> regex_;
};

}  // namespace ktc::placement
