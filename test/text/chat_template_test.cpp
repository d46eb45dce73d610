// Chat templates against jinja2 in Hugging Face's set-up (make_template_fixtures.py wrote what is expected).
#include "runtime/text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

using nlohmann::ordered_json;

ordered_json ordered_fixture(const std::string& name) {
  return ordered_json::parse(testing::read_file(std::string(KTC_SOURCE_DIR) + "/test/text/fixtures/" + name));
}

const ordered_json& corpus() {
  static const ordered_json json = ordered_fixture("template_corpus.json");
  return json;
}

Conversation conversation(const ordered_json& c) {
  Conversation out;
  out.messages = c["messages"];
  if (c.contains("tools")) out.tools = c["tools"];
  if (c.contains("add_generation_prompt")) out.add_generation_prompt = c["add_generation_prompt"];
  if (c.contains("variables")) out.variables = c["variables"];
  const auto& now = corpus()["now"];
  std::tm local{};
  local.tm_year = now[0].get<int>() - 1900;
  local.tm_mon = now[1].get<int>() - 1;
  local.tm_mday = now[2];
  local.tm_hour = now[3];
  local.tm_min = now[4];
  local.tm_sec = now[5];
  local.tm_isdst = -1;
  out.now = std::chrono::system_clock::from_time_t(std::mktime(&local));
  return out;
}

TEST(ChatTemplate, CorpusRendersLikeTheReference) {
  ASSERT_GE(corpus()["expected"].size(), 40u);
  const std::string config = corpus()["config"].dump();
  int rendered = 0;
  for (const auto& [name, expected] : corpus()["expected"].items()) {
    const std::string file = name + ".jinja";
    const auto parsed = ChatTemplate::parse(
        testing::read_file(std::string(KTC_SOURCE_DIR) + "/test/text/templates/" + file), file, config);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    for (const auto& [key, result] : expected.items()) {
      SCOPED_TRACE(name + " on " + key);
      const auto text = (*parsed)->render(conversation(corpus()["conversations"][key]));
      if (result.contains("text")) {
        EXPECT_TRUE(text.ok()) << text.status().message();
        if (text.ok()) EXPECT_EQ(*text, result["text"].get<std::string>());
        ++rendered;
      } else {
        EXPECT_FALSE(text.ok()) << *text;
        if (!text.ok() && result["error"] == "raised")
          EXPECT_NE(text.status().message().find("the template refuses the conversation: found \"" +
                                                 result["message"].get<std::string>() + '"'),
                    std::string::npos)
              << text.status().message();
        if (!text.ok()) EXPECT_TRUE(text.status().message().starts_with(file + ":")) << text.status().message();
      }
    }
  }
  EXPECT_GT(rendered, 500);
}

TEST(ChatTemplate, SnippetsRenderOrFailLikeTheReference) {
  const ordered_json fixture = ordered_fixture("template_snippets.json");
  Conversation c = conversation(corpus()["conversations"][fixture["conversation"].get<std::string>()]);
  c.variables = fixture["variables"];
  ASSERT_GT(fixture["snippets"].size(), 200u);
  for (const auto& snippet : fixture["snippets"]) {
    const auto source = snippet["source"].get<std::string>();
    SCOPED_TRACE(nlohmann::json(source));
    const auto parsed = ChatTemplate::parse(source, "t", corpus()["config"].dump());
    if (!snippet.contains("error")) {
      ASSERT_TRUE(parsed.ok()) << parsed.status().message();
      const auto text = (*parsed)->render(c);
      EXPECT_TRUE(text.ok()) << text.status().message();
      if (text.ok()) EXPECT_EQ(*text, snippet["text"].get<std::string>());
    } else if (snippet["error"] == "load") {
      EXPECT_FALSE(parsed.ok());
    } else if (parsed.ok()) {  // what fails there when it runs may fail here when it loads
      const auto text = (*parsed)->render(c);
      EXPECT_FALSE(text.ok()) << *text;
    }
  }
}

}  // namespace
}  // namespace ktc::text
