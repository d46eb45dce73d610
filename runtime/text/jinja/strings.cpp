#include "runtime/text/jinja/strings.h"

#include <algorithm>

#include "runtime/text/unicode.h"

namespace ktc::text::jinja {
namespace {

// Where a line ends for str.splitlines.
bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool contains(std::string_view characters, char32_t c) {
  for (std::size_t at = 0; at < characters.size();)
    if (next_code_point(characters, at) == c) return true;
  return false;
}

// Upper case in full: the characters that become several.
std::string upper_of(char32_t c) {
  switch (c) {
    case 0xDF: return "SS";
    case 0x149: return "\xCA\xBCN";
    case 0x1F0: return "J\xCC\x8C";
    case 0x390: return "\xCE\x99\xCC\x88\xCC\x81";
    case 0x3B0: return "\xCE\xA5\xCC\x88\xCC\x81";
    case 0x587: return "\xD4\xB5\xD5\x92";
    case 0x1E96: return "H\xCC\xB1";
    case 0x1E97: return "T\xCC\x88";
    case 0x1E98: return "W\xCC\x8A";
    case 0x1E99: return "Y\xCC\x8A";
    case 0x1E9A: return "A\xCA\xBE";
    case 0xFB00: return "FF";
    case 0xFB01: return "FI";
    case 0xFB02: return "FL";
    case 0xFB03: return "FFI";
    case 0xFB04: return "FFL";
    case 0xFB05:
    case 0xFB06: return "ST";
    default: {
      std::string out;
      append_utf8(out, to_upper(c));
      return out;
    }
  }
}

// Title case differs from upper case where a character is two letters.
std::string title_of(char32_t c) {
  std::string out = upper_of(c);
  if (c == 0xDF) return "Ss";
  if (c >= 0xFB00 && c <= 0xFB06)
    for (std::size_t i = 1; i < out.size(); ++i) out[i] = static_cast<char>(out[i] + ('a' - 'A'));
  if (c >= 0x1C4 && c <= 0x1CC) {  // DŽ Dž dž, LJ Lj lj, NJ Nj nj
    out.clear();
    append_utf8(out, c <= 0x1C6 ? 0x1C5 : c <= 0x1C9 ? 0x1C8 : 0x1CB);
  }
  if (c >= 0x1F1 && c <= 0x1F3) out = "\xC7\xB2";
  return out;
}

bool is_title(char32_t c) {
  return to_lower(c) != c && to_upper(c) != c;
}

bool is_cased(char32_t c) {
  return to_lower(c) != c || to_upper(c) != c || (c == 0xDF);
}

std::string lower_of(std::string_view text, std::size_t begin, std::size_t end, char32_t c) {
  if (c == 0x130) return "i\xCC\x87";
  if (c == 0x3A3) {  // a sigma at the end of a word has its own form
    std::size_t before = begin, after = end;
    const bool word_before = before > 0 && is_cased(previous_code_point(text, before));
    const bool word_after = after < text.size() && is_cased(next_code_point(text, after));
    return word_before && !word_after ? "\xCF\x82" : "\xCF\x83";
  }
  std::string out;
  append_utf8(out, to_lower(c));
  return out;
}

}  // namespace

bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

TextPtr substring(const Text& text, std::size_t begin, std::size_t end, Meter& meter) {
  TextBuilder out(meter);
  if (begin < end) out.append(text, begin, end);
  return out.finish();
}

TextPtr concatenate(const Text& a, const Text& b, Meter& meter) {
  TextBuilder out(meter);
  out.append(a);
  out.append(b);
  return out.finish();
}

TextPtr repeat(const Text& text, std::int64_t times, Meter& meter) {
  TextBuilder out(meter);
  if (!text.bytes.empty())
    for (std::int64_t i = 0; i < times; ++i) out.append(text);
  return out.finish();
}

TextPtr strip(const Text& text, const Text* characters, bool left, bool right, Meter& meter) {
  auto goes = [&](char32_t c) { return characters == nullptr ? is_python_space(c) : contains(characters->bytes, c); };
  std::size_t begin = 0, end = text.bytes.size();
  while (left && begin < end) {
    std::size_t next = begin;
    if (!goes(next_code_point(text.bytes, next))) break;
    begin = next;
    meter.step();
  }
  while (right && end > begin) {
    std::size_t previous = end;
    if (!goes(previous_code_point(text.bytes, previous))) break;
    end = previous;
    meter.step();
  }
  return substring(text, begin, end, meter);
}

std::vector<Value> split(const Text& text, const Text* separator, std::int64_t limit, bool from_right, Meter& meter) {
  const std::string_view bytes = text.bytes;
  std::vector<Span> parts;
  auto more = [&] { return limit < 0 || parts.size() < static_cast<std::size_t>(limit); };
  if (separator != nullptr) {
    const std::string_view mark = separator->bytes;
    if (mark.empty()) fail("empty separator");
    if (from_right) {
      std::size_t end = bytes.size();
      for (std::size_t at;
           more() && end >= mark.size() && (at = bytes.rfind(mark, end - mark.size())) != std::string_view::npos;
           end = at)
        parts.push_back({at + mark.size(), end});
      parts.push_back({0, end});
      std::reverse(parts.begin(), parts.end());
    } else {
      std::size_t begin = 0;
      for (std::size_t at; more() && (at = bytes.find(mark, begin)) != std::string_view::npos; begin = at + mark.size())
        parts.push_back({begin, at});
      parts.push_back({begin, bytes.size()});
    }
  } else if (from_right) {
    std::size_t end = bytes.size();
    auto skip = [&] {
      while (end > 0) {
        std::size_t previous = end;
        if (!is_python_space(previous_code_point(bytes, previous))) break;
        end = previous;
      }
    };
    for (skip(); end > 0; skip()) {
      std::size_t begin = end;
      if (!more()) {  // the rest keeps its leading space
        parts.push_back({0, end});
        break;
      }
      while (begin > 0) {
        std::size_t previous = begin;
        if (is_python_space(previous_code_point(bytes, previous))) break;
        begin = previous;
      }
      parts.push_back({begin, end});
      end = begin;
    }
    std::reverse(parts.begin(), parts.end());
  } else {
    std::size_t begin = 0;
    auto skip = [&] {
      while (begin < bytes.size()) {
        std::size_t next = begin;
        if (!is_python_space(next_code_point(bytes, next))) break;
        begin = next;
      }
    };
    for (skip(); begin < bytes.size(); skip()) {
      std::size_t end = begin;
      if (!more()) {  // the rest keeps its trailing space
        parts.push_back({begin, bytes.size()});
        break;
      }
      while (end < bytes.size()) {
        std::size_t next = end;
        if (is_python_space(next_code_point(bytes, next))) break;
        end = next;
      }
      parts.push_back({begin, end});
      begin = end;
    }
  }
  meter.step(1 + 8 * parts.size() + bytes.size() / 256);
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const Span& part : parts) out.emplace_back(substring(text, part.begin, part.end, meter));
  return out;
}

std::vector<Value> split_lines(const Text& text, bool keep_ends, Meter& meter) {
  std::vector<Value> out;
  const std::string_view bytes = text.bytes;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = at;
    const char32_t c = next_code_point(bytes, at);
    if (!ends_line(c)) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    out.emplace_back(substring(text, begin, keep_ends ? at : end, meter));
    begin = at;
  }
  if (begin < bytes.size()) out.emplace_back(substring(text, begin, bytes.size(), meter));
  return out;
}

TextPtr replace(const Text& text, const Text& old, const Text& with, std::int64_t limit, Meter& meter) {
  TextBuilder out(meter);
  std::int64_t done = 0;
  if (old.bytes.empty()) {  // before every character and at the end
    std::size_t at = 0;
    for (; at < text.bytes.size() && (limit < 0 || done < limit); ++done) {
      const std::size_t begin = at;
      next_code_point(text.bytes, at);
      out.append(with);
      out.append(text, begin, at);
    }
    out.append(text, at, text.bytes.size());
    if (limit < 0 || done < limit) out.append(with);
    return out.finish();
  }
  std::size_t from = 0;
  for (std::size_t at; (limit < 0 || done < limit) && (at = text.bytes.find(old.bytes, from)) != std::string::npos;
       ++done) {
    out.append(text, from, at);
    out.append(with);
    from = at + old.bytes.size();
  }
  out.append(text, from, text.bytes.size());
  return out.finish();
}

TextPtr join(const Text& separator, const std::vector<TextPtr>& parts, Meter& meter) {
  TextBuilder out(meter);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(*parts[i]);
  }
  return out.finish();
}

TextPtr change_case(const Text& text, Case to, Meter& meter) {
  TextBuilder out(meter);
  const std::string_view bytes = text.bytes;
  bool first = true;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(bytes, at);
    std::string changed;
    switch (to) {
      case Case::upper: changed = upper_of(c); break;
      case Case::lower: changed = lower_of(bytes, begin, at, c); break;
      case Case::swap:  // a letter in title case is neither
        changed = is_title(c)        ? std::string(bytes.substr(begin, at - begin))
                  : to_lower(c) != c ? lower_of(bytes, begin, at, c)
                                     : upper_of(c);
        break;
      case Case::capitalize: changed = first ? title_of(c) : lower_of(bytes, begin, at, c); break;
      case Case::title_words: changed = first ? title_of(c) : lower_of(bytes, begin, at, c); break;
      case Case::title_filter: changed = first ? upper_of(c) : lower_of(bytes, begin, at, c); break;
    }
    out.append_for(changed, text, begin, at);
    if (to == Case::title_words)
      first = !is_cased(c);
    else if (to == Case::title_filter)
      first = is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    else
      first = false;
  }
  return out.finish();
}

TextPtr indent(const Text& text, const Text& by, bool first, bool blank, Meter& meter) {
  TextBuilder with_newline(meter);
  with_newline.append(text);
  with_newline.append("\n");  // so that an empty text has one line and a last newline counts
  const TextPtr whole = with_newline.finish();
  const std::vector<Value> lines = split_lines(*whole, false, meter);
  TextBuilder out(meter);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text();
    if (i > 0) out.append("\n");
    if (i == 0 ? first : blank || !line.bytes.empty()) out.append(by);
    out.append(line);
  }
  return out.finish();
}

std::size_t offset_of(std::string_view text, std::size_t n) {
  std::size_t at = 0;
  for (; n > 0 && at < text.size(); --n) next_code_point(text, at);
  return at;
}

}  // namespace ktc::text::jinja
