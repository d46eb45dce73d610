// Reads tokenizer.json and tokenizer_config.json into a Tokenizer.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "runtime/text/tokenizer.h"

namespace ktc::text {
namespace {

constexpr std::size_t kMaxTokenizerBytes = 256u << 20;
constexpr std::size_t kMaxConfigBytes = 16u << 20;

// "<s>" or {"content": "<s>", ...}, or absent.
Status load_token_name(const JsonNode& node, std::optional<std::string>& token) {
  if (node.is_null()) return Status();
  if (node.value().is_string()) {
    token = node.value().get<std::string>();
    return Status();
  }
  if (!node.value().is_object()) return node.error("a string or an object with \"content\"");
  KTC_ASSIGN_OR_RETURN(token, node.member("content").string());
  return Status();
}

// An added token that model.vocab has too must have the same id, and no other token may have it.
Status check_added_id(const JsonNode& node, const AddedToken& token, const Bpe& bpe) {
  if (const auto known = bpe.id_of(token.content)) {
    if (*known != token.id) return node.member("id").error(fmt::format("{}, as in model.vocab", *known));
  } else if (const std::string* other = bpe.token_of(token.id)) {
    return node.member("id").error(fmt::format("an id that model.vocab does not use (\"{}\" has it)", *other));
  }
  return Status();
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> load_tokenizer(const JsonNode& file, const JsonNode* config) {
  KTC_RETURN_IF_ERROR(file.expect_object());
  const JsonNode version = file.member("version");
  if (!version.is_null() && version.value() != "1.0") return version.unsupported("\"1.0\"");
  auto tokenizer = std::make_unique<Tokenizer>();
  KTC_ASSIGN_OR_RETURN(tokenizer->bpe_, Bpe::load(file.member("model")));
  KTC_ASSIGN_OR_RETURN(tokenizer->normalizer_, Normalizer::load(file.member("normalizer")));
  KTC_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, PreTokenizer::load(file.member("pre_tokenizer")));
  KTC_ASSIGN_OR_RETURN(tokenizer->post_processor_, PostProcessor::load(file.member("post_processor")));
  KTC_ASSIGN_OR_RETURN(tokenizer->decoder_, Decoder::load(file.member("decoder")));
  tokenizer->max_id_ = tokenizer->bpe_->max_id();

  const JsonNode added = file.member("added_tokens");
  if (!added.is_null()) {
    KTC_RETURN_IF_ERROR(added.expect_array());
    RegexScratch scratch;
    for (std::size_t i = 0; i < added.value().size(); ++i) {
      const JsonNode node = added.element(i);
      KTC_ASSIGN_OR_RETURN(AddedToken token, load_added_token(node));
      if (token.content.empty()) continue;
      KTC_RETURN_IF_ERROR(check_added_id(node, token, *tokenizer->bpe_));
      if (tokenizer->added_.contains(token.id)) return node.member("id").error("an id that no other added token has");
      if (tokenizer->added_ids_.contains(token.content))
        return node.member("content").error("a text that no other added token has");
      std::string pattern = token.content;
      if (token.normalized) KTC_RETURN_IF_ERROR(tokenizer->normalizer_.apply(pattern, scratch));
      (token.normalized ? tokenizer->normalized_finder_ : tokenizer->raw_finder_).add(pattern, token);
      tokenizer->max_id_ = std::max(tokenizer->max_id_, token.id);
      tokenizer->added_ids_.emplace(token.content, token.id);
      tokenizer->added_text_.emplace(token.id, std::move(pattern));
      tokenizer->added_.emplace(token.id, std::move(token));
    }
  }
  if (config == nullptr) return tokenizer;

  KTC_RETURN_IF_ERROR(config->expect_object());
  KTC_RETURN_IF_ERROR(load_token_name(config->member("bos_token"), tokenizer->bos_));
  KTC_RETURN_IF_ERROR(load_token_name(config->member("eos_token"), tokenizer->eos_));
  KTC_RETURN_IF_ERROR(load_token_name(config->member("pad_token"), tokenizer->pad_));
  KTC_RETURN_IF_ERROR(load_token_name(config->member("unk_token"), tokenizer->unk_));
  KTC_ASSIGN_OR_RETURN(const bool add_bos, config->member("add_bos_token").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(const bool add_eos, config->member("add_eos_token").boolean_or(false));
  if (add_bos) {
    const auto id = tokenizer->bos_id();
    if (!id) return config->member("bos_token").error("a token of tokenizer.json, because add_bos_token is true");
    if (!tokenizer->post_processor_.begins_with(*id)) tokenizer->post_processor_.prepend(*id);
  }
  if (add_eos) {
    const auto id = tokenizer->eos_id();
    if (!id) return config->member("eos_token").error("a token of tokenizer.json, because add_eos_token is true");
    if (!tokenizer->post_processor_.ends_with(*id)) tokenizer->post_processor_.append(*id);
  }
  return tokenizer;
}

Expected<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view json_text, const std::string& name,
                                                      std::string_view config_text, const std::string& config_name) {
  try {
    KTC_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json(json_text, name));
    const JsonNode file(json, name);
    if (config_text.empty()) return load_tokenizer(file, nullptr);
    KTC_ASSIGN_OR_RETURN(const nlohmann::json config_json, parse_json(config_text, config_name));
    const JsonNode config(config_json, config_name);
    return load_tokenizer(file, &config);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::resource_exhausted, name + ": not enough memory to load the tokenizer");
  } catch (const std::exception& e) {  // nlohmann's type errors, were a check above missing
    return Status(StatusCode::internal, name + ": " + e.what() + "; please report this");
  }
}

Expected<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json", config_path = folder / "tokenizer_config.json";
  auto text = read_text_file(path, kMaxTokenizerBytes);
  if (!text.ok()) {
    if (text.status().code() != StatusCode::not_found) return text.status();
    return make_error(StatusCode::not_found, {.place = path.string(),
                                              .found = "no such file",
                                              .expected = "the tokenizer of the checkpoint",
                                              .remedy = "copy tokenizer.json into the folder"});
  }
  std::string config;
  std::error_code ignored;
  if (std::filesystem::exists(config_path, ignored)) {
    KTC_ASSIGN_OR_RETURN(config, read_text_file(config_path, kMaxConfigBytes));
  }
  return parse(*text, path.string(), config, config_path.string());
}

Expected<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr)
    return make_error(errno == ENOENT ? StatusCode::not_found : StatusCode::io_error,
                      {.place = path.string(), .what = "cannot open", .found = std::strerror(errno)});
  std::string text;
  char buffer[1 << 16];
  std::size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof buffer, file)) > 0 && text.size() <= limit) text.append(buffer, n);
  const bool failed = std::ferror(file) != 0;
  const int why = errno;
  std::fclose(file);
  if (failed)
    return make_error(StatusCode::io_error,
                      {.place = path.string(), .what = "cannot read", .found = std::strerror(why)});
  if (text.size() > limit)
    return make_error(
        StatusCode::resource_exhausted,
        {.place = path.string(), .found = "more bytes than that", .expected = fmt::format("at most {}", limit)});
  return text;
}

}  // namespace ktc::text
