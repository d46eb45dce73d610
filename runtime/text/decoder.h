// Decoders of tokenizer.json, as one pipeline that takes tokens one at a time and gives text as soon as it is certain.
//
// A whole decode is a pipeline that is fed everything and finished, so what streams and what is decoded at once are
// equal by construction. One difference from the reference library, for the sake of streaming: of a run of byte tokens
// that is not UTF-8, only the ill-formed bytes become U+FFFD (one each), not the whole run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json_node.h"

namespace ktc::text {

// One step of a decode under way: receives the text of tokens in chunks, and where each token ends.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void text(std::string_view chunk) = 0;
  virtual void end_token() = 0;
  virtual void finish() = 0;  // after the last end_token
};

class Decoder {
 public:
  // null (tokens joined by spaces), ByteLevel, ByteFallback, Fuse, Replace (a string), Strip, Sequence. Error: other
  // types.
  static Expected<Decoder> load(const JsonNode& node);

  // The text of one token by itself; not necessarily UTF-8.
  std::string token_bytes(std::string_view token) const;

  // A decode under way; text is appended to `out`, which must outlive it, as must the decoder. One thread at a time.
  class Pipeline {
   public:
    void push(std::string_view token);
    void finish();

   private:
    friend class Decoder;
    std::vector<std::unique_ptr<DecodeStage>> stages_;  // the first one is fed
  };
  Pipeline start(std::string& out) const;

 private:
  enum class Kind { byte_level, byte_fallback, fuse, replace, strip, join_with_spaces };
  struct Step {
    Kind kind;
    std::string pattern, content;     // of replace; content also of strip (one character)
    std::size_t start = 0, stop = 0;  // of strip: at most so many of `content` at either end of a token
  };
  Status load_into(const JsonNode& node, int depth);
  std::vector<Step> steps_;
};

}  // namespace ktc::text
