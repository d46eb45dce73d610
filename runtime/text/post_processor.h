// Post-processors of tokenizer.json: the ids that surround an encoded text when special tokens are asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json_node.h"

namespace ktc::text {

class PostProcessor {
 public:
  // null, TemplateProcessing (its template for a single text), ByteLevel (moves offsets only), Sequence. Error: other
  // types.
  static Expected<PostProcessor> load(const JsonNode& node);

  void apply(std::vector<std::int32_t>& ids) const;

  // True when the first / last id that apply() adds is `id`.
  bool begins_with(std::int32_t id) const;
  bool ends_with(std::int32_t id) const;
  void prepend(std::int32_t id);
  void append(std::int32_t id);

 private:
  struct Template {
    std::vector<std::vector<std::int32_t>> around;  // before the text, between its repetitions, behind it
  };
  Status load_into(const JsonNode& node, int depth);
  std::vector<Template> templates_;
};

}  // namespace ktc::text
