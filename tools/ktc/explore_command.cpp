#include "tools/ktc/explore_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "llvm/Support/JSON.h"
#include "models/read_model.h"
#include "placement/explore.h"
#include "runtime/base/units.h"
#include "tools/ktc/explore_measure.h"
#include "tools/ktc/explore_plot.h"
#include "tools/ktc/families.h"
#include "tools/ktc/prediction_report.h"

namespace ktc::tools {
namespace {

namespace fs = std::filesystem;
using placement::SweepRow;

struct ExploreCommand {
  fs::path model, policy;
  std::optional<fs::path> target, families, json, plot;
  std::vector<std::string> strategies, on_gpu, formats;
  std::vector<std::uint32_t> defer;
  std::optional<std::uint64_t> random_seed;
  std::uint32_t context = 0;
  std::vector<std::uint32_t> bench{128, 64};
  bool pareto = false, measure = false;
};

Expected<std::optional<ExploreCommand>> parse(int argc, char** argv) {
  ExploreCommand command;
  CLI::App app("Places, accounts and predicts every combination of the listed choices; reads headers alone.", "ktc explore");
  app.add_option("MODEL", command.model, "folder of the checkpoint; with --random-weights its config.json is enough")->required();
  app.add_option("--policy", command.policy, "what the lists below do not say")->required();
  app.add_option("--target", command.target, "the machine to predict for; default: this one, with assumed rates");
  app.add_option("--strategy", command.strategies, "uniform, frequency, front-loading, random, auto")->delimiter(',')->allow_extra_args(false);
  app.add_option("--gpu-experts", command.on_gpu, "hot experts: 0%,10%, a number per layer, or a size such as 8GiB")->delimiter(',')->allow_extra_args(false);
  app.add_option("--defer", command.defer, "experts of a token that may be late: 0,2,4")->delimiter(',')->allow_extra_args(false);
  app.add_option("--format", command.formats, "of routed experts: bf16, int8, int4, int4/32, fp8, ...")->delimiter(',')->allow_extra_args(false);
  app.add_option("--context", command.context, "tokens of each sequence that decode is predicted for; default: half of kv_cache.tokens")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--json", command.json, "also write all rows there");
  app.add_option("--plot", command.plot, "also draw tokens/s against GPU memory there, as SVG");
  app.add_flag("--pareto", command.pareto, "only plans that no other beats in speed, GPU memory and quality at once");
  app.add_flag("--measure", command.measure, "compile every plan of the table and run it on this machine");
  app.add_option("--bench", command.bench, "with --measure: ids of the prompt and new tokens (128,64)")
      ->delimiter(',')->expected(2)->allow_extra_args(false)->check(CLI::Range(1, 1 << 20));
  app.add_option("--random-weights", command.random_seed, "weights made up from this seed (1)")->expected(0, 1)->default_str("1");
  app.add_option("--families", command.families, "folder of model family declarations; default: beside the program");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::optional<ExploreCommand>();
  } catch (const CLI::ParseError& error) {
    return Status(StatusCode::invalid_argument, std::string(error.what()) + "; see ktc explore --help");
  }
  return std::optional<ExploreCommand>(std::move(command));
}

Expected<placement::SweepAxes> axes_of(const ExploreCommand& command) {
  placement::SweepAxes axes;
  for (const std::string& text : command.strategies) {
    KTC_ASSIGN_OR_RETURN(const placement::Strategy strategy, placement::parse_strategy("--strategy", text));
    axes.strategies.push_back(strategy);
  }
  for (const std::string& text : command.on_gpu) {
    KTC_ASSIGN_OR_RETURN(const placement::ExpertBudget budget, placement::parse_on_gpu("--gpu-experts", text));
    axes.on_gpu.push_back(budget);
  }
  for (const std::string& text : command.formats) {
    KTC_ASSIGN_OR_RETURN(const placement::SweepFormat format, placement::parse_sweep_format("--format", text));
    axes.formats.push_back(format);
  }
  axes.defer = command.defer;
  return axes;
}

// A row and what running it found.
struct Line {
  const SweepRow* row;
  std::optional<Measured> measured;
  std::string why_not;
};

std::string table(const std::vector<Line>& lines, bool measured) {
  std::string text = fmt::format("{:<14}{:>8} {:<10}{:>6}{:>8}{:>7}{:>12}{:>12}{:>9}  {:<20}", "strategy", "on_gpu", "experts", "defer",
                                 "hot", "hits", "GPU", "CPU", "quality", "bound by");
  text += fmt::format("{:>10}{:>10}{:>11}{}\n", "decode/s", "largest/s", "prefill/s", measured ? "  measured" : "");
  for (const Line& line : lines) {
    const SweepRow& row = *line.row;
    text += fmt::format("{:<14}{:>8} {:<10}{:>6}", row.strategy, row.on_gpu, row.format, row.defer);
    if (row.refused) {
      text += "  no plan: " + *row.refused + "\n";
      continue;
    }
    const auto& steps = row.prediction.steps;
    const placement::StepCost *first = &steps.front(), *largest = first, *prefill = &steps.back();
    for (const placement::StepCost& step : steps)
      if (step.entry.starts_with("decode")) largest = &step;
    const auto cpu = row.memory.find("cpu");
    text += fmt::format("{:>8}{:>6.1f}%{:>12}{:>12}{:>8.2f}%  {:<20}{:>10.1f}{:>10.1f}{:>11.1f}", row.hot, 100 * first->hit_rate,
                        format_bytes(row.gpu_memory), format_bytes(cpu == row.memory.end() ? 0 : cpu->second), row.quality_cost,
                        to_string(first->bound), first->tokens_per_second, largest->tokens_per_second, prefill->tokens_per_second);
    std::string each;  // GPU, where there are several
    for (const auto& [device, bytes] : row.memory)
      if (device != "cpu" && bytes != row.gpu_memory) each += fmt::format("{} {} {}", each.empty() ? "" : ",", device, format_bytes(bytes));
    text += each.empty() ? "" : " " + each;
    if (line.measured)
      text += fmt::format("  {:.1f} decode ({:+.0f} %), {:.1f} prefill", line.measured->decode,
                          100 * (first->tokens_per_second / line.measured->decode - 1), line.measured->prefill);
    else if (measured)
      text += "  " + line.why_not;
    text += row.pareto ? "  *\n" : "\n";
  }
  return text;
}

std::string json_text(const std::vector<Line>& lines) {
  llvm::json::Array rows;
  for (const Line& line : lines) {
    const SweepRow& row = *line.row;
    llvm::json::Object object{{"strategy", row.strategy}, {"on_gpu", row.on_gpu}, {"format", row.format},
                              {"defer", static_cast<std::int64_t>(row.defer)}};
    if (row.refused) {
      object["refused"] = *row.refused;
    } else {
      llvm::json::Object memory;
      for (const auto& [device, bytes] : row.memory) memory[device] = static_cast<std::int64_t>(bytes);
      object["hot_experts"] = static_cast<std::int64_t>(row.hot);
      object["memory"] = std::move(memory);
      object["quality_cost_percent"] = row.quality_cost;
      object["pareto"] = row.pareto;
      object["predicted"] = prediction_json(row.prediction);
      if (line.measured)
        object["measured"] = llvm::json::Object{{"decode_tokens_per_second", line.measured->decode},
                                                {"prefill_tokens_per_second", line.measured->prefill}};
      else if (!line.why_not.empty())
        object["not_measured"] = line.why_not;
    }
    rows.push_back(std::move(object));
  }
  return fmt::format("{}\n", llvm::formatv("{0:2}", llvm::json::Value(std::move(rows))).str());
}

Status write_text(const fs::path& path, const std::string& text) {
  std::FILE* out = std::fopen(path.c_str(), "wb");
  bool good = out && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  good = out && std::fclose(out) == 0 && good;
  if (good) return {};
  return make_error(StatusCode::io_error, {.place = path.string(), .what = "cannot write", .found = std::strerror(errno)});
}

}  // namespace

Status run_explore(int argc, char** argv) {
  KTC_ASSIGN_OR_RETURN(const std::optional<ExploreCommand> parsed, parse(argc, argv));
  if (!parsed) return {};
  const ExploreCommand& command = *parsed;
  KTC_ASSIGN_OR_RETURN(const placement::SweepAxes axes, axes_of(command));
  KTC_ASSIGN_OR_RETURN(const placement::Policy policy, placement::read_policy(command.policy));
  placement::Target target = placement::host_target();
  if (command.target) {
    KTC_ASSIGN_OR_RETURN(target, placement::read_target(*command.target));
  }
  KTC_ASSIGN_OR_RETURN(const fs::path families, families_folder(command.families));
  KTC_ASSIGN_OR_RETURN(const models::ModelDesc model, command.random_seed ? models::read_model_shapes(command.model, families)
                                                                         : models::read_model(command.model, families));
  KTC_ASSIGN_OR_RETURN(const std::vector<SweepRow> rows, placement::explore(model, policy, target, axes, {command.context}));

  std::vector<Line> lines;
  for (const SweepRow& row : rows)
    if (!command.pareto || row.pareto) lines.push_back({&row, {}, {}});
  if (command.measure) {
    KTC_ASSIGN_OR_RETURN(const TemporaryFolder scratch, TemporaryFolder::create());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].row->refused) continue;
      fmt::print(stderr, "ktc: measuring {} of {}\n", i + 1, lines.size());
      auto measured = measure_plan(model, lines[i].row->policy, target, {command.bench[0], command.bench[1], command.random_seed},
                                   scratch.path());
      if (measured.ok())
        lines[i].measured = *measured;
      else
        lines[i].why_not = measured.status().message();
    }
  }
  std::string text = fmt::format("model {}, target {}\n\n{}", model.name, target.name, table(lines, command.measure));
  text += "\ndecode/s, largest/s: predicted tokens/s of the smallest and the largest decode bucket; quality: expected growth of\n"
          "perplexity, from a small model; *: no other plan is at least as good in speed, GPU memory and quality\n";
  for (const SweepRow& row : rows) {
    if (row.refused) continue;
    for (const std::string& note : row.prediction.notes) text += "note: " + note + "\n";
    break;
  }
  if (command.json) KTC_RETURN_IF_ERROR(write_text(*command.json, json_text(lines)));
  if (command.plot) KTC_RETURN_IF_ERROR(write_text(*command.plot, explore_svg(rows, model.name + " on " + target.name)));
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return make_error(StatusCode::io_error, {.place = "standard output", .what = "cannot write", .found = std::strerror(errno)});
  return {};
}

}  // namespace ktc::tools
