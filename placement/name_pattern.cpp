#include "placement/name_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <locale>

namespace ktc::placement {
namespace {

Status bad(std::string what) {
  return Status(StatusCode::invalid_argument, std::move(what));
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Reads "{n}", "{n,}" or "{n,m}" at text[at] and returns how many copies of its operand the automaton needs; 0:
// malformed.
std::size_t copies(std::string_view text, std::size_t at) {
  std::size_t numbers[2] = {0, 0}, which = 0, digits = 0;
  for (std::size_t i = at + 1; i < text.size() && text[i] != '}'; ++i) {
    if (text[i] == ',' && which == 0) {
      which = 1;
    } else if (is_digit(text[i])) {
      ++digits;
      numbers[which] = std::min<std::size_t>(numbers[which] * 10 + static_cast<std::size_t>(text[i] - '0'), 1'000'000);
    } else {
      return 0;
    }
  }
  return digits == 0 ? 0 : std::max({numbers[0], numbers[1], std::size_t{1}});
}

// Refuses what would make compiling or matching expensive. What remains goes to std::regex, which checks the grammar.
Status check_cost(std::string_view text) {
  if (text.size() > kMaxPatternLength)
    return bad(fmt::format("it is {} bytes long, at most {} are allowed", text.size(), kMaxPatternLength));
  std::size_t expanded = std::max<std::size_t>(text.size(), 1);
  bool in_class = false;
  bool has_operand = false;  // something stands before this place that could be repeated
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return bad("it has a control character");
    if (c == '\\') {
      if (i + 1 < text.size() && !in_class && text[i + 1] >= '1' && text[i + 1] <= '9')
        return bad(fmt::format("back-references such as \\{} are not supported", text[i + 1]));
      ++i;
      has_operand = true;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = has_operand = true;
    } else if (!has_operand && (c == '*' || c == '+' || c == '?' || c == '{')) {
      return bad(fmt::format("there is nothing before '{}' that it could repeat", c));
    } else if (c == '(' && text.substr(i).starts_with("(?") && !text.substr(i).starts_with("(?:")) {
      return bad("look-ahead (?= and (?! is not supported");
    } else if (c == '{') {
      // conservative: every repetition counts as if it stood around the whole pattern
      expanded = std::min<std::size_t>(expanded * std::max<std::size_t>(copies(text, i), 1), 1'000'000'000);
    } else if (c == '(') {
      has_operand = false;
      if (text.substr(i).starts_with("(?:")) i += 2;
    } else {
      has_operand = c != '|';
    }
  }
  if (expanded > kMaxExpandedLength) return bad("its counted repetitions {n,m} multiply to too many states");
  return Status();
}

std::string_view reason(std::regex_constants::error_type code) {
  using namespace std::regex_constants;
  if (code == error_brack) return "a '[' or ']' has no partner";
  if (code == error_paren) return "a '(' or ')' has no partner";
  if (code == error_brace) return "a '{' or '}' has no partner";
  if (code == error_badbrace) return "the numbers in {n,m} are not a range";
  if (code == error_range) return "a range such as [z-a] runs backwards";
  if (code == error_escape) return "a '\\' stands before a character that needs none, or at the end";
  if (code == error_badrepeat) return "'*', '+', '?' or '{' has nothing to repeat";
  if (code == error_ctype) return "an unknown character class such as [:name:]";
  if (code == error_collate) return "an unknown collating element";
  if (code == error_backref) return "back-references are not supported";
  return "it is too complex";
}

}  // namespace

Expected<NamePattern> NamePattern::compile(std::string_view text) {
  KTC_RETURN_IF_ERROR(check_cost(text));
  auto flags = std::regex::ECMAScript | std::regex::nosubs;
#ifdef __GLIBCXX__
  // the executor that never backtracks; the other one is exponential for (a*)*b and overflows the stack on long names
  flags |= std::regex_constants::__polynomial;
#endif
  NamePattern pattern;
  try {
    auto regex = std::make_shared<std::regex>();
    regex->imbue(std::locale::classic());
    regex->assign(text.data(), text.size(), flags);
    pattern.regex_ = std::move(regex);
  } catch (const std::regex_error& e) {
    return bad(std::string(reason(e.code())));
  } catch (const std::exception&) {
    return bad("it is too complex");
  }
  return pattern;
}

bool NamePattern::matches(std::string_view name) const {
  if (name.size() > kMaxNameLength) return false;
  try {
    return std::regex_match(name.begin(), name.end(), *regex_);
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace ktc::placement
