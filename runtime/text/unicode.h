// UTF-8 and Unicode facts for the tokenizer and the templates. All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ktc::text {

// Byte offset of the first ill-formed sequence, or npos. Surrogates, overlong forms and values above U+10FFFF are
// ill-formed.
std::size_t find_invalid_utf8(std::string_view text);

// The code point that starts at `at`, which moves behind it. `text` must be valid UTF-8 and `at` a character boundary.
char32_t next_code_point(std::string_view text, std::size_t& at);
// The code point that ends before `at` (at > 0), which moves to its start.
char32_t previous_code_point(std::string_view text, std::size_t& at);
std::size_t count_code_points(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

bool is_white_space(char32_t c);  // the property White_Space
bool is_word(char32_t c);         // letters, marks, decimal digits, connectors: \w of regular expressions
char32_t to_lower(char32_t c);    // simple case mapping
char32_t to_upper(char32_t c);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Joins bytes into text: what is complete UTF-8 leaves at once, an ill-formed sequence becomes one U+FFFD per maximal
// part of a well-formed one, and only the beginning of a character is held back (at most three bytes).
class Utf8Joiner {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);  // what is held back becomes one U+FFFD
  bool empty() const { return pending_.empty(); }

  // Instead of one U+FFFD per maximal part, one per byte.
  bool replace_each_byte = false;

 private:
  void give_up(std::string& out);
  std::string pending_;
};

}  // namespace ktc::text
