// A chat template from arbitrary bytes, rendered on a small conversation: an error or text whose marks lie within it.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/text/chat_template.h"
#include "runtime/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = ktc::text::ChatTemplate::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!parsed.ok()) return 0;
  ktc::text::Conversation conversation;
  conversation.messages = nlohmann::ordered_json::parse(
      R"([{"role":"system","content":"s"},{"role":"user","content":"h\u00e9 <x>\n"},{"role":"assistant","content":null,
           "tool_calls":[{"id":"1","function":{"name":"f","arguments":{"a":[1,2.5,true]}}}]}])");
  const auto rendered = (*parsed)->render_marked(conversation);
  if (!rendered.ok()) return 0;
  if (ktc::text::find_invalid_utf8(rendered->text) != std::string_view::npos) std::abort();
  std::size_t at = 0;
  for (const auto& span : rendered->content) {
    if (span.begin < at || span.begin >= span.end || span.end > rendered->text.size()) std::abort();
    at = span.end;
  }
  return 0;
}
