// The values of a template: what Python's would be, as far as chat templates can tell.
//
// Strings remember which of their bytes came from the conversation and which from the template (class Text), so that
// the caller can later tell a marker that the template wrote from the same characters in a user's message. All
// operations keep that record byte by byte.
//
// Values are immutable but for iterators (they are used up) and namespaces (their attributes are set). Containers are
// at most kMaxNesting deep, which bounds every recursion over them. One thread per render.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/text/regex.h"

namespace ktc::text::jinja {

inline constexpr int kMaxNesting = 100;
inline constexpr std::size_t kMaxText = 16u << 20;  // bytes of one string, and of what is rendered

// Thrown and caught inside this folder: why a render (or a parse) cannot go on.
struct Failure {
  std::string message;
  int line = 0;         // 0: the evaluator fills in where it is
  bool raised = false;  // by the template's own raise_exception
};
[[noreturn]] void fail(std::string message);

// What one render may spend; every step and every allocation is charged here.
struct Meter {
  static constexpr std::uint64_t kMaxSteps = 20'000'000;
  static constexpr std::size_t kMaxLiveBytes = 256u << 20;
  std::uint64_t steps = 0;
  std::size_t live_bytes = 0;  // of strings

  void step(std::uint64_t n = 1) {
    steps += n;
    if (steps > kMaxSteps) fail("the template runs for too long: more than 20 million steps");
  }
};

// UTF-8 with the spans (sorted, disjoint, merged) that came from the conversation.
class Text {
 public:
  Text(std::string bytes, std::vector<Span> content, Meter* meter);
  ~Text();
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  const std::string bytes;
  const std::vector<Span> content;

 private:
  Meter* const meter_;  // null for literals of the template, which outlive a render
};
using TextPtr = std::shared_ptr<const Text>;

// Builds a Text piece by piece.
class TextBuilder {
 public:
  explicit TextBuilder(Meter& meter) : meter_(meter) {}
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, std::size_t begin, std::size_t end);  // bytes [begin, end)
  void append(std::string_view bytes, bool content = false);
  // `bytes` in place of text's bytes at [begin, end): content where any of those is.
  void append_for(std::string_view bytes, const Text& text, std::size_t begin, std::size_t end);
  std::size_t size() const { return bytes_.size(); }
  TextPtr finish();

 private:
  void mark(std::size_t begin, std::size_t end);
  Meter& meter_;
  std::string bytes_;
  std::vector<Span> content_;
};

class Value;
struct List;
struct Dict;
struct Iterator;
struct Namespace;
struct Method;
struct Macro;
struct LoopState;

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};
enum class Global : std::uint8_t { namespace_, range, dict, raise_exception, strftime_now };

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, TextPtr, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Iterator>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Method>, const Macro*, LoopState*, Global>;
  Value() = default;  // undefined
  template <typename T>
  requires std::is_constructible_v<Data, T> &&(!std::is_same_v<std::remove_cvref_t<T>, Value>)Value(T&& value)
      : data_(std::forward<T>(value)) {}
  Value(const char*) = delete;
  static Value undefined(std::string why);

  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const Text* text() const { return pointee<TextPtr>(); }
  const List* list() const { return pointee<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return pointee<std::shared_ptr<const Dict>>(); }
  // Booleans count as 0 and 1.
  bool is_integer(std::int64_t& n) const;
  bool is_number(double& x) const;

  bool truthy() const;
  std::string type_name() const;  // as Python says it: "str", "int", "dict", ...
  int nesting() const;            // of containers; 0: none
  bool storable() const;          // may be put into a container: no macro, loop or namespace

 private:
  template <typename P>
  auto pointee() const -> decltype(std::declval<P>().get()) {
    const P* p = std::get_if<P>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  Data data_;
};

enum class Flavour : std::uint8_t { list, tuple, keys, values, items, range };

struct List {
  Flavour flavour = Flavour::list;
  std::vector<Value> items;
  int nesting = 1;
};

struct Dict {
  const Value* find(const Value& key) const;  // null: not there
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);            // only while it is being built
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  int nesting = 1;

 private:
  std::unordered_map<std::string, std::size_t> index_;  // by canonical key
};

// A generator: goes through its items once.
struct Iterator {
  std::vector<Value> items;
  std::size_t next = 0;
  int nesting = 1;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Method {  // `receiver.name`, not called yet
  Value receiver;
  std::string name;
};

// Checked constructors: charge the meter and refuse what cannot be stored or is nested too deep.
Value make_list(std::vector<Value> items, Meter& meter, Flavour flavour = Flavour::list);
Value make_iterator(std::vector<Value> items, Meter& meter);
Value make_dict(std::vector<std::pair<Value, Value>> items, Meter& meter);
Value make_text(std::string bytes, Meter& meter, bool content = false);
Value make_literal(std::string bytes);  // of the template

bool equal(const Value& a, const Value& b, Meter& meter);
// Negative, zero or positive; fails for values without an order, naming `op`.
int compare(const Value& a, const Value& b, std::string_view op, Meter& meter);

// All elements of what can be iterated over (a string gives characters, a dict its keys, an iterator its rest).
std::vector<Value> elements(const Value& value, Meter& meter);
bool is_iterable(const Value& value);

}  // namespace ktc::text::jinja
