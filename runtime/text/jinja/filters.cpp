#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/strings.h"
#include "runtime/text/jinja/to_text.h"
#include "runtime/text/unicode.h"

namespace ktc::text::jinja {

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : keywords)
    if (key == name) return &value;
  return nullptr;
}

void Arguments::expect(std::string_view function, std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size()) fail(fmt::format("'{}' takes at most {} argument(s)", function, names.size()));
  for (const auto& [key, value] : keywords) {
    const auto it = std::find(names.begin(), names.end(), key);
    if (it == names.end()) fail(fmt::format("'{}' has no argument '{}'", function, key));
    if (static_cast<std::size_t>(it - names.begin()) < positional.size())
      fail(fmt::format("'{}' got two values for '{}'", function, key));
  }
}

Arguments Arguments::from(std::size_t index) const {
  Arguments rest;
  if (index < positional.size())
    rest.positional.assign(positional.begin() + static_cast<std::ptrdiff_t>(index), positional.end());
  rest.keywords = keywords;
  return rest;
}

const Text& text_argument(const Value& value, std::string_view function) {
  if (const Text* t = value.text()) return *t;
  fail(fmt::format("'{}' needs a string, not a {}", function, value.type_name()));
}

std::int64_t integer_argument(const Value& value, std::string_view function) {
  std::int64_t n = 0;
  if (value.is_integer(n)) return n;
  fail(fmt::format("'{}' needs an integer, not a {}", function, value.type_name()));
}

namespace {

bool flag(const Arguments& arguments, std::size_t index, std::string_view name) {
  const Value* value = arguments.find(index, name);
  return value != nullptr && value->truthy();
}

// item.a.b or item.0, as filters spell it: "a.b".
Value attribute_of(Evaluator& e, const Value& item, const Value& path, const Value* fallback = nullptr) {
  Value value = item;
  if (path.text() == nullptr) {
    value = get_item(value, path, e.meter);
    return value.is_undefined() && fallback != nullptr ? *fallback : value;
  }
  const std::string& text = path.text()->bytes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    value = get_item(value, digits ? Value(std::int64_t{std::stoll(part)}) : make_text(part, e.meter), e.meter);
    if (value.is_undefined() && fallback != nullptr) value = *fallback;
    begin = end + 1;
  }
  return value;
}

Value lower_key(Evaluator& e, const Value& value, bool case_sensitive) {
  return case_sensitive || value.text() == nullptr ? value : Value(change_case(*value.text(), Case::lower, e.meter));
}

// ---- text

TextPtr soft(Evaluator& e, const Value& value) {
  return to_text(value, e.meter);
}

Value filter_trim(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("trim", {"chars"});
  const Value* chars = a.find(0, "chars");
  const bool given = chars != nullptr && !chars->is_none();
  return Value(strip(*soft(e, input), given ? &text_argument(*chars, "trim") : nullptr, true, true, e.meter));
}

template <Case to>
Value filter_case(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("the filter", {});
  return Value(change_case(*soft(e, input), to, e.meter));
}

Value filter_replace(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("replace", {"old", "new", "count"});
  const Value *old = a.find(0, "old"), *with = a.find(1, "new"), *count = a.find(2, "count");
  if (old == nullptr || with == nullptr) fail("'replace' needs what to replace and by what");
  const std::int64_t limit = count == nullptr || count->is_none() ? -1 : integer_argument(*count, "replace");
  return Value(replace(*soft(e, input), *soft(e, *old), *soft(e, *with), limit, e.meter));
}

Value filter_indent(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("indent", {"width", "first", "blank"});
  const Value* width = a.find(0, "width");
  TextPtr by;
  if (width != nullptr && width->text() != nullptr) {
    by = *width->get_if<TextPtr>();
  } else {
    const std::int64_t n = width == nullptr ? 4 : integer_argument(*width, "indent");
    if (n > 1000) fail("'indent' by more than 1000 spaces");
    by =
        *make_text(std::string(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)), ' '), e.meter).get_if<TextPtr>();
  }
  return Value(indent(*soft(e, input), *by, flag(a, 1, "first"), flag(a, 2, "blank"), e.meter));
}

Value filter_string(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("string", {});
  return Value(soft(e, input));
}

Value filter_join(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("join", {"d", "attribute"});
  const Value *separator = a.find(0, "d"), *attribute = a.find(1, "attribute");
  std::vector<TextPtr> parts;
  for (const Value& item : elements(input, e.meter))
    parts.push_back(soft(e, attribute == nullptr || attribute->is_none() ? item : attribute_of(e, item, *attribute)));
  const TextPtr between = separator == nullptr ? *make_text("", e.meter).get_if<TextPtr>() : soft(e, *separator);
  return Value(join(*between, parts, e.meter));
}

Value filter_tojson(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = flag(a, 0, "ensure_ascii");
  style.sort_keys = flag(a, 3, "sort_keys");
  if (const Value* by = a.find(1, "indent"); by != nullptr && !by->is_none()) {
    style.indented = true;
    style.item_separator = ",";
    if (by->text() != nullptr) {
      style.indent = by->text()->bytes;
    } else {
      const std::int64_t n = integer_argument(*by, "tojson");
      if (n > 100) fail("'tojson' with an indent of more than 100");
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)), ' ');
    }
  }
  if (const Value* separators = a.find(2, "separators"); separators != nullptr && !separators->is_none()) {
    const List* pair = separators->list();
    if (pair == nullptr || pair->items.size() != 2) fail("'tojson' needs two separators");
    style.item_separator = text_argument(pair->items[0], "tojson").bytes;
    style.key_separator = text_argument(pair->items[1], "tojson").bytes;
  }
  return Value(to_json(input, style, e.meter));
}

// ---- numbers

Value filter_abs(Evaluator&, const Value& input, const Arguments& a) {
  a.expect("abs", {});
  if (const auto* x = input.get_if<double>()) return Value(std::abs(*x));
  std::int64_t n = 0;
  if (!input.is_integer(n)) fail(fmt::format("bad operand type for abs(): '{}'", input.type_name()));
  return n < 0 ? apply_unary(Op::negate, Value(n)) : Value(n);
}

std::optional<double> read_double(std::string_view text) {
  while (!text.empty() && is_python_space(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_python_space(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  double x = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), x);
  if (text.empty() || read.ptr != text.data() + text.size() || read.ec != std::errc()) return std::nullopt;
  return x;
}

std::optional<std::int64_t> read_integer(std::string_view text, int base) {
  while (!text.empty() && is_python_space(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_python_space(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  bool negative = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  std::int64_t n = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), n, base);
  if (text.empty() || text[0] == '-' || read.ptr != text.data() + text.size() || read.ec != std::errc())
    return std::nullopt;
  return negative ? -n : n;
}

std::optional<std::int64_t> truncate(double x) {
  if (!(std::abs(x) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(x);
}

Value filter_int(Evaluator&, const Value& input, const Arguments& a) {
  a.expect("int", {"default", "base"});
  const Value* fallback = a.find(0, "default");
  const Value* base = a.find(1, "base");
  std::int64_t n = 0;
  if (input.is_integer(n)) return Value(n);
  std::optional<std::int64_t> result;
  if (const Text* t = input.text()) {
    const std::int64_t b = base == nullptr ? 10 : integer_argument(*base, "int");
    if (b < 2 || b > 36) fail("'int' needs a base of 2 to 36");
    result = read_integer(t->bytes, static_cast<int>(b));
    if (!result)
      if (const auto x = read_double(t->bytes)) result = truncate(*x);
  } else if (const auto* x = input.get_if<double>()) {
    result = truncate(*x);
  }
  if (result) return Value(*result);
  return fallback == nullptr ? Value(std::int64_t{0}) : *fallback;
}

Value filter_float(Evaluator&, const Value& input, const Arguments& a) {
  a.expect("float", {"default"});
  double x = 0;
  if (input.is_number(x)) return Value(x);
  if (const Text* t = input.text())
    if (const auto read = read_double(t->bytes)) return Value(*read);
  const Value* fallback = a.find(0, "default");
  return fallback == nullptr ? Value(0.0) : *fallback;
}

Value filter_round(Evaluator&, const Value& input, const Arguments& a) {
  a.expect("round", {"precision", "method"});
  const Value *precision = a.find(0, "precision"), *method = a.find(1, "method");
  const std::int64_t digits = precision == nullptr ? 0 : integer_argument(*precision, "round");
  if (digits < 0 || digits > 100) fail("'round' needs a precision of 0 to 100");
  const std::string how = method == nullptr ? "common" : text_argument(*method, "round").bytes;
  double x = 0;
  if (!input.is_number(x)) fail(fmt::format("'round' needs a number, not a {}", input.type_name()));
  if (how == "ceil" || how == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    return Value((how == "ceil" ? std::ceil(x * scale) : std::floor(x * scale)) / scale);
  }
  if (how != "common") fail("'round' needs one of the methods common, ceil and floor");
  std::int64_t n = 0;
  if (input.is_integer(n)) return Value(n);
  if (!std::isfinite(x)) return Value(x);
  const auto rounded = read_double(fmt::format("{:.{}f}", x, digits));  // exact, ties to even
  return Value(rounded ? *rounded : x);
}

// ---- collections

Value filter_length(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("length", {});
  if (const Text* t = input.text()) e.meter.step(t->bytes.size() / 64);
  return Value(length(input));
}

Value filter_first(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("first", {});
  if (const auto* iterator = input.get_if<std::shared_ptr<Iterator>>()) {
    if ((*iterator)->next < (*iterator)->items.size()) return (*iterator)->items[(*iterator)->next++];
    return Value::undefined("no first item, the sequence was empty");
  }
  if (const List* l = input.list(); l != nullptr && !l->items.empty()) return l->items.front();
  const std::vector<Value> items = elements(input, e.meter);
  return items.empty() ? Value::undefined("no first item, the sequence was empty") : items.front();
}

Value filter_last(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("last", {});
  if (input.get_if<std::shared_ptr<Iterator>>() != nullptr) fail("'generator' object is not reversible");
  if (const List* l = input.list(); l != nullptr && !l->items.empty()) return l->items.back();
  const std::vector<Value> items = elements(input, e.meter);
  return items.empty() ? Value::undefined("no last item, the sequence was empty") : items.back();
}

Value filter_list(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("list", {});
  return make_list(elements(input, e.meter), e.meter);
}

Value filter_reverse(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("reverse", {});
  std::vector<Value> items = elements(input, e.meter);
  std::reverse(items.begin(), items.end());
  if (input.text() != nullptr) {
    TextBuilder out(e.meter);
    for (const Value& character : items) out.append(*character.text());
    return Value(out.finish());
  }
  if (input.get_if<std::shared_ptr<Iterator>>() != nullptr) return make_list(std::move(items), e.meter);
  return make_iterator(std::move(items), e.meter);
}

Value pairs_of(const Dict& dict, Evaluator& e, bool iterator) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) items.push_back(make_list({key, value}, e.meter, Flavour::tuple));
  return iterator ? make_iterator(std::move(items), e.meter) : make_list(std::move(items), e.meter);
}

Value filter_items(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("items", {});
  if (input.is_undefined()) return make_iterator({}, e.meter);
  if (input.dict() == nullptr) fail("can only get item pairs from a mapping");
  return pairs_of(*input.dict(), e, true);
}

// Sorts `items` by `keys` (one list of keys per item), stable.
Value sorted(std::vector<Value> items, std::vector<std::vector<Value>> keys, bool reverse, Evaluator& e) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto before = [&](std::size_t x, std::size_t y) {
    for (std::size_t k = 0; k < keys[x].size(); ++k) {
      if (equal(keys[x][k], keys[y][k], e.meter)) continue;
      const int c = compare(keys[x][k], keys[y][k], "<", e.meter);
      if (c == 2 || c == 0) continue;  // NaN, which has no place
      return reverse ? c > 0 : c < 0;
    }
    return false;
  };
  // insertion by binary search: stable, and safe for any outcome of the comparison
  std::vector<std::size_t> done;
  for (const std::size_t i : order) {
    std::size_t low = 0, high = done.size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (before(i, done[middle]))
        high = middle;
      else
        low = middle + 1;
    }
    e.meter.step(1 + (done.size() - low) / 64);
    done.insert(done.begin() + static_cast<std::ptrdiff_t>(low), i);
  }
  std::vector<Value> out;
  for (const std::size_t i : done) out.push_back(std::move(items[i]));
  return make_list(std::move(out), e.meter);
}

Value filter_sort(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = flag(a, 1, "case_sensitive");
  const Value* attribute = a.find(2, "attribute");
  std::vector<Value> paths;
  if (attribute != nullptr && !attribute->is_none()) {
    if (const Text* t = attribute->text()) {
      const Value comma = make_text(",", e.meter);
      paths = split(*t, comma.text(), -1, false, e.meter);
    } else {
      paths.push_back(*attribute);
    }
  }
  std::vector<Value> items = elements(input, e.meter);
  std::vector<std::vector<Value>> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const Value& path : paths) key.push_back(lower_key(e, attribute_of(e, item, path), case_sensitive));
    if (paths.empty()) key.push_back(lower_key(e, item, case_sensitive));
    keys.push_back(std::move(key));
  }
  return sorted(std::move(items), std::move(keys), flag(a, 0, "reverse"), e);
}

Value filter_dictsort(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("dictsort", {"case_sensitive", "by", "reverse"});
  const Value* by = a.find(1, "by");
  const std::string which = by == nullptr ? "key" : text_argument(*by, "dictsort").bytes;
  if (which != "key" && which != "value") fail("'dictsort' sorts by 'key' or 'value'");
  if (input.dict() == nullptr) fail(fmt::format("'dictsort' needs a dict, not a {}", input.type_name()));
  const Value pairs = pairs_of(*input.dict(), e, false);
  std::vector<std::vector<Value>> keys;
  for (const Value& pair : pairs.list()->items)
    keys.push_back({lower_key(e, pair.list()->items[which == "key" ? 0 : 1], flag(a, 0, "case_sensitive"))});
  return sorted(pairs.list()->items, std::move(keys), flag(a, 2, "reverse"), e);
}

Value filter_unique(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("unique", {"case_sensitive", "attribute"});
  const Value* attribute = a.find(1, "attribute");
  std::vector<Value> out;
  Dict seen;
  for (const Value& item : elements(input, e.meter)) {
    const Value key =
        lower_key(e, attribute == nullptr || attribute->is_none() ? item : attribute_of(e, item, *attribute),
                  flag(a, 0, "case_sensitive"));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value(true));
    out.push_back(item);
  }
  return make_iterator(std::move(out), e.meter);
}

template <bool want_max>
Value filter_extreme(Evaluator& e, const Value& input, const Arguments& a) {
  constexpr std::string_view kName = want_max ? "max" : "min";
  a.expect(kName, {"case_sensitive", "attribute"});
  const Value* attribute = a.find(1, "attribute");
  auto key_of = [&](const Value& item) {
    return lower_key(e, attribute == nullptr || attribute->is_none() ? item : attribute_of(e, item, *attribute),
                     flag(a, 0, "case_sensitive"));
  };
  std::vector<Value> items = elements(input, e.meter);
  if (items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  std::size_t best = 0;
  Value best_key = key_of(items[0]);
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    const int c = compare(key, best_key, want_max ? ">" : "<", e.meter);
    if (c != 2 && (want_max ? c > 0 : c < 0)) best = i, best_key = std::move(key);
  }
  return items[best];
}

Value filter_sum(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("sum", {"attribute", "start"});
  const Value *attribute = a.find(0, "attribute"), *start = a.find(1, "start");
  Value total = start == nullptr ? Value(std::int64_t{0}) : *start;
  for (const Value& item : elements(input, e.meter))
    total =
        apply_binary(Op::add, total,
                     attribute == nullptr || attribute->is_none() ? item : attribute_of(e, item, *attribute), e.meter);
  return total;
}

Value filter_map(Evaluator& e, const Value& input, const Arguments& a) {
  std::vector<Value> out;
  if (a.positional.empty()) {
    a.expect("map", {"", "attribute", "default"});
    const Value *attribute = a.find(1, "attribute"), *fallback = a.find(2, "default");
    if (attribute == nullptr) fail("'map' needs a filter or an attribute");
    for (const Value& item : elements(input, e.meter)) out.push_back(attribute_of(e, item, *attribute, fallback));
  } else {
    const std::string& name = text_argument(a.positional[0], "map").bytes;
    const Arguments rest = a.from(1);
    for (const Value& item : elements(input, e.meter)) out.push_back(e.call_filter(name, item, rest));
  }
  return make_iterator(std::move(out), e.meter);
}

Value pick(Evaluator& e, const Value& input, const Arguments& a, std::string_view filter, bool keep,
           bool by_attribute) {
  const std::size_t first = by_attribute ? 1 : 0;
  if (a.positional.size() < first) fail(fmt::format("'{}' needs an attribute", filter));
  const bool tested = a.positional.size() > first;
  const Arguments rest = a.from(first + 1);
  std::vector<Value> out;
  for (const Value& item : elements(input, e.meter)) {
    const Value value = by_attribute ? attribute_of(e, item, a.positional[0]) : item;
    const bool yes =
        tested ? e.call_test(text_argument(a.positional[first], filter).bytes, value, rest) : value.truthy();
    if (yes == keep) out.push_back(item);
  }
  return make_iterator(std::move(out), e.meter);
}

Value filter_select(Evaluator& e, const Value& input, const Arguments& a) {
  return pick(e, input, a, "select", true, false);
}
Value filter_reject(Evaluator& e, const Value& input, const Arguments& a) {
  return pick(e, input, a, "reject", false, false);
}
Value filter_selectattr(Evaluator& e, const Value& input, const Arguments& a) {
  return pick(e, input, a, "selectattr", true, true);
}
Value filter_rejectattr(Evaluator& e, const Value& input, const Arguments& a) {
  return pick(e, input, a, "rejectattr", false, true);
}

Value filter_default(Evaluator& e, const Value& input, const Arguments& a) {
  a.expect("default", {"default_value", "boolean"});
  if (!input.is_undefined() && !(flag(a, 1, "boolean") && !input.truthy())) return input;
  const Value* fallback = a.find(0, "default_value");
  return fallback == nullptr ? make_text("", e.meter) : *fallback;
}

struct Entry {
  std::string_view name;
  FilterFunction function;
};
constexpr Entry kFilters[] = {{"abs", filter_abs},
                              {"capitalize", filter_case<Case::capitalize>},
                              {"count", filter_length},
                              {"d", filter_default},
                              {"default", filter_default},
                              {"dictsort", filter_dictsort},
                              {"first", filter_first},
                              {"float", filter_float},
                              {"indent", filter_indent},
                              {"int", filter_int},
                              {"items", filter_items},
                              {"join", filter_join},
                              {"last", filter_last},
                              {"length", filter_length},
                              {"list", filter_list},
                              {"lower", filter_case<Case::lower>},
                              {"map", filter_map},
                              {"max", filter_extreme<true>},
                              {"min", filter_extreme<false>},
                              {"reject", filter_reject},
                              {"rejectattr", filter_rejectattr},
                              {"replace", filter_replace},
                              {"reverse", filter_reverse},
                              {"round", filter_round},
                              {"safe", filter_string},
                              {"select", filter_select},
                              {"selectattr", filter_selectattr},
                              {"sort", filter_sort},
                              {"string", filter_string},
                              {"sum", filter_sum},
                              {"title", filter_case<Case::title_filter>},
                              {"tojson", filter_tojson},
                              {"trim", filter_trim},
                              {"unique", filter_unique},
                              {"upper", filter_case<Case::upper>}};

}  // namespace

FilterFunction find_filter(std::string_view name) {
  for (const Entry& entry : kFilters)
    if (entry.name == name) return entry.function;
  return nullptr;
}

std::string filter_names() {
  std::string names;
  for (const Entry& entry : kFilters) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

}  // namespace ktc::text::jinja
