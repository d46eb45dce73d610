// Chat templates: a conversation to the text, and to the ids, that the model was trained to continue.
//
// The template is chat_template.jinja of the checkpoint's folder, else chat_template of its tokenizer_config.json: a
// string, or named ones, of which "default" is taken ("tool_use" when tools are given and it is there). There is no
// fallback: a folder without a template, or one that this build cannot run (jinja/environment.h says what it can),
// fails at open.
//
// Why ordered_json: templates print tools and arguments with their keys in the order in which the client sent them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/jinja/environment.h"
#include "runtime/text/tokenizer.h"

namespace ktc::text {

struct Conversation {
  nlohmann::ordered_json messages;    // an array of objects with "role" and "content" and whatever the template knows
  nlohmann::ordered_json tools;       // an array, or null
  bool add_generation_prompt = true;  // end with the beginning of the assistant's answer
  nlohmann::ordered_json variables;   // an object of more variables (enable_thinking, documents, ...), or null
  std::chrono::system_clock::time_point now = std::chrono::system_clock::now();  // of strftime_now, in local time
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  // Errors: not_found (no template), io_error, data_corrupt (tokenizer_config.json), unsupported (with file and line).
  static Expected<std::unique_ptr<ChatTemplate>> open(const std::filesystem::path& folder);
  // From a template's source; `name` is what errors name. `config_text`: a tokenizer_config.json for the special
  // tokens, or "".
  static Expected<std::unique_ptr<ChatTemplate>> parse(std::string_view source, const std::string& name,
                                                       std::string_view config_text = {});

  // What the template prints, byte for byte as Hugging Face's apply_chat_template(tokenize=False). Variables: messages,
  // tools, documents, add_generation_prompt, the special tokens of tokenizer_config.json (bos_token, eos_token, ...),
  // then those of the conversation. Errors: invalid_argument, resource_exhausted (jinja/environment.h).
  Expected<std::string> render(const Conversation& conversation) const;

  // The same with the spans of bytes that came from the conversation rather than from the template.
  Expected<jinja::Rendered> render_marked(const Conversation& conversation) const;

  const std::string& source() const { return source_; }  // of the default template

 private:
  static Expected<std::unique_ptr<ChatTemplate>> load(std::string_view source, const std::string& name,
                                                      const JsonNode* config);
  Status load_config(const JsonNode& config);
  Status load_named(const JsonNode& node, const std::string& place);

  std::string source_;
  std::unique_ptr<jinja::Template> default_, tool_use_;
  std::vector<jinja::Variable> special_tokens_;
};

// The ids of a conversation: the rendered text as one whole, with special tokens recognised only where every byte of
// them was written by the template. The text of a special token inside a message, a tool or a variable is ordinary
// text, so a user cannot end a turn or pose as another role.
//
// How it is sound: the renderer tracks for every byte whether it came from the conversation, through all operations of
// the template (jinja/value.h), and the tokenizer skips special tokens that touch such a byte. Nothing is inserted into
// the text and it is not cut into parts, so where the conversation holds no special token's text the ids equal those of
// apply_chat_template(tokenize=True). No BOS or EOS is added beyond what the template prints. Added tokens that are not
// special (<think>, <tool_call> of some models) are recognised everywhere, as in the reference.
Expected<std::vector<std::int32_t>> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                                const Conversation& conversation);

}  // namespace ktc::text
