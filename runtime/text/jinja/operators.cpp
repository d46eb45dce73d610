#include "runtime/text/jinja/operators.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/strings.h"
#include "runtime/text/jinja/to_text.h"
#include "runtime/text/unicode.h"

namespace ktc::text::jinja {
namespace {

void refuse_undefined(const Value& value) {
  if (const auto* u = value.get_if<Undefined>()) fail(u->why ? *u->why : "an undefined value is used");
}

std::string_view symbol(Op op) {
  switch (op) {
    case Op::add: return "+";
    case Op::subtract: return "-";
    case Op::multiply: return "*";
    case Op::divide: return "/";
    case Op::floor_divide: return "//";
    case Op::modulo: return "%";
    case Op::power: return "**";
    case Op::less: return "<";
    case Op::less_equal: return "<=";
    case Op::greater: return ">";
    case Op::greater_equal: return ">=";
    default: return "?";
  }
}

[[noreturn]] void too_large() {
  fail("an integer of the template leaves 64 bits");
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  if (base == 0 || base == 1 || base == -1)
    return Value(exponent == 0 || base == 1 ? std::int64_t{1}
                 : base == 0                ? std::int64_t{0}
                 : exponent % 2             ? base
                                            : -base);
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result)) too_large();
  return Value(result);
}

Value integers(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return Value(result);
    case Op::subtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value(result);
    case Op::multiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return Value(result);
    case Op::power: return integer_power(a, b);
    default: break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::divide) return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // the quotient of the lowest integer does not fit
    if (op == Op::modulo) return Value(std::int64_t{0});
    if (__builtin_sub_overflow(std::int64_t{0}, a, &result)) too_large();
    return Value(result);
  }
  std::int64_t quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) --quotient, rest += b;
  return Value(op == Op::modulo ? rest : quotient);
}

Value reals(Op op, double a, double b) {
  switch (op) {
    case Op::add: return Value(a + b);
    case Op::subtract: return Value(a - b);
    case Op::multiply: return Value(a * b);
    case Op::power: return Value(std::pow(a, b));
    default: break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::divide) return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == Op::modulo) return Value(rest == 0 ? std::copysign(0.0, b) : rest);
  return Value(std::floor((a - rest) / b + 0.5));
}

// "text %s" % value, for %s %r %d %i %x %f and widths.
Value format_text(const Text& pattern, const Value& argument, Meter& meter) {
  std::vector<Value> values;
  if (const List* l = argument.list(); l != nullptr && l->flavour == Flavour::tuple)
    values = l->items;
  else
    values.push_back(argument);
  TextBuilder out(meter);
  std::size_t next = 0, plain = 0;
  const std::string_view bytes = pattern.bytes;
  for (std::size_t at; (at = bytes.find('%', plain)) != std::string_view::npos;) {
    out.append(pattern, plain, at);
    std::size_t end = at + 1;
    bool zero = false, left = false;
    for (; end < bytes.size() && (bytes[end] == '0' || bytes[end] == '-'); ++end)
      (bytes[end] == '0' ? zero : left) = true;
    std::size_t width = 0;
    int precision = -1;
    for (; end < bytes.size() && bytes[end] >= '0' && bytes[end] <= '9' && width < 1000; ++end)
      width = width * 10 + static_cast<std::size_t>(bytes[end] - '0');
    if (end < bytes.size() && bytes[end] == '.') {
      precision = 0;
      for (++end; end < bytes.size() && bytes[end] >= '0' && bytes[end] <= '9' && precision < 100; ++end)
        precision = precision * 10 + (bytes[end] - '0');
    }
    if (end >= bytes.size()) fail("incomplete format");
    plain = end + 1;
    if (bytes[end] == '%') {
      out.append("%");
      continue;
    }
    if (next >= values.size()) fail("not enough arguments for format string");
    const Value& value = values[next++];
    TextPtr text;
    std::int64_t n = 0;
    double x = 0;
    if (bytes[end] == 's') {
      text = to_text(value, meter);
      if (precision >= 0)
        text = substring(*text, 0, offset_of(text->bytes, static_cast<std::size_t>(precision)), meter);
    } else if ((bytes[end] == 'd' || bytes[end] == 'i' || bytes[end] == 'x') && value.is_integer(n)) {
      text = make_text(bytes[end] == 'x' ? fmt::format("{:x}", n) : std::to_string(n), meter).get_if<TextPtr>()[0];
    } else if (bytes[end] == 'f' && value.is_number(x)) {
      text = make_text(fmt::format("{:.{}f}", x, precision < 0 ? 6 : precision), meter).get_if<TextPtr>()[0];
    } else {
      fail(fmt::format("the format %{} with a {} is not supported", bytes[end], value.type_name()));
    }
    const std::size_t size = count_code_points(text->bytes), fill = width > size ? width - size : 0;
    const bool digits = bytes[end] != 's' && zero && !left;
    if (digits && fill > 0 && text->bytes.starts_with('-')) {
      out.append("-" + std::string(fill, '0') + text->bytes.substr(1));
      continue;
    }
    if (!left) out.append(std::string(fill, digits ? '0' : ' '));
    out.append(*text);
    if (left) out.append(std::string(fill, ' '));
  }
  out.append(pattern, plain, bytes.size());
  if (next < values.size() && argument.dict() == nullptr) fail("not all arguments converted during string formatting");
  return Value(out.finish());
}

Value repeat_list(const List& list, std::int64_t times, Meter& meter) {
  std::vector<Value> items;
  for (std::int64_t i = 0; i < times && !list.items.empty(); ++i) {
    meter.step(list.items.size());
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), meter, list.flavour);
}

bool is_sequence(const List* list) {
  return list != nullptr && (list->flavour == Flavour::list || list->flavour == Flavour::tuple);
}

}  // namespace

Value apply_unary(Op op, const Value& value) {
  refuse_undefined(value);
  std::int64_t n = 0;
  if (value.is_integer(n)) {
    if (op == Op::plus) return Value(n);
    std::int64_t result = 0;
    if (__builtin_sub_overflow(std::int64_t{0}, n, &result)) too_large();
    return Value(result);
  }
  if (const auto* x = value.get_if<double>()) return Value(op == Op::plus ? *x : -*x);
  fail(fmt::format("bad operand type for unary {}: '{}'", op == Op::plus ? '+' : '-', value.type_name()));
}

Value apply_binary(Op op, const Value& left, const Value& right, Meter& meter) {
  meter.step();
  if (op == Op::modulo && left.text() != nullptr) return format_text(*left.text(), right, meter);
  refuse_undefined(left);
  refuse_undefined(right);
  std::int64_t i = 0, j = 0;
  const bool left_integer = left.is_integer(i), right_integer = right.is_integer(j);
  if (left_integer && right_integer) return integers(op, i, j);
  double x = 0, y = 0;
  if (left.is_number(x) && right.is_number(y)) return reals(op, x, y);
  if (op == Op::add) {
    if (left.text() != nullptr && right.text() != nullptr)
      return Value(concatenate(*left.text(), *right.text(), meter));
    const List *a = left.list(), *b = right.list();
    if (is_sequence(a) && is_sequence(b) && a->flavour == b->flavour) {
      meter.step(a->items.size() + b->items.size());
      std::vector<Value> items = a->items;
      items.insert(items.end(), b->items.begin(), b->items.end());
      return make_list(std::move(items), meter, a->flavour);
    }
  }
  if (op == Op::multiply) {
    if (left.text() != nullptr && right_integer) return Value(repeat(*left.text(), j, meter));
    if (right.text() != nullptr && left_integer) return Value(repeat(*right.text(), i, meter));
    if (is_sequence(left.list()) && right_integer) return repeat_list(*left.list(), j, meter);
    if (is_sequence(right.list()) && left_integer) return repeat_list(*right.list(), i, meter);
  }
  fail(fmt::format("unsupported operand types for {}: '{}' and '{}'", symbol(op), left.type_name(), right.type_name()));
}

bool contains(const Value& container, const Value& item, Meter& meter) {
  if (const Text* t = container.text()) {
    if (item.text() == nullptr)
      fail(fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    meter.step(1 + t->bytes.size() / 64);
    return t->bytes.find(item.text()->bytes) != std::string::npos;
  }
  if (const Dict* d = container.dict()) return d->find(item) != nullptr;
  if (const auto* iterator = container.get_if<std::shared_ptr<Iterator>>()) {
    while ((*iterator)->next < (*iterator)->items.size())
      if (equal((*iterator)->items[(*iterator)->next++], item, meter)) return true;
    return false;
  }
  if (const List* l = container.list()) {
    for (const Value& element : l->items)
      if (equal(element, item, meter)) return true;
    return false;
  }
  if (container.is_undefined()) return false;
  fail(fmt::format("argument of type '{}' is not iterable", container.type_name()));
}

bool apply_comparison(Op op, const Value& left, const Value& right, Meter& meter) {
  switch (op) {
    case Op::equal: return equal(left, right, meter);
    case Op::not_equal: return !equal(left, right, meter);
    case Op::in: return contains(right, left, meter);
    case Op::not_in: return !contains(right, left, meter);
    default: break;
  }
  const int order = compare(left, right, symbol(op), meter);
  if (order == 2) return false;
  switch (op) {
    case Op::less: return order < 0;
    case Op::less_equal: return order <= 0;
    case Op::greater: return order > 0;
    default: return order >= 0;
  }
}

Value get_attribute(const Value& value, std::string_view name, Meter& meter) {
  meter.step();
  if (const auto* u = value.get_if<Undefined>())
    fail(u->why ? *u->why : fmt::format("'{}' of an undefined value", name));
  if (const auto* loop = value.get_if<LoopState*>()) {
    if (name == "cycle" || name == "changed")
      return Value(std::make_shared<const Method>(Method{value, std::string(name)}));
    return loop_attribute(**loop, name);
  }
  if (const auto* space = value.get_if<std::shared_ptr<Namespace>>()) {
    for (const auto& [key, attribute] : (*space)->attributes)
      if (key == name) return attribute;
    return Value::undefined(fmt::format("the namespace has no attribute '{}'", name));
  }
  if (type_has_method(value, name)) return Value(std::make_shared<const Method>(Method{value, std::string(name)}));
  if (const Dict* d = value.dict())
    if (const Value* item = d->find(name)) return *item;
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", value.type_name(), name));
}

Value get_item(const Value& value, const Value& key, Meter& meter) {
  meter.step();
  refuse_undefined(value);
  if (const Dict* d = value.dict()) {
    const bool hashable = key.dict() == nullptr && (key.list() == nullptr || key.list()->flavour == Flavour::tuple);
    if (const Value* item = hashable ? d->find(key) : nullptr) return *item;
    if (key.text() == nullptr)
      return Value::undefined(fmt::format("'dict object' has no element {}", to_text(key, meter)->bytes));
  }
  if (const Text* name = key.text()) return get_attribute(value, name->bytes, meter);
  std::int64_t index = 0;
  const Text* text = value.text();
  const List* list = value.list();
  const bool indexable = text != nullptr || (list != nullptr && (is_sequence(list) || list->flavour == Flavour::range));
  if (indexable && key.is_integer(index)) {
    const std::int64_t size = length(value);
    if (text != nullptr) meter.step(1 + text->bytes.size() / 64);
    if (index < 0) index += size;
    if (index >= 0 && index < size) {
      if (list != nullptr) return list->items[static_cast<std::size_t>(index)];
      const std::size_t begin = offset_of(text->bytes, static_cast<std::size_t>(index));
      std::size_t end = begin;
      next_code_point(text->bytes, end);
      return Value(substring(*text, begin, end, meter));
    }
  }
  return Value::undefined(fmt::format("'{} object' has no element {}", value.type_name(),
                                      key.is_integer(index) ? to_text(key, meter)->bytes : "of that kind"));
}

Value get_slice(const Value& value, const Value* begin, const Value* end, const Value* step, Meter& meter) {
  refuse_undefined(value);
  const Text* text = value.text();
  const List* list = value.list();
  if (text == nullptr && !is_sequence(list) && !(list != nullptr && list->flavour == Flavour::range))
    return Value::undefined(fmt::format("'{} object' has no slices", value.type_name()));
  std::int64_t ignored = 0;
  for (const Value* v : {begin, end, step})
    if (v != nullptr && !v->is_none() && !v->is_integer(ignored))
      return Value::undefined("the bounds of a slice are integers");
  auto bound = [](const Value* v, std::int64_t absent) {
    if (v == nullptr || v->is_none()) return absent;
    std::int64_t n = 0;
    v->is_integer(n);
    return n;
  };
  const std::int64_t size = length(value), by = bound(step, 1);
  if (by == 0) fail("slice step cannot be zero");
  auto clamp = [&](const Value* v, std::int64_t absent) {
    std::int64_t n = bound(v, absent);
    if (v == nullptr || v->is_none()) return n;
    if (n < 0) n = n < -size ? (by < 0 ? -1 : 0) : n + size;
    return std::min(n, by < 0 ? size - 1 : size);
  };
  const std::int64_t from = clamp(begin, by < 0 ? size - 1 : 0), to = clamp(end, by < 0 ? -1 : size);
  if (text != nullptr && by == 1)
    return Value(from < to ? substring(*text, offset_of(text->bytes, static_cast<std::size_t>(from)),
                                       offset_of(text->bytes, static_cast<std::size_t>(to)), meter)
                           : substring(*text, 0, 0, meter));
  std::vector<std::size_t> picks;
  // the step may be as large as an integer gets: no overflow
  for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
    picks.push_back(static_cast<std::size_t>(i));
    meter.step();
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (list != nullptr) {
    std::vector<Value> items;
    for (const std::size_t i : picks) items.push_back(list->items[i]);
    return make_list(std::move(items), meter, list->flavour);
  }
  const std::vector<Value> characters = elements(value, meter);
  TextBuilder out(meter);
  for (const std::size_t i : picks) out.append(*characters[i].text());
  return Value(out.finish());
}

std::int64_t length(const Value& value) {
  if (const Text* t = value.text()) return static_cast<std::int64_t>(count_code_points(t->bytes));
  if (const List* l = value.list()) return static_cast<std::int64_t>(l->items.size());
  if (const Dict* d = value.dict()) return static_cast<std::int64_t>(d->items.size());
  if (value.is_undefined()) return 0;
  fail(fmt::format("object of type '{}' has no len()", value.type_name()));
}

}  // namespace ktc::text::jinja
