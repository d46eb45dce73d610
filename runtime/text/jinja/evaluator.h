// Runs a parsed template on variables. One evaluator per render, one thread.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/value.h"

namespace ktc::text::jinja {

// Variables of one frame; looked up outwards. A frame is alive as long as any value can refer to it: macros and loops
// are kept out of containers, so they never leave the frame that they were made in.
struct Scope {
  explicit Scope(Scope* outer) : parent(outer) {}
  const Value* find(std::string_view name, std::size_t* looked_at = nullptr) const;  // null: nowhere
  void set(std::string_view name, Value value);
  Scope* const parent;
  std::vector<std::pair<std::string_view, Value>> variables;  // names belong to the tree or to the caller
};

struct Macro {
  const std::string& name;
  const std::vector<Parameter>& parameters;
  const Body& body;
  bool uses_caller;
  Scope* scope;  // where it was defined
};

struct LoopState {
  const std::vector<Value>& items;
  std::size_t index;
  std::optional<Value> changed;  // the arguments of the last loop.changed()
};
Value loop_attribute(const LoopState& loop, std::string_view name);

class Evaluator {
 public:
  Evaluator(Meter& meter_in, std::chrono::system_clock::time_point now_in) : meter(meter_in), now(now_in) {}

  // The whole output. Throws Failure with a line.
  TextPtr render(const Body& body, Scope& globals);

  Value call_filter(std::string_view name, const Value& input, const Arguments& arguments);  // fails for unknown names
  bool call_test(std::string_view name, const Value& input, const Arguments& arguments);

  Meter& meter;
  const std::chrono::system_clock::time_point now;  // of strftime_now

 private:
  enum class Flow : std::uint8_t { next, break_, continue_ };
  struct Depth;

  Flow run(const Body& body, Scope& scope, TextBuilder& out);
  Flow run_one(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Flow run_if(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Flow run_for(const Stmt& stmt, Scope& scope, TextBuilder& out);
  void run_macro(const Stmt& stmt, Scope& scope);
  void run_call_block(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Flow run_with(const Stmt& stmt, Scope& scope, TextBuilder& out);
  TextPtr run_aside(const Body& body, Scope& outer);  // in a scope and a buffer of its own
  void assign(const Target& target, Value value, Scope& scope);

  Value eval(const Expr& expr, Scope& scope);
  Value eval_name(const Expr& expr, Scope& scope);
  Value eval_collection(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_concat(const Expr& expr, Scope& scope);
  Value eval_access(const Expr& expr, Scope& scope);
  Value eval_call(const Expr& expr, Scope& scope, const Macro* caller);
  Value eval_filter(const Expr& expr, Scope& scope, const Value* block);
  Value eval_test(const Expr& expr, Scope& scope);
  Arguments eval_arguments(const CallArguments& arguments, Scope& scope);
  Value call_macro(const Macro& macro, const Arguments& arguments, const Macro* caller);

  std::deque<Macro> macros_;
  int depth_ = 0;
  int line_ = 0;
};

}  // namespace ktc::text::jinja
