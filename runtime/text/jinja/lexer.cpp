#include "runtime/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "runtime/text/jinja/strings.h"
#include "runtime/text/jinja/value.h"
#include "runtime/text/unicode.h"

namespace ktc::text::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    // one kind of newline; the last one goes
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) text();
    tokens_.push_back({TokenKind::end, line_, ""});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string message) { throw Failure{std::move(message), line_}; }

  bool starts(std::string_view s) const { return std::string_view(source_).substr(at_).starts_with(s); }

  // Moves over n bytes and counts their lines.
  void advance(std::size_t n) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
  }

  void skip_space() {
    while (at_ < source_.size()) {
      std::size_t next = at_;
      if (!is_python_space(next_code_point(source_, next))) return;
      advance(next - at_);
    }
  }

  void emit(TokenKind kind, std::string text = "") { tokens_.push_back({kind, line_, std::move(text)}); }

  void emit_data(std::string_view text, int line) {
    if (!text.empty()) tokens_.push_back({TokenKind::data, line, std::string(text)});
  }

  // What stays of the text before a tag. `strips`: the tag is one that lstrip_blocks applies to.
  std::string_view before_tag(std::string_view text, char sign, bool strips) const {
    if (sign == '-') {
      while (!text.empty()) {
        std::size_t previous = text.size();
        if (!is_python_space(previous_code_point(text, previous))) break;
        text = text.substr(0, previous);
      }
      return text;
    }
    if (sign == '+' || !strips) return text;
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_start_) return text;
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    for (std::size_t at = line; at < text.size();)
      if (!is_python_space(next_code_point(text, at))) return text;
    return text.substr(0, line);
  }

  // The sign behind a tag's opening two characters at `at`, or 0.
  char sign_at(std::size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // From at_ (outside tags) up to and into the next tag.
  void text() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        emit_data(std::string_view(source_).substr(at_), line_);
        advance(source_.size() - at_);
        return;
      }
      if (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    const std::string_view before = std::string_view(source_).substr(at_, tag - at_);
    emit_data(before_tag(before, sign, kind != '{'), line_);
    advance(tag - at_ + 2 + (sign != '\0'));
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    emit(kind == '%' ? TokenKind::block_begin : TokenKind::variable_begin);
    inside(kind == '%');
  }

  // Behind a tag that ends at at_: remembers whether a line starts there.
  void after_tag() { line_start_ = at_ > 0 && source_[at_ - 1] == '\n'; }

  // The end of a tag, when it is at at_: "+%}", "-%}" and the white space behind it, "%}" and one newline behind it.
  bool close(std::string_view mark, bool plus, bool trims) {
    if (plus && starts("+" + std::string(mark))) {
      advance(mark.size() + 1);
    } else if (starts("-" + std::string(mark))) {
      advance(mark.size() + 1);
      skip_space();
    } else if (starts(mark)) {
      advance(mark.size());
      if (trims && at_ < source_.size() && source_[at_] == '\n') advance(1);
    } else {
      return false;
    }
    after_tag();
    return true;
  }

  void comment() {
    const int line = line_;
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) {
      line_ = line;
      error("a comment is not closed: expected '#}'");
    }
    const bool signed_end = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - at_ - (signed_end ? 1 : 0));
    close("#}", true, true);
  }

  // {% raw %} ... {% endraw %}, with at_ behind the opening "{%".
  bool raw() {
    auto word_tag = [this](std::size_t from, std::string_view word,
                           std::size_t& end) {  // `word` up to its closing mark
      auto space = [this](std::size_t at) {
        while (at < source_.size()) {
          std::size_t next = at;
          if (!is_python_space(next_code_point(source_, next))) break;
          at = next;
        }
        return at;
      };
      from = space(from);
      if (!std::string_view(source_).substr(from).starts_with(word)) return false;
      end = space(from + word.size());
      const std::string_view rest = std::string_view(source_).substr(end);
      return rest.starts_with("%}") || rest.starts_with("-%}") || (word == "endraw" && rest.starts_with("+%}"));
    };
    std::size_t end = 0;
    if (!word_tag(at_, "raw", end)) return false;
    const int line = line_;
    advance(end - at_);
    close("%}", false, false);
    for (std::size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      const char sign = sign_at(tag + 2);
      if (!word_tag(tag + 2 + (sign != '\0'), "endraw", end)) continue;
      emit_data(before_tag(std::string_view(source_).substr(at_, tag - at_), sign, true), line_);
      advance(end - at_);
      close("%}", true, true);
      return true;
    }
    line_ = line;
    error("a raw block is not closed: expected {% endraw %}");
  }

  // The tokens of one tag, up to and with its end.
  void inside(bool block) {
    std::string open;  // brackets
    for (;;) {
      skip_space();
      if (at_ >= source_.size())
        error(fmt::format("the template ends inside a tag: expected '{}'", block ? "%}" : "}}"));
      if (open.empty() && close(block ? "%}" : "}}", block, block)) {
        tokens_.push_back({block ? TokenKind::block_end : TokenKind::variable_end, line_, ""});
        return;
      }
      const char c = source_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        const std::size_t begin = at_;
        while (at_ < source_.size() && is_name(source_[at_])) ++at_;
        emit(TokenKind::name, source_.substr(begin, at_ - begin));
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        symbol(open);
      }
    }
  }

  void symbol(std::string& open) {
    for (std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
      if (starts(two)) {
        emit(TokenKind::symbol, std::string(two));
        at_ += 2;
        return;
      }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      error(fmt::format("found the character '{}', expected an expression", c));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) error(fmt::format("found '{}' without its opening bracket", c));
      if (open.back() != c) error(fmt::format("found '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    emit(TokenKind::symbol, std::string(1, c));
    ++at_;
  }

  // Digits, with single underscores between them.
  std::string digits(std::string_view allowed) {
    std::string out;
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (allowed.find(c) != std::string_view::npos)
        out += c;
      else if (c != '_' || out.empty() || at_ + 1 >= source_.size() ||
               allowed.find(source_[at_ + 1]) == std::string_view::npos)
        break;
      ++at_;
    }
    return out;
  }

  void number() {
    constexpr std::string_view kDecimal = "0123456789";
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    int base = 10;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char x = static_cast<char>(source_[at_ + 1] | 0x20);
      if (x == 'x' || x == 'o' || x == 'b') {
        base = x == 'x' ? 16 : x == 'o' ? 8 : 2;
        at_ += 2;
      }
    }
    std::string text = digits(base == 16  ? "0123456789abcdefABCDEF"
                              : base == 8 ? "01234567"
                              : base == 2 ? "01"
                                          : kDecimal);
    bool real = false;
    if (base == 10 && !after_dot) {
      if (at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1])) {
        ++at_;
        text += '.' + digits(kDecimal);
        real = true;
      }
      std::size_t e = at_;
      if (e < source_.size() && (source_[e] | 0x20) == 'e') {
        ++e;
        if (e < source_.size() && (source_[e] == '+' || source_[e] == '-')) ++e;
        if (e < source_.size() && is_digit(source_[e])) {
          text += source_.substr(at_, e - at_);
          at_ = e;
          text += digits(kDecimal);
          real = true;
        }
      }
    }
    Token token{real ? TokenKind::real : TokenKind::integer, line_, text};
    if (real) {
      const auto read = std::from_chars(text.data(), text.data() + text.size(), token.real);
      if (read.ec != std::errc()) error(fmt::format("the number {} is out of range", text));
    } else {
      const auto read = std::from_chars(text.data(), text.data() + text.size(), token.integer, base);
      if (read.ec != std::errc() || read.ptr != text.data() + text.size())
        error(fmt::format("the number {} is out of range or malformed", text));
      if (base == 10 && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos)
        error(fmt::format("the number {} begins with 0", text));
    }
    tokens_.push_back(std::move(token));
  }

  std::uint32_t hex(std::size_t count, char kind) {
    std::uint32_t value = 0;
    const std::string_view text = std::string_view(source_).substr(at_, count);
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != count || read.ec != std::errc() || read.ptr != text.data() + text.size())
      error(fmt::format("\\{} in a string needs {} hexadecimal digits", kind, count));
    at_ += count;
    return value;
  }

  void string(char quote) {
    const int line = line_;
    std::string text;
    ++at_;
    for (;;) {
      if (at_ >= source_.size()) {
        line_ = line;
        error("a string is not closed");
      }
      const char c = source_[at_];
      if (c == quote) break;
      if (c != '\\') {
        text += c;
        advance(1);
        continue;
      }
      ++at_;
      if (at_ >= source_.size()) continue;
      const char e = source_[at_];
      advance(1);
      switch (e) {
        case '\n': break;  // the line goes on
        case '\\':
        case '\'':
        case '"': text += e; break;
        case 'n': text += '\n'; break;
        case 't': text += '\t'; break;
        case 'r': text += '\r'; break;
        case 'a': text += '\a'; break;
        case 'b': text += '\b'; break;
        case 'f': text += '\f'; break;
        case 'v': text += '\v'; break;
        case 'x': append_utf8(text, hex(2, e)); break;
        case 'u':
        case 'U': {
          const std::uint32_t c32 = hex(e == 'u' ? 4 : 8, e);
          if (c32 > 0x10FFFF || (c32 >= 0xD800 && c32 < 0xE000))
            error(fmt::format("\\{} in a string is no character", e));
          append_utf8(text, c32);
          break;
        }
        case 'N': error("\\N{...} in a string is not supported; write the character itself");
        default:
          if (e >= '0' && e <= '7') {
            std::uint32_t value = static_cast<std::uint32_t>(e - '0');
            for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7'; ++i)
              value = value * 8 + static_cast<std::uint32_t>(source_[at_++] - '0');
            append_utf8(text, value);
          } else {
            text += '\\';
            text += e;
          }
      }
    }
    ++at_;
    tokens_.push_back({TokenKind::string, line, std::move(text)});
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data: return "text";
    case TokenKind::variable_begin: return "'{{'";
    case TokenKind::variable_end: return "'}}'";
    case TokenKind::block_begin: return "'{%'";
    case TokenKind::block_end: return "'%}'";
    case TokenKind::name: return fmt::format("'{}'", token.text);
    case TokenKind::string: return "a string";
    case TokenKind::integer:
    case TokenKind::real: return token.text;
    case TokenKind::symbol: return fmt::format("'{}'", token.text);
    case TokenKind::end: return "the end of the template";
  }
  return "";
}

}  // namespace ktc::text::jinja
