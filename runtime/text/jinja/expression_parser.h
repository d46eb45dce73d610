// The expression half of the parser, one method per level of precedence; parser.cpp builds the statements on it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/lexer.h"

namespace ktc::text::jinja {

class ExpressionParser {
 protected:
  static constexpr int kMaxParse = 100;  // constructs inside each other
  static constexpr int kMaxTree = 200;   // operators above each other

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // ---- tokens
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is_symbol(std::string_view s) const { return now().kind == TokenKind::symbol && now().text == s; }
  bool is_name(std::string_view s) const { return now().kind == TokenKind::name && now().text == s; }
  Token take() {
    Token token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_symbol(std::string_view s) { return is_symbol(s) ? (take(), true) : false; }
  bool skip_name(std::string_view s) { return is_name(s) ? (take(), true) : false; }
  [[noreturn]] void unexpected(std::string_view expected) {
    throw Failure{fmt::format("found {}, expected {}", describe(now()), expected), now().line};
  }
  void expect_symbol(std::string_view s) {
    if (!skip_symbol(s)) unexpected(fmt::format("'{}'", s));
  }
  void expect_name(std::string_view s) {
    if (!skip_name(s)) unexpected(fmt::format("'{}'", s));
  }
  std::string take_name(std::string_view what) {
    if (now().kind != TokenKind::name) unexpected(what);
    return take().text;
  }
  void end_block() {
    if (now().kind != TokenKind::block_end) unexpected("'%}'");
    take();
  }

  struct Nested {
    explicit Nested(ExpressionParser& p) : parser(p) {
      if (++parser.nested_ > kMaxParse)
        throw Failure{fmt::format("constructs are nested more than {} deep", kMaxParse), parser.now().line};
    }
    ~Nested() { --parser.nested_; }
    ExpressionParser& parser;
  };

  // ---- expressions, from the loosest to the tightest
  ExprPtr node(ExprKind kind, int line) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }

  // Every node passes here once its operands are in.
  ExprPtr done(ExprPtr expr) const {
    int depth = 0;
    for (const ExprPtr& operand : expr->operands)
      if (operand) depth = std::max(depth, operand->depth);
    for (const ExprPtr& argument : expr->arguments.positional) depth = std::max(depth, argument->depth);
    for (const auto& argument : expr->arguments.keywords) depth = std::max(depth, argument.second->depth);
    expr->depth = depth + 1;
    if (expr->depth > kMaxTree)
      throw Failure{fmt::format("an expression has more than {} operators above each other", kMaxTree), expr->line};
    return expr;
  }

  ExprPtr tuple(bool conditional = true) {
    const int line = now().line;
    ExprPtr first = conditional ? expression() : or_expression();
    if (!is_symbol(",")) return first;
    ExprPtr all = node(ExprKind::tuple, line);
    all->operands.push_back(std::move(first));
    while (skip_symbol(",")) {
      if (now().kind == TokenKind::variable_end || now().kind == TokenKind::block_end || is_symbol(")")) break;
      all->operands.push_back(conditional ? expression() : or_expression());
    }
    return done(std::move(all));
  }

  ExprPtr expression() {
    Nested guard(*this);
    const int line = now().line;
    ExprPtr value = or_expression();
    while (skip_name("if")) {
      ExprPtr choice = node(ExprKind::conditional, line);
      choice->operands.push_back(or_expression());
      choice->operands.push_back(std::move(value));
      choice->operands.push_back(skip_name("else") ? expression() : nullptr);
      value = done(std::move(choice));
    }
    return value;
  }

  template <typename Next>
  ExprPtr logical(ExprKind kind, std::string_view word, Next next) {
    const int line = now().line;
    ExprPtr left = (this->*next)();
    while (skip_name(word)) {
      ExprPtr both = node(kind, line);
      both->operands.push_back(std::move(left));
      both->operands.push_back((this->*next)());
      left = done(std::move(both));
    }
    return left;
  }
  ExprPtr or_expression() { return logical(ExprKind::logical_or, "or", &ExpressionParser::and_expression); }
  ExprPtr and_expression() { return logical(ExprKind::logical_and, "and", &ExpressionParser::not_expression); }

  ExprPtr not_expression() {
    if (!is_name("not")) return comparison();
    Nested guard(*this);
    ExprPtr expr = node(ExprKind::logical_not, now().line);
    take();
    expr->operands.push_back(not_expression());
    return done(std::move(expr));
  }

  bool comparison_op(Op& op) {
    constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::equal},  {"!=", Op::not_equal},
                                                        {"<", Op::less},    {"<=", Op::less_equal},
                                                        {">", Op::greater}, {">=", Op::greater_equal}};
    for (const auto& [symbol, value] : kOps)
      if (skip_symbol(symbol)) return op = value, true;
    if (skip_name("in")) return op = Op::in, true;
    if (is_name("not") && after().kind == TokenKind::name && after().text == "in") {
      take();
      take();
      return op = Op::not_in, true;
    }
    return false;
  }

  ExprPtr comparison() {
    const int line = now().line;
    ExprPtr first = sum();
    Op op;
    if (!comparison_op(op)) return first;
    ExprPtr chain = node(ExprKind::compare, line);
    chain->operands.push_back(std::move(first));
    do {
      chain->ops.push_back(op);
      chain->operands.push_back(sum());
    } while (comparison_op(op));
    return done(std::move(chain));
  }

  template <typename Next>
  ExprPtr binary(std::initializer_list<std::pair<std::string_view, Op>> ops, Next next) {
    ExprPtr left = (this->*next)();
    for (;;) {
      const auto op = std::find_if(ops.begin(), ops.end(), [this](const auto& o) { return is_symbol(o.first); });
      if (op == ops.end()) return left;
      ExprPtr expr = node(ExprKind::binary, take().line);
      expr->op = op->second;
      expr->operands.push_back(std::move(left));
      expr->operands.push_back((this->*next)());
      left = done(std::move(expr));
    }
  }
  ExprPtr sum() { return binary({{"+", Op::add}, {"-", Op::subtract}}, &ExpressionParser::concatenation); }
  ExprPtr product() {
    return binary({{"*", Op::multiply}, {"/", Op::divide}, {"//", Op::floor_divide}, {"%", Op::modulo}},
                  &ExpressionParser::power);
  }
  ExprPtr power() { return binary({{"**", Op::power}}, &ExpressionParser::unary); }

  ExprPtr concatenation() {
    const int line = now().line;
    ExprPtr first = product();
    if (!is_symbol("~")) return first;
    ExprPtr all = node(ExprKind::concat, line);
    all->operands.push_back(std::move(first));
    while (skip_symbol("~")) all->operands.push_back(product());
    return done(std::move(all));
  }

  ExprPtr unary() { return signed_value(true); }

  ExprPtr signed_value(bool with_filters) {
    ExprPtr value;
    if (is_symbol("-") || is_symbol("+")) {
      Nested guard(*this);
      value = node(ExprKind::unary, now().line);
      value->op = take().text == "-" ? Op::negate : Op::plus;
      value->operands.push_back(signed_value(false));
      value = done(std::move(value));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
  }

  ExprPtr constant(Value value, int line) const {
    ExprPtr expr = node(ExprKind::constant, line);
    expr->value = std::move(value);
    return expr;
  }

  ExprPtr primary() {
    const Token token = now();
    switch (token.kind) {
      case TokenKind::name: {
        take();
        if (token.text == "true" || token.text == "True") return constant(Value(true), token.line);
        if (token.text == "false" || token.text == "False") return constant(Value(false), token.line);
        if (token.text == "none" || token.text == "None") return constant(Value(None{}), token.line);
        if (macros_ > 0 && (token.text == "varargs" || token.text == "kwargs"))
          throw Failure{fmt::format("found '{}', expected named parameters", token.text), token.line};
        if (token.text == "caller") caller_used_ = true;
        ExprPtr expr = node(ExprKind::name, token.line);
        expr->name = token.text;
        return expr;
      }
      case TokenKind::string: {
        std::string text = take().text;
        while (now().kind == TokenKind::string) text += take().text;
        return constant(make_literal(std::move(text)), token.line);
      }
      case TokenKind::integer: take(); return constant(Value(token.integer), token.line);
      case TokenKind::real: take(); return constant(Value(token.real), token.line);
      case TokenKind::symbol:
        if (token.text == "(") return parentheses();
        if (token.text == "[") return sequence(ExprKind::list, "[", "]");
        if (token.text == "{") return dictionary();
        break;
      default: break;
    }
    unexpected("an expression");
  }

  ExprPtr parentheses() {
    const int line = take().line;
    if (skip_symbol(")")) return done(node(ExprKind::tuple, line));
    ExprPtr inner = tuple();
    expect_symbol(")");
    return inner;
  }

  ExprPtr sequence(ExprKind kind, std::string_view open, std::string_view close) {
    ExprPtr expr = node(kind, now().line);
    expect_symbol(open);
    while (!skip_symbol(close)) {
      if (!expr->operands.empty()) expect_symbol(",");
      if (skip_symbol(close)) break;
      expr->operands.push_back(expression());
    }
    return done(std::move(expr));
  }

  ExprPtr dictionary() {
    ExprPtr expr = node(ExprKind::dict, now().line);
    expect_symbol("{");
    while (!skip_symbol("}")) {
      if (!expr->operands.empty()) expect_symbol(",");
      if (skip_symbol("}")) break;
      expr->operands.push_back(expression());
      expect_symbol(":");
      expr->operands.push_back(expression());
    }
    return done(std::move(expr));
  }

  ExprPtr postfix(ExprPtr value) {
    for (;;) {
      if (is_symbol(".") || is_symbol("["))
        value = subscript(std::move(value));
      else if (is_symbol("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  ExprPtr subscript(ExprPtr value) {
    const int line = now().line;
    if (skip_symbol(".")) {
      if (now().kind == TokenKind::integer) {
        ExprPtr expr = node(ExprKind::item, line);
        const Token index = take();
        expr->operands.push_back(std::move(value));
        expr->operands.push_back(constant(Value(index.integer), line));
        return done(std::move(expr));
      }
      ExprPtr expr = node(ExprKind::attribute, line);
      expr->name = take_name("an attribute");
      expr->operands.push_back(std::move(value));
      return done(std::move(expr));
    }
    expect_symbol("[");
    ExprPtr begin;
    if (!is_symbol(":")) {
      begin = expression();
      if (skip_symbol("]")) {
        ExprPtr expr = node(ExprKind::item, line);
        expr->operands.push_back(std::move(value));
        expr->operands.push_back(std::move(begin));
        return done(std::move(expr));
      }
    }
    if (!is_symbol(":")) unexpected("']' or ':'");
    ExprPtr expr = node(ExprKind::slice, line);
    expr->operands.push_back(std::move(value));
    expr->operands.push_back(std::move(begin));
    for (int i = 0; i < 2; ++i)
      expr->operands.push_back(skip_symbol(":") && !is_symbol(":") && !is_symbol("]") ? expression() : nullptr);
    expect_symbol("]");
    return done(std::move(expr));
  }

  CallArguments call_arguments() {
    CallArguments arguments;
    expect_symbol("(");
    bool any = false;
    while (!skip_symbol(")")) {
      if (any) expect_symbol(",");
      if (skip_symbol(")")) break;
      any = true;
      if (is_symbol("*") || is_symbol("**")) unexpected("arguments that are written out");
      if (now().kind == TokenKind::name && after().kind == TokenKind::symbol && after().text == "=") {
        std::string name = take().text;
        take();
        for (const auto& other : arguments.keywords)
          if (other.first == name) throw Failure{fmt::format("the argument '{}' occurs twice", name), now().line};
        arguments.keywords.emplace_back(std::move(name), expression());
      } else {
        if (!arguments.keywords.empty()) unexpected("an argument with a name, as the one before it has one");
        arguments.positional.push_back(expression());
      }
    }
    return arguments;
  }

  ExprPtr call(ExprPtr callee) {
    ExprPtr expr = node(ExprKind::call, now().line);
    if (callee->kind == ExprKind::attribute && !is_method(callee->name))
      throw Failure{fmt::format("found the method '{}', expected one of {}", callee->name, method_names()), expr->line};
    if (callee->kind == ExprKind::name && callee->name != "caller") called_.emplace_back(callee->name, expr->line);
    expr->operands.push_back(std::move(callee));
    expr->arguments = call_arguments();
    return done(std::move(expr));
  }

  ExprPtr filters_and_tests(ExprPtr value) {
    for (;;) {
      if (is_symbol("|"))
        value = filters(std::move(value));
      else if (is_name("is"))
        value = test(std::move(value));
      else if (is_symbol("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  // A name that a filter such as map or select gets as a string is checked like any other.
  void check_names(const Expr& filter) const {
    auto name_at = [&](std::size_t i) -> const Text* {
      const auto& arguments = filter.arguments.positional;
      return i < arguments.size() && arguments[i]->kind == ExprKind::constant ? arguments[i]->value.text() : nullptr;
    };
    if (filter.name == "map") {
      if (const Text* name = name_at(0); name != nullptr && find_filter(name->bytes) == nullptr)
        unknown_filter(name->bytes, filter.line);
    } else if (filter.name == "select" || filter.name == "reject") {
      if (const Text* name = name_at(0); name != nullptr && find_test(name->bytes) == nullptr)
        unknown_test(name->bytes, filter.line);
    } else if (filter.name == "selectattr" || filter.name == "rejectattr") {
      if (const Text* name = name_at(1); name != nullptr && find_test(name->bytes) == nullptr)
        unknown_test(name->bytes, filter.line);
    }
  }
  [[noreturn]] static void unknown_filter(std::string_view name, int line) {
    throw Failure{fmt::format("found the filter '{}', expected one of {}", name, filter_names()), line};
  }
  [[noreturn]] static void unknown_test(std::string_view name, int line) {
    throw Failure{fmt::format("found the test '{}', expected one of {}", name, test_names()), line};
  }

  // One filter or more; `inside_tag`: the first one has no bar.
  ExprPtr filters(ExprPtr value, bool inside_tag = false) {
    while (inside_tag || is_symbol("|")) {
      if (!inside_tag) take();
      inside_tag = false;
      ExprPtr expr = node(ExprKind::filter, now().line);
      expr->name = take_name("a filter");
      expr->filter = find_filter(expr->name);
      if (expr->filter == nullptr) unknown_filter(expr->name, expr->line);
      expr->operands.push_back(std::move(value));
      if (is_symbol("(")) expr->arguments = call_arguments();
      check_names(*expr);
      value = done(std::move(expr));
    }
    return value;
  }

  ExprPtr test(ExprPtr value) {
    ExprPtr expr = node(ExprKind::test, now().line);
    take();
    const bool negated = skip_name("not");
    expr->name = take_name("a test");
    expr->test = find_test(expr->name);
    if (expr->test == nullptr) unknown_test(expr->name, expr->line);
    expr->operands.push_back(std::move(value));
    if (is_symbol("(")) {
      expr->arguments = call_arguments();
    } else if (starts_argument()) {
      if (is_name("is")) throw Failure{"tests with 'is' cannot follow each other; use 'and'", now().line};
      expr->arguments.positional.push_back(postfix(primary()));
    }
    expr = done(std::move(expr));
    if (!negated) return expr;
    ExprPtr opposite = node(ExprKind::logical_not, expr->line);
    opposite->operands.push_back(std::move(expr));
    return done(std::move(opposite));
  }

  bool starts_argument() const {
    switch (now().kind) {
      case TokenKind::name: return !is_name("else") && !is_name("or") && !is_name("and");
      case TokenKind::string:
      case TokenKind::integer:
      case TokenKind::real: return true;
      default: return is_symbol("[") || is_symbol("{");
    }
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nested_ = 0;
  int macros_ = 0;                                   // definitions around the current token
  bool caller_used_ = false;                         // in the current macro
  std::vector<std::pair<std::string, int>> called_;  // names that the template calls, with lines
};

}  // namespace ktc::text::jinja
