#include "runtime/text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "runtime/text/unicode.h"

namespace ktc::text {
namespace {

// Backtracking steps of one match (each costs some nanoseconds) and KiB of memory for them.
constexpr std::uint32_t kMatchLimit = 50'000'000;
constexpr std::uint32_t kHeapLimitKiB = 256 * 1024;
constexpr std::size_t kJitStackBytes = 64u << 20;

struct CodeDeleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct ContextDeleter {
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
};

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, CodeDeleter> code;
};

struct RegexScratch::State {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {
  state_->match = pcre2_match_data_create(1, nullptr);  // only the whole match is wanted
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->context == nullptr) return;
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKiB);
  state_->stack = pcre2_jit_stack_create(64u << 10, kJitStackBytes, nullptr);  // reserved, not touched
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(state_->match);
  pcre2_match_context_free(state_->context);
  pcre2_jit_stack_free(state_->stack);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Expected<Regex> Regex::compile_pcre2(std::string_view translated, std::string_view original) {
  std::unique_ptr<pcre2_compile_context, ContextDeleter> context(pcre2_compile_context_create(nullptr));
  if (!context) return Status(StatusCode::resource_exhausted, "no memory to compile a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return make_error(StatusCode::invalid_argument,
                      {.what = "regular expression",
                       .found = fmt::format("{} (\"{}\")", reinterpret_cast<const char*>(message), original),
                       .expected = "a pattern that PCRE2 can run"});
  }
  Regex regex;
  regex.code_ = std::make_unique<Code>();
  regex.code_->code.reset(code);
  regex.pattern_ = original;
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // refused on a hardened system: then the interpreter runs it
  return regex;
}

Expected<Regex> Regex::compile(std::string_view pattern) {
  KTC_ASSIGN_OR_RETURN(const std::string translated, translate_oniguruma(pattern));
  return compile_pcre2(translated, pattern);
}

Expected<Regex> Regex::literal(std::string_view text) {
  std::string quoted;
  for (char c : text) {
    const auto b = static_cast<unsigned char>(c);
    if (b < 0x80 && !(b >= '0' && b <= '9') && !(b >= 'A' && b <= 'Z') && !(b >= 'a' && b <= 'z'))
      quoted += fmt::format("\\x{{{:x}}}", b);
    else
      quoted += c;
  }
  return compile_pcre2(quoted, text);
}

Status Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>& matches) const {
  matches.clear();
  RegexScratch::State& state = *scratch.state_;
  if (state.match == nullptr || state.context == nullptr)
    return Status(StatusCode::resource_exhausted, "no memory to run a regular expression");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    int rc = pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.match, state.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.match,
                       state.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(rc, message, sizeof message);
      return make_error(StatusCode::resource_exhausted,
                        {.what = "splitting the text",
                         .found = fmt::format("{} at byte {}", reinterpret_cast<const char*>(message), from),
                         .remedy = "shorten the text or break it into paragraphs"});
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.match);
    const Span span{offsets[0], offsets[1]};
    if (span.begin > span.end || span.begin < from) break;  // \K in a look-around: no sensible match follows
    if (span.begin == span.end && last_end == span.end) {
      if (from >= text.size()) break;
      next_code_point(text, from);
      continue;
    }
    matches.push_back(span);
    from = last_end = span.end;
  }
  return Status();
}

}  // namespace ktc::text
