#include "runtime/text/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/bpe.h"
#include "runtime/text/unicode.h"

namespace ktc::text {

Expected<AddedToken> load_added_token(const JsonNode& node) {
  KTC_RETURN_IF_ERROR(node.expect_object());
  AddedToken token;
  KTC_ASSIGN_OR_RETURN(const std::int64_t id, node.member("id").integer(0, kMaxTokenId));
  token.id = static_cast<std::int32_t>(id);
  KTC_ASSIGN_OR_RETURN(token.content, node.member("content").string());
  if (token.content.size() > AddedTokenFinder::kMaxPattern)
    return node.member("content").error(fmt::format("at most {} bytes", AddedTokenFinder::kMaxPattern));
  KTC_ASSIGN_OR_RETURN(token.special, node.member("special").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(token.single_word, node.member("single_word").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(token.lstrip, node.member("lstrip").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(token.rstrip, node.member("rstrip").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(token.normalized, node.member("normalized").boolean_or(!token.special));
  return token;
}

SpecialScope::Verdict SpecialScope::judge(Span match) const {
  if (!everywhere) return Verdict::inside_ordinary;
  if (ordinary == nullptr) return Verdict::accept;
  // the first ordinary span that ends behind the start of the match
  const auto it = std::upper_bound(ordinary->begin(), ordinary->end(), match.begin,
                                   [](std::size_t at, const Span& span) { return at < span.end; });
  if (it == ordinary->end() || it->begin >= match.end) return Verdict::accept;
  return it->begin <= match.begin && match.end <= it->end ? Verdict::inside_ordinary : Verdict::straddles;
}

void AddedTokenFinder::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  std::int32_t node = 0;
  for (char c : pattern) {
    const auto b = static_cast<unsigned char>(c);
    auto& children = nodes_[static_cast<std::size_t>(node)].children;
    const auto it = std::lower_bound(children.begin(), children.end(), b,
                                     [](const auto& child, unsigned char byte) { return child.first < byte; });
    if (it != children.end() && it->first == b) {
      node = it->second;
      continue;
    }
    const auto fresh = static_cast<std::int32_t>(nodes_.size());
    children.insert(it, {b, fresh});
    nodes_.emplace_back();
    node = fresh;
  }
  first_[static_cast<unsigned char>(pattern[0])] = true;
  nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

void AddedTokenFinder::matches_at(std::string_view text, std::size_t at, std::vector<Match>& matches) const {
  matches.clear();
  std::int32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto b = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[static_cast<std::size_t>(node)].children;
    const auto it = std::lower_bound(children.begin(), children.end(), b,
                                     [](const auto& child, unsigned char byte) { return child.first < byte; });
    if (it == children.end() || it->first != b) return;
    node = it->second;
    if (nodes_[static_cast<std::size_t>(node)].token >= 0)
      matches.push_back({i + 1, nodes_[static_cast<std::size_t>(node)].token});
  }
}

bool AddedTokenFinder::has_special(std::string_view text) const {
  std::vector<Match> matches;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!first_[static_cast<unsigned char>(text[at])]) continue;
    matches_at(text, at, matches);
    for (const Match& match : matches)
      if (tokens_[static_cast<std::size_t>(match.token)].special) return true;
  }
  return false;
}

void AddedTokenFinder::split(std::string_view text, const SpecialScope& scope, std::vector<Segment>& segments) const {
  segments.clear();
  std::size_t covered = 0;
  std::vector<Match> matches;
  for (std::size_t at = 0; at < text.size();) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    matches_at(text, at, matches);
    const AddedToken* token = nullptr;
    std::size_t end = 0, resume = at + 1;
    for (std::size_t i = matches.size(); i-- > 0;) {
      const AddedToken& candidate = tokens_[static_cast<std::size_t>(matches[i].token)];
      end = matches[i].end;
      const auto verdict = candidate.special ? scope.judge({at, end}) : SpecialScope::Verdict::accept;
      // a token that begins or ends in ordinary text hides no shorter one and none that starts within it
      if (verdict == SpecialScope::Verdict::straddles) continue;
      resume = end;  // from here on the text is used up, whether the match counts or not
      if (verdict == SpecialScope::Verdict::accept) token = &candidate;
      break;
    }
    if (token != nullptr && token->single_word) {
      std::size_t before = at, after = end;
      if ((at > 0 && is_word(previous_code_point(text, before))) ||
          (end < text.size() && is_word(next_code_point(text, after))))
        token = nullptr;
    }
    if (token == nullptr) {
      at = resume;
      continue;
    }
    std::size_t begin = at;
    if (token->lstrip)
      while (begin > covered) {
        std::size_t before = begin;
        if (!is_white_space(previous_code_point(text, before))) break;
        begin = before;
      }
    begin = std::max(begin, covered);
    if (token->rstrip)
      while (end < text.size()) {
        std::size_t after = end;
        if (!is_white_space(next_code_point(text, after))) break;
        end = after;
      }
    if (covered < begin) segments.push_back({{covered, begin}, -1});
    segments.push_back({{begin, std::max(begin, end)}, token->id});
    covered = std::max(covered, end);
    at = resume;
  }
  if (covered < text.size()) segments.push_back({{covered, text.size()}, -1});
}

}  // namespace ktc::text
