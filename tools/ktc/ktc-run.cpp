// ktc-run: runs a plan. What each flag does is in run_*.cpp; this is only the way in and out.
#include <exception>
#include <string>
#include <vector>

#include "tools/ktc/run_bench.h"
#include "tools/ktc/run_generate.h"
#include "tools/ktc/run_interrupt.h"
#include "tools/ktc/run_options.h"
#include "tools/ktc/run_output.h"
#include "tools/ktc/run_score.h"

namespace ktc::run {
namespace {

Status run(const std::vector<std::string>& arguments) {
  KTC_ASSIGN_OR_RETURN(const Options options, parse_options(arguments));
  if (options.help) return write_out(help_text());
  switch (options.mode) {
    case Mode::generate: return run_generate(options);
    case Mode::chat: return options.prompts.empty() ? run_chat(options) : run_generate(options);
    case Mode::perplexity: return run_perplexity(options);
    case Mode::logits: return run_logits(options);
    case Mode::bench: return run_bench(options);
  }
  return Status(StatusCode::internal, "no such mode");
}

// Memory may run out anywhere; everything else is a Status by the time it gets here.
Status run_caught(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const std::bad_alloc&) {
    return make_error(StatusCode::resource_exhausted,
                      {.place = "memory", .what = "exhausted", .remedy = "see ktc-plan sizes for what a plan needs"});
  } catch (const std::exception& error) {
    return make_error(
        StatusCode::internal,
        {.place = "ktc-run", .what = std::string("unexpected: ") + error.what(), .remedy = "please report this"});
  }
}

}  // namespace
}  // namespace ktc::run

int main(int argc, char** argv) {
  ktc::run::ignore_broken_pipes();
  return ktc::run::report(ktc::run::run_caught({argv + 1, argv + argc}));
}
