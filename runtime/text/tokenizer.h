// Text to token ids and back, as the `tokenizer.json` of a Hugging Face checkpoint says (byte-level and byte-fallback
// BPE).
//
// encode: added tokens are cut out of the raw text, the rest is normalised, added tokens are cut out of that, what
// remains is cut into words, each word is encoded by BPE, and a template adds special tokens around the whole. Ids
// equal those of the `tokenizers` library. What the file asks for and is not implemented is an error when it is read,
// never a silent difference.
//
// Not taken from tokenizer.json: `truncation` and `padding`, which are habits of a training set-up.
// From tokenizer_config.json, if there: bos_token, eos_token, pad_token and unk_token (a string or an object),
// add_bos_token and add_eos_token when true (for tokenizers whose template leaves them out).
//
// Immutable after load: every method is const and thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/added_tokens.h"
#include "runtime/text/bpe.h"
#include "runtime/text/decoder.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/post_processor.h"
#include "runtime/text/pre_tokenizer.h"

namespace ktc::text {

class Tokenizer {
 public:
  // Reads FOLDER/tokenizer.json and, if there, FOLDER/tokenizer_config.json. Errors: not_found, io_error, data_corrupt
  // (with file and JSON path), unsupported (a component this build lacks).
  static Expected<std::unique_ptr<Tokenizer>> open(const std::filesystem::path& folder);
  // From the text of a tokenizer.json (and of a tokenizer_config.json, or ""); `name` is the file that errors name.
  static Expected<std::unique_ptr<Tokenizer>> parse(std::string_view json_text, const std::string& name,
                                                    std::string_view config_text = {},
                                                    const std::string& config_name = "tokenizer_config.json");

  // Ids of `utf8`. With `parse_special` false, the text of a special token is ordinary text (other added tokens are
  // still cut out, as the reference library does with encode_special_tokens). Errors: invalid_argument for ill-formed
  // UTF-8, naming the byte; resource_exhausted when a split pattern hits its limits.
  Expected<std::vector<std::int32_t>> encode(std::string_view utf8, bool add_special_tokens, bool parse_special) const;

  // The same with special tokens recognised only outside the given spans of bytes (sorted, disjoint, within the text):
  // a special token counts when no byte of it is ordinary. Where the ordinary spans hold no special token's text, the
  // ids equal those of encode(utf8, add_special_tokens, true).
  Expected<std::vector<std::int32_t>> encode_with_ordinary(std::string_view utf8, const std::vector<Span>& ordinary,
                                                           bool add_special_tokens) const;

  // Always valid UTF-8: ill-formed bytes become U+FFFD. Ids outside the vocabulary decode to nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  // What one token stands for, by itself; may be part of a character. Empty for ids outside the vocabulary.
  std::string token_bytes(std::int32_t id) const;
  // The token as the file spells it.
  std::optional<std::string> token_text(std::int32_t id) const;

  bool is_special(std::int32_t id) const;
  std::optional<std::int32_t> id_of(std::string_view token) const;
  std::int32_t vocab_size() const { return max_id_ + 1; }  // one more than the highest id; ids below need not all exist

  // From tokenizer_config.json.
  const std::optional<std::string>& bos_token() const { return bos_; }
  const std::optional<std::string>& eos_token() const { return eos_; }
  const std::optional<std::string>& pad_token() const { return pad_; }
  const std::optional<std::string>& unk_token() const { return unk_; }
  std::optional<std::int32_t> bos_id() const { return bos_ ? id_of(*bos_) : std::nullopt; }
  std::optional<std::int32_t> eos_id() const { return eos_ ? id_of(*eos_) : std::nullopt; }

 private:
  friend class StreamDecoder;
  friend Expected<std::unique_ptr<Tokenizer>> load_tokenizer(const JsonNode& file, const JsonNode* config);

  struct Work;  // the buffers of one encode
  Expected<std::vector<std::int32_t>> encode_scoped(std::string_view utf8, const SpecialScope& scope,
                                                    bool add_special_tokens) const;
  Status encode_gap(std::string_view raw, Span place, const SpecialScope& scope, Work& work) const;
  Status map_ordinary(std::string_view raw, Span place, const std::vector<Span>& ordinary, std::string_view normalized,
                      Work& work, std::vector<Span>& mapped) const;
  Status encode_words(std::string_view normalized, Work& work) const;
  // The text that a decode sees, or null for an id that it leaves out.
  const std::string* decodable(std::int32_t id, bool skip_special) const;

  std::unique_ptr<Bpe> bpe_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PostProcessor post_processor_;
  Decoder decoder_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  std::unordered_map<std::int32_t, AddedToken> added_;
  std::unordered_map<std::int32_t, std::string> added_text_;  // what decodes: normalised where matched so
  std::unordered_map<std::string, std::int32_t> added_ids_;
  std::int32_t max_id_ = -1;
  std::optional<std::string> bos_, eos_, pad_, unk_;
};

// One call per file: the whole text of `path`. Errors: not_found, io_error; resource_exhausted above `limit` bytes.
Expected<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit);

}  // namespace ktc::text
