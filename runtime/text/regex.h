// The regular expressions of tokenizer.json: written for Oniguruma, run by PCRE2 (JIT-compiled where the machine
// allows).
//
// compile() rewrites what the two engines spell or mean differently, so that both find the same matches, and refuses
// what it cannot carry over:
//   \s \w \h, POSIX classes   their Oniguruma sets          \p{Script}   Script, not Script_Extensions
//   ^ $                       at every line                 (?m)         dot matches newline
//   X{n,m}+ X{n}?             repetition of the repetition  X{,n} \uHHHH
//   \p{category}              with the characters of Unicode 15 and 16 (unicode_additions.def)
// Refused: nested character classes and intersections, \xHH above 7F (a raw byte there), options other than i and m.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace ktc::text {

struct Span {  // bytes [begin, end) of a text
  std::size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// Memory for matching; one per thread, used for any number of patterns.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  // Errors (invalid_argument, or unsupported for a construct that is refused) say what is wrong and where in the
  // pattern; the caller adds the place.
  static Expected<Regex> compile(std::string_view oniguruma_pattern);
  // A pattern that matches exactly `text`.
  static Expected<Regex> literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // All matches in order, as a left-to-right search finds them; an empty match right behind the previous one is
  // skipped. `text` must be valid UTF-8. Error: the pattern needed more than the engine's limits (memory,
  // backtracking).
  Status find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>& matches) const;

  const std::string& pattern() const { return pattern_; }  // as given

 private:
  Regex() = default;
  static Expected<Regex> compile_pcre2(std::string_view translated, std::string_view original);
  struct Code;
  std::unique_ptr<Code> code_;
  std::string pattern_;
};

// Exposed for tests: the PCRE2 spelling of an Oniguruma pattern.
Expected<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace ktc::text
