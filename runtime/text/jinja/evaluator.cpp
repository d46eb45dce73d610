#include "runtime/text/jinja/evaluator.h"

#include <fmt/format.h>

#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/to_text.h"

namespace ktc::text::jinja {
namespace {

constexpr int kMaxDepth = 600;               // calls of eval and run inside each other
constexpr std::size_t kMaxVariables = 4096;  // of one scope or namespace

}  // namespace

const Value* Scope::find(std::string_view name, std::size_t* looked_at) const {
  std::size_t count = 0;
  const Value* found = nullptr;
  for (const Scope* scope = this; scope != nullptr && found == nullptr; scope = scope->parent)
    for (const auto& [key, value] : scope->variables) {
      ++count;
      if (key == name) {
        found = &value;
        break;
      }
    }
  if (looked_at != nullptr) *looked_at = count;
  return found;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables)
    if (key == name) {
      old = std::move(value);
      return;
    }
  if (variables.size() >= kMaxVariables) fail(fmt::format("more than {} variables", kMaxVariables));
  variables.emplace_back(name, std::move(value));
}

struct Evaluator::Depth {
  explicit Depth(Evaluator& e) : evaluator(e) {
    evaluator.meter.step();
    if (++evaluator.depth_ > kMaxDepth) {
      --evaluator.depth_;
      fail("the template calls itself too deeply");
    }
  }
  ~Depth() { --evaluator.depth_; }
  Evaluator& evaluator;
};

Value loop_attribute(const LoopState& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index), size = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(std::int64_t{1});  // of recursion, which loops do not have here
  if (name == "depth0") return Value(std::int64_t{0});
  if (name == "previtem")
    return index == 0 ? Value::undefined("there is no previous item") : loop.items[loop.index - 1];
  if (name == "nextitem")
    return index + 1 == size ? Value::undefined("there is no next item") : loop.items[loop.index + 1];
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", name));
}

TextPtr Evaluator::render(const Body& body, Scope& globals) {
  try {
    Scope root(&globals);
    TextBuilder out(meter);
    run(body, root, out);
    return out.finish();
  } catch (Failure& failure) {
    if (failure.line == 0) failure.line = line_;
    throw;
  }
}

// ----------------------------------------------------------------------------------------------------------------
// statements

Evaluator::Flow Evaluator::run(const Body& body, Scope& scope, TextBuilder& out) {
  Depth depth(*this);
  for (const StmtPtr& stmt : body)
    if (const Flow flow = run_one(*stmt, scope, out); flow != Flow::next) return flow;
  return Flow::next;
}

Evaluator::Flow Evaluator::run_one(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  line_ = stmt.line;
  meter.step();
  switch (stmt.kind) {
    case StmtKind::text: out.append(*stmt.text.text()); break;
    case StmtKind::output: out.append(*to_text(eval(*stmt.expr, scope), meter)); break;
    case StmtKind::if_: return run_if(stmt, scope, out);
    case StmtKind::for_: return run_for(stmt, scope, out);
    case StmtKind::set: assign(stmt.target, eval(*stmt.expr, scope), scope); break;
    case StmtKind::set_block: {
      Value text(run_aside(stmt.body, scope));
      if (stmt.expr) text = eval_filter(*stmt.expr, scope, &text);
      assign(stmt.target, std::move(text), scope);
      break;
    }
    case StmtKind::macro: run_macro(stmt, scope); break;
    case StmtKind::call_block: run_call_block(stmt, scope, out); break;
    case StmtKind::filter_block: {
      const Value text(run_aside(stmt.body, scope));
      out.append(*to_text(eval_filter(*stmt.expr, scope, &text), meter));
      break;
    }
    case StmtKind::with: return run_with(stmt, scope, out);
    case StmtKind::scope: out.append(*run_aside(stmt.body, scope)); break;
    case StmtKind::break_: return Flow::break_;
    case StmtKind::continue_: return Flow::continue_;
  }
  return Flow::next;
}

TextPtr Evaluator::run_aside(const Body& body, Scope& outer) {
  Scope scope(&outer);
  TextBuilder out(meter);
  run(body, scope, out);
  return out.finish();
}

Evaluator::Flow Evaluator::run_if(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  for (const auto& [condition, body] : stmt.branches)
    if (eval(*condition, scope).truthy()) return run(body, scope, out);
  return run(stmt.orelse, scope, out);
}

Evaluator::Flow Evaluator::run_for(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  const Value source = eval(*stmt.expr, scope);
  line_ = stmt.line;
  std::vector<Value> items = elements(source, meter);
  if (stmt.condition) {
    std::vector<Value> kept;
    for (Value& item : items) {
      Scope inner(&scope);
      assign(stmt.target, item, inner);
      if (eval(*stmt.condition, inner).truthy()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return run(stmt.orelse, scope, out);
  LoopState loop{items, 0, std::nullopt};
  for (; loop.index < items.size(); ++loop.index) {
    Scope inner(&scope);  // what one iteration sets, the next does not see
    inner.set("loop", Value(&loop));
    assign(stmt.target, items[loop.index], inner);
    if (run(stmt.body, inner, out) == Flow::break_) break;
  }
  return Flow::next;
}

void Evaluator::run_macro(const Stmt& stmt, Scope& scope) {
  meter.step(16);
  macros_.push_back({stmt.name, stmt.parameters, stmt.body, stmt.uses_caller, &scope});
  scope.set(stmt.name, Value(static_cast<const Macro*>(&macros_.back())));
}

void Evaluator::run_call_block(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  static const std::string kName = "caller";
  const Macro caller{kName, stmt.parameters, stmt.body, false, &scope};
  out.append(*to_text(eval_call(*stmt.expr, scope, &caller), meter));
}

Evaluator::Flow Evaluator::run_with(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  Scope inner(&scope);
  for (const auto& [target, expr] : stmt.assignments) assign(target, eval(*expr, scope), inner);
  return run(stmt.body, inner, out);
}

void Evaluator::assign(const Target& target, Value value, Scope& scope) {
  if (!target.parts.empty()) {
    if (!is_iterable(value) || value.is_undefined())
      fail(fmt::format("cannot unpack a '{}' object", value.type_name()));
    std::vector<Value> items = elements(value, meter);
    if (items.size() != target.parts.size())
      fail(fmt::format("{} values to unpack, expected {}", items.size(), target.parts.size()));
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], std::move(items[i]), scope);
    return;
  }
  if (target.attribute.empty()) return scope.set(target.name, std::move(value));
  const Value* space = scope.find(target.name);
  const auto* held = space == nullptr ? nullptr : space->get_if<std::shared_ptr<Namespace>>();
  if (held == nullptr)
    fail(fmt::format("cannot assign attribute '{}': '{}' is no namespace", target.attribute, target.name));
  if (!value.storable()) fail(fmt::format("a {} cannot be put into a namespace", value.type_name()));
  for (auto& [key, old] : (*held)->attributes)
    if (key == target.attribute) {
      old = std::move(value);
      return;
    }
  if ((*held)->attributes.size() >= kMaxVariables) fail(fmt::format("more than {} attributes", kMaxVariables));
  (*held)->attributes.emplace_back(target.attribute, std::move(value));
}

// ---------------------------------------------------------------------------------------------------------------
// expressions

Value Evaluator::eval(const Expr& expr, Scope& scope) {
  Depth depth(*this);
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::constant: return expr.value;
    case ExprKind::name: return eval_name(expr, scope);
    case ExprKind::list:
    case ExprKind::tuple:
    case ExprKind::dict: return eval_collection(expr, scope);
    case ExprKind::unary: return apply_unary(expr.op, eval(*expr.operands[0], scope));
    case ExprKind::binary: {
      const Value left = eval(*expr.operands[0], scope), right = eval(*expr.operands[1], scope);
      line_ = expr.line;
      return apply_binary(expr.op, left, right, meter);
    }
    case ExprKind::compare: return eval_compare(expr, scope);
    case ExprKind::concat: return eval_concat(expr, scope);
    case ExprKind::logical_and: {
      Value left = eval(*expr.operands[0], scope);
      return left.truthy() ? eval(*expr.operands[1], scope) : left;
    }
    case ExprKind::logical_or: {
      Value left = eval(*expr.operands[0], scope);
      return left.truthy() ? left : eval(*expr.operands[1], scope);
    }
    case ExprKind::logical_not: return Value(!eval(*expr.operands[0], scope).truthy());
    case ExprKind::conditional:
      if (eval(*expr.operands[0], scope).truthy()) return eval(*expr.operands[1], scope);
      if (expr.operands[2]) return eval(*expr.operands[2], scope);
      return Value::undefined("an inline if without else has no value here");
    case ExprKind::attribute:
    case ExprKind::item:
    case ExprKind::slice: return eval_access(expr, scope);
    case ExprKind::call: return eval_call(expr, scope, nullptr);
    case ExprKind::filter: return eval_filter(expr, scope, nullptr);
    case ExprKind::test: return eval_test(expr, scope);
  }
  return Value();
}

Value Evaluator::eval_name(const Expr& expr, Scope& scope) {
  std::size_t looked_at = 0;
  const Value* value = scope.find(expr.name, &looked_at);
  meter.step(looked_at / 8);
  if (value != nullptr) return *value;
  if (const auto global = find_global(expr.name)) return Value(*global);
  return Value::undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Evaluator::eval_collection(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::dict) {
    std::vector<std::pair<Value, Value>> items;
    for (std::size_t i = 0; i + 1 < expr.operands.size(); i += 2) {
      Value key = eval(*expr.operands[i], scope);
      items.emplace_back(std::move(key), eval(*expr.operands[i + 1], scope));
    }
    return make_dict(std::move(items), meter);
  }
  std::vector<Value> items;
  items.reserve(expr.operands.size());
  for (const ExprPtr& operand : expr.operands) items.push_back(eval(*operand, scope));
  return make_list(std::move(items), meter, expr.kind == ExprKind::tuple ? Flavour::tuple : Flavour::list);
}

Value Evaluator::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.operands[0], scope);
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.operands[i + 1], scope);
    line_ = expr.line;
    if (!apply_comparison(expr.ops[i], left, right, meter)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Evaluator::eval_concat(const Expr& expr, Scope& scope) {
  TextBuilder out(meter);
  for (const ExprPtr& operand : expr.operands) out.append(*to_text(eval(*operand, scope), meter));
  return Value(out.finish());
}

Value Evaluator::eval_access(const Expr& expr, Scope& scope) {
  const Value base = eval(*expr.operands[0], scope);
  if (expr.kind == ExprKind::attribute) {
    line_ = expr.line;
    return get_attribute(base, expr.name, meter);
  }
  if (expr.kind == ExprKind::item) {
    const Value key = eval(*expr.operands[1], scope);
    line_ = expr.line;
    return get_item(base, key, meter);
  }
  Value bounds[3];
  for (std::size_t i = 0; i < 3; ++i)
    if (expr.operands[i + 1]) bounds[i] = eval(*expr.operands[i + 1], scope);
  line_ = expr.line;
  auto bound = [&](std::size_t i) { return expr.operands[i + 1] ? &bounds[i] : nullptr; };
  return get_slice(base, bound(0), bound(1), bound(2), meter);
}

Arguments Evaluator::eval_arguments(const CallArguments& arguments, Scope& scope) {
  Arguments out;
  out.positional.reserve(arguments.positional.size());
  for (const ExprPtr& argument : arguments.positional) out.positional.push_back(eval(*argument, scope));
  for (const auto& [name, argument] : arguments.keywords) out.keywords.emplace_back(name, eval(*argument, scope));
  return out;
}

Value Evaluator::eval_call(const Expr& expr, Scope& scope, const Macro* caller) {
  const Value callee = eval(*expr.operands[0], scope);
  const Arguments arguments = eval_arguments(expr.arguments, scope);
  line_ = expr.line;
  if (const auto* macro = callee.get_if<const Macro*>()) return call_macro(**macro, arguments, caller);
  if (caller != nullptr) fail(fmt::format("a call block calls a {}, expected a macro", callee.type_name()));
  if (const auto* method = callee.get_if<std::shared_ptr<const Method>>())
    return call_method(*this, (*method)->receiver, (*method)->name, arguments);
  if (const auto* global = callee.get_if<Global>()) return call_global(*this, *global, arguments);
  if (const auto* u = callee.get_if<Undefined>()) fail(u->why ? *u->why : "an undefined value is called");
  fail(fmt::format("'{}' object is not callable", callee.type_name()));
}

Value Evaluator::call_macro(const Macro& macro, const Arguments& arguments, const Macro* caller) {
  Scope scope(macro.scope);
  if (caller != nullptr) {
    if (!macro.uses_caller) fail(fmt::format("macro '{}' takes no keyword argument 'caller'", macro.name));
    scope.set("caller", Value(caller));
  }
  if (arguments.positional.size() > macro.parameters.size())
    fail(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size()));
  std::size_t used = 0;
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (const auto& [name, value] : arguments.keywords)
      if (name == parameter.name) {
        if (given != nullptr) fail(fmt::format("macro '{}' got two values for '{}'", macro.name, name));
        given = &value;
        ++used;
      }
    if (given != nullptr)
      scope.set(parameter.name, *given);
    else if (parameter.fallback)
      scope.set(parameter.name, eval(*parameter.fallback, scope));
    else
      scope.set(parameter.name, Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
  }
  if (used != arguments.keywords.size())
    for (const auto& keyword : arguments.keywords) {
      bool known = false;
      for (const Parameter& parameter : macro.parameters) known = known || parameter.name == keyword.first;
      if (!known) fail(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, keyword.first));
    }
  TextBuilder out(meter);
  run(macro.body, scope, out);
  return Value(out.finish());
}

Value Evaluator::eval_filter(const Expr& expr, Scope& scope, const Value* block) {
  // only the innermost filter of a block's chain has no operand: its input is the block
  const Value input = !expr.operands[0]  ? *block
                      : block != nullptr ? eval_filter(*expr.operands[0], scope, block)
                                         : eval(*expr.operands[0], scope);
  const Arguments arguments = eval_arguments(expr.arguments, scope);
  line_ = expr.line;
  meter.step();
  return expr.filter(*this, input, arguments);
}

Value Evaluator::eval_test(const Expr& expr, Scope& scope) {
  const Value input = eval(*expr.operands[0], scope);
  const Arguments arguments = eval_arguments(expr.arguments, scope);
  line_ = expr.line;
  return Value(expr.test(*this, input, arguments));
}

Value Evaluator::call_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const FilterFunction filter = find_filter(name);
  if (filter == nullptr) fail(fmt::format("found the filter '{}', expected one of {}", name, filter_names()));
  meter.step();
  return filter(*this, input, arguments);
}

bool Evaluator::call_test(std::string_view name, const Value& input, const Arguments& arguments) {
  const TestFunction test = find_test(name);
  if (test == nullptr) fail(fmt::format("found the test '{}', expected one of {}", name, test_names()));
  meter.step();
  return test(*this, input, arguments);
}

}  // namespace ktc::text::jinja
