#include "runtime/text/unicode.h"

#include <utf8proc.h>

namespace ktc::text {
namespace {

// What may follow `lead`: the number of continuation bytes and the range of the first of them (Unicode 16, table 3-7).
struct Lead {
  int continuations;  // -1: not a lead byte
  unsigned char low, high;
};

Lead lead_of(unsigned char b) {
  if (b < 0x80) return {0, 0, 0};
  if (b < 0xC2) return {-1, 0, 0};
  if (b < 0xE0) return {1, 0x80, 0xBF};
  if (b == 0xE0) return {2, 0xA0, 0xBF};
  if (b == 0xED) return {2, 0x80, 0x9F};
  if (b < 0xF0) return {2, 0x80, 0xBF};
  if (b == 0xF0) return {3, 0x90, 0xBF};
  if (b < 0xF4) return {3, 0x80, 0xBF};
  if (b == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

bool continues(std::string_view begun, unsigned char b) {
  const Lead lead = lead_of(static_cast<unsigned char>(begun[0]));
  if (begun.size() == 1) return b >= lead.low && b <= lead.high;
  return b >= 0x80 && b <= 0xBF;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto b = static_cast<unsigned char>(text[at]);
    if (b < 0x80) {
      ++at;
      continue;
    }
    const Lead lead = lead_of(b);
    if (lead.continuations < 0 || text.size() - at <= static_cast<std::size_t>(lead.continuations)) return at;
    for (int i = 1; i <= lead.continuations; ++i)
      if (!continues(text.substr(at, static_cast<std::size_t>(i)), static_cast<unsigned char>(text[at + i]))) return at;
    at += static_cast<std::size_t>(lead.continuations) + 1;
  }
  return std::string_view::npos;
}

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto b = static_cast<unsigned char>(text[at++]);
  if (b < 0x80) return b;
  const int more = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
  char32_t c = b & (0x3Fu >> more);
  for (int i = 0; i < more && at < text.size(); ++i) c = c << 6 | (static_cast<unsigned char>(text[at++]) & 0x3Fu);
  return c;
}

char32_t previous_code_point(std::string_view text, std::size_t& at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  std::size_t from = at;
  return next_code_point(text, from);
}

std::size_t count_code_points(std::string_view text) {
  std::size_t n = 0;
  for (char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return (c >= 0x24B6 && c <= 0x24E9) || c == 0x200C || c == 0x200D;  // circled letters, joiners
  }
}

char32_t to_lower(char32_t c) {
  // upper-case letters of Unicode 16 and 17, which utf8proc 2.8 does not know
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
  switch (c) {
    case 0xA7CB: return 0x264;
    case 0xA7DC: return 0x19B;
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA: return c + 1;
    default: return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  }
}
char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

void Utf8Joiner::give_up(std::string& out) {
  const std::size_t marks = replace_each_byte ? pending_.size() : 1;
  for (std::size_t i = 0; i < marks; ++i) out += kReplacementCharacter;
  pending_.clear();
}

void Utf8Joiner::push(std::string_view bytes, std::string& out) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto b = static_cast<unsigned char>(bytes[i]);
    if (!pending_.empty() && !continues(pending_, b)) give_up(out);
    if (pending_.empty()) {
      if (b < 0x80) {
        out += bytes[i];
        continue;
      }
      pending_ += bytes[i];
      if (lead_of(b).continuations < 0) give_up(out);
      continue;
    }
    pending_ += bytes[i];
    if (pending_.size() ==
        static_cast<std::size_t>(lead_of(static_cast<unsigned char>(pending_[0])).continuations) + 1) {
      out += pending_;
      pending_.clear();
    }
  }
}

void Utf8Joiner::finish(std::string& out) {
  if (!pending_.empty()) give_up(out);
}

}  // namespace ktc::text
