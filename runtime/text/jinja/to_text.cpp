#include "runtime/text/jinja/to_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/text/unicode.h"

namespace ktc::text::jinja {
namespace {

bool is_printable(char32_t c) {  // str.isprintable
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

void repr_string(const Text& text, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  const char quote =
      bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos ? '"' : '\'';
  out.append({&quote, 1});
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(bytes, at);
    std::string escaped;
    if (c == static_cast<char32_t>(quote) || c == '\\')
      escaped = {'\\', static_cast<char>(c)};
    else if (c == '\n')
      escaped = "\\n";
    else if (c == '\r')
      escaped = "\\r";
    else if (c == '\t')
      escaped = "\\t";
    else if (!is_printable(c))
      escaped = c < 0x100     ? fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c))
                : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c))
                              : fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
    if (escaped.empty())
      out.append(text, begin, at);
    else
      out.append_for(escaped, text, begin, at);
  }
  out.append({&quote, 1});
}

void repr(const Value& value, TextBuilder& out, Meter& meter) {
  meter.step();
  if (const Text* t = value.text()) return repr_string(*t, out);
  if (value.is_undefined()) return out.append("Undefined");
  if (const List* l = value.list()) {
    const bool tuple = l->flavour == Flavour::tuple,
               view = l->flavour == Flavour::keys || l->flavour == Flavour::values || l->flavour == Flavour::items;
    if (view) out.append(value.type_name() + "(");
    out.append(tuple ? "(" : "[");
    for (std::size_t i = 0; i < l->items.size(); ++i) {
      if (i > 0) out.append(", ");
      repr(l->items[i], out, meter);
    }
    if (tuple && l->items.size() == 1) out.append(",");
    out.append(tuple ? ")" : "]");
    if (view) out.append(")");
    return;
  }
  if (const Dict* d = value.dict()) {
    out.append("{");
    for (std::size_t i = 0; i < d->items.size(); ++i) {
      if (i > 0) out.append(", ");
      repr(d->items[i].first, out, meter);
      out.append(": ");
      repr(d->items[i].second, out, meter);
    }
    return out.append("}");
  }
  out.append(*to_text(value, meter));
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Meter& meter) : style_(style), meter_(meter), out_(meter) {}

  void write(const Value& value, int level) {
    meter_.step();
    if (const Text* t = value.text()) return string(*t);
    if (value.is_none()) return out_.append("null");
    if (const auto* b = value.get_if<bool>()) return out_.append(*b ? "true" : "false");
    if (const auto* i = value.get_if<std::int64_t>()) return out_.append(std::to_string(*i));
    if (const auto* x = value.get_if<double>()) return out_.append(number(*x));
    if (const List* l = value.list(); l != nullptr && (l->flavour == Flavour::list || l->flavour == Flavour::tuple)) {
      if (l->items.empty()) return out_.append("[]");
      out_.append("[");
      for (std::size_t i = 0; i < l->items.size(); ++i) {
        separate(i, level);
        write(l->items[i], level + 1);
      }
      line_break(level);
      return out_.append("]");
    }
    if (const Dict* d = value.dict()) {
      if (d->items.empty()) return out_.append("{}");
      std::vector<std::size_t> order(d->items.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (style_.sort_keys)
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return compare(d->items[a].first, d->items[b].first, "<", meter_) < 0;
        });
      out_.append("{");
      for (std::size_t i = 0; i < order.size(); ++i) {
        separate(i, level);
        key(d->items[order[i]].first);
        out_.append(style_.key_separator);
        write(d->items[order[i]].second, level + 1);
      }
      line_break(level);
      return out_.append("}");
    }
    fail(fmt::format("Object of type {} is not JSON serializable", value.type_name()));
  }
  TextPtr finish() { return out_.finish(); }

 private:
  static std::string number(double x) {
    if (std::isnan(x)) return "NaN";
    if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
    return float_to_text(x);
  }

  void line_break(int level) {
    if (!style_.indented) return;
    out_.append("\n");
    for (int i = 0; i < level; ++i) out_.append(style_.indent);
  }

  void separate(std::size_t index, int level) {
    if (index > 0) out_.append(style_.item_separator);
    line_break(level + 1);
  }

  void key(const Value& key) {
    if (const Text* t = key.text()) return string(*t);
    std::string text;
    if (key.is_none())
      text = "null";
    else if (const auto* b = key.get_if<bool>())
      text = *b ? "true" : "false";
    else if (const auto* i = key.get_if<std::int64_t>())
      text = std::to_string(*i);
    else if (const auto* x = key.get_if<double>())
      text = number(*x);
    else
      fail(fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    out_.append("\"" + text + "\"");
  }

  void string(const Text& text) {
    out_.append("\"");
    const std::string_view bytes = text.bytes;
    std::size_t plain = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t begin = at;
      const char32_t c = next_code_point(bytes, at);
      std::string escaped;
      switch (c) {
        case '"': escaped = "\\\""; break;
        case '\\': escaped = "\\\\"; break;
        case '\n': escaped = "\\n"; break;
        case '\r': escaped = "\\r"; break;
        case '\t': escaped = "\\t"; break;
        case '\f': escaped = "\\f"; break;
        case '\b': escaped = "\\b"; break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
            escaped = fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
          } else if (style_.ensure_ascii && c >= 0x10000) {
            const std::uint32_t v = static_cast<std::uint32_t>(c) - 0x10000;
            escaped = fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
          }
      }
      if (escaped.empty()) continue;
      out_.append(text, plain, begin);
      out_.append_for(escaped, text, begin, at);
      plain = at;
    }
    out_.append(text, plain, bytes.size());
    out_.append("\"");
  }

  const JsonStyle& style_;
  Meter& meter_;
  TextBuilder out_;
};

}  // namespace

std::string float_to_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, x, std::chars_format::scientific).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  const std::size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + 1 + (text[e + 1] == '+'), text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  char fixed[64];
  const auto stop = std::to_chars(fixed, fixed + sizeof fixed, x, std::chars_format::fixed).ptr;
  std::string out(fixed, static_cast<std::size_t>(stop - fixed));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

TextPtr to_text(const Value& value, Meter& meter) {
  if (const auto* t = value.get_if<TextPtr>()) return *t;
  TextBuilder out(meter);
  if (value.is_undefined()) return out.finish();
  if (value.is_none())
    out.append("None");
  else if (const auto* b = value.get_if<bool>())
    out.append(*b ? "True" : "False");
  else if (const auto* i = value.get_if<std::int64_t>())
    out.append(std::to_string(*i));
  else if (const auto* x = value.get_if<double>())
    out.append(float_to_text(*x));
  else if ((value.list() != nullptr && value.list()->flavour != Flavour::range) || value.dict() != nullptr)
    repr(value, out, meter);
  else
    fail(fmt::format("a {} has no text; use a filter such as list or join first", value.type_name()));
  return out.finish();
}

TextPtr to_json(const Value& value, const JsonStyle& style, Meter& meter) {
  JsonWriter writer(style, meter);
  writer.write(value, 0);
  return writer.finish();
}

}  // namespace ktc::text::jinja
