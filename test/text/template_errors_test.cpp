// What a template that cannot be run says, where templates are looked for, and what hostile ones can do.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/text/chat_template.h"
#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

std::string load_error(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source, "t.jinja");
  EXPECT_TRUE(parsed.ok() || parsed.status().code() == StatusCode::unsupported);
  return parsed.ok() ? "" : parsed.status().message();
}

Conversation hello() {
  Conversation c;
  c.messages = {{{"role", "user"}, {"content", "hello"}}};
  return c;
}

Status render_status(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source, "t.jinja");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->render(hello()).status();
}
std::string render_error(const std::string& source) {
  return render_status(source).message();
}

TEST(TemplateErrors, UnsupportedConstructsNameTheirLine) {
  constexpr const char* kTags =
      "expected one of if, for, set, macro, call, filter, with, generation, raw, break, continue and their ends";
  EXPECT_EQ(load_error("a\n{% include 'x' %}"), std::string("t.jinja:2: found the tag 'include', ") + kTags);
  EXPECT_EQ(load_error("{% block b %}{% endblock %}"), std::string("t.jinja:1: found the tag 'block', ") + kTags);
  EXPECT_EQ(load_error("{% if true %}\n\n{% do x %}{% endif %}"),
            std::string("t.jinja:3: found the tag 'do', ") + kTags);
  EXPECT_EQ(load_error("\n\n{{ x | nosuch }}"),
            "t.jinja:3: found the filter 'nosuch', expected one of abs, capitalize, count, d, default, dictsort, "
            "first, float, indent, "
            "int, items, join, last, length, list, lower, map, max, min, reject, rejectattr, replace, reverse, round, "
            "safe, select, "
            "selectattr, sort, string, sum, title, tojson, trim, unique, upper");
  EXPECT_TRUE(load_error("{{ x is nosuch }}")
                  .starts_with("t.jinja:1: found the test 'nosuch', expected one of boolean, callable, "));
  EXPECT_TRUE(
      load_error("{{ x | map('nosuch') }}").starts_with("t.jinja:1: found the filter 'nosuch', expected one of "));
  EXPECT_TRUE(load_error("{{ x | selectattr('a', 'nosuch') }}")
                  .starts_with("t.jinja:1: found the test 'nosuch', expected one of "));
  EXPECT_TRUE(load_error("{{ x.append(1) }}")
                  .starts_with("t.jinja:1: found the method 'append', expected one of capitalize, "));
  EXPECT_EQ(
      load_error("{{ lipsum() }}"),
      "t.jinja:1: found the function 'lipsum', expected a macro of this template or one of namespace, range, dict, "
      "raise_exception, strftime_now");
  EXPECT_EQ(load_error("{{ f(*x) }}"), "t.jinja:1: found '*', expected arguments that are written out");
  EXPECT_EQ(load_error("{% for x in y recursive %}{% endfor %}"),
            "t.jinja:1: found 'recursive', expected a loop that does not call itself; use a macro");
  EXPECT_EQ(load_error("{% macro m() %}{{ kwargs }}{% endmacro %}"),
            "t.jinja:1: found 'kwargs', expected named parameters");
}

TEST(TemplateErrors, Syntax) {
  EXPECT_EQ(load_error("{{ 'a' "), "t.jinja:1: the template ends inside a tag: expected '}}'");
  EXPECT_EQ(load_error("{% if x"), "t.jinja:1: the template ends inside a tag: expected '%}'");
  EXPECT_EQ(load_error("a\n{% if x %}\nb"), "t.jinja:3: the template ends inside a block: expected '{% endif %}'");
  EXPECT_EQ(load_error("{% for x in y %}"), "t.jinja:1: the template ends inside a block: expected '{% endfor %}'");
  EXPECT_EQ(load_error("a\n{# b"), "t.jinja:2: a comment is not closed: expected '#}'");
  EXPECT_EQ(load_error("{% raw %}{{ x }}"), "t.jinja:1: a raw block is not closed: expected {% endraw %}");
  EXPECT_EQ(load_error("{{ 'a\n }}"), "t.jinja:1: a string is not closed");
  EXPECT_EQ(load_error("{{ (1 }}"), "t.jinja:1: found '}', expected ')'");
  EXPECT_EQ(load_error("{{ 1) }}"), "t.jinja:1: found ')' without its opening bracket");
  EXPECT_EQ(load_error("{{ 1 2 }}"), "t.jinja:1: found 2, expected '}}'");
  EXPECT_EQ(load_error("{{ }}"), "t.jinja:1: found '}}', expected an expression");
  EXPECT_EQ(load_error("{{ a ! b }}"), "t.jinja:1: found the character '!', expected an expression");
  EXPECT_EQ(load_error("{% endif %}"),
            "t.jinja:1: found the tag 'endif', expected one of if, for, set, macro, call, filter, with, generation, "
            "raw, break, continue and their ends");
  EXPECT_EQ(load_error("{% break %}"), "t.jinja:1: found 'break' outside a loop");
  EXPECT_EQ(load_error("{% set none = 1 %}"), "t.jinja:1: found 'none', expected a variable");
  EXPECT_EQ(load_error("{{ 99999999999999999999 }}"),
            "t.jinja:1: the number 99999999999999999999 is out of range or malformed");
  EXPECT_EQ(load_error("{{ 'a' is string is string }}"),
            "t.jinja:1: tests with 'is' cannot follow each other; use 'and'");
  EXPECT_EQ(load_error("{{ '\\N{BULLET}' }}"),
            "t.jinja:1: \\N{...} in a string is not supported; write the character itself");
}

TEST(TemplateErrors, NotUtf8) {
  const auto parsed = ChatTemplate::parse("a\xFFz", "t.jinja");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().message(), "t.jinja: byte 1: found 0xFF, expected valid UTF-8");
}

TEST(TemplateErrors, WhileRendering) {
  EXPECT_EQ(render_error("a\n{{ raise_exception('no ' ~ messages[0].role) }}"),
            "t.jinja:2: the template refuses the conversation: found \"no user\"");
  EXPECT_EQ(render_error("\n{{ missing.x }}"), "t.jinja:2: 'missing' is undefined");
  EXPECT_EQ(render_error("{{ messages[0].x.y }}"), "t.jinja:1: 'dict object' has no attribute 'x'");
  EXPECT_EQ(render_error("{{ messages[7].role }}"), "t.jinja:1: 'list object' has no element 7");
  EXPECT_EQ(render_error("{{ 'a' + 1 }}"), "t.jinja:1: unsupported operand types for +: 'str' and 'int'");
  EXPECT_EQ(render_error("{{ messages[0].content\n + none }}"),
            "t.jinja:2: unsupported operand types for +: 'str' and 'NoneType'");
  EXPECT_EQ(render_error("{{ 1 < 'a' }}"), "t.jinja:1: '<' not supported between instances of 'int' and 'str'");
  EXPECT_EQ(render_error("{% for a, b in [[1]] %}{% endfor %}"), "t.jinja:1: 1 values to unpack, expected 2");
  EXPECT_EQ(render_error("{% for a in 5 %}{% endfor %}"), "t.jinja:1: 'int' object is not iterable");
  EXPECT_EQ(render_error("{{ 1 // 0 }}"), "t.jinja:1: division by zero");
  EXPECT_EQ(render_error("{{ messages | map('upper') }}"),
            "t.jinja:1: a generator has no text; use a filter such as list or join first");
  EXPECT_EQ(render_error("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"),
            "t.jinja:1: macro 'm' takes not more than 1 argument(s)");
  EXPECT_EQ(render_error("{% set x.y = 1 %}"), "t.jinja:1: cannot assign attribute 'y': 'x' is no namespace");
  EXPECT_EQ(render_error("{{ messages[0].content.split(1) }}"), "t.jinja:1: 'split' needs a string, not a int");
  EXPECT_EQ(render_error("{{ 'a' | upper(1) }}"), "t.jinja:1: 'the filter' takes at most 0 argument(s)");
  EXPECT_EQ(render_status("{{ raise_exception('x') }}").code(), StatusCode::invalid_argument);
}

TEST(TemplateErrors, ConversationOfAnotherShape) {
  const auto parsed = ChatTemplate::parse("{{ messages }}", "t.jinja");
  Conversation c;
  c.messages = "hello";
  EXPECT_EQ((*parsed)->render(c).status().message(), "messages: found string, expected an array of messages");
  c = hello();
  c.tools = {{"a", 1}};
  EXPECT_EQ((*parsed)->render(c).status().message(), "tools: found object, expected an array of tools");
  c = hello();
  c.messages[0]["content"] = "\xFF";
  EXPECT_EQ((*parsed)->render(c).status().message(), "t.jinja: a string of a message is not valid UTF-8");
  c = hello();
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 300; ++i) deep = nlohmann::ordered_json::array({deep});
  c.messages[0]["content"] = deep;
  EXPECT_EQ((*parsed)->render(c).status().message(), "t.jinja: lists and dicts are nested more than 100 deep");
}

// ---- where templates are

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() /
        ("ktc_chat_template_test_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string render(bool tools = false) {
    const auto opened = ChatTemplate::open(folder_);
    if (!opened.ok()) return opened.status().message();
    Conversation c = hello();
    if (tools) c.tools = nlohmann::ordered_json::array();
    const auto text = (*opened)->render(c);
    return text.ok() ? *text : text.status().message();
  }
  std::string path(const std::string& name) { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

TEST_F(Folder, TheFileComesFirst) {
  write("chat_template.jinja", "file {{ bos_token }}{{ eos_token }}");
  write("tokenizer_config.json",
        R"({"chat_template":"config","bos_token":{"content":"<b>"},"eos_token":"<e>","pad_token":null})");
  EXPECT_EQ(render(), "file <b><e>");
}

TEST_F(Folder, TheConfigComesSecond) {
  write("tokenizer_config.json", R"({"chat_template":"config {{ messages[0].role }}"})");
  EXPECT_EQ(render(), "config user");
}

TEST_F(Folder, NamedTemplates) {
  write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"},{"name":"rag","template":"{% nonsense %}"}]})");
  EXPECT_EQ(render(), "D");
  EXPECT_EQ(render(true), "T");
  write("tokenizer_config.json", R"({"chat_template":{"default":"D2"}})");
  EXPECT_EQ(render(true), "D2");
  write("tokenizer_config.json", R"({"chat_template":[{"name":"rag","template":"R"}]})");
  EXPECT_EQ(render(),
            path("tokenizer_config.json") + ": chat_template: found an array, expected a template named \"default\"");
  write("tokenizer_config.json", R"({"chat_template":7})");
  EXPECT_EQ(render(),
            path("tokenizer_config.json") + ": chat_template: found 7, expected a string or templates with names");
}

TEST_F(Folder, ErrorsNameFileAndLine) {
  write("chat_template.jinja", "a\nb {% nonsense %}");
  EXPECT_TRUE(render().starts_with(path("chat_template.jinja") + ":2: found the tag 'nonsense', expected one of if, "));
  std::filesystem::remove(folder_ / "chat_template.jinja");
  write("tokenizer_config.json", R"({"chat_template":"a\n\n{{ x | nonsense }}"})");
  EXPECT_TRUE(render().starts_with(path("tokenizer_config.json") + ": chat_template:3: found the filter 'nonsense', "));
  write("tokenizer_config.json", R"({"chat_template":"x","bos_token":{"content":3}})");
  EXPECT_EQ(render(), path("tokenizer_config.json") + ": bos_token.content: found 3, expected a string");
}

TEST_F(Folder, NoTemplate) {
  EXPECT_EQ(render(), folder_.string() +
                          ": found no chat_template.jinja and no chat_template in a tokenizer_config.json, expected a "
                          "chat template; copy "
                          "chat_template.jinja from the checkpoint's instruction-tuned version, or do without --chat");
}

// ---- hostile templates end, in bounded time and memory, with a message

void expect_refused(const std::string& source, const std::string& message) {
  const auto start = std::chrono::steady_clock::now();
  const auto parsed = ChatTemplate::parse(source, "t");
  const std::string found = parsed.ok() ? (*parsed)->render(hello()).status().message() : parsed.status().message();
  EXPECT_EQ(found, message) << source.substr(0, 100);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0)
      << source.substr(0, 100);
}

TEST(TemplateHostile, Bounds) {
  const std::string steps = "t:1: the template runs for too long: more than 20 million steps";
  expect_refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", steps);
  expect_refused(
      "{% for a in range(99999) %}{% for b in range(99999) %}" + std::string(300, 'x') + "{% endfor %}{% endfor %}",
      "t:1: a text of the template grows beyond 16 MiB");
  expect_refused("{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
                 "t:1: a text of the template grows beyond 16 MiB");
  expect_refused("{{ 'a' * 999999999999 }}", "t:1: a text of the template grows beyond 16 MiB");
  expect_refused("{{ [1] * 999999999999 }}", steps);
  expect_refused("{{ '%999999999999s' % 1 }}", "t:1: the format %9 with a int is not supported");
  expect_refused("{{ 'a'.center(999999999999) }}", "t:1: a text of the template grows beyond 16 MiB");
  expect_refused("{{ range(999999999999) }}", "t:1: a range of more than 100000");
  expect_refused("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
                 "t:1: lists and dicts are nested more than 100 deep");
  expect_refused(
      "{% set ns = namespace(x=[]) %}{% set c = 'a' * 9000000 %}{% for i in range(999) %}{% set ns.x = ns.x + [c ~ i] "
      "%}{% endfor %}",
      "t:1: the template keeps more than 256 MiB of text");
  expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "t:1: the template calls itself too deeply");
  expect_refused(
      "{% macro m(x) %}{{ caller() }}{% call m(x) %}{{ caller() }}{% endcall %}{% endmacro %}{% call m(1) %}a{% "
      "endcall %}",
      "t:1: the template calls itself too deeply");
  expect_refused("{% set ns = namespace() %}{% set ns.x = ns %}", "t:1: a Namespace cannot be put into a namespace");
  expect_refused("{% for x in [1] %}{% set l = [loop] %}{% endfor %}",
                 "t:1: a LoopContext cannot be put into a list or dict");
  expect_refused("{% macro m() %}{% endmacro %}{% set l = {'a': m} %}",
                 "t:1: a Macro cannot be put into a list or dict");
  expect_refused("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}",
                 "t:1: constructs are nested more than 100 deep");
  expect_refused("{{ " + std::string(5000, '[') + std::string(5000, ']') + " }}",
                 "t:1: constructs are nested more than 100 deep");
  expect_refused("{{ " + std::string(5000, '-') + "1 }}", "t:1: constructs are nested more than 100 deep");
  std::string nots, sums = "{{ 1", ifs, filters = "{{ 'a'", attributes = "{{ x", elses = "{{ 1";
  for (int i = 0; i < 5000; ++i)
    nots += "not ", sums += " + 1", ifs += "{% if 1 %}", filters += "|trim", attributes += ".a",
        elses += " if 0 else 1";
  expect_refused("{{ " + nots + "1 }}", "t:1: constructs are nested more than 100 deep");
  expect_refused(sums + " }}", "t:1: an expression has more than 200 operators above each other");
  expect_refused(ifs, "t:1: constructs are nested more than 100 deep");
  expect_refused(filters + " }}", "t:1: an expression has more than 200 operators above each other");
  expect_refused(attributes + " }}", "t:1: an expression has more than 200 operators above each other");
  expect_refused(elses + " }}", "t:1: constructs are nested more than 100 deep");
  expect_refused(std::string(2 << 20, 'x'), "t: found a template of 2097152 bytes, expected at most 1048576");
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "{% set v" + std::to_string(i) + "=1 %}";
  expect_refused(many, "t:1: more than 4096 variables");
}

const char* const kBusy = R"({%- set ns = namespace(n=0, s='') -%}{# c #}
{%- macro m(a, b=2) -%}{{ a }}{{ b }}{{ caller() if caller else '' }}{%- endmacro %}
{% for m1 in messages[::-1] if m1.role != 'x' %}{% if loop.index0 > 3 %}{% break %}{% elif not loop.last %}{% continue %}{% endif %}
{%- set ns.n = ns.n + 1 %}{{ m(m1.content | trim, b=[1, 'a', {'k': none}] | tojson(indent=1)) }}{% else %}none{% endfor %}
{% set q %}x{{ '%s' % 3 }}{% endset %}{{ q | replace('x', "y\n\u00e9") | upper }}{% raw %}{{ {% endraw %}{% call m(1) %}z{% endcall %}
{%- with a, b = 1 %}{% endwith %})";

// A template that uses most constructs, cut at every byte and with bytes changed: errors or renders, nothing else.
TEST(TemplateHostile, CutAndBentTemplates) {
  std::string whole = kBusy;
  whole.replace(whole.find("a, b = 1 %}"), 11, "a = 1 %}{{ a ** 2 }}");
  ASSERT_TRUE(ChatTemplate::parse(whole, "t").ok()) << ChatTemplate::parse(whole, "t").status().message();
  int rendered = 0, loaded = 0;
  auto use = [&](const std::string& source) {
    const auto parsed = ChatTemplate::parse(source, "t");
    if (!parsed.ok()) return;
    ++loaded;
    rendered += (*parsed)->render(hello()).ok();
  };
  for (std::size_t n = 0; n < whole.size(); ++n) use(whole.substr(0, n));
  std::mt19937 rng(31);
  const std::string alphabet = "{}%#-+'\"\\|.[]()~=<>,: \nabmx019_";
  for (std::size_t n = 0; n < whole.size(); ++n)
    for (int k = 0; k < 6; ++k) {
      std::string bent = whole;
      if (k == 0)
        bent[n] = static_cast<char>(bent[n] ^ (1 << rng() % 7));
      else if (k < 4)
        bent[n] = alphabet[rng() % alphabet.size()];
      else if (k == 4)
        bent.erase(n, 1 + rng() % 4);
      else
        bent.insert(n, 1, alphabet[rng() % alphabet.size()]);
      use(bent);
    }
  EXPECT_GT(loaded, 300);
  EXPECT_GT(rendered, 100);
}

TEST(TemplateHostile, TheCorpusCutAtEveryTag) {
  for (const auto& entry : std::filesystem::directory_iterator(std::string(KTC_SOURCE_DIR) + "/test/text/templates")) {
    const std::string whole = testing::read_file(entry.path());
    for (std::size_t at = 0; (at = whole.find('{', at)) != std::string::npos; ++at)
      for (std::size_t extra : {0, 1, 3}) {
        const auto parsed = ChatTemplate::parse(whole.substr(0, at + extra), "t");
        if (parsed.ok()) (void)(*parsed)->render(hello());
      }
  }
}

}  // namespace
}  // namespace ktc::text
