// What may stand behind `is`.
#include <fmt/format.h>

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/strings.h"
#include "runtime/text/jinja/to_text.h"

namespace ktc::text::jinja {
namespace {

const Value& operand(const Arguments& a, std::string_view test) {
  if (a.positional.size() != 1 || !a.keywords.empty()) fail(fmt::format("the test '{}' needs one argument", test));
  return a.positional[0];
}

template <Op op>
bool compares(Evaluator& e, const Value& input, const Arguments& a) {
  return apply_comparison(op, input, operand(a, "comparison"), e.meter);
}

bool is_defined(Evaluator&, const Value& v, const Arguments&) {
  return !v.is_undefined();
}
bool is_undefined(Evaluator&, const Value& v, const Arguments&) {
  return v.is_undefined();
}
bool is_none(Evaluator&, const Value& v, const Arguments&) {
  return v.is_none();
}
bool is_boolean(Evaluator&, const Value& v, const Arguments&) {
  return v.get_if<bool>() != nullptr;
}
bool is_true(Evaluator&, const Value& v, const Arguments&) {
  return v.get_if<bool>() != nullptr && *v.get_if<bool>();
}
bool is_false(Evaluator&, const Value& v, const Arguments&) {
  return v.get_if<bool>() != nullptr && !*v.get_if<bool>();
}
bool is_integer(Evaluator&, const Value& v, const Arguments&) {
  return v.get_if<std::int64_t>() != nullptr;
}
bool is_float(Evaluator&, const Value& v, const Arguments&) {
  return v.get_if<double>() != nullptr;
}
bool is_number(Evaluator&, const Value& v, const Arguments&) {
  double x = 0;
  return v.is_number(x);
}
bool is_string(Evaluator&, const Value& v, const Arguments&) {
  return v.text() != nullptr;
}
bool is_mapping(Evaluator&, const Value& v, const Arguments&) {
  return v.dict() != nullptr;
}
bool is_sequence(Evaluator&, const Value& v, const Arguments&) {  // has a length and subscripts
  const List* l = v.list();
  return v.text() != nullptr || v.dict() != nullptr || v.is_undefined() ||
         (l != nullptr &&
          (l->flavour == Flavour::list || l->flavour == Flavour::tuple || l->flavour == Flavour::range));
}
bool is_iterable_value(Evaluator&, const Value& v, const Arguments&) {
  return is_iterable(v);
}
bool is_callable(Evaluator&, const Value& v, const Arguments&) {
  return v.get_if<const Macro*>() != nullptr || v.get_if<Global>() != nullptr ||
         v.get_if<std::shared_ptr<const Method>>() != nullptr || v.is_undefined();
}
bool is_even(Evaluator& e, const Value& v, const Arguments&) {
  return equal(apply_binary(Op::modulo, v, Value(std::int64_t{2}), e.meter), Value(std::int64_t{0}), e.meter);
}
bool is_odd(Evaluator& e, const Value& v, const Arguments&) {
  return equal(apply_binary(Op::modulo, v, Value(std::int64_t{2}), e.meter), Value(std::int64_t{1}), e.meter);
}
bool is_divisible(Evaluator& e, const Value& v, const Arguments& a) {
  return equal(apply_binary(Op::modulo, v, operand(a, "divisibleby"), e.meter), Value(std::int64_t{0}), e.meter);
}
bool is_same(Evaluator& e, const Value& v, const Arguments& a) {
  const Value& other = operand(a, "sameas");
  return v.type_name() == other.type_name() && equal(v, other, e.meter);
}
bool is_lower(Evaluator& e, const Value& v, const Arguments&) {
  return call_method(e, Value(to_text(v, e.meter)), "islower", {}).truthy();
}
bool is_upper(Evaluator& e, const Value& v, const Arguments&) {
  return call_method(e, Value(to_text(v, e.meter)), "isupper", {}).truthy();
}
bool is_filter(Evaluator&, const Value& v, const Arguments&) {
  return find_filter(text_argument(v, "filter").bytes) != nullptr;
}
bool is_test(Evaluator&, const Value& v, const Arguments&) {
  return find_test(text_argument(v, "test").bytes) != nullptr;
}

struct Entry {
  std::string_view name;
  TestFunction function;
};
constexpr Entry kTests[] = {{"!=", compares<Op::not_equal>},
                            {"<", compares<Op::less>},
                            {"<=", compares<Op::less_equal>},
                            {"==", compares<Op::equal>},
                            {">", compares<Op::greater>},
                            {">=", compares<Op::greater_equal>},
                            {"boolean", is_boolean},
                            {"callable", is_callable},
                            {"defined", is_defined},
                            {"divisibleby", is_divisible},
                            {"eq", compares<Op::equal>},
                            {"equalto", compares<Op::equal>},
                            {"even", is_even},
                            {"false", is_false},
                            {"filter", is_filter},
                            {"float", is_float},
                            {"ge", compares<Op::greater_equal>},
                            {"greaterthan", compares<Op::greater>},
                            {"gt", compares<Op::greater>},
                            {"in", compares<Op::in>},
                            {"integer", is_integer},
                            {"iterable", is_iterable_value},
                            {"le", compares<Op::less_equal>},
                            {"lessthan", compares<Op::less>},
                            {"lower", is_lower},
                            {"lt", compares<Op::less>},
                            {"mapping", is_mapping},
                            {"ne", compares<Op::not_equal>},
                            {"none", is_none},
                            {"number", is_number},
                            {"odd", is_odd},
                            {"sameas", is_same},
                            {"sequence", is_sequence},
                            {"string", is_string},
                            {"test", is_test},
                            {"true", is_true},
                            {"undefined", is_undefined},
                            {"upper", is_upper}};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const Entry& entry : kTests)
    if (entry.name == name) return entry.function;
  return nullptr;
}

std::string test_names() {
  std::string names;
  for (const Entry& entry : kTests)
    if (entry.name[0] >= 'a') names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

}  // namespace ktc::text::jinja
