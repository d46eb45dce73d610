#include "models/text_config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace ktc::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfig = 16ull << 20;
constexpr std::uint64_t kMaxTokenizer = 256ull << 20;

// Files that travel with a plan when they exist.
constexpr const char* kTextFiles[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                      "chat_template.jinja", "chat_template.json"};

using TokenIds = std::map<std::string, std::int64_t>;

// Collects "added_tokens" of tokenizer.json and nothing else: the vocabulary is passed over without being stored.
class AddedTokens : public nlohmann::json_sax<Json> {
 public:
  TokenIds ids;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
           number(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t& value) override {
    if (in_token() && key_ == "content") content_ = value;
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_token()) content_.clear(), id_ = -1;
    return true;
  }
  bool end_object() override {
    if (in_token() && id_ >= 0) ids.emplace(content_, id_);
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    if (depth_ == 2) inside_ = key_ == "added_tokens";
    return true;
  }
  bool end_array() override {
    if (depth_ == 2) inside_ = false;
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    key_ = key;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  // {"added_tokens": [ {here} ]}: object, array, object
  bool in_token() const { return inside_ && depth_ == 3; }
  bool number(std::int64_t value) {
    if (in_token() && key_ == "id") id_ = value;
    return true;
  }
  std::size_t depth_ = 0;
  bool inside_ = false;
  std::string key_, content_;
  std::int64_t id_ = -1;
};

class TextConfigReader {
 public:
  TextConfigReader(const fs::path& folder, ModelDesc* model) : folder_(folder), model_(*model) {}

  Status read(const Json& config, const std::string& config_file) {
    KTC_RETURN_IF_ERROR(read_ids(config, config_file));
    KTC_RETURN_IF_ERROR(read_generation_config());
    KTC_RETURN_IF_ERROR(read_tokenizer_config());
    model_.stop_tokens.assign(stop_.begin(), stop_.end());
    std::error_code failure;
    for (const char* name : kTextFiles)
      if (fs::is_regular_file(folder_ / name, failure)) model_.text_files.emplace_back(name);
    if (!fs::exists(folder_ / "tokenizer.json", failure))
      model_.warnings.push_back(
          fmt::format("{}: no tokenizer.json: plans of this model take and give token ids only", folder_.string()));
    if (model_.stop_tokens.empty())
      model_.warnings.push_back(
          fmt::format("{}: no end-of-text token in config.json, generation_config.json or tokenizer_config.json: "
                      "generation stops at its length limit only",
                      folder_.string()));
    return Status();
  }

 private:
  Expected<std::int32_t> token(const Json& value, const std::string& file, const std::string& key) const {
    const bool whole =
        value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX);
    const std::int64_t id = whole ? value.get<std::int64_t>() : -1;
    if (id < 0 || id >= model_.vocab)
      return make_error(
          StatusCode::invalid_argument,
          {file, key, show(value), fmt::format("a token id from 0 to {}", std::int64_t{model_.vocab} - 1), {}});
    return static_cast<std::int32_t>(id);
  }

  // eos_token_id is an id or a list of ids; bos_token_id the first that any file gives.
  Status read_ids(const Json& json, const std::string& file) {
    if (const Json* eos = find_key(json, "eos_token_id")) {
      for (std::size_t i = 0; i < (eos->is_array() ? eos->size() : 1); ++i) {
        KTC_ASSIGN_OR_RETURN(std::int32_t id, token(eos->is_array() ? (*eos)[i] : *eos, file, "eos_token_id"));
        stop_.insert(id);
      }
    }
    const Json* bos = find_key(json, "bos_token_id");
    if (bos && model_.bos_token < 0) {
      KTC_ASSIGN_OR_RETURN(model_.bos_token, token(*bos, file, "bos_token_id"));
    }
    return Status();
  }

  Status read_generation_config() {
    const fs::path path = folder_ / "generation_config.json";
    std::error_code failure;
    if (!fs::exists(path, failure)) return Status();
    KTC_ASSIGN_OR_RETURN(Json json, read_json(path, kMaxConfig));
    if (!json.is_object())
      return make_error(StatusCode::invalid_argument, {path.string(), {}, show(json), "an object", {}});
    KTC_RETURN_IF_ERROR(read_ids(json, path.string()));
    SamplingDefaults& s = model_.sampling;
    KTC_RETURN_IF_ERROR(sampling(json, path, "temperature", 0, 1e6, &s.temperature));
    KTC_RETURN_IF_ERROR(sampling(json, path, "top_p", 0, 1, &s.top_p));
    KTC_RETURN_IF_ERROR(sampling(json, path, "min_p", 0, 1, &s.min_p));
    KTC_RETURN_IF_ERROR(sampling(json, path, "repetition_penalty", 1e-6, 1e6, &s.repetition_penalty));
    std::optional<float> top_k;
    KTC_RETURN_IF_ERROR(sampling(json, path, "top_k", -1, 1e6, &top_k));
    if (top_k) s.top_k = std::max(0, static_cast<int>(*top_k));  // -1 and 0: no limit
    if (const Json* sample = find_key(json, "do_sample"); sample && *sample == false) s.temperature = 0.0f;
    return Status();
  }

  static Status sampling(const Json& json, const fs::path& path, const char* key, double least, double most,
                         std::optional<float>* target) {
    const Json* value = find_key(json, key);
    if (!value) return Status();
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most))
      return make_error(StatusCode::invalid_argument,
                        {path.string(), key, show(*value), fmt::format("a number from {} to {}", least, most), {}});
    *target = value->get<float>();
    return Status();
  }

  // "eos_token": "<|end|>" or {"content": "<|end|>", ...}
  static const std::string* token_text(const Json& json, const char* key) {
    const Json* token = find_key(json, key);
    if (token && token->is_object()) token = find_key(*token, "content");
    return token && token->is_string() ? &token->get_ref<const std::string&>() : nullptr;
  }

  Status read_tokenizer_config() {
    const fs::path path = folder_ / "tokenizer_config.json";
    std::error_code failure;
    if (!fs::exists(path, failure)) return Status();
    KTC_ASSIGN_OR_RETURN(Json json, read_json(path, kMaxConfig));
    if (!json.is_object())
      return make_error(StatusCode::invalid_argument, {path.string(), {}, show(json), "an object", {}});
    const std::string* eos = token_text(json, "eos_token");
    const std::string* bos = model_.bos_token < 0 ? token_text(json, "bos_token") : nullptr;
    if (!eos && !bos) return Status();
    KTC_ASSIGN_OR_RETURN(TokenIds ids, added_tokens(json));
    auto id_of = [&](const std::string& text) {
      const auto it = ids.find(text);
      if (it != ids.end() && it->second < model_.vocab) return static_cast<std::int32_t>(it->second);
      model_.warnings.push_back(
          fmt::format("{}: token {} is not among the added tokens of tokenizer.json: it is not used", path.string(),
                      show(Json(text))));
      return -1;
    };
    if (eos)
      if (const std::int32_t id = id_of(*eos); id >= 0) stop_.insert(id);
    if (bos) model_.bos_token = id_of(*bos);
    return Status();
  }

  // Of tokenizer.json; tokenizer_config.json's "added_tokens_decoder" (id -> token) fills gaps.
  Expected<TokenIds> added_tokens(const Json& tokenizer_config) const {
    AddedTokens added;
    const fs::path path = folder_ / "tokenizer.json";
    std::error_code failure;
    if (fs::exists(path, failure)) {
      KTC_ASSIGN_OR_RETURN(std::string text, read_text(path, kMaxTokenizer));
      bool sound = false;
      try {
        sound = Json::sax_parse(text, &added);
      } catch (const std::exception&) {  // the sax parser reports by return value; memory may still run out
      }
      if (!sound)
        return make_error(StatusCode::data_corrupt, {path.string(), "not valid JSON", {}, {}, "fetch the file again"});
    }
    if (const Json* decoder = find_key(tokenizer_config, "added_tokens_decoder"); decoder && decoder->is_object())
      for (const auto& [key, value] : decoder->items()) {
        const Json* content = find_key(value, "content");
        const bool number = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
        if (number && content && content->is_string()) added.ids.emplace(content->get<std::string>(), std::stoll(key));
      }
    return std::move(added.ids);
  }

  const fs::path& folder_;
  ModelDesc& model_;
  std::set<std::int32_t> stop_;
};

}  // namespace

Status read_text_config(const fs::path& folder, const Json& config, const std::string& config_file, ModelDesc* model) {
  return TextConfigReader(folder, model).read(config, config_file);
}

}  // namespace ktc::models
