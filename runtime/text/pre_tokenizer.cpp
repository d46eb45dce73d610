#include "runtime/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/byte_level.h"

namespace ktc::text {
namespace {

constexpr int kMaxDepth = 16;

// How ByteLevel cuts when it is asked to: contractions, then words, numbers and other characters with one leading
// space.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Piece {
  Span span;
  bool match;
};

}  // namespace

Expected<Regex> load_pattern(const JsonNode& node) {
  KTC_RETURN_IF_ERROR(node.expect_object());
  if (node.value().size() != 1) return node.error("one of {\"Regex\": \"...\"} and {\"String\": \"...\"}");
  const JsonNode text = node.member("String");
  if (!text.is_null()) {
    KTC_ASSIGN_OR_RETURN(const std::string literal, text.string());
    if (literal.empty()) return text.error("at least one character");
    return Regex::literal(literal);
  }
  const JsonNode regex = node.member("Regex");
  if (regex.is_null()) return node.unsupported("{\"Regex\": \"...\"} or {\"String\": \"...\"}");
  KTC_ASSIGN_OR_RETURN(const std::string pattern, regex.string());
  auto compiled = Regex::compile(pattern);
  if (!compiled.ok()) return compiled.status().with_context(regex.place());
  return compiled;
}

void split_by_matches(std::size_t size, const std::vector<Span>& matches, SplitBehavior behavior, bool invert,
                      std::vector<Span>& words) {
  std::vector<Piece> pieces;  // cover the text; empty ones only where the pattern matched nothing
  std::size_t from = 0;
  for (const Span& match : matches) {
    if (from != match.begin) pieces.push_back({{from, match.begin}, invert});
    pieces.push_back({match, !invert});
    from = match.end;
  }
  if (from != size) pieces.push_back({{from, size}, invert});

  std::vector<Span> out;
  if (behavior == SplitBehavior::merged_with_next) std::reverse(pieces.begin(), pieces.end());
  bool previous = false;
  for (const Piece& piece : pieces) {
    bool join = false;
    switch (behavior) {
      case SplitBehavior::isolated: break;
      case SplitBehavior::removed:
        if (piece.match) continue;
        break;
      case SplitBehavior::contiguous: join = piece.match == previous; break;
      case SplitBehavior::merged_with_previous:
      case SplitBehavior::merged_with_next: join = piece.match && !previous; break;
    }
    previous = piece.match;
    if (!join || out.empty())
      out.push_back(piece.span);
    else if (behavior == SplitBehavior::merged_with_next)
      out.back().begin = piece.span.begin;
    else
      out.back().end = piece.span.end;
  }
  if (behavior == SplitBehavior::merged_with_next) std::reverse(out.begin(), out.end());
  for (const Span& span : out)
    if (span.begin != span.end) words.push_back(span);
}

Expected<PreTokenizer> PreTokenizer::load(const JsonNode& node) {
  PreTokenizer pre_tokenizer;
  KTC_RETURN_IF_ERROR(pre_tokenizer.load_into(node, 0));
  return pre_tokenizer;
}

Status PreTokenizer::load_into(const JsonNode& node, int depth) {
  if (node.is_null()) return Status();
  KTC_RETURN_IF_ERROR(node.expect_object());
  if (depth > kMaxDepth) return node.error(fmt::format("at most {} sequences inside each other", kMaxDepth));
  KTC_ASSIGN_OR_RETURN(const std::string type, node.member("type").string());
  if (type == "Sequence") {
    const JsonNode list = node.member("pretokenizers");
    KTC_RETURN_IF_ERROR(list.expect_array());
    for (std::size_t i = 0; i < list.value().size(); ++i) KTC_RETURN_IF_ERROR(load_into(list.element(i), depth + 1));
    return Status();
  }
  Step step;
  if (type == "Split") {
    KTC_ASSIGN_OR_RETURN(Regex pattern, load_pattern(node.member("pattern")));
    step.pattern = std::make_shared<const Regex>(std::move(pattern));
    KTC_ASSIGN_OR_RETURN(const std::string behavior, node.member("behavior").string());
    if (behavior == "Isolated")
      step.behavior = SplitBehavior::isolated;
    else if (behavior == "Removed")
      step.behavior = SplitBehavior::removed;
    else if (behavior == "MergedWithPrevious")
      step.behavior = SplitBehavior::merged_with_previous;
    else if (behavior == "MergedWithNext")
      step.behavior = SplitBehavior::merged_with_next;
    else if (behavior == "Contiguous")
      step.behavior = SplitBehavior::contiguous;
    else
      return node.member("behavior").unsupported("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
    KTC_ASSIGN_OR_RETURN(step.invert, node.member("invert").boolean_or(false));
  } else if (type == "ByteLevel") {
    step.byte_level = true;
    KTC_ASSIGN_OR_RETURN(step.prefix_space, node.member("add_prefix_space").boolean_or(true));
    KTC_ASSIGN_OR_RETURN(const bool use_regex, node.member("use_regex").boolean_or(true));
    if (use_regex) {
      KTC_ASSIGN_OR_RETURN(Regex pattern, Regex::compile(kByteLevelPattern));
      step.pattern = std::make_shared<const Regex>(std::move(pattern));
    }
  } else if (type == "Digits") {
    KTC_ASSIGN_OR_RETURN(const bool individual, node.member("individual_digits").boolean_or(false));
    step.behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
    KTC_ASSIGN_OR_RETURN(Regex pattern, Regex::compile(R"(\p{N})"));
    step.pattern = std::make_shared<const Regex>(std::move(pattern));
  } else {
    return node.member("type").unsupported("Split, ByteLevel, Digits or Sequence");
  }
  steps_.push_back(std::move(step));
  return Status();
}

Status PreTokenizer::cut(const Step& step, std::string_view text, RegexScratch& scratch,
                         std::vector<Span>& words) const {
  if (!step.pattern) return Status();
  std::vector<Span> matches, cut, next;
  for (const Span& word : words) {
    KTC_RETURN_IF_ERROR(step.pattern->find_all(text.substr(word.begin, word.end - word.begin), scratch, matches));
    cut.clear();
    split_by_matches(word.end - word.begin, matches, step.behavior, step.invert, cut);
    for (const Span& part : cut) next.push_back({word.begin + part.begin, word.begin + part.end});
  }
  words = std::move(next);
  return Status();
}

Status PreTokenizer::apply(std::string& text, RegexScratch& scratch, std::vector<Span>& words) const {
  words.clear();
  if (!text.empty()) words.push_back({0, text.size()});
  for (const Step& step : steps_) {
    if (step.prefix_space) {
      std::string spaced;
      for (Span& word : words) {
        const std::string_view old = std::string_view(text).substr(word.begin, word.end - word.begin);
        word.begin = spaced.size();
        if (old.front() != ' ') spaced += ' ';
        spaced += old;
        word.end = spaced.size();
      }
      text = std::move(spaced);
    }
    KTC_RETURN_IF_ERROR(cut(step, text, scratch, words));
    if (step.byte_level) {
      std::string mapped;
      mapped.reserve(text.size() + text.size() / 4);
      for (Span& word : words) {
        const std::size_t begin = mapped.size();
        append_byte_level(mapped, std::string_view(text).substr(word.begin, word.end - word.begin));
        word = {begin, mapped.size()};
      }
      text = std::move(mapped);
    }
  }
  return Status();
}

}  // namespace ktc::text
