// Ids one at a time to text that can be shown at once: the longest text that is certain, never part of a character.
//
// The deltas together equal Tokenizer::decode of all ids. What is held back: the bytes of a character that is not
// complete (at most three), and, for tokenizers that strip or replace at the edges of tokens, what those rules still
// could change.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/text/tokenizer.h"

namespace ktc::text {

class StreamDecoder {
 public:
  // `tokenizer` must outlive this. One thread at a time.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);

  std::string push(std::int32_t id);
  // The rest; an incomplete character becomes U+FFFD. Afterwards the decoder is at its start again.
  std::string finish();

 private:
  std::string take();
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  std::unique_ptr<std::string> text_;  // on the heap: the pipeline writes into it, also after a move
  Decoder::Pipeline pipeline_;
};

}  // namespace ktc::text
