#include "runtime/text/chat_template.h"

#include <fmt/format.h>

#include <system_error>

namespace ktc::text {
namespace {

constexpr std::size_t kMaxTemplateBytes = 1u << 20;
constexpr std::size_t kMaxConfigBytes = 16u << 20;

}  // namespace

Expected<std::unique_ptr<ChatTemplate>> ChatTemplate::load(std::string_view source, const std::string& name,
                                                           const JsonNode* config) {
  auto chat_template = std::make_unique<ChatTemplate>();
  chat_template->source_ = source;
  KTC_ASSIGN_OR_RETURN(chat_template->default_, jinja::Template::parse(source, name));
  if (config != nullptr) KTC_RETURN_IF_ERROR(chat_template->load_config(*config));
  return chat_template;
}

Expected<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source, const std::string& name,
                                                            std::string_view config_text) {
  if (config_text.empty()) return load(source, name, nullptr);
  const std::string config_name = "tokenizer_config.json";
  KTC_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json(config_text, config_name));
  const JsonNode config(json, config_name);
  return load(source, name, &config);
}

Expected<std::unique_ptr<ChatTemplate>> ChatTemplate::open(const std::filesystem::path& folder) {
  const auto path = folder / "chat_template.jinja", config_path = folder / "tokenizer_config.json";
  std::error_code ignored;
  nlohmann::json json;
  const bool has_config = std::filesystem::exists(config_path, ignored);
  if (has_config) {
    KTC_ASSIGN_OR_RETURN(const std::string text, read_text_file(config_path, kMaxConfigBytes));
    KTC_ASSIGN_OR_RETURN(json, parse_json(text, config_path.string()));
  }
  const JsonNode config(json, config_path.string());
  if (has_config) KTC_RETURN_IF_ERROR(config.expect_object());
  if (std::filesystem::exists(path, ignored)) {
    KTC_ASSIGN_OR_RETURN(const std::string source, read_text_file(path, kMaxTemplateBytes));
    return load(source, path.string(), has_config ? &config : nullptr);
  }
  const JsonNode node = config.member("chat_template");
  if (node.is_null())
    return make_error(
        StatusCode::not_found,
        {.place = folder.string(),
         .found = fmt::format("no chat_template.jinja and no chat_template in {}",
                              has_config ? "tokenizer_config.json" : "a tokenizer_config.json"),
         .expected = "a chat template",
         .remedy = "copy chat_template.jinja from the checkpoint's instruction-tuned version, or do without --chat"});
  auto chat_template = std::make_unique<ChatTemplate>();
  KTC_RETURN_IF_ERROR(chat_template->load_named(node, config_path.string()));
  KTC_RETURN_IF_ERROR(chat_template->load_config(config));
  return chat_template;
}

// chat_template of tokenizer_config.json: "...", [{"name": ..., "template": ...}] or {NAME: "..."}.
Status ChatTemplate::load_named(const JsonNode& node, const std::string& file) {
  auto parse_one = [&](const JsonNode& source, std::string_view name, std::unique_ptr<jinja::Template>& out) -> Status {
    KTC_ASSIGN_OR_RETURN(const std::string text, source.string());
    const std::string place =
        name.empty() ? file + ": chat_template" : fmt::format("{}: chat_template \"{}\"", file, name);
    KTC_ASSIGN_OR_RETURN(out, jinja::Template::parse(text, place));
    if (&out == &default_) source_ = text;
    return Status();
  };
  if (node.value().is_string()) return parse_one(node, "", default_);
  if (node.value().is_array()) {
    for (std::size_t i = 0; i < node.value().size(); ++i) {
      KTC_RETURN_IF_ERROR(node.element(i).expect_object());
      KTC_ASSIGN_OR_RETURN(const std::string name, node.element(i).member("name").string());
      const JsonNode source = node.element(i).member("template");
      if (name == "default") KTC_RETURN_IF_ERROR(parse_one(source, name, default_));
      if (name == "tool_use") KTC_RETURN_IF_ERROR(parse_one(source, name, tool_use_));
    }
  } else if (node.value().is_object()) {
    if (!node.member("default").is_null()) KTC_RETURN_IF_ERROR(parse_one(node.member("default"), "default", default_));
    if (!node.member("tool_use").is_null())
      KTC_RETURN_IF_ERROR(parse_one(node.member("tool_use"), "tool_use", tool_use_));
  } else {
    return node.error("a string or templates with names");
  }
  return default_ ? Status() : node.error("a template named \"default\"");
}

// bos_token, eos_token and whatever else ends in _token: a string or an object with "content".
Status ChatTemplate::load_config(const JsonNode& config) {
  KTC_RETURN_IF_ERROR(config.expect_object());
  for (const auto& [key, value] : config.value().items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) {
      special_tokens_.push_back({key, value.get<std::string>(), false});
    } else if (value.is_object() && value.contains("content")) {
      KTC_ASSIGN_OR_RETURN(const std::string token, config.member(key).member("content").string());
      special_tokens_.push_back({key, token, false});
    }
  }
  return Status();
}

Expected<jinja::Rendered> ChatTemplate::render_marked(const Conversation& conversation) const {
  if (!conversation.messages.is_array())
    return make_error(
        StatusCode::invalid_argument,
        {.place = "messages", .found = conversation.messages.type_name(), .expected = "an array of messages"});
  if (!conversation.tools.is_null() && !conversation.tools.is_array())
    return make_error(StatusCode::invalid_argument,
                      {.place = "tools", .found = conversation.tools.type_name(), .expected = "an array of tools"});
  if (!conversation.variables.is_null() && !conversation.variables.is_object())
    return make_error(
        StatusCode::invalid_argument,
        {.place = "template variables", .found = conversation.variables.type_name(), .expected = "an object"});
  std::vector<jinja::Variable> variables = special_tokens_;
  variables.push_back({"messages", conversation.messages});
  variables.push_back({"tools", conversation.tools});
  variables.push_back({"documents", nullptr});
  variables.push_back({"add_generation_prompt", conversation.add_generation_prompt});
  if (conversation.variables.is_object())
    for (const auto& [key, value] : conversation.variables.items()) variables.push_back({key, value});
  const jinja::Template& chosen = tool_use_ && !conversation.tools.is_null() ? *tool_use_ : *default_;
  return chosen.render(variables, conversation.now);
}

Expected<std::string> ChatTemplate::render(const Conversation& conversation) const {
  KTC_ASSIGN_OR_RETURN(jinja::Rendered rendered, render_marked(conversation));
  return std::move(rendered.text);
}

Expected<std::vector<std::int32_t>> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                                const Conversation& conversation) {
  KTC_ASSIGN_OR_RETURN(const jinja::Rendered rendered, chat_template.render_marked(conversation));
  return tokenizer.encode_with_ordinary(rendered.text, rendered.content, false);
}

}  // namespace ktc::text
