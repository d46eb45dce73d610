// A conversation: every turn renders all messages so far through the model's template and runs them as one prompt.
#include <unistd.h>

#include <iostream>

#include "tools/ktc/run_generate.h"
#include "tools/ktc/run_interrupt.h"
#include "tools/ktc/run_output.h"

namespace ktc::run {
namespace {

// false at the end of the input and when Ctrl-C was pressed while waiting.
bool read_turn(bool terminal, std::string& line) {
  if (terminal) std::cerr << "> " << std::flush;
  const Interrupt interrupt;
  return static_cast<bool>(std::getline(std::cin, line)) && !interrupt.flag();
}

}  // namespace

Status run_chat(const Options& options) {
  KTC_ASSIGN_OR_RETURN(Speaker speaker, open_speaker(options));
  KTC_RETURN_IF_ERROR(open_executor(options, speaker.session));
  const bool terminal = isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
  if (terminal) note("one line is one message; Ctrl-C ends an answer, Ctrl-D the conversation");

  std::vector<Message> messages;
  if (options.system) messages.push_back({"system", *options.system});
  std::string line;
  while (read_turn(terminal, line)) {
    if (line.empty()) continue;
    messages.push_back({"user", line});
    KTC_ASSIGN_OR_RETURN(std::vector<std::int32_t> prompt, speaker.text.encode_chat(messages));
    if (prompt.size() > speaker.session.longest_sequence()) {
      return longer_than_cache("conversation", std::to_string(prompt.size()) + " tokens",
                               speaker.session.longest_sequence());
    }
    const Interrupt interrupt;
    KTC_ASSIGN_OR_RETURN(Answers result, answer(speaker, options, {std::move(prompt)}, write_out, interrupt.flag()));
    KTC_RETURN_IF_ERROR(write_out("\n"));
    KTC_RETURN_IF_ERROR(speaker.session.write_records());  // after every turn: Ctrl-D may be long in coming
    KTC_RETURN_IF_ERROR(result.answers[0].status);
    note(to_text(speaker.session.statistics(result.throughput)));
    messages.push_back({"assistant", result.answers[0].text});
  }
  return {};
}

}  // namespace ktc::run
