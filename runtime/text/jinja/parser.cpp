#include "runtime/text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/text/jinja/expression_parser.h"

namespace ktc::text::jinja {
namespace {

constexpr std::string_view kTags =
    "if, for, set, macro, call, filter, with, generation, raw, break, continue and their ends";

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Body run() {
    Body body = statements({});
    for (const auto& [name, line] : called_)
      if (!assigned_.contains(name) && !find_global(name))
        throw Failure{
            fmt::format("found the function '{}', expected a macro of this template or one of namespace, range, dict, "
                        "raise_exception, strftime_now",
                        name),
            line};
    return body;
  }

 private:
  static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};

  // Up to a block whose first word is one of `ends` (which is left with its word as the current token), or the end.
  Body statements(std::initializer_list<std::string_view> ends) {
    Nested guard(*this);
    Body body;
    for (;;) {
      switch (now().kind) {
        case TokenKind::end:
          if (ends.size() != 0)
            throw Failure{fmt::format("the template ends inside a block: expected '{{% {} %}}'", *(ends.end() - 1)),
                          now().line};
          return body;
        case TokenKind::data: {
          auto stmt = make(StmtKind::text);
          stmt->text = make_literal(take().text);
          body.push_back(std::move(stmt));
          break;
        }
        case TokenKind::variable_begin: {
          auto stmt = make(StmtKind::output);
          take();
          stmt->expr = tuple();
          if (now().kind != TokenKind::variable_end) unexpected("'}}'");
          take();
          body.push_back(std::move(stmt));
          break;
        }
        case TokenKind::block_begin: {
          take();
          if (now().kind != TokenKind::name) unexpected("a tag");
          if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
          body.push_back(tag());
          break;
        }
        default: unexpected("text or a tag");
      }
    }
  }

  StmtPtr make(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = now().line;
    return stmt;
  }

  StmtPtr tag() {
    const std::string& name = now().text;
    if (name == "if") return if_tag();
    if (name == "for") return for_tag();
    if (name == "set") return set_tag();
    if (name == "macro") return macro_tag();
    if (name == "call") return call_tag();
    if (name == "filter") return filter_tag();
    if (name == "with") return with_tag();
    if (name == "generation") {
      auto stmt = make(StmtKind::scope);
      take();
      end_block();
      stmt->body = inner_body({"endgeneration"});
      close("endgeneration");
      return stmt;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw Failure{fmt::format("found '{}' outside a loop", name), now().line};
      auto stmt = make(name == "break" ? StmtKind::break_ : StmtKind::continue_);
      take();
      end_block();
      return stmt;
    }
    throw Failure{fmt::format("found the tag '{}', expected one of {}", name, kTags), now().line};
  }

  // The body of something that is a function of its own: loop controls do not reach out of it.
  Body inner_body(std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loops_, 0);
    Body body = statements(ends);
    loops_ = loops;
    return body;
  }

  void close(std::string_view word) {
    expect_name(word);
    end_block();
  }

  StmtPtr if_tag() {
    auto stmt = make(StmtKind::if_);
    do {
      take();  // if, elif
      ExprPtr condition = tuple(false);
      end_block();
      Body body = statements({"elif", "else", "endif"});
      stmt->branches.emplace_back(std::move(condition), std::move(body));
    } while (is_name("elif"));
    if (skip_name("else")) {
      end_block();
      stmt->orelse = statements({"endif"});
    }
    close("endif");
    return stmt;
  }

  StmtPtr for_tag() {
    auto stmt = make(StmtKind::for_);
    take();
    stmt->target = target(false);
    expect_name("in");
    stmt->expr = tuple(false);
    if (skip_name("if")) stmt->condition = expression();
    if (is_name("recursive"))
      throw Failure{"found 'recursive', expected a loop that does not call itself; use a macro", now().line};
    end_block();
    ++loops_;
    stmt->body = statements({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      end_block();
      stmt->orelse = statements({"endfor"});
    }
    close("endfor");
    return stmt;
  }

  Target single_target(bool attributes) {
    if (skip_symbol("(")) {
      Nested guard(*this);
      Target inner = target(attributes);
      expect_symbol(")");
      return inner;
    }
    Target result;
    const int line = now().line;
    result.name = take_name("a variable");
    if (std::find(std::begin(kReserved), std::end(kReserved), result.name) != std::end(kReserved))
      throw Failure{fmt::format("found '{}', expected a variable", result.name), line};
    if (attributes && skip_symbol("."))
      result.attribute = take_name("an attribute");
    else
      assigned_.insert(result.name);
    return result;
  }

  Target target(bool attributes) {
    Target first = single_target(attributes);
    if (!is_symbol(",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (skip_symbol(",")) {
      if (now().kind != TokenKind::name && !is_symbol("(")) break;  // a comma at the end
      if (is_name("in")) break;
      all.parts.push_back(single_target(attributes));
    }
    return all;
  }

  StmtPtr set_tag() {
    auto stmt = make(StmtKind::set);
    take();
    stmt->target = target(true);
    if (skip_symbol("=")) {
      stmt->expr = tuple();
      end_block();
      return stmt;
    }
    stmt->kind = StmtKind::set_block;
    if (!stmt->target.parts.empty()) unexpected("'='");
    if (is_symbol("|")) stmt->expr = filters(nullptr);
    end_block();
    stmt->body = inner_body({"endset"});
    close("endset");
    return stmt;
  }

  std::vector<Parameter> signature() {
    std::vector<Parameter> parameters;
    expect_symbol("(");
    while (!skip_symbol(")")) {
      if (!parameters.empty()) expect_symbol(",");
      if (skip_symbol(")")) break;
      Parameter parameter;
      const int line = now().line;
      parameter.name = take_name("a parameter");
      assigned_.insert(parameter.name);
      for (const Parameter& other : parameters)
        if (other.name == parameter.name)
          throw Failure{fmt::format("the parameter '{}' occurs twice", other.name), line};
      if (skip_symbol("="))
        parameter.fallback = expression();
      else if (!parameters.empty() && parameters.back().fallback)
        throw Failure{"a parameter without a default follows one with a default", line};
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  StmtPtr macro_tag() {
    auto stmt = make(StmtKind::macro);
    take();
    stmt->name = take_name("the name of the macro");
    assigned_.insert(stmt->name);
    stmt->parameters = signature();
    end_block();
    ++macros_;
    const bool outer = std::exchange(caller_used_, false);
    stmt->body = inner_body({"endmacro"});
    stmt->uses_caller = std::exchange(caller_used_, outer);
    --macros_;
    close("endmacro");
    return stmt;
  }

  StmtPtr call_tag() {
    auto stmt = make(StmtKind::call_block);
    take();
    if (is_symbol("(")) stmt->parameters = signature();
    stmt->expr = expression();
    if (stmt->expr->kind != ExprKind::call)
      throw Failure{"found another expression, expected the call of a macro", stmt->line};
    end_block();
    stmt->body = inner_body({"endcall"});
    close("endcall");
    return stmt;
  }

  StmtPtr filter_tag() {
    auto stmt = make(StmtKind::filter_block);
    take();
    stmt->expr = filters(nullptr, true);
    end_block();
    stmt->body = inner_body({"endfilter"});
    close("endfilter");
    return stmt;
  }

  StmtPtr with_tag() {
    auto stmt = make(StmtKind::with);
    take();
    while (now().kind != TokenKind::block_end) {
      if (!stmt->assignments.empty()) expect_symbol(",");
      Target name = single_target(false);
      expect_symbol("=");
      stmt->assignments.emplace_back(std::move(name), expression());
    }
    end_block();
    stmt->body = statements({"endwith"});
    close("endwith");
    return stmt;
  }

  int loops_ = 0;
  std::set<std::string> assigned_;  // names that the template gives values
};

}  // namespace

Body parse_template(std::string_view source) {
  return Parser(tokenize(source)).run();
}

}  // namespace ktc::text::jinja
