#include "runtime/text/post_processor.h"

#include <fmt/format.h>

#include "runtime/text/bpe.h"

namespace ktc::text {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxRepetitions = 16;  // of the text in a template: more is no tokenizer

Status append_special(const JsonNode& piece, const JsonNode& special_tokens, std::vector<std::int32_t>& ids) {
  KTC_ASSIGN_OR_RETURN(const std::string name, piece.member("id").string());
  const JsonNode entry = special_tokens.member(name);
  if (entry.is_null()) return piece.member("id").error("a key of special_tokens");
  const JsonNode list = entry.member("ids");
  KTC_RETURN_IF_ERROR(list.expect_array());
  for (std::size_t i = 0; i < list.value().size(); ++i) {
    KTC_ASSIGN_OR_RETURN(const std::int64_t id, list.element(i).integer(0, kMaxTokenId));
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return Status();
}

}  // namespace

Expected<PostProcessor> PostProcessor::load(const JsonNode& node) {
  PostProcessor processor;
  KTC_RETURN_IF_ERROR(processor.load_into(node, 0));
  return processor;
}

Status PostProcessor::load_into(const JsonNode& node, int depth) {
  if (node.is_null()) return Status();
  KTC_RETURN_IF_ERROR(node.expect_object());
  if (depth > kMaxDepth) return node.error(fmt::format("at most {} sequences inside each other", kMaxDepth));
  KTC_ASSIGN_OR_RETURN(const std::string type, node.member("type").string());
  if (type == "Sequence") {
    const JsonNode list = node.member("processors");
    KTC_RETURN_IF_ERROR(list.expect_array());
    for (std::size_t i = 0; i < list.value().size(); ++i) KTC_RETURN_IF_ERROR(load_into(list.element(i), depth + 1));
    return Status();
  }
  if (type == "ByteLevel") return Status();
  if (type != "TemplateProcessing") return node.member("type").unsupported("TemplateProcessing, ByteLevel or Sequence");
  const JsonNode single = node.member("single");
  KTC_RETURN_IF_ERROR(single.expect_array());
  Template shape;
  shape.around.emplace_back();
  for (std::size_t i = 0; i < single.value().size(); ++i) {
    const JsonNode piece = single.element(i);
    const JsonNode sequence = piece.member("Sequence"), special = piece.member("SpecialToken");
    if (!sequence.is_null()) {
      if (sequence.member("id").value() != "A") return sequence.member("id").error("\"A\"");
      if (shape.around.size() > kMaxRepetitions) return single.error("fewer repetitions of the text");
      shape.around.emplace_back();
    } else if (!special.is_null()) {
      KTC_RETURN_IF_ERROR(append_special(special, node.member("special_tokens"), shape.around.back()));
    } else {
      return piece.unsupported("{\"Sequence\": ...} or {\"SpecialToken\": ...}");
    }
  }
  templates_.push_back(std::move(shape));
  return Status();
}

void PostProcessor::apply(std::vector<std::int32_t>& ids) const {
  for (const Template& shape : templates_) {
    std::vector<std::int32_t> out;
    for (std::size_t i = 0; i < shape.around.size(); ++i) {
      if (i > 0) out.insert(out.end(), ids.begin(), ids.end());
      out.insert(out.end(), shape.around[i].begin(), shape.around[i].end());
    }
    ids = std::move(out);
  }
}

bool PostProcessor::begins_with(std::int32_t id) const {
  for (const Template& shape : templates_)
    if (!shape.around.front().empty()) return shape.around.front().front() == id;
  return false;
}

bool PostProcessor::ends_with(std::int32_t id) const {
  for (const Template& shape : templates_)
    if (shape.around.size() > 1 && !shape.around.back().empty()) return shape.around.back().back() == id;
  return false;
}

void PostProcessor::prepend(std::int32_t id) {
  templates_.push_back({{{id}, {}}});
}
void PostProcessor::append(std::int32_t id) {
  templates_.push_back({{{}, {id}}});
}

}  // namespace ktc::text
