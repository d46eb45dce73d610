#include "runtime/text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/text/unicode.h"

namespace ktc::text::jinja {

void fail(std::string message) {
  throw Failure{std::move(message)};
}

Text::Text(std::string bytes_in, std::vector<Span> content_in, Meter* meter)
    : bytes(std::move(bytes_in)), content(std::move(content_in)), meter_(meter) {
  if (meter_ != nullptr) meter_->live_bytes += bytes.size() + content.size() * sizeof(Span);
}

Text::~Text() {
  if (meter_ != nullptr) meter_->live_bytes -= bytes.size() + content.size() * sizeof(Span);
}

void TextBuilder::mark(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!content_.empty() && content_.back().end == begin)
    content_.back().end = end;
  else
    content_.push_back({begin, end});
}

void TextBuilder::append(const Text& text, std::size_t begin, std::size_t end) {
  const std::size_t base = bytes_.size();
  append(std::string_view(text.bytes).substr(begin, end - begin));
  auto span = std::upper_bound(text.content.begin(), text.content.end(), begin,
                               [](std::size_t at, const Span& s) { return at < s.end; });
  for (; span != text.content.end() && span->begin < end; ++span)
    mark(base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin);
}

void TextBuilder::append(std::string_view bytes, bool content) {
  if (bytes_.size() + bytes.size() > kMaxText) fail("a text of the template grows beyond 16 MiB");
  meter_.step(1 + bytes.size() / 256);
  bytes_ += bytes;
  if (content) mark(bytes_.size() - bytes.size(), bytes_.size());
}

void TextBuilder::append_for(std::string_view bytes, const Text& text, std::size_t begin, std::size_t end) {
  const auto span = std::upper_bound(text.content.begin(), text.content.end(), begin,
                                     [](std::size_t at, const Span& s) { return at < s.end; });
  append(bytes, span != text.content.end() && span->begin < end);
}

TextPtr TextBuilder::finish() {
  if (meter_.live_bytes + bytes_.size() > Meter::kMaxLiveBytes) fail("the template keeps more than 256 MiB of text");
  auto text = std::make_shared<const Text>(std::move(bytes_), std::move(content_), &meter_);
  bytes_.clear();
  content_.clear();
  return text;
}

Value Value::undefined(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

bool Value::is_integer(std::int64_t& n) const {
  if (const auto* i = get_if<std::int64_t>()) return n = *i, true;
  if (const auto* b = get_if<bool>()) return n = *b ? 1 : 0, true;
  return false;
}

bool Value::is_number(double& x) const {
  if (const auto* d = get_if<double>()) return x = *d, true;
  std::int64_t n = 0;
  if (!is_integer(n)) return false;
  x = static_cast<double>(n);
  return true;
}

bool Value::truthy() const {
  double x = 0;
  if (is_number(x)) return x != 0;  // NaN is true
  if (const Text* t = text()) return !t->bytes.empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return !d->items.empty();
  return !is_undefined() && !is_none();
}

std::string Value::type_name() const {
  struct Name {
    std::string operator()(const Undefined&) { return "Undefined"; }
    std::string operator()(const None&) { return "NoneType"; }
    std::string operator()(bool) { return "bool"; }
    std::string operator()(std::int64_t) { return "int"; }
    std::string operator()(double) { return "float"; }
    std::string operator()(const TextPtr&) { return "str"; }
    std::string operator()(const std::shared_ptr<const List>& l) {
      constexpr const char* kNames[] = {"list", "tuple", "dict_keys", "dict_values", "dict_items", "range"};
      return kNames[static_cast<std::size_t>(l->flavour)];
    }
    std::string operator()(const std::shared_ptr<const Dict>&) { return "dict"; }
    std::string operator()(const std::shared_ptr<Iterator>&) { return "generator"; }
    std::string operator()(const std::shared_ptr<Namespace>&) { return "Namespace"; }
    std::string operator()(const std::shared_ptr<const Method>&) { return "method"; }
    std::string operator()(const Macro*) { return "Macro"; }
    std::string operator()(LoopState*) { return "LoopContext"; }
    std::string operator()(Global) { return "function"; }
  };
  return std::visit(Name{}, data_);
}

int Value::nesting() const {
  if (const List* l = list()) return l->nesting;
  if (const Dict* d = dict()) return d->nesting;
  if (const auto* i = get_if<std::shared_ptr<Iterator>>()) return (*i)->nesting;
  if (const auto* m = get_if<std::shared_ptr<const Method>>()) return (*m)->receiver.nesting() + 1;
  return 0;
}

bool Value::storable() const {
  if (const auto* m = get_if<std::shared_ptr<const Method>>()) return (*m)->receiver.storable();
  return get_if<const Macro*>() == nullptr && get_if<LoopState*>() == nullptr &&
         get_if<std::shared_ptr<Namespace>>() == nullptr;
}

namespace {

// The nesting of a container of `items`; refuses what it cannot hold.
template <typename Items, typename Get>
int check_items(const Items& items, Meter& meter, Get get) {
  meter.step(1 + 4 * items.size());
  int nesting = 0;
  for (const auto& item : items)
    for (const Value* value : get(item)) {
      if (!value->storable()) fail(fmt::format("a {} cannot be put into a list or dict", value->type_name()));
      nesting = std::max(nesting, value->nesting());
    }
  if (nesting >= kMaxNesting) fail(fmt::format("lists and dicts are nested more than {} deep", kMaxNesting));
  return nesting + 1;
}

int check_values(const std::vector<Value>& items, Meter& meter) {
  return check_items(items, meter, [](const Value& v) { return std::array<const Value*, 1>{&v}; });
}

// Equal keys have equal texts.
std::string canonical_key(const Value& key) {
  if (const Text* t = key.text()) return "s" + t->bytes;
  std::int64_t n = 0;
  if (key.is_integer(n)) return "i" + std::to_string(n);
  if (const auto* d = key.get_if<double>()) {
    if (std::abs(*d) < 9e18 && std::floor(*d) == *d) return "i" + std::to_string(static_cast<std::int64_t>(*d));
    return fmt::format("f{}", *d);
  }
  if (key.is_none()) return "n";
  if (key.is_undefined()) return "u";
  if (const List* l = key.list(); l != nullptr && l->flavour == Flavour::tuple) {
    std::string text = "t";
    for (const Value& item : l->items) {
      const std::string part = canonical_key(item);
      text += std::to_string(part.size()) + ":" + part;
    }
    return text;
  }
  fail(fmt::format("unhashable type: '{}'", key.type_name()));
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  const auto it = index_.find(canonical_key(key));
  return it == index_.end() ? nullptr : &items[it->second].second;
}

const Value* Dict::find(std::string_view key) const {
  std::string canonical = "s";
  canonical += key;
  const auto it = index_.find(canonical);
  return it == index_.end() ? nullptr : &items[it->second].second;
}

void Dict::set(Value key, Value value) {
  const auto [it, fresh] = index_.emplace(canonical_key(key), items.size());
  if (fresh)
    items.emplace_back(std::move(key), std::move(value));
  else
    items[it->second].second = std::move(value);
}

Value make_list(std::vector<Value> items, Meter& meter, Flavour flavour) {
  auto list = std::make_shared<List>();
  list->nesting = check_values(items, meter);
  list->flavour = flavour;
  list->items = std::move(items);
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Value make_iterator(std::vector<Value> items, Meter& meter) {
  auto iterator = std::make_shared<Iterator>();
  iterator->nesting = check_values(items, meter);
  iterator->items = std::move(items);
  return Value(std::move(iterator));
}

Value make_dict(std::vector<std::pair<Value, Value>> items, Meter& meter) {
  auto dict = std::make_shared<Dict>();
  dict->nesting = check_items(items, meter, [](const std::pair<Value, Value>& p) {
    return std::array<const Value*, 2>{&p.first, &p.second};
  });
  for (auto& [key, value] : items) dict->set(std::move(key), std::move(value));
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value make_text(std::string bytes, Meter& meter, bool content) {
  TextBuilder builder(meter);
  builder.append(bytes, content);
  return Value(builder.finish());
}

Value make_literal(std::string bytes) {
  return Value(TextPtr(std::make_shared<const Text>(std::move(bytes), std::vector<Span>(), nullptr)));
}

bool equal(const Value& a, const Value& b, Meter& meter) {
  meter.step();
  if (const Text* x = a.text()) {
    const Text* y = b.text();
    return y != nullptr && x->bytes == y->bytes;
  }
  std::int64_t i = 0, j = 0;
  if (a.is_integer(i) && b.is_integer(j)) return i == j;
  double x = 0, y = 0;
  if (a.is_number(x)) return b.is_number(y) && x == y;
  if (const List* l = a.list()) {
    const List* r = b.list();
    if (r == nullptr || l->flavour != r->flavour || l->items.size() != r->items.size()) return false;
    for (std::size_t n = 0; n < l->items.size(); ++n)
      if (!equal(l->items[n], r->items[n], meter)) return false;
    return true;
  }
  if (const Dict* l = a.dict()) {
    const Dict* r = b.dict();
    if (r == nullptr || l->items.size() != r->items.size()) return false;
    for (const auto& [key, value] : l->items) {
      const Value* other = r->find(key);
      if (other == nullptr || !equal(value, *other, meter)) return false;
    }
    return true;
  }
  if (a.is_undefined()) return b.is_undefined();
  if (a.is_none()) return b.is_none();
  auto same = [&]<typename T>(const T* left) {
    const T* right = b.get_if<T>();
    return left != nullptr && right != nullptr && *left == *right;
  };
  return same(a.get_if<std::shared_ptr<Iterator>>()) || same(a.get_if<std::shared_ptr<Namespace>>()) ||
         same(a.get_if<const Macro*>()) || same(a.get_if<LoopState*>()) || same(a.get_if<Global>());
}

int compare(const Value& a, const Value& b, std::string_view op, Meter& meter) {
  meter.step();
  auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  std::int64_t i = 0, j = 0;
  if (a.is_integer(i) && b.is_integer(j)) return order(i, j);
  double x = 0, y = 0;
  if (a.is_number(x) && b.is_number(y)) return x != x || y != y ? 2 : order(x, y);  // NaN is in no order
  if (a.text() != nullptr && b.text() != nullptr) return order(a.text()->bytes, b.text()->bytes);
  const List *l = a.list(), *r = b.list();
  if (l != nullptr && r != nullptr && l->flavour == r->flavour &&
      (l->flavour == Flavour::list || l->flavour == Flavour::tuple)) {
    for (std::size_t n = 0; n < l->items.size() && n < r->items.size(); ++n)
      if (!equal(l->items[n], r->items[n], meter)) return compare(l->items[n], r->items[n], op, meter);
    return order(l->items.size(), r->items.size());
  }
  for (const Value* v : {&a, &b})
    if (const auto* u = v->get_if<Undefined>()) fail(u->why ? *u->why : "an undefined value is compared");
  fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, a.type_name(), b.type_name()));
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
         value.get_if<std::shared_ptr<Iterator>>() != nullptr;
}

std::vector<Value> elements(const Value& value, Meter& meter) {
  std::vector<Value> out;
  if (const List* l = value.list()) {
    meter.step(1 + l->items.size());
    return l->items;
  }
  if (const Dict* d = value.dict()) {
    meter.step(1 + d->items.size());
    for (const auto& item : d->items) out.push_back(item.first);
    return out;
  }
  if (const Text* t = value.text()) {
    meter.step(1 + 4 * t->bytes.size());
    for (std::size_t at = 0; at < t->bytes.size();) {
      const std::size_t begin = at;
      next_code_point(t->bytes, at);
      TextBuilder character(meter);
      character.append(*t, begin, at);
      out.emplace_back(character.finish());
    }
    return out;
  }
  if (const auto* i = value.get_if<std::shared_ptr<Iterator>>()) {
    meter.step(1 + (*i)->items.size() - (*i)->next);
    out.assign((*i)->items.begin() + static_cast<std::ptrdiff_t>((*i)->next), (*i)->items.end());
    (*i)->next = (*i)->items.size();
    return out;
  }
  if (value.is_undefined()) return out;
  fail(fmt::format("'{}' object is not iterable", value.type_name()));
}

}  // namespace ktc::text::jinja
