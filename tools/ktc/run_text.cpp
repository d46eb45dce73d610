#include "tools/ktc/run_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ktc::run {

Expected<Text> Text::open(const plan::OpenPlan& plan, bool chat) {
  Text result;
  KTC_ASSIGN_OR_RETURN(result.tokenizer_, text::Tokenizer::open(plan.folder));
  if (chat) {
    KTC_ASSIGN_OR_RETURN(result.template_, text::ChatTemplate::open(plan.folder));
  }
  return result;
}

Expected<std::vector<std::int32_t>> Text::encode(std::string_view text) const {
  return tokenizer_->encode(text, /*add_special_tokens=*/true, /*parse_special=*/true);
}

Expected<std::vector<std::int32_t>> Text::encode_chat(const std::vector<Message>& messages) const {
  text::Conversation conversation;
  conversation.messages = nlohmann::ordered_json::array();
  for (const Message& message : messages) {
    conversation.messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return text::encode_chat(*tokenizer_, *template_, conversation);
}

std::string Text::describe_stop_tokens(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", id, tokenizer_->token_text(id).value_or("(no such token)"));
  }
  return text.empty() ? "none" : text;
}

}  // namespace ktc::run
