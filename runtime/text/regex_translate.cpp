// Oniguruma's pattern language in PCRE2's spelling; regex.h lists the differences.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"

namespace ktc::text {
namespace {

struct Addition {
  char32_t first, last;
  std::string_view category;
};
constexpr Addition kAdditions[] = {
#define KTC_RANGE(first, last, category) {first, last, category},
#include "runtime/text/unicode_additions.def"
#undef KTC_RANGE
};

// White_Space, as the inside of a class; and everything else.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

constexpr std::string_view kCategories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};

// The inside of a class: the category and what newer Unicode versions put into it.
std::string category_set(std::string_view category) {
  std::string set = fmt::format("\\p{{{}}}", category);
  for (const Addition& a : kAdditions)
    if (a.category.substr(0, category.size()) == category)
      set += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<std::uint32_t>(a.first),
                         static_cast<std::uint32_t>(a.last));
  return set;
}

// The property Alphabetic; besides letters, marks got it, some of them long after they were assigned.
std::string alphabetic_set() {
  return "\\p{Alphabetic}" + category_set("L") +
         "\\x{363}-\\x{36f}\\x{897}\\x{c04}\\x{cf3}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}\\x{10d69}\\x{10efc}\\x{11080}"
         "\\x{11081}\\x{11241}\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}\\x{113cd}\\x{"
         "11f00}"
         "\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f40}\\x{1611e}-\\x{1612e}\\x{1e08f}";
}

std::string word_set() {
  return "\\p{Alphabetic}" + category_set("L") + category_set("M") + category_set("Nd") + category_set("Pc");
}
// Outside a class, and only there, Oniguruma takes the other numbers of Latin-1 for word characters too.
constexpr std::string_view kLatinNumbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Ideographs that newer versions of Unicode added to the script.
constexpr std::string_view kHanAdditions = "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";

struct Translator {
  std::string_view in;
  std::size_t at = 0;
  std::string out;
  std::size_t atom = std::string::npos;  // where in `out` the last repeatable item starts
  std::vector<std::size_t> groups;       // where the open groups start

  Status fail(std::size_t where, std::string found, std::string expected) {
    return make_error(StatusCode::unsupported, {.what = fmt::format("regular expression, byte {}", where),
                                                .found = fmt::format("{} (\"{}\")", found, in),
                                                .expected = std::move(expected)});
  }

  bool done() const { return at >= in.size(); }
  bool starts(std::string_view s) const { return in.substr(at, s.size()) == s; }

  // \p{NAME}, \p{^NAME}, \P{NAME}, with `at` at the p: the inside of a positive class, or a negative one.
  Status property(bool in_class) {
    const std::size_t start = at - 1;
    bool negative = in[at] == 'P';
    ++at;
    if (done() || in[at] != '{') return fail(start, "a property without braces", "\\p{Name}");
    const std::size_t close = in.find('}', at);
    if (close == std::string_view::npos) return fail(start, "a property without '}'", "\\p{Name}");
    std::string_view name = in.substr(at + 1, close - at - 1);
    at = close + 1;
    if (!name.empty() && name[0] == '^') {
      negative = !negative;
      name.remove_prefix(1);
    }
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ' ' || c == '-';
        }))
      return fail(start, fmt::format("the property '{}'", name), "a category or a script");
    std::string set;
    if (std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories)) {
      if (negative && in_class) {  // a class cannot hold a difference; the newest characters are let in
        out += fmt::format("\\P{{{}}}", name);
        return Status();
      }
      set = category_set(name);
    } else if (name == "Alphabetic" || name == "Any" || name == "White_Space") {
      set = name == "Alphabetic" ? alphabetic_set() : name == "Any" ? "\\p{Any}" : std::string(kSpace);
      if (negative && in_class) return fail(start, "a negated property in a class", "a category");
    } else if (name == "Alpha" || name == "Digit" || name == "Space" || name == "Punct" || name == "Alnum") {
      std::string lower(name);
      lower[0] = static_cast<char>(lower[0] + ('a' - 'A'));
      KTC_RETURN_IF_ERROR(posix(lower, start, set));
      if (negative && in_class) return fail(start, "a negated property in a class", "a category");
    } else {
      if (negative && in_class) {
        out += fmt::format("\\P{{sc:{}}}", name);
        return Status();
      }
      set = fmt::format("\\p{{sc:{}}}", name);
      if (name == "Han") set += kHanAdditions;
    }
    if (in_class)
      out += set;
    else
      out += fmt::format("[{}{}]", negative ? "^" : "", set);
    return Status();
  }

  Status posix(std::string_view name, std::size_t start, std::string& set) {
    if (name == "alpha")
      set = alphabetic_set();
    else if (name == "digit")
      set = category_set("Nd");
    else if (name == "alnum")
      set = alphabetic_set() + category_set("Nd");
    else if (name == "space")
      set = kSpace;
    else if (name == "punct")
      set = category_set("P") + category_set("S");
    else if (name == "word")
      set = word_set();
    else
      return fail(start, fmt::format("the class [:{}:]", name), "alpha, digit, alnum, space, punct or word");
    return Status();
  }

  // An escape, with `at` behind the backslash.
  Status escape(bool in_class) {
    const std::size_t start = at - 1;
    if (done()) return fail(start, "a backslash at the end", "an escape");
    const char c = in[at];
    auto set = [&](std::string_view inside, bool negative = false) {
      if (in_class)
        out += inside;
      else
        out += fmt::format("[{}{}]", negative ? "^" : "", inside);
      ++at;
      return Status();
    };
    switch (c) {
      case 's': return set(kSpace);
      case 'S': return in_class ? set(kNotSpace) : set(kSpace, true);
      case 'd': return set(category_set("Nd"));
      case 'D':
        if (in_class) return fail(start, "\\D in a class", "\\d");
        return set(category_set("Nd"), true);
      case 'w': return in_class ? set(word_set()) : set(word_set() + std::string(kLatinNumbers));
      case 'W':
        if (in_class) return fail(start, "\\W in a class", "\\w");
        return set(word_set() + std::string(kLatinNumbers), true);
      case 'h': return set("0-9a-fA-F");
      case 'H':
        if (in_class) return fail(start, "\\H in a class", "\\h");
        return set("0-9a-fA-F", true);
      case 'p':
      case 'P': return property(in_class);
      case 'u': {
        const std::string_view digits = in.substr(at + 1, 4);
        if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
          return fail(start, "\\u without four hexadecimal digits", "\\uHHHH");
        out += fmt::format("\\x{{{}}}", digits);
        at += 5;
        return Status();
      }
      case 'x': {
        if (in.substr(at + 1, 1) == "{") {
          out += "\\x";
          ++at;
          while (!done() && in[at] != '}') out += in[at++];
          if (done()) return fail(start, "\\x{ without '}'", "\\x{HHHH}");
          out += in[at++];
          return Status();
        }
        const std::string_view digits = in.substr(at + 1, 2);
        if (digits.size() != 2 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos ||
            digits[0] > '7')
          return fail(start, fmt::format("\\x{}", digits), "\\x{HHHH} for characters above 7F");
        out += fmt::format("\\x{{{}}}", digits);
        at += 3;
        return Status();
      }
      default: break;
    }
    constexpr std::string_view kSame = "tnrfaveAzZbBGRX0123456789k";  // the same in both languages
    const auto b = static_cast<unsigned char>(c);
    const bool letter = (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9');
    if (letter && kSame.find(c) == std::string_view::npos)
      return fail(start, fmt::format("the escape \\{}", c), "one that this translation knows");
    if (c == 'v') {
      out += "\\x{b}";  // PCRE2's \v is a set
    } else if (b >= 0x80) {
      next_code_point_copy();
      return Status();
    } else {
      out += '\\';
      out += c;
    }
    ++at;
    return Status();
  }

  void next_code_point_copy() {
    const std::size_t from = at;
    next_code_point(in, at);
    out += in.substr(from, at - from);
  }

  Status char_class() {
    const std::size_t start = at++;
    out += '[';
    if (starts("^")) {
      out += '^';
      ++at;
    }
    bool first = true;
    for (;; first = false) {
      if (done()) return fail(start, "a class without ']'", "[...]");
      if (in[at] == ']' && !first) break;
      if (starts("[:")) {
        const std::size_t close = in.find(":]", at + 2);
        if (close == std::string_view::npos) return fail(at, "a nested class", "a flat one");
        std::string set;
        KTC_RETURN_IF_ERROR(posix(in.substr(at + 2, close - at - 2), at, set));
        out += set;
        at = close + 2;
      } else if (in[at] == '[') {
        return fail(at, "a nested class", "a flat one");
      } else if (starts("&&")) {
        return fail(at, "a class intersection", "a flat class");
      } else if (in[at] == '\\') {
        ++at;
        KTC_RETURN_IF_ERROR(escape(true));
      } else if (in[at] == ']') {
        out += "\\]";
        ++at;
      } else {
        next_code_point_copy();
      }
    }
    out += ']';
    ++at;
    return Status();
  }

  Status open_group() {
    const std::size_t start = at;
    groups.push_back(out.size());
    if (groups.size() > 100) return fail(start, "more than 100 groups inside each other", "fewer");
    if (!starts("(?")) {
      out += '(';
      ++at;
      return Status();
    }
    for (std::string_view same : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (starts(same)) {
        out += same;
        at += same.size();
        return Status();
      }
    if (starts("(?#")) {
      const std::size_t close = in.find(')', at);
      if (close == std::string_view::npos) return fail(start, "a comment without ')'", "(?#...)");
      at = close + 1;
      groups.pop_back();
      return Status();
    }
    if (starts("(?<")) {  // a name
      out += "(?<";
      at += 3;
      return Status();
    }
    std::size_t end = at + 2;
    std::string options;
    for (; end < in.size() && std::string_view("im-").find(in[end]) != std::string_view::npos; ++end)
      options += in[end] == 'm' ? 's' : in[end];
    if (end >= in.size() || (in[end] != ':' && in[end] != ')') || options.empty())
      return fail(start, fmt::format("the group {}", in.substr(at, end + 1 - at)),
                  "(?:, look-around, or options of i and m");
    if (in[end] == ')' && start != 0)  // elsewhere the two engines disagree about the alternatives that it reaches
      return fail(start, "options without a group inside the pattern", "(?i:...)");
    out += "(?" + options + in[end];
    at = end + 1;
    if (in[end] == ')') groups.pop_back();
    return Status();
  }

  // `{n}`, `{n,}`, `{,m}` or `{n,m}` at `at`; false when the brace is literal.
  bool interval(std::string& text, bool& exact) {
    const std::size_t close = in.find('}', at);
    if (close == std::string_view::npos) return false;
    const std::string_view inside = in.substr(at + 1, close - at - 1);
    const std::size_t comma = inside.find(',');
    const std::string_view low = inside.substr(0, comma);
    const std::string_view high = comma == std::string_view::npos ? std::string_view() : inside.substr(comma + 1);
    auto digits = [](std::string_view s) {
      return s.find_first_not_of("0123456789") == std::string_view::npos && s.size() < 6;
    };
    if (!digits(low) || !digits(high) || (low.empty() && high.empty())) return false;
    exact = comma == std::string_view::npos;
    text = exact ? fmt::format("{{{}}}", low) : fmt::format("{{{},{}}}", low.empty() ? "0" : low, high);
    at = close + 1;
    return true;
  }

  Status run() {
    while (!done()) {
      const char c = in[at];
      if (c == '(') {
        KTC_RETURN_IF_ERROR(open_group());
        atom = std::string::npos;
        continue;
      }
      if (c == ')') {
        if (groups.empty()) return fail(at, "a ')' without '('", "balanced parentheses");
        atom = groups.back();
        groups.pop_back();
        out += c;
        ++at;
        continue;
      }
      if (c == '{' && atom != std::string::npos) {
        std::string text;
        bool exact = false;
        if (interval(text, exact)) {
          out += text;
          // here a '+' repeats the repetition and, behind an exact count, a '?' makes it optional
          if (!done() && (in[at] == '+' || (exact && in[at] == '?'))) {
            out.insert(atom, "(?:");
            out += ')';
            out += in[at++];
          } else if (!done() && in[at] == '?') {
            out += in[at++];
          }
          continue;
        }
      }
      if (c == '*' || c == '+' || c == '?') {
        out += c;  // a '+' or '?' behind it, possessive or lazy, means the same
        ++at;
        continue;
      }
      if (c == '|' || c == '^' || c == '$') {
        atom = std::string::npos;
        out += c;
        ++at;
        continue;
      }
      atom = out.size();
      if (c == '[') {
        KTC_RETURN_IF_ERROR(char_class());
      } else if (c == '\\') {
        ++at;
        KTC_RETURN_IF_ERROR(escape(false));
      } else if (c == '{') {
        out += "\\{";
        ++at;
      } else {
        next_code_point_copy();
      }
    }
    if (!groups.empty()) return fail(in.size(), "a '(' without ')'", "balanced parentheses");
    return Status();
  }
};

}  // namespace

Expected<std::string> translate_oniguruma(std::string_view pattern) {
  if (pattern.size() > 64 * 1024)
    return make_error(
        StatusCode::unsupported,
        {.what = "regular expression", .found = fmt::format("{} bytes", pattern.size()), .expected = "at most 65536"});
  Translator translator;
  translator.in = pattern;
  KTC_RETURN_IF_ERROR(translator.run());
  return std::move(translator.out);
}

}  // namespace ktc::text
