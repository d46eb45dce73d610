// ktc: the compiler's command line. What it does is in *_command.cpp; this is only the way in and out.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "tools/ktc/compile_command.h"
#include "tools/ktc/explore_command.h"
#include "tools/ktc/probe_command.h"
#include "tools/ktc/run_interrupt.h"

namespace {

ktc::Status run(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "explore") return ktc::tools::run_explore(argc - 1, argv + 1);
  if (first == "probe") return ktc::tools::run_probe(argc - 1, argv + 1);
  auto command = ktc::tools::parse_compile_options(argc, argv);
  if (!command.ok()) return command.status();
  return *command ? ktc::tools::run_compile(**command) : ktc::Status();
}

}  // namespace

// Exit status: 0 done, 1 the user can mend it, 2 a bug of ours.
int main(int argc, char** argv) {
  ktc::run::ignore_broken_pipes();
  ktc::Status status;
  try {
    status = run(argc, argv);
  } catch (const std::exception& error) {  // memory, or a bug: libraries report everything else as a Status
    status = ktc::Status(ktc::StatusCode::internal, std::string("unexpected: ") + error.what() + "; please report this");
  }
  if (status.ok()) return 0;
  fmt::print(stderr, "ktc: {}\n", status.message());
  return status.code() == ktc::StatusCode::internal ? 2 : 1;
}
