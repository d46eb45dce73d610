// The syntax tree of a template. Immutable after parsing; shared by all renders.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace ktc::text::jinja {

class Evaluator;
struct Arguments;
using FilterFunction = Value (*)(Evaluator&, const Value& input, const Arguments&);
using TestFunction = bool (*)(Evaluator&, const Value& input, const Arguments&);

enum class Op : std::uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  negate,
  plus,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
};

enum class ExprKind : std::uint8_t {
  constant,  // value
  name,      // name
  list,
  tuple,    // operands
  dict,     // operands: key, value, key, value
  unary,    // op, operands[0]
  binary,   // op, operands[0..1]
  compare,  // operands[0], then ops[i] operands[i + 1]
  concat,   // operands
  logical_and,
  logical_or,
  logical_not,
  conditional,  // operands: condition, then, else (null: undefined)
  attribute,    // operands[0] . name
  item,         // operands[0] [operands[1]]
  slice,        // operands[0] [begin : end : step], each may be null
  call,         // operands[0] (arguments)
  filter,       // operands[0] | name(arguments); operands[0] null inside a filter block
  test,         // operands[0] is name(arguments)
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // of this tree
  Op op = Op::add;
  std::string name;
  Value value;
  std::vector<ExprPtr> operands;
  std::vector<Op> ops;
  CallArguments arguments;
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: undefined when absent
};

enum class StmtKind : std::uint8_t {
  text,          // text
  output,        // expr
  if_,           // branches; orelse
  for_,          // target, expr, condition (or null), body, orelse
  set,           // target, expr
  set_block,     // target, expr (a filter chain or null), body
  macro,         // name, parameters, body, uses_caller
  call_block,    // expr (a call), parameters of its caller, body
  filter_block,  // expr (a filter chain), body
  with,          // names and values in assignments, body
  scope,         // body with variables of its own: generation blocks
  break_,
  continue_,
};

// Where an assignment goes: a name, an attribute of a namespace, or several targets that unpack.
struct Target {
  std::string name;
  std::string attribute;      // not empty: name.attribute
  std::vector<Target> parts;  // not empty: unpacks
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  Value text;
  ExprPtr expr, condition;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Target target;
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false;
  Body body, orelse;
};

}  // namespace ktc::text::jinja
