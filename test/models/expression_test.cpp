// The expression language: values, exact errors with line and column, and that no text makes it fall over.
#include "models/expression.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ktc::models {
namespace {

class Names : public Scope {
 public:
  std::map<std::string, Value, std::less<>> values;
  const Value* find(std::string_view name) const override {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : &it->second;
  }
  std::string explain_absence(std::string_view name) const override { return "no '" + std::string(name) + "'"; }
};

Names names() {
  Names n;
  n.values["a"] = Value{std::int64_t{7}};
  n.values["b"] = Value{std::int64_t{-2}};
  n.values["big"] = Value{INT64_MAX};
  n.values["least"] = Value{INT64_MIN};
  n.values["layer"] = Value{std::int64_t{3}};
  n.values["flag"] = Value{true};
  n.values["eps"] = Value{1e-6};
  n.values["kind"] = Value{std::string("sparse")};
  n.values["list"] = Value{Value::List{Value{std::int64_t{1}}, Value{std::int64_t{3}}}};
  return n;
}

std::string run(std::string_view text) {
  auto e = Expression::parse(text, {"f.yaml", 4, 10});
  if (!e.ok()) return e.status().message();
  auto value = e->evaluate(names());
  return value.ok() ? to_string(*value) : value.status().message();
}

TEST(Expression, Arithmetic) {
  EXPECT_EQ(run("1 + 2 * 3"), "7");
  EXPECT_EQ(run("(1 + 2) * 3"), "9");
  EXPECT_EQ(run("a - 2 - 1"), "4");
  EXPECT_EQ(run("a // 2"), "3");
  EXPECT_EQ(run("-a // 2"), "-4");
  EXPECT_EQ(run("a // b"), "-4");
  EXPECT_EQ(run("-a % 4"), "1");
  EXPECT_EQ(run("a % b"), "-1");
  EXPECT_EQ(run("-(-3)"), "3");
  EXPECT_EQ(run("least % -1"), "0");
}

// // and % agree with each other for every small pair: a == (a // b) * b + a % b, and the remainder has b's sign.
TEST(Expression, DivisionRoundsDown) {
  for (int a = -9; a <= 9; ++a)
    for (int b = -4; b <= 4; ++b) {
      if (b == 0) continue;
      Names n;
      n.values["x"] = Value{std::int64_t{a}};
      n.values["y"] = Value{std::int64_t{b}};
      auto quotient = Expression::parse("x // y", {})->evaluate_integer(n);
      auto remainder = Expression::parse("x % y", {})->evaluate_integer(n);
      ASSERT_TRUE(quotient.ok() && remainder.ok());
      EXPECT_EQ(*quotient * b + *remainder, a);
      EXPECT_TRUE(*remainder == 0 || (*remainder < 0) == (b < 0));
      EXPECT_LT(std::abs(*remainder), std::abs(b));
    }
}

TEST(Expression, LogicAndComparison) {
  EXPECT_EQ(run("layer >= 3 and layer % 2 == 1"), "true");
  EXPECT_EQ(run("not flag or a < b"), "false");
  EXPECT_EQ(run("not a == 7"), "false");
  EXPECT_EQ(run("layer in list"), "true");
  EXPECT_EQ(run("layer not in list"), "false");
  EXPECT_EQ(run("kind == 'sparse'"), "true");
  EXPECT_EQ(run("kind != \"dense\""), "true");
  EXPECT_EQ(run("1 if flag else 2"), "1");
  EXPECT_EQ(run("1 if not flag else 2 if a > 0 else 3"), "2");
  EXPECT_EQ(run("list[1]"), "3");
  EXPECT_EQ(run("list[layer - 3] + 1"), "2");
  EXPECT_EQ(run("eps"), "1e-06");
  EXPECT_EQ(run("1e-6 == eps"), "true");
  EXPECT_EQ(run("true"), "true");
}

TEST(Expression, EvaluatesOnlyWhatIsNeeded) {
  EXPECT_EQ(run("absent if has(absent) else 5"), "5");
  EXPECT_EQ(run("has(a) and has(b)"), "true");
  EXPECT_EQ(run("has(absent) and absent > 2"), "false");
  EXPECT_EQ(run("flag or 1 // 0 == 1"), "true");
  EXPECT_EQ(run("first_of(absent, other, a)"), "7");
}

TEST(Expression, ErrorsPointAtTheColumn) {
  EXPECT_EQ(run("a + absent"), "f.yaml:4:14: no 'absent'");
  EXPECT_EQ(run("first_of(absent, other)"), "f.yaml:4:10: none of these is given: no 'absent'");
  EXPECT_EQ(run("a // 0"), "f.yaml:4:12: division by zero");
  EXPECT_EQ(run("a % (b + 2)"), "f.yaml:4:12: division by zero");
  EXPECT_EQ(run("big + 1"), "f.yaml:4:14: a result beyond 64 bits");
  EXPECT_EQ(run("least // -1"), "f.yaml:4:16: a result beyond 64 bits");
  EXPECT_EQ(run("-least"), "f.yaml:4:10: a result beyond 64 bits");
  EXPECT_EQ(run("big * big"), "f.yaml:4:14: a result beyond 64 bits");
  EXPECT_EQ(run("flag + 1"), "f.yaml:4:15: arithmetic: found true, expected an integer");
  EXPECT_EQ(run("eps * 2"), "f.yaml:4:14: arithmetic: found 1e-06, expected an integer");
  EXPECT_EQ(run("a and flag"), "f.yaml:4:10: a condition: found 7, expected true or false");
  EXPECT_EQ(run("a == flag"),
            "f.yaml:4:12: comparison: found an integer with true or false, expected two values of one kind");
  EXPECT_EQ(run("kind < 'x'"), "f.yaml:4:15: order: found 'sparse', expected integers");
  EXPECT_EQ(run("a in b"), "f.yaml:4:12: membership: found -2, expected a list");
  EXPECT_EQ(run("list[2]"), "f.yaml:4:14: list index: found 2, expected 0 to 1: 'list' has 2 entries");
  EXPECT_EQ(run("list[-1]"), "f.yaml:4:14: list index: found -1, expected 0 to 1: 'list' has 2 entries");
  EXPECT_EQ(run("a[0]"), "f.yaml:4:11: indexed value: found 7, expected a list");
}

TEST(Expression, SyntaxErrors) {
  EXPECT_EQ(run(""), "f.yaml:4:10: expression: found its end, expected a name or a number");
  EXPECT_EQ(run("a +"), "f.yaml:4:13: expression: found its end, expected a name or a number");
  EXPECT_EQ(run("a b"), "f.yaml:4:12: expression: found 'b', expected the end of the expression");
  EXPECT_EQ(run("(a"), "f.yaml:4:12: expression: found its end, expected ')'");
  EXPECT_EQ(run("a if flag"), "f.yaml:4:19: expression: found its end, expected 'else'");
  EXPECT_EQ(run("a / b"), "f.yaml:4:12: '/' is not in the language: divide integers with '//'");
  EXPECT_EQ(run("a < b < 3"), "f.yaml:4:16: comparisons do not chain: join them with 'and'");
  EXPECT_EQ(run("max(a, b)"), "f.yaml:4:10: unknown function: found 'max', expected has or first_of");
  EXPECT_EQ(run("has(1)"), "f.yaml:4:14: expression: found '1', expected a name");
  EXPECT_EQ(run("has(a, b)"), "f.yaml:4:15: expression: found ',', expected ')'");
  EXPECT_EQ(run("a @ b"), "f.yaml:4:12: expression: found the character '@', expected a name, a number or an operator");
  EXPECT_EQ(run("'open"), "f.yaml:4:10: a text without its closing quote");
  EXPECT_EQ(run("99999999999999999999"), "f.yaml:4:10: an integer beyond 64 bits");
  EXPECT_EQ(run("2x"), "f.yaml:4:10: a number that runs into a word");
  EXPECT_EQ(run(std::string(3000, '1')),
            "f.yaml:4:10: expression too long: found 3000 characters, expected at most 2000");
  EXPECT_EQ(run(std::string(200, '(')), "f.yaml:4:74: expression nested too deeply");
  EXPECT_EQ(run(std::string(200, '-')), "f.yaml:4:73: expression nested too deeply");
}

// Random token soup and random bytes: a value or an error at a column inside the text, never a crash.
TEST(Expression, SurvivesAnyText) {
  const char* tokens[] = {"a",   "b",    "layer", "list", "flag", "kind", "absent", "1",  "0",   "2000000000000",
                          "+",   "-",    "*",     "//",   "%",    "==",   "<",      "in", "not", "and",
                          "or",  "if",   "else",  "(",    ")",    "[",    "]",      ",",  "has", "first_of",
                          "'x'", "1e-6", "true"};
  std::mt19937 random(11);
  int values = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text;
    for (std::size_t n = 1 + random() % 9; n > 0; --n) text += std::string(tokens[random() % std::size(tokens)]) + " ";
    auto e = Expression::parse(text, {"f.yaml", 1, 1});
    if (!e.ok()) continue;
    values += e->evaluate(names()).ok();
  }
  EXPECT_GT(values, 1000);  // the soup does contain programs
  for (int round = 0; round < 50'000; ++round) {
    std::string text;
    for (std::size_t n = random() % 20; n > 0; --n) text += static_cast<char>(random() % 256);
    if (auto e = Expression::parse(text, {"f.yaml", 1, 1}); e.ok()) (void)e->evaluate(names());
  }
}

// A long sum is legal and is evaluated without exhausting the stack.
TEST(Expression, LongChains) {
  std::string text = "0";
  for (int i = 0; i < 900; ++i) text += "+1";
  EXPECT_EQ(run(text), "900");
}

}  // namespace
}  // namespace ktc::models
