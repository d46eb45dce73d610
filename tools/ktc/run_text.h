// Text in and out of a plan: tokenizer, chat template, and text that grows token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/plan.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/stream_decoder.h"
#include "runtime/text/tokenizer.h"

namespace ktc::run {

struct Message {
  std::string role, content;
};

class Text {
 public:
  // Errors: files of the plan that are missing or not understood; the chat template only when `chat` is wanted.
  static Expected<Text> open(const plan::OpenPlan& plan, bool chat = false);

  Expected<std::vector<std::int32_t>> encode(std::string_view text) const;
  // Ends with the beginning of the assistant's answer. Only where `chat` was wanted.
  Expected<std::vector<std::int32_t>> encode_chat(const std::vector<Message>& messages) const;

  std::string describe_stop_tokens(const std::vector<std::int32_t>& ids) const;  // "0 <|endoftext|>, 5 <|im_end|>"
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::ChatTemplate> template_;  // null unless chat was wanted
};

}  // namespace ktc::run
