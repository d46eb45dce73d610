// tokenizer.json from arbitrary bytes: load errors or a tokenizer that encodes, decodes and streams consistently. The part of
// the input behind a NUL is the text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/text/stream_decoder.h"
#include "runtime/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find('\0');
  const std::string_view text = cut == std::string_view::npos ? std::string_view("ab 12 \xC3\xA9<s>") : input.substr(cut + 1);
  const auto tokenizer = ktc::text::Tokenizer::parse(input.substr(0, cut), "fuzz");
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->encode(text, true, true);
  if (!ids.ok()) return 0;
  ktc::text::StreamDecoder stream(**tokenizer, false);
  std::string streamed;
  for (const std::int32_t id : *ids) {
    const std::string delta = stream.push(id);
    if (ktc::text::find_invalid_utf8(delta) != std::string_view::npos) std::abort();
    streamed += delta;
  }
  streamed += stream.finish();
  if (streamed != (*tokenizer)->decode(*ids, false)) std::abort();
  return 0;
}
