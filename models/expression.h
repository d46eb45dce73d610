// The expression language of family files (DESIGN section 4): enough to say a shape or a layer pattern, nothing more.
//
//   integers            + - * // %          (// and % round towards minus infinity, as in Python)
//   comparisons         == != < <= > >=     and membership in a list: in, not in
//   logic               and or not, A if C else B       (only what is needed is evaluated)
//   names               values of the family file and the variable `layer`
//   list[index]         from 0
//   has(name)           the checkpoint's config gives this value
//   first_of(a, b, ...) the first of these values that the config gives
//   literals            12, 1e-6, 'text', true, false (a real number or a text can only be passed on or compared)
//
// There are no loops and no other functions, so evaluation always ends. Arithmetic is checked: overflow, division by
// zero and a wrong type are errors that point at line and column of the family file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/yaml_reader.h"
#include "runtime/base/status.h"

namespace ktc::models {

struct Value {
  using List = std::vector<Value>;
  std::variant<std::int64_t, bool, double, std::string, List> data = std::int64_t{0};

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  bool operator==(const Value& other) const { return data == other.data; }
};

std::string_view kind_name(const Value& value);  // "an integer", "true or false", "a number", "a text", "a list"
std::string to_string(const Value& value);       // 12, true, 1e-06, 'silu', [1, 2]

// Where names get their values. A null pointer means that the config does not give this value.
class Scope {
 public:
  virtual ~Scope() = default;
  virtual const Value* find(std::string_view name) const = 0;
  // What is missing when find(name) is null, for the message: "config.json has no 'first_k_dense_replace'".
  virtual std::string explain_absence(std::string_view name) const = 0;
};

class Expression {
 public:
  // `start` is the position of the text's first character. Texts are limited to 2,000 characters.
  static Expected<Expression> parse(std::string_view text, const yaml::Position& start);
  // A scalar of a family file.
  static Expected<Expression> parse(const yaml::Node& node);
  static Expression constant(Value value, const yaml::Position& start);

  Expected<Value> evaluate(const Scope& scope) const;
  Expected<std::int64_t> evaluate_integer(const Scope& scope) const;
  Expected<bool> evaluate_boolean(const Scope& scope) const;
  Expected<double> evaluate_number(const Scope& scope) const;  // an integer or a real number

  struct Name {
    std::string name;
    int offset = 0;  // in the text
  };
  const std::vector<Name>& names() const { return names_; }  // every name that occurs
  yaml::Position position(int offset = 0) const;
  const std::string& text() const { return text_; }

 private:
  friend class ExpressionParser;
  enum class Op : std::uint8_t {
    literal,
    name,
    has,
    first_of,
    negate,
    logical_not,
    add,
    subtract,
    multiply,
    divide,
    modulo,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in,
    logical_and,
    logical_or,
    choose,
    index
  };
  struct Node {
    Op op;
    int offset;                           // of the operator, for messages
    Value value;                          // of a literal
    std::string name;                     // of name and has
    std::vector<std::uint32_t> operands;  // indices in nodes_; choose: condition, then, else
  };

  Expected<Value> evaluate(std::uint32_t node, const Scope& scope) const;
  Expected<Value> arithmetic(const Node& node, const Scope& scope) const;
  Expected<Value> compare(const Node& node, const Scope& scope) const;
  Expected<bool> condition(std::uint32_t node, const Scope& scope) const;
  Status error(int offset, std::string what, std::string found, std::string expected) const;

  std::string text_;
  yaml::Position start_;
  std::vector<Node> nodes_;  // the root is the last
  std::vector<Name> names_;
};

}  // namespace ktc::models
