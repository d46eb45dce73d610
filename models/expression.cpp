#include "models/expression.h"

#include <fmt/format.h>

namespace ktc::models {

std::string_view kind_name(const Value& value) {
  switch (value.data.index()) {
    case 0: return "an integer";
    case 1: return "true or false";
    case 2: return "a real number";
    case 3: return "a text";
    default: return "a list";
  }
}

std::string to_string(const Value& value) {
  if (const auto* integer = value.get<std::int64_t>()) return std::to_string(*integer);
  if (const auto* boolean = value.get<bool>()) return *boolean ? "true" : "false";
  if (const auto* real = value.get<double>()) return fmt::format("{}", *real);
  if (const auto* text = value.get<std::string>()) return "'" + *text + "'";
  std::string list = "[";
  for (const Value& item : *value.get<Value::List>()) list += (list.size() > 1 ? ", " : "") + to_string(item);
  return list + "]";
}

// --------------------------------------------------------------------------------------------------------- evaluation

yaml::Position Expression::position(int offset) const {
  yaml::Position position = start_;
  position.column += offset;
  return position;
}

Status Expression::error(int offset, std::string what, std::string found, std::string expected) const {
  return make_error(StatusCode::invalid_argument,
                    {yaml::to_string(position(offset)), std::move(what), std::move(found), std::move(expected), {}});
}

Expected<Value> Expression::evaluate(const Scope& scope) const {
  return evaluate(static_cast<std::uint32_t>(nodes_.size() - 1), scope);
}

Expected<std::int64_t> Expression::evaluate_integer(const Scope& scope) const {
  KTC_ASSIGN_OR_RETURN(Value value, evaluate(scope));
  if (const auto* integer = value.get<std::int64_t>()) return *integer;
  return error(0, "'" + text_ + "'", to_string(value), "an integer");
}

Expected<bool> Expression::evaluate_boolean(const Scope& scope) const {
  KTC_ASSIGN_OR_RETURN(Value value, evaluate(scope));
  if (const auto* boolean = value.get<bool>()) return *boolean;
  return error(0, "'" + text_ + "'", to_string(value), "true or false");
}

Expected<double> Expression::evaluate_number(const Scope& scope) const {
  KTC_ASSIGN_OR_RETURN(Value value, evaluate(scope));
  if (const auto* real = value.get<double>()) return *real;
  if (const auto* integer = value.get<std::int64_t>()) return static_cast<double>(*integer);
  return error(0, "'" + text_ + "'", to_string(value), "a number");
}

Expected<bool> Expression::condition(std::uint32_t index, const Scope& scope) const {
  KTC_ASSIGN_OR_RETURN(Value value, evaluate(index, scope));
  if (const auto* boolean = value.get<bool>()) return *boolean;
  return error(nodes_[index].offset, "a condition", to_string(value), "true or false");
}

Expected<Value> Expression::evaluate(std::uint32_t index, const Scope& scope) const {
  const Node& node = nodes_[index];
  switch (node.op) {
    case Op::literal: return node.value;
    case Op::name:
      if (const Value* value = scope.find(node.name)) return *value;
      return error(node.offset, scope.explain_absence(node.name), {}, {});
    case Op::has: return Value{scope.find(node.name) != nullptr};
    case Op::first_of: {
      for (std::uint32_t operand : node.operands)
        if (const Value* value = scope.find(nodes_[operand].name)) return *value;
      return error(node.offset, "none of these is given: " + scope.explain_absence(node.name), {}, {});
    }
    case Op::logical_not: {
      KTC_ASSIGN_OR_RETURN(bool operand, condition(node.operands[0], scope));
      return Value{!operand};
    }
    case Op::logical_and:
    case Op::logical_or: {
      KTC_ASSIGN_OR_RETURN(bool left, condition(node.operands[0], scope));
      if (left == (node.op == Op::logical_or)) return Value{left};
      KTC_ASSIGN_OR_RETURN(bool right, condition(node.operands[1], scope));
      return Value{right};
    }
    case Op::choose: {
      KTC_ASSIGN_OR_RETURN(bool chosen, condition(node.operands[0], scope));
      return evaluate(node.operands[chosen ? 1 : 2], scope);
    }
    case Op::index: {
      KTC_ASSIGN_OR_RETURN(Value list, evaluate(node.operands[0], scope));
      KTC_ASSIGN_OR_RETURN(Value at, evaluate(node.operands[1], scope));
      const auto* items = list.get<Value::List>();
      const auto* position = at.get<std::int64_t>();
      if (!items) return error(node.offset, "indexed value", to_string(list), "a list");
      if (!position) return error(node.offset, "list index", to_string(at), "an integer");
      if (*position < 0 || static_cast<std::uint64_t>(*position) >= items->size())
        return error(node.offset, "list index", std::to_string(*position),
                     fmt::format("0 to {}: '{}' has {} entries", static_cast<std::int64_t>(items->size()) - 1,
                                 nodes_[node.operands[0]].name, items->size()));
      return (*items)[static_cast<std::size_t>(*position)];
    }
    case Op::negate:
    case Op::add:
    case Op::subtract:
    case Op::multiply:
    case Op::divide:
    case Op::modulo: return arithmetic(node, scope);
    default: return compare(node, scope);
  }
}

Expected<Value> Expression::arithmetic(const Node& node, const Scope& scope) const {
  std::int64_t operand[2] = {0, 0};
  for (std::size_t i = 0; i < node.operands.size(); ++i) {
    KTC_ASSIGN_OR_RETURN(Value value, evaluate(node.operands[i], scope));
    const auto* integer = value.get<std::int64_t>();
    if (!integer) return error(node.offset, "arithmetic", to_string(value), "an integer");
    operand[i] = *integer;
  }
  const auto [a, b] = operand;
  std::int64_t result = 0;
  bool overflow = false;
  switch (node.op) {
    case Op::negate: overflow = __builtin_sub_overflow(std::int64_t{0}, a, &result); break;
    case Op::add: overflow = __builtin_add_overflow(a, b, &result); break;
    case Op::subtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case Op::multiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    default: {
      if (b == 0) return error(node.offset, "division by zero", {}, {});
      if (b == -1) {  // the quotient of the smallest integer does not fit
        overflow = node.op == Op::divide && __builtin_sub_overflow(std::int64_t{0}, a, &result);
        if (node.op == Op::modulo) result = 0;
        break;
      }
      const bool rounds_down = a % b != 0 && ((a < 0) != (b < 0));
      result = node.op == Op::divide ? a / b - (rounds_down ? 1 : 0) : a % b + (rounds_down ? b : 0);
    }
  }
  if (overflow) return error(node.offset, "a result beyond 64 bits", {}, {});
  return Value{result};
}

Expected<Value> Expression::compare(const Node& node, const Scope& scope) const {
  KTC_ASSIGN_OR_RETURN(Value left, evaluate(node.operands[0], scope));
  KTC_ASSIGN_OR_RETURN(Value right, evaluate(node.operands[1], scope));
  if (node.op == Op::in || node.op == Op::not_in) {
    const auto* items = right.get<Value::List>();
    if (!items) return error(node.offset, "membership", to_string(right), "a list");
    bool member = false;
    for (const Value& item : *items) member = member || item == left;
    return Value{member == (node.op == Op::in)};
  }
  if (left.data.index() != right.data.index())
    return error(node.offset, "comparison", fmt::format("{} with {}", kind_name(left), kind_name(right)),
                 "two values of one kind");
  if (node.op == Op::equal) return Value{left == right};
  if (node.op == Op::not_equal) return Value{!(left == right)};
  const auto* a = left.get<std::int64_t>();
  const auto* b = right.get<std::int64_t>();
  if (!a || !b) return error(node.offset, "order", to_string(left), "integers");
  switch (node.op) {
    case Op::less: return Value{*a < *b};
    case Op::less_equal: return Value{*a <= *b};
    case Op::greater: return Value{*a > *b};
    default: return Value{*a >= *b};
  }
}

}  // namespace ktc::models
