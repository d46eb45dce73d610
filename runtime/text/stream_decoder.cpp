#include "runtime/text/stream_decoder.h"

#include <utility>

namespace ktc::text {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      text_(std::make_unique<std::string>()),
      pipeline_(tokenizer.decoder_.start(*text_)) {}

std::string StreamDecoder::take() {
  return std::exchange(*text_, std::string());
}

std::string StreamDecoder::push(std::int32_t id) {
  if (const std::string* token = tokenizer_.decodable(id, skip_special_)) pipeline_.push(*token);
  return take();
}

std::string StreamDecoder::finish() {
  pipeline_.finish();
  pipeline_ = tokenizer_.decoder_.start(*text_);
  return take();
}

}  // namespace ktc::text
