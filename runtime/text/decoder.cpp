#include "runtime/text/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/text/byte_level.h"
#include "runtime/text/unicode.h"

namespace ktc::text {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::int64_t kMaxStrip = 1 << 20;

std::optional<unsigned char> byte_of(std::string_view token) {  // "<0xHH>"
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (char c : token.substr(3, 2)) {
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<unsigned>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + static_cast<unsigned>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      value = value * 16 + static_cast<unsigned>(c - 'A' + 10);
    else
      return std::nullopt;
  }
  return static_cast<unsigned char>(value);
}

// The last stage: collects.
class Sink final : public DecodeStage {
 public:
  explicit Sink(std::string& out) : out_(out) {}
  void text(std::string_view chunk) override { out_ += chunk; }
  void end_token() override {}
  void finish() override {}

 private:
  std::string& out_;
};

class Stage : public DecodeStage {
 public:
  explicit Stage(DecodeStage& next) : next_(next) {}

 protected:
  void emit(std::string_view chunk) {
    if (!chunk.empty()) next_.text(chunk);
  }
  DecodeStage& next_;
};

class JoinWithSpaces final : public Stage {
 public:
  using Stage::Stage;
  void text(std::string_view chunk) override { separate(), emit(chunk); }
  void end_token() override {
    separate();  // an empty token counts
    open_ = false;
    any_ = true;
  }
  void finish() override { next_.end_token(), next_.finish(); }

 private:
  void separate() {
    if (!open_ && any_) emit(" ");
    open_ = true;
  }
  bool open_ = false, any_ = false;
};

class Fuse final : public Stage {
 public:
  using Stage::Stage;
  void text(std::string_view chunk) override { emit(chunk); }
  void end_token() override {}
  void finish() override { next_.end_token(), next_.finish(); }
};

// All tokens become one, of the bytes they stand for.
class ByteLevel final : public Stage {
 public:
  using Stage::Stage;
  void text(std::string_view chunk) override { token_ += chunk; }
  void end_token() override {
    std::string bytes, joined;
    append_bytes_of_byte_level(bytes, token_);
    token_.clear();
    joiner_.push(bytes, joined);
    emit(joined);
  }
  void finish() override {
    std::string rest;
    joiner_.finish(rest);
    emit(rest);
    next_.end_token();
    next_.finish();
  }

 private:
  std::string token_;
  Utf8Joiner joiner_;
};

// A run of byte tokens becomes one token.
class ByteFallback final : public Stage {
 public:
  explicit ByteFallback(DecodeStage& next) : Stage(next) { joiner_.replace_each_byte = true; }
  void text(std::string_view chunk) override { token_ += chunk; }
  void end_token() override {
    const std::string token = std::move(token_);
    token_.clear();
    if (const auto byte = byte_of(token)) {
      const char c = static_cast<char>(*byte);
      std::string joined;
      joiner_.push({&c, 1}, joined);
      emit(joined);
      in_run_ = true;
      return;
    }
    end_run();
    emit(token);
    next_.end_token();
  }
  void finish() override { end_run(), next_.finish(); }

 private:
  void end_run() {
    if (!in_run_) return;
    std::string rest;
    joiner_.finish(rest);
    emit(rest);
    next_.end_token();
    in_run_ = false;
  }
  std::string token_;
  Utf8Joiner joiner_;
  bool in_run_ = false;
};

class Replace final : public Stage {
 public:
  Replace(DecodeStage& next, std::string_view pattern, std::string_view content)
      : Stage(next), pattern_(pattern), content_(content) {}
  void text(std::string_view chunk) override {
    held_ += chunk;
    release(false);
  }
  void end_token() override {
    release(true);
    next_.end_token();
  }
  void finish() override { next_.finish(); }

 private:
  // Gives out what no occurrence of the pattern can reach any more.
  void release(bool all) {
    std::string out;
    std::size_t from = 0;
    for (std::size_t at; (at = held_.find(pattern_, from)) != std::string::npos; from = at + pattern_.size()) {
      out.append(held_, from, at - from);
      out += content_;
    }
    std::size_t end = held_.size();
    if (!all)
      for (std::size_t n = std::min(pattern_.size() - 1, end - from); n > 0; --n)
        if (std::string_view(pattern_).starts_with(std::string_view(held_).substr(end - n))) {
          end -= n;
          break;
        }
    out.append(held_, from, end - from);
    held_.erase(0, end);
    emit(out);
  }
  const std::string_view pattern_, content_;
  std::string held_;
};

class Strip final : public Stage {
 public:
  Strip(DecodeStage& next, std::string_view content, std::size_t start, std::size_t stop)
      : Stage(next), content_(content), start_(start), stop_(stop), to_cut_(start) {}
  void text(std::string_view chunk) override {
    while (!chunk.empty()) {
      std::size_t at = 0;
      next_code_point(chunk, at);
      const std::string_view character = chunk.substr(0, at);
      chunk.remove_prefix(at);
      const bool mark = character == content_;
      if (mark && to_cut_ > 0) {
        --to_cut_;
        continue;
      }
      to_cut_ = 0;
      if (mark) {
        ++held_;
        if (held_ > stop_) --held_, emit(content_);
        continue;
      }
      for (; held_ > 0; --held_) emit(content_);
      emit(character);
    }
  }
  void end_token() override {
    held_ = 0;
    to_cut_ = start_;
    next_.end_token();
  }
  void finish() override { next_.finish(); }

 private:
  const std::string_view content_;
  const std::size_t start_, stop_;
  std::size_t to_cut_;
  std::size_t held_ = 0;  // marks at the end of what came so far
};

}  // namespace

Expected<Decoder> Decoder::load(const JsonNode& node) {
  Decoder decoder;
  if (node.is_null())
    decoder.steps_.push_back({Kind::join_with_spaces, "", "", 0, 0});
  else
    KTC_RETURN_IF_ERROR(decoder.load_into(node, 0));
  return decoder;
}

Status Decoder::load_into(const JsonNode& node, int depth) {
  KTC_RETURN_IF_ERROR(node.expect_object());
  if (depth > kMaxDepth) return node.error(fmt::format("at most {} sequences inside each other", kMaxDepth));
  KTC_ASSIGN_OR_RETURN(const std::string type, node.member("type").string());
  if (type == "Sequence") {
    const JsonNode list = node.member("decoders");
    KTC_RETURN_IF_ERROR(list.expect_array());
    for (std::size_t i = 0; i < list.value().size(); ++i) KTC_RETURN_IF_ERROR(load_into(list.element(i), depth + 1));
    return Status();
  }
  Step step{};
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    const JsonNode pattern = node.member("pattern");
    if (!pattern.value().is_object() || pattern.member("String").is_null())
      return pattern.unsupported("{\"String\": \"...\"}");
    KTC_ASSIGN_OR_RETURN(step.pattern, pattern.member("String").string());
    if (step.pattern.empty()) return pattern.member("String").error("at least one character");
    KTC_ASSIGN_OR_RETURN(step.content, node.member("content").string());
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    KTC_ASSIGN_OR_RETURN(step.content, node.member("content").string());
    if (count_code_points(step.content) != 1) return node.member("content").error("one character");
    KTC_ASSIGN_OR_RETURN(const std::int64_t start, node.member("start").integer(0, kMaxStrip));
    KTC_ASSIGN_OR_RETURN(const std::int64_t stop, node.member("stop").integer(0, kMaxStrip));
    step.start = static_cast<std::size_t>(start);
    step.stop = static_cast<std::size_t>(stop);
  } else {
    return node.member("type").unsupported("ByteLevel, ByteFallback, Fuse, Replace, Strip or Sequence");
  }
  if (steps_.size() >= 64) return node.error("at most 64 decoders");
  steps_.push_back(std::move(step));
  return Status();
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string text(token);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::byte_level: {
        std::string bytes;
        append_bytes_of_byte_level(bytes, text);
        return bytes;
      }
      case Kind::byte_fallback:
        if (const auto byte = byte_of(text)) return std::string(1, static_cast<char>(*byte));
        break;
      case Kind::replace: {
        std::string out;
        std::size_t from = 0;
        for (std::size_t at; (at = text.find(step.pattern, from)) != std::string::npos;
             from = at + step.pattern.size()) {
          out.append(text, from, at - from);
          out += step.content;
        }
        out.append(text, from, text.size() - from);
        text = std::move(out);
        break;
      }
      case Kind::strip:  // concerns the ends of a text more than a token
      case Kind::fuse:
      case Kind::join_with_spaces: break;
    }
  }
  return text;
}

Decoder::Pipeline Decoder::start(std::string& out) const {
  Pipeline pipeline;
  auto& stages = pipeline.stages_;
  stages.push_back(std::make_unique<Sink>(out));
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    DecodeStage& next = *stages.back();
    switch (step->kind) {
      case Kind::byte_level: stages.push_back(std::make_unique<ByteLevel>(next)); break;
      case Kind::byte_fallback: stages.push_back(std::make_unique<ByteFallback>(next)); break;
      case Kind::fuse: stages.push_back(std::make_unique<Fuse>(next)); break;
      case Kind::join_with_spaces: stages.push_back(std::make_unique<JoinWithSpaces>(next)); break;
      case Kind::replace: stages.push_back(std::make_unique<Replace>(next, step->pattern, step->content)); break;
      case Kind::strip: stages.push_back(std::make_unique<Strip>(next, step->content, step->start, step->stop)); break;
    }
  }
  return pipeline;
}

void Decoder::Pipeline::push(std::string_view token) {
  DecodeStage& first = *stages_.back();
  if (!token.empty()) first.text(token);
  first.end_token();
}

void Decoder::Pipeline::finish() {
  stages_.back()->finish();
}

}  // namespace ktc::text
