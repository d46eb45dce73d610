// From the text of an expression to its tree; expression.cpp evaluates it.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "models/expression.h"

namespace ktc::models {

namespace {
constexpr std::size_t kMaxText = 2000;
constexpr int kMaxDepth = 64;
}  // namespace

// Recursive descent, one function per level of precedence; depth is bounded where a level can contain itself.
class ExpressionParser {
 public:
  explicit ExpressionParser(Expression* expression) : e_(*expression), text_(expression->text_) {}

  Status parse() {
    KTC_RETURN_IF_ERROR(next());
    KTC_ASSIGN_OR_RETURN(auto root, conditional());
    if (kind_ != Kind::end) return unexpected("the end of the expression");
    if (root + 1 != e_.nodes_.size()) return error(0, "internal error in an expression");  // the root is built last
    return Status();
  }

 private:
  using Op = Expression::Op;
  using Result = Expected<std::uint32_t>;
  enum class Kind { end, number, text, word, symbol };

  Status error(int offset, std::string what) const { return e_.error(offset, std::move(what), {}, {}); }
  Status unexpected(std::string expected) const {
    return e_.error(offset_, "expression", kind_ == Kind::end ? "its end" : "'" + token_ + "'", std::move(expected));
  }

  Status next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
    offset_ = static_cast<int>(at_);
    if (at_ == text_.size()) {
      kind_ = Kind::end;
      token_.clear();
      return Status();
    }
    const char c = text_[at_];
    if (c >= '0' && c <= '9') return number();
    if (is_letter(c)) {
      std::size_t end = at_;
      while (end < text_.size() && (is_letter(text_[end]) || (text_[end] >= '0' && text_[end] <= '9'))) ++end;
      return take(Kind::word, end - at_);
    }
    if (c == '\'' || c == '"') {
      const std::size_t end = text_.find(c, at_ + 1);
      if (end == std::string::npos) return error(offset_, "a text without its closing quote");
      token_ = text_.substr(at_ + 1, end - at_ - 1);
      kind_ = Kind::text;
      at_ = end + 1;
      return Status();
    }
    for (std::string_view symbol : {"//", "==", "!=", "<=", ">="})
      if (std::string_view(text_).substr(at_).starts_with(symbol)) return take(Kind::symbol, 2);
    if (std::string_view("+-*%<>()[],").find(c) != std::string_view::npos) return take(Kind::symbol, 1);
    if (c == '/') return error(offset_, "'/' is not in the language: divide integers with '//'");
    return e_.error(offset_, "expression", "the character '" + std::string(1, c) + "'",
                    "a name, a number or an operator");
  }

  Status number() {
    std::int64_t integer = 0;
    const char* first = text_.data() + at_;
    const char* last = text_.data() + text_.size();
    const auto whole = std::from_chars(first, last, integer);
    const char* end = whole.ptr;
    value_.data = integer;
    if (end < last && (*end == '.' || *end == 'e' || *end == 'E')) {
      double real = 0;
      const auto result = std::from_chars(first, last, real);
      if (result.ec != std::errc() || !std::isfinite(real))
        return error(offset_, "a number that cannot be represented");
      end = result.ptr;
      value_.data = real;
    } else if (whole.ec != std::errc()) {
      return error(offset_, "an integer beyond 64 bits");
    }
    if (end < last && is_letter(*end)) return error(offset_, "a number that runs into a word");
    return take(Kind::number, static_cast<std::size_t>(end - first));
  }

  Status take(Kind kind, std::size_t length) {
    kind_ = kind;
    token_ = text_.substr(at_, length);
    at_ += length;
    return Status();
  }

  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
  bool is(std::string_view token) const { return (kind_ == Kind::word || kind_ == Kind::symbol) && token_ == token; }

  Status expect(std::string_view token) {
    if (!is(token)) return unexpected("'" + std::string(token) + "'");
    return next();
  }

  std::uint32_t add(Op op, int offset, std::vector<std::uint32_t> operands) {
    e_.nodes_.push_back({op, offset, {}, {}, std::move(operands)});
    return static_cast<std::uint32_t>(e_.nodes_.size() - 1);
  }

  // A if C else B
  Result conditional() {
    if (++depth_ > kMaxDepth) return error(offset_, "expression nested too deeply");
    KTC_ASSIGN_OR_RETURN(std::uint32_t value, disjunction());
    if (is("if")) {
      const int offset = offset_;
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t condition, disjunction());
      KTC_RETURN_IF_ERROR(expect("else"));
      KTC_ASSIGN_OR_RETURN(std::uint32_t otherwise, conditional());
      value = add(Op::choose, offset, {condition, value, otherwise});
    }
    --depth_;
    return value;
  }

  Result disjunction() {
    KTC_ASSIGN_OR_RETURN(std::uint32_t left, conjunction());
    while (is("or")) {
      const int offset = offset_;
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t right, conjunction());
      left = add(Op::logical_or, offset, {left, right});
    }
    return left;
  }

  Result conjunction() {
    KTC_ASSIGN_OR_RETURN(std::uint32_t left, negation());
    while (is("and")) {
      const int offset = offset_;
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t right, negation());
      left = add(Op::logical_and, offset, {left, right});
    }
    return left;
  }

  Result negation() {
    if (!is("not")) return comparison();
    if (++depth_ > kMaxDepth) return error(offset_, "expression nested too deeply");
    const int offset = offset_;
    KTC_RETURN_IF_ERROR(next());
    KTC_ASSIGN_OR_RETURN(std::uint32_t operand, negation());
    --depth_;
    return add(Op::logical_not, offset, {operand});
  }

  Result comparison() {
    KTC_ASSIGN_OR_RETURN(std::uint32_t left, sum());
    const int offset = offset_;
    Op op;
    if (is("=="))
      op = Op::equal;
    else if (is("!="))
      op = Op::not_equal;
    else if (is("<="))
      op = Op::less_equal;
    else if (is(">="))
      op = Op::greater_equal;
    else if (is("<"))
      op = Op::less;
    else if (is(">"))
      op = Op::greater;
    else if (is("in"))
      op = Op::in;
    else if (is("not"))
      op = Op::not_in;
    else
      return left;
    KTC_RETURN_IF_ERROR(next());
    if (op == Op::not_in) KTC_RETURN_IF_ERROR(expect("in"));
    KTC_ASSIGN_OR_RETURN(std::uint32_t right, sum());
    const std::uint32_t node = add(op, offset, {left, right});
    for (std::string_view again : {"==", "!=", "<=", ">=", "<", ">", "in", "not"})
      if (is(again)) return error(offset_, "comparisons do not chain: join them with 'and'");
    return node;
  }

  Result sum() {
    KTC_ASSIGN_OR_RETURN(std::uint32_t left, product());
    while (is("+") || is("-")) {
      const Op op = is("+") ? Op::add : Op::subtract;
      const int offset = offset_;
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t right, product());
      left = add(op, offset, {left, right});
    }
    return left;
  }

  Result product() {
    KTC_ASSIGN_OR_RETURN(std::uint32_t left, unary());
    while (is("*") || is("//") || is("%")) {
      const Op op = is("*") ? Op::multiply : is("//") ? Op::divide : Op::modulo;
      const int offset = offset_;
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t right, unary());
      left = add(op, offset, {left, right});
    }
    return left;
  }

  Result unary() {
    if (!is("-")) return indexed();
    if (++depth_ > kMaxDepth) return error(offset_, "expression nested too deeply");
    const int offset = offset_;
    KTC_RETURN_IF_ERROR(next());
    KTC_ASSIGN_OR_RETURN(std::uint32_t operand, unary());
    --depth_;
    return add(Op::negate, offset, {operand});
  }

  Result indexed() {
    KTC_ASSIGN_OR_RETURN(std::uint32_t value, primary());
    while (is("[")) {
      const int offset = offset_;
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t index, conditional());
      KTC_RETURN_IF_ERROR(expect("]"));
      value = add(Op::index, offset, {value, index});
    }
    return value;
  }

  Result primary() {
    const int offset = offset_;
    if (kind_ == Kind::number || kind_ == Kind::text || is("true") || is("false")) {
      const std::uint32_t node = add(Op::literal, offset, {});
      if (kind_ == Kind::number)
        e_.nodes_[node].value = value_;
      else if (kind_ == Kind::text)
        e_.nodes_[node].value.data = token_;
      else
        e_.nodes_[node].value.data = is("true");
      KTC_RETURN_IF_ERROR(next());
      return node;
    }
    if (is("(")) {
      KTC_RETURN_IF_ERROR(next());
      KTC_ASSIGN_OR_RETURN(std::uint32_t value, conditional());
      KTC_RETURN_IF_ERROR(expect(")"));
      return value;
    }
    const bool is_has = is("has"), is_first = is("first_of");
    if (is_has || is_first) {
      KTC_RETURN_IF_ERROR(next());
      KTC_RETURN_IF_ERROR(expect("("));
      std::vector<std::uint32_t> operands;
      std::string first;
      do {
        if (!operands.empty()) KTC_RETURN_IF_ERROR(next());  // the comma
        if (kind_ != Kind::word || is_reserved(token_)) return unexpected("a name");
        first = operands.empty() ? token_ : first;
        operands.push_back(add_name());
        KTC_RETURN_IF_ERROR(next());
      } while (is_first && is(","));
      KTC_RETURN_IF_ERROR(expect(")"));
      const std::uint32_t node = add(is_has ? Op::has : Op::first_of, offset, std::move(operands));
      e_.nodes_[node].name = first;
      return node;
    }
    if (kind_ != Kind::word || is_reserved(token_)) return unexpected("a name or a number");
    const std::uint32_t node = add_name();
    KTC_RETURN_IF_ERROR(next());
    if (is("(")) return e_.error(offset, "unknown function", "'" + e_.nodes_[node].name + "'", "has or first_of");
    return node;
  }

  std::uint32_t add_name() {
    e_.names_.push_back({token_, offset_});
    const std::uint32_t node = add(Op::name, offset_, {});
    e_.nodes_[node].name = token_;
    return node;
  }

  static bool is_reserved(std::string_view word) {
    for (std::string_view reserved : {"and", "or", "not", "in", "if", "else", "true", "false", "has", "first_of"})
      if (word == reserved) return true;
    return false;
  }

  Expression& e_;
  const std::string& text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  Kind kind_ = Kind::end;  // of the current token
  std::string token_;
  Value value_;  // of a number
  int offset_ = 0;
};

Expected<Expression> Expression::parse(std::string_view text, const yaml::Position& start) {
  Expression expression;
  expression.text_ = text;
  expression.start_ = start;
  if (text.size() > kMaxText)
    return expression.error(0, "expression too long", fmt::format("{} characters", text.size()),
                            fmt::format("at most {}", kMaxText));
  KTC_RETURN_IF_ERROR(ExpressionParser(&expression).parse());
  return expression;
}

Expected<Expression> Expression::parse(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(std::string text, node.string());
  yaml::Position start = node.position();
  if (!node.is_plain()) ++start.column;  // behind the opening quote
  return parse(text, start);
}

Expression Expression::constant(Value value, const yaml::Position& start) {
  Expression expression;
  expression.start_ = start;
  expression.nodes_.push_back({Op::literal, 0, std::move(value), {}, {}});
  return expression;
}

}  // namespace ktc::models
