#include "runtime/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/unicode.h"

namespace ktc::text {

struct Tokenizer::Work {
  RegexScratch regex;
  Bpe::Scratch bpe;
  std::vector<Segment> segments;
  std::vector<Span> words;
  std::vector<std::int32_t> ids;
};

Expected<std::vector<std::int32_t>> Tokenizer::encode(std::string_view utf8, bool add_special_tokens,
                                                      bool parse_special) const {
  return encode_scoped(utf8, SpecialScope{parse_special, nullptr}, add_special_tokens);
}

Expected<std::vector<std::int32_t>> Tokenizer::encode_with_ordinary(std::string_view utf8,
                                                                    const std::vector<Span>& ordinary,
                                                                    bool add_special_tokens) const {
  return encode_scoped(utf8, SpecialScope{true, &ordinary}, add_special_tokens);
}

Expected<std::vector<std::int32_t>> Tokenizer::encode_scoped(std::string_view utf8, const SpecialScope& scope,
                                                             bool add_special_tokens) const {
  if (const std::size_t bad = find_invalid_utf8(utf8); bad != std::string_view::npos)
    return make_error(StatusCode::invalid_argument,
                      {.place = fmt::format("text: byte {}", bad),
                       .found = fmt::format("0x{:02X}, which begins no UTF-8 sequence that is complete",
                                            static_cast<unsigned char>(utf8[bad])),
                       .expected = "valid UTF-8",
                       .remedy = "convert the text to UTF-8"});
  if (utf8.size() > (std::size_t{1} << 30))
    return make_error(StatusCode::invalid_argument, {.place = "text",
                                                     .found = fmt::format("{} bytes", utf8.size()),
                                                     .expected = "at most 1 GiB",
                                                     .remedy = "split the text"});
  Work work;
  std::vector<Segment> segments;
  raw_finder_.split(utf8, scope, segments);
  for (const Segment& segment : segments) {
    if (segment.id >= 0)
      work.ids.push_back(segment.id);
    else
      KTC_RETURN_IF_ERROR(encode_gap(utf8, segment.span, scope, work));
  }
  if (add_special_tokens) post_processor_.apply(work.ids);
  return std::move(work.ids);
}

// The raw text between two added tokens.
Status Tokenizer::encode_gap(std::string_view utf8, Span place, const SpecialScope& scope, Work& work) const {
  const std::string_view raw = utf8.substr(place.begin, place.end - place.begin);
  std::string normalized(raw);
  KTC_RETURN_IF_ERROR(normalizer_.apply(normalized, work.regex));
  if (normalized_finder_.empty()) return encode_words(normalized, work);
  SpecialScope inner = scope;
  std::vector<Span> ordinary;
  if (scope.everywhere && scope.ordinary != nullptr) {
    if (normalized_finder_.has_special(normalized))
      KTC_RETURN_IF_ERROR(map_ordinary(raw, place, *scope.ordinary, normalized, work, ordinary));
    inner.ordinary = &ordinary;
  }
  normalized_finder_.split(normalized, inner, work.segments);
  for (std::size_t i = 0; i < work.segments.size(); ++i) {
    const Segment segment = work.segments[i];
    if (segment.id >= 0)
      work.ids.push_back(segment.id);
    else
      KTC_RETURN_IF_ERROR(encode_words(
          std::string_view(normalized).substr(segment.span.begin, segment.span.end - segment.span.begin), work));
  }
  return Status();
}

// Where the ordinary spans of raw text lie in the normalised text. A normaliser that changed the text gives no
// positions, so each edge is found from both ends: what the part before it normalises to begins the whole, what the
// part behind it normalises to ends the whole. Where the two disagree (a character composed across the edge), the doubt
// counts as ordinary.
Status Tokenizer::map_ordinary(std::string_view raw, Span place, const std::vector<Span>& ordinary,
                               std::string_view normalized, Work& work, std::vector<Span>& mapped) const {
  auto from_front = [&](std::size_t edge, std::size_t& at) -> Status {
    std::string part(raw.substr(0, edge));
    KTC_RETURN_IF_ERROR(normalizer_.apply(part, work.regex));
    at = static_cast<std::size_t>(std::mismatch(part.begin(), part.end(), normalized.begin(), normalized.end()).first -
                                  part.begin());
    return Status();
  };
  auto from_back = [&](std::size_t edge, std::size_t& at) -> Status {
    std::string part(raw.substr(edge));
    KTC_RETURN_IF_ERROR(normalizer_.apply(part, work.regex));
    at = normalized.size() -
         static_cast<std::size_t>(
             std::mismatch(part.rbegin(), part.rend(), normalized.rbegin(), normalized.rend()).first - part.rbegin());
    return Status();
  };
  for (const Span& span : ordinary) {
    if (span.end <= place.begin || span.begin >= place.end || span.begin == span.end) continue;
    Span part{std::max(span.begin, place.begin) - place.begin, std::min(span.end, place.end) - place.begin};
    if (raw != normalized) {
      std::size_t begin = 0, end = normalized.size();
      if (part.begin > 0) KTC_RETURN_IF_ERROR(from_front(part.begin, begin));
      if (part.end < raw.size()) KTC_RETURN_IF_ERROR(from_back(part.end, end));
      part = {begin, std::max(begin, end)};
    }
    if (part.begin == part.end) continue;
    if (!mapped.empty() && mapped.back().end >= part.begin)
      mapped.back().end = std::max(mapped.back().end, part.end);
    else
      mapped.push_back(part);
  }
  return Status();
}

Status Tokenizer::encode_words(std::string_view normalized, Work& work) const {
  std::string text(normalized);
  KTC_RETURN_IF_ERROR(pre_tokenizer_.apply(text, work.regex, work.words));
  for (const Span& word : work.words)
    bpe_->encode_word(std::string_view(text).substr(word.begin, word.end - word.begin), work.bpe, work.ids);
  return Status();
}

const std::string* Tokenizer::decodable(std::int32_t id, bool skip_special) const {
  if (skip_special && is_special(id)) return nullptr;
  if (const auto it = added_text_.find(id); it != added_text_.end()) return &it->second;
  return bpe_->token_of(id);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text;
  Decoder::Pipeline pipeline = decoder_.start(text);
  for (const std::int32_t id : ids)
    if (const std::string* token = decodable(id, skip_special)) pipeline.push(*token);
  pipeline.finish();
  return text;
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  const std::string* token = decodable(id, false);
  return token == nullptr ? std::string() : decoder_.token_bytes(*token);
}

std::optional<std::string> Tokenizer::token_text(std::int32_t id) const {
  if (const auto it = added_.find(id); it != added_.end()) return it->second.content;
  if (const std::string* token = bpe_->token_of(id)) return *token;
  return std::nullopt;
}

bool Tokenizer::is_special(std::int32_t id) const {
  const auto it = added_.find(id);
  return it != added_.end() && it->second.special;
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto it = added_ids_.find(std::string(token)); it != added_ids_.end()) return it->second;
  return bpe_->id_of(token);
}

}  // namespace ktc::text
