// ktc-plan: looks into compiled plans. Exit codes: 0; 1 for an error, or for plans that differ; 2 for wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/progress.h"
#include "runtime/plan/plan.h"

namespace {

int report(const ktc::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "ktc-plan: %s\n", status.message().c_str());
  return 1;
}

int put(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return 0;
  std::fprintf(stderr, "ktc-plan: cannot write to standard output\n");
  return 1;
}

int verify(const std::string& path, bool weights) {
  const auto plan = ktc::plan::open_plan(path);
  if (!plan.ok()) return report(plan.status());
  if (weights) {
    ktc::Progress progress("verifying weights");
    if (const int code = report(ktc::plan::verify_weights(**plan, ktc::Progress::report, &progress)); code != 0)
      return code;
  }
  return put(path + (weights ? ": verified, weights included\n" : ": verified\n"));
}

int show(const std::vector<std::string>& paths, std::string (*text)(const ktc::planfb::PlanT&)) {
  int code = 0;
  for (const std::string& path : paths) {
    const auto plan = ktc::plan::open_plan(path);
    if (!plan.ok()) {
      code = report(plan.status());
      continue;
    }
    const std::string title = paths.size() > 1 ? path + ":\n" : "";
    if (put(title + text((*plan)->plan)) != 0) return 1;
  }
  return code;
}

int diff(const std::string& before_path, const std::string& after_path) {
  const auto before = ktc::plan::open_plan(before_path);
  if (!before.ok()) return report(before.status());
  const auto after = ktc::plan::open_plan(after_path);
  if (!after.ok()) return report(after.status());
  const std::string text = ktc::plan::diff((*before)->plan, (*after)->plan);
  if (put(text) != 0) return 1;
  return text.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Looks into compiled plans", "ktc-plan");
  app.require_subcommand(1);
  std::vector<std::string> paths;
  std::string before, after;
  bool weights = false;
  CLI::App* dump = app.add_subcommand("dump", "Prints a plan as stable text");
  dump->add_option("PLAN", paths, "folders that ktc compile wrote")->required();
  CLI::App* check = app.add_subcommand("verify", "Checks structure, meaning and the files beside the plan");
  check->add_option("PLAN", paths, "folders that ktc compile wrote")->required();
  check->add_flag("--weights", weights, "also compare every weight's bytes with its digest");
  CLI::App* compare =
      app.add_subcommand("diff", "Prints the lines of two dumps that differ; exits with 1 if there are any");
  compare->add_option("BEFORE", before)->required();
  compare->add_option("AFTER", after)->required();
  CLI::App* sizes = app.add_subcommand("sizes", "Prints bytes by device, category, format and name");
  sizes->add_option("PLAN", paths, "folders that ktc compile wrote")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "ktc-plan: %s; see ktc-plan --help\n", error.what());
    return 2;
  }
  if (dump->parsed()) return show(paths, ktc::plan::dump);
  if (sizes->parsed()) return show(paths, ktc::plan::sizes);
  if (compare->parsed()) return diff(before, after);
  int code = 0;
  for (const std::string& path : paths)
    if (verify(path, weights) != 0) code = 1;
  return code;
}
