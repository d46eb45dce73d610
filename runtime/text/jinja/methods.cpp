// Methods of strings, dicts, lists and loops, and the global functions.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <ctime>

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/strings.h"
#include "runtime/text/jinja/to_text.h"
#include "runtime/text/unicode.h"

namespace ktc::text::jinja {
namespace {

constexpr std::string_view kTextMethods[] = {
    "capitalize", "casefold",  "center",       "count",        "endswith", "find",     "index", "isalnum",    "isalpha",
    "isdecimal",  "isdigit",   "islower",      "isnumeric",    "isspace",  "isupper",  "join",  "ljust",      "lower",
    "lstrip",     "partition", "removeprefix", "removesuffix", "replace",  "rfind",    "rjust", "rpartition", "rsplit",
    "rstrip",     "split",     "splitlines",   "startswith",   "strip",    "swapcase", "title", "upper",      "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kLoopMethods[] = {"changed", "cycle"};

template <std::size_t n>
bool has(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

enum class Class { letter, decimal, digit, number, other };

Class class_of(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return Class::letter;
    case UTF8PROC_CATEGORY_ND: return Class::decimal;
    case UTF8PROC_CATEGORY_NO:  // superscripts, subscripts and circled digits are digits
      if (c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x2070 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468))
        return Class::digit;
      return Class::number;
    case UTF8PROC_CATEGORY_NL: return Class::number;
    default: return Class::other;
  }
}

template <typename Predicate>
bool all_characters(const Text& text, Predicate predicate) {
  if (text.bytes.empty()) return false;
  for (std::size_t at = 0; at < text.bytes.size();)
    if (!predicate(next_code_point(text.bytes, at))) return false;
  return true;
}

bool has_case(const Text& text, bool upper) {  // str.isupper, str.islower
  bool any = false;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const char32_t c = next_code_point(text.bytes, at);
    const bool is_upper = to_lower(c) != c, is_lower = to_upper(c) != c || c == 0xDF;
    if (upper ? is_lower : is_upper) return false;
    any = any || (upper ? is_upper : is_lower);
  }
  return any;
}

std::optional<bool> character_test(const Text& text, std::string_view name) {
  if (name == "isspace") return all_characters(text, is_python_space);
  if (name == "isalpha") return all_characters(text, [](char32_t c) { return class_of(c) == Class::letter; });
  if (name == "isdecimal") return all_characters(text, [](char32_t c) { return class_of(c) == Class::decimal; });
  if (name == "isdigit")
    return all_characters(text,
                          [](char32_t c) { return class_of(c) == Class::decimal || class_of(c) == Class::digit; });
  if (name == "isnumeric")
    return all_characters(text, [](char32_t c) { return class_of(c) != Class::letter && class_of(c) != Class::other; });
  if (name == "isalnum") return all_characters(text, [](char32_t c) { return class_of(c) != Class::other; });
  if (name == "isupper") return has_case(text, true);
  if (name == "islower") return has_case(text, false);
  return std::nullopt;
}

const Value& required(const Arguments& a, std::string_view method) {
  if (a.positional.empty() || !a.keywords.empty()) fail(fmt::format("'{}' needs an argument", method));
  return a.positional[0];
}

bool begins_or_ends(const Text& text, const Value& part, bool begins, std::string_view method) {
  auto one = [&](const Value& v) {
    const std::string& bytes = text_argument(v, method).bytes;
    return begins ? text.bytes.starts_with(bytes) : text.bytes.ends_with(bytes);
  };
  if (const List* l = part.list(); l != nullptr && l->flavour == Flavour::tuple)
    return std::any_of(l->items.begin(), l->items.end(), one);
  return one(part);
}

Value pad(const Text& text, std::string_view name, const Arguments& a, Meter& meter) {
  a.expect(name, {"width", "fillchar"});
  const std::int64_t width = integer_argument(required(a, name), name);
  const std::string fill = name == "zfill"           ? "0"
                           : a.positional.size() > 1 ? text_argument(a.positional[1], name).bytes
                                                     : " ";
  if (count_code_points(fill) != 1) fail("the fill character must be exactly one character long");
  const auto size = static_cast<std::int64_t>(count_code_points(text.bytes));
  const std::int64_t missing = std::max<std::int64_t>(0, width - size);
  if (missing > static_cast<std::int64_t>(kMaxText)) fail("a text of the template grows beyond 16 MiB");
  std::int64_t left = name == "ljust" ? 0 : name == "center" ? missing / 2 + (missing & width & 1) : missing;
  TextBuilder out(meter);
  std::size_t sign = 0;
  if (name == "zfill" && !text.bytes.empty() && (text.bytes[0] == '-' || text.bytes[0] == '+')) sign = 1;
  out.append(text, 0, sign);
  for (std::int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(text, sign, text.bytes.size());
  for (std::int64_t i = left; i < missing; ++i) out.append(fill);
  return Value(out.finish());
}

Value find_in(const Text& text, std::string_view name, const Arguments& a) {
  if (a.positional.size() != 1) fail(fmt::format("'{}' with a start is not supported", name));
  const std::string& part = text_argument(required(a, name), name).bytes;
  if (name == "count") {
    if (part.empty()) return Value(static_cast<std::int64_t>(count_code_points(text.bytes) + 1));
    std::int64_t n = 0;
    for (std::size_t at = 0; (at = text.bytes.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return Value(n);
  }
  const std::size_t at = name == "rfind" ? text.bytes.rfind(part) : text.bytes.find(part);
  if (at == std::string::npos) {
    if (name == "index") fail("substring not found");
    return Value(std::int64_t{-1});
  }
  return Value(static_cast<std::int64_t>(count_code_points(std::string_view(text.bytes).substr(0, at))));
}

Value partition(const Text& text, bool from_right, const Arguments& a, Meter& meter) {
  const Text& mark = text_argument(required(a, "partition"), "partition");
  if (mark.bytes.empty()) fail("empty separator");
  const std::size_t at = from_right ? text.bytes.rfind(mark.bytes) : text.bytes.find(mark.bytes),
                    size = text.bytes.size();
  std::size_t cut[4] = {0, at, at + mark.bytes.size(), size};
  if (at == std::string::npos) cut[1] = cut[2] = from_right ? 0 : size;
  std::vector<Value> parts;
  for (int i = 0; i < 3; ++i) parts.emplace_back(substring(text, cut[i], cut[i + 1], meter));
  return make_list(std::move(parts), meter, Flavour::tuple);
}

Value call_text_method(Evaluator& e, const Value& receiver, std::string_view name, const Arguments& a) {
  const Text& text = *receiver.text();
  Meter& meter = e.meter;
  meter.step(1 + text.bytes.size() / 64);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    a.expect(name, {"chars"});
    const bool given = !a.positional.empty() && !a.positional[0].is_none();
    return Value(strip(text, given ? &text_argument(a.positional[0], name) : nullptr, name != "rstrip",
                       name != "lstrip", meter));
  }
  if (name == "split" || name == "rsplit") {
    a.expect(name, {"sep", "maxsplit"});
    const Value *separator = a.find(0, "sep"), *limit = a.find(1, "maxsplit");
    return make_list(
        split(text, separator == nullptr || separator->is_none() ? nullptr : &text_argument(*separator, name),
              limit == nullptr ? -1 : integer_argument(*limit, name), name == "rsplit", meter),
        meter);
  }
  if (name == "splitlines") {
    a.expect(name, {"keepends"});
    const Value* keep = a.find(0, "keepends");
    return make_list(split_lines(text, keep != nullptr && keep->truthy(), meter), meter);
  }
  if (name == "startswith" || name == "endswith") {
    if (a.positional.size() != 1) fail(fmt::format("'{}' with a start is not supported", name));
    return Value(begins_or_ends(text, required(a, name), name == "startswith", name));
  }
  if (name == "replace") {
    a.expect(name, {"old", "new", "count"});
    if (a.positional.size() < 2) fail("'replace' needs what to replace and by what");
    const Value* count = a.find(2, "count");
    return Value(replace(text, text_argument(a.positional[0], name), text_argument(a.positional[1], name),
                         count == nullptr ? -1 : integer_argument(*count, name), meter));
  }
  if (name == "join") {
    std::vector<TextPtr> parts;
    for (const Value& item : elements(required(a, name), meter)) {
      text_argument(item, name);
      parts.push_back(*item.get_if<TextPtr>());
    }
    return Value(join(text, parts, meter));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string& part = text_argument(required(a, name), name).bytes;
    const bool prefix = name == "removeprefix";
    if (part.empty() || !(prefix ? text.bytes.starts_with(part) : text.bytes.ends_with(part))) return receiver;
    return Value(substring(text, prefix ? part.size() : 0, text.bytes.size() - (prefix ? 0 : part.size()), meter));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "count") return find_in(text, name, a);
  if (name == "partition" || name == "rpartition") return partition(text, name == "rpartition", a, meter);
  if (name == "ljust" || name == "rjust" || name == "center" || name == "zfill") return pad(text, name, a, meter);
  a.expect(name, {});
  if (name == "upper") return Value(change_case(text, Case::upper, meter));
  if (name == "lower" || name == "casefold") return Value(change_case(text, Case::lower, meter));
  if (name == "capitalize") return Value(change_case(text, Case::capitalize, meter));
  if (name == "title") return Value(change_case(text, Case::title_words, meter));
  if (name == "swapcase") return Value(change_case(text, Case::swap, meter));
  if (const auto result = character_test(text, name)) return Value(*result);
  fail(fmt::format("'str object' has no method '{}'", name));
}

Value call_dict_method(Evaluator& e, const Value& receiver, std::string_view name, const Arguments& a) {
  const Dict& dict = *receiver.dict();
  if (name == "get") {
    a.expect(name, {"key", "default"});
    if (!a.keywords.empty()) fail("dict.get() takes no keyword arguments");
    if (const Value* value = dict.find(required(a, name))) return *value;
    return a.positional.size() > 1 ? a.positional[1] : Value(None{});
  }
  a.expect(name, {});
  if (name == "copy") return receiver;  // values do not change
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items)
    items.push_back(name == "keys" ? key : name == "values" ? value : make_list({key, value}, e.meter, Flavour::tuple));
  return make_list(std::move(items), e.meter,
                   name == "keys"     ? Flavour::keys
                   : name == "values" ? Flavour::values
                                      : Flavour::items);
}

Value call_list_method(Evaluator& e, const Value& receiver, std::string_view name, const Arguments& a) {
  const List& list = *receiver.list();
  if (name == "copy") return receiver;
  const Value& item = required(a, name);
  std::int64_t n = 0;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (!equal(list.items[i], item, e.meter)) continue;
    if (name == "index") return Value(static_cast<std::int64_t>(i));
    ++n;
  }
  if (name == "index") fail("the list has no such element");
  return Value(n);
}

Value call_loop_method(Evaluator& e, LoopState& loop, std::string_view name, const Arguments& a) {
  if (name == "cycle") {
    if (a.positional.empty()) fail("no items for cycling given");
    return a.positional[loop.index % a.positional.size()];
  }
  const Value now = make_list(a.positional, e.meter, Flavour::tuple);
  if (loop.changed && equal(*loop.changed, now, e.meter)) return Value(false);
  loop.changed = now;
  return Value(true);
}

Value make_range(const Arguments& a, Meter& meter) {
  constexpr std::int64_t kMaxRange = 100000;  // the sandbox's limit
  a.expect("range", {"start", "stop", "step"});
  if (a.positional.empty()) fail("'range' needs an argument");
  std::int64_t start = 0, stop = integer_argument(a.positional[0], "range"), step = 1;
  if (a.positional.size() > 1) start = stop, stop = integer_argument(a.positional[1], "range");
  if (a.positional.size() > 2) step = integer_argument(a.positional[2], "range");
  if (step == 0) fail("the step of 'range' is zero");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) >= kMaxRange) fail(fmt::format("a range of more than {}", kMaxRange));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(std::move(items), meter, Flavour::range);
}

Value strftime_now(const Arguments& a, Evaluator& e) {
  const std::string& format = text_argument(required(a, "strftime_now"), "strftime_now").bytes;
  if (format.empty()) return make_text("", e.meter);
  if (format.size() > 256) fail("'strftime_now' with a format of more than 256 bytes");
  const std::time_t seconds = std::chrono::system_clock::to_time_t(e.now);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::string buffer(16384, '\0');
  buffer.resize(std::strftime(buffer.data(), buffer.size(), format.c_str(), &local));
  if (find_invalid_utf8(buffer) != std::string::npos) fail("'strftime_now' gave text that is not UTF-8");
  return make_text(std::move(buffer), e.meter);
}

}  // namespace

bool is_method(std::string_view name) {
  return has(kTextMethods, name) || has(kDictMethods, name) || has(kListMethods, name) || has(kLoopMethods, name);
}

std::string method_names() {
  std::vector<std::string_view> all(std::begin(kTextMethods), std::end(kTextMethods));
  for (const auto name : kDictMethods) all.push_back(name);
  for (const auto name : kLoopMethods) all.push_back(name);
  std::sort(all.begin(), all.end());
  std::string names;
  for (const auto name : all) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

bool type_has_method(const Value& receiver, std::string_view name) {
  if (receiver.text() != nullptr) return has(kTextMethods, name);
  if (receiver.dict() != nullptr) return has(kDictMethods, name);
  if (const List* l = receiver.list())
    return has(kListMethods, name) && (l->flavour == Flavour::list || (l->flavour == Flavour::tuple && name != "copy"));
  return false;
}

Value call_method(Evaluator& e, const Value& receiver, std::string_view name, const Arguments& arguments) {
  e.meter.step();
  if (receiver.text() != nullptr) return call_text_method(e, receiver, name, arguments);
  if (receiver.dict() != nullptr) return call_dict_method(e, receiver, name, arguments);
  if (receiver.list() != nullptr) return call_list_method(e, receiver, name, arguments);
  if (const auto* loop = receiver.get_if<LoopState*>()) return call_loop_method(e, **loop, name, arguments);
  fail(fmt::format("'{} object' has no method '{}'", receiver.type_name(), name));
}

std::optional<Global> find_global(std::string_view name) {
  if (name == "namespace") return Global::namespace_;
  if (name == "range") return Global::range;
  if (name == "dict") return Global::dict;
  if (name == "raise_exception") return Global::raise_exception;
  if (name == "strftime_now") return Global::strftime_now;
  return std::nullopt;
}

Value call_global(Evaluator& e, Global global, const Arguments& a) {
  switch (global) {
    case Global::raise_exception: {
      Failure failure{to_text(required(a, "raise_exception"), e.meter)->bytes};
      failure.raised = true;
      throw failure;
    }
    case Global::range: return make_range(a, e.meter);
    case Global::strftime_now: return strftime_now(a, e);
    case Global::dict:
    case Global::namespace_: {
      std::vector<std::pair<Value, Value>> items;
      if (a.positional.size() > 1) fail("'dict' and 'namespace' take at most one argument without a name");
      if (!a.positional.empty()) {
        if (const Dict* d = a.positional[0].dict()) {
          items = d->items;
        } else {
          for (const Value& pair : elements(a.positional[0], e.meter)) {
            std::vector<Value> both = elements(pair, e.meter);
            if (both.size() != 2) fail("'dict' needs pairs");
            items.emplace_back(both[0], both[1]);
          }
        }
      }
      for (const auto& [name, value] : a.keywords) items.emplace_back(make_text(name, e.meter), value);
      Value dict = make_dict(std::move(items), e.meter);
      if (global == Global::dict) return dict;
      auto space = std::make_shared<Namespace>();
      for (const auto& [key, value] : dict.dict()->items)
        space->attributes.emplace_back(to_text(key, e.meter)->bytes, value);
      return Value(std::move(space));
    }
  }
  return Value();
}

}  // namespace ktc::text::jinja
