// Cuts a template into text and the tokens of its tags, with Jinja's white-space rules as Hugging Face sets them:
// trim_blocks and lstrip_blocks on, one newline at the end of the file dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ktc::text::jinja {

enum class TokenKind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  symbol,
  end
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of data, name, string (unescaped), symbol; digits of numbers
  std::int64_t integer = 0;
  double real = 0;
};

// Throws Failure.
std::vector<Token> tokenize(std::string_view source);

std::string describe(const Token& token);  // for messages: "'%}'", "the name 'x'", "the end of the template"

}  // namespace ktc::text::jinja
