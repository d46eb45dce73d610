// The filters, tests, methods and global functions of templates: found by name when a template is parsed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/value.h"

namespace ktc::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // The argument at `index` or by `name`, or null.
  const Value* find(std::size_t index, std::string_view name) const;
  // Fails when there are more positional ones than `names`, or keywords beyond them. `function` is for the message.
  void expect(std::string_view function, std::initializer_list<std::string_view> names) const;
  Arguments from(std::size_t index) const;  // without the first positional ones
};

FilterFunction find_filter(std::string_view name);  // null: unknown
TestFunction find_test(std::string_view name);
std::string filter_names();  // "abs, capitalize, ..."
std::string test_names();

bool is_method(std::string_view name);  // of any type
std::string method_names();
bool type_has_method(const Value& receiver, std::string_view name);
Value call_method(Evaluator& evaluator, const Value& receiver, std::string_view name, const Arguments& arguments);

std::optional<Global> find_global(std::string_view name);
Value call_global(Evaluator& evaluator, Global global, const Arguments& arguments);

// Argument readers that fail with the name of the function.
const Text& text_argument(const Value& value, std::string_view function);
std::int64_t integer_argument(const Value& value, std::string_view function);

}  // namespace ktc::text::jinja
