// --prompt, --prompt-file and --chat.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/exec/generator.h"
#include "tools/ktc/run_options.h"
#include "tools/ktc/run_sampling.h"
#include "tools/ktc/run_session.h"
#include "tools/ktc/run_text.h"

namespace ktc::run {

// What generation needs, opened once.
struct Speaker {
  Session session;
  Text text;
  ResolvedSampling sampling;
};

// Opens plan and tokenizer and says what is in force on standard error; the executor comes later (open_executor).
Expected<Speaker> open_speaker(const Options& options);

struct Answer {
  std::vector<std::int32_t> ids;
  std::string text;  // without stop tokens and without special tokens
  exec::FinishReason reason = exec::FinishReason::error;
  Status status;
};

struct Answers {
  std::vector<Answer> answers;  // in the order of the prompts
  exec::Throughput throughput;
};

// Generates for all prompts at once. stream: called with each new piece of the first prompt's text; a failure ends that
// prompt and is returned. The pieces put together are the answer's text.
Expected<Answers> answer(Speaker& speaker, const Options& options,
                         const std::vector<std::vector<std::int32_t>>& prompts,
                         const std::function<Status(std::string_view)>& stream, const std::atomic<bool>& stop);

Status run_generate(const Options& options);  // --prompt and --prompt-file, with or without --chat
Status run_chat(const Options& options);      // a conversation on standard input

}  // namespace ktc::run
