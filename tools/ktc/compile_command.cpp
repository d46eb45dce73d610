#include "tools/ktc/compile_command.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "compiler/emit/Emit.h"
#include "models/read_model.h"
#include "placement/cost_model.h"
#include "placement/for_target.h"
#include "placement/place.h"
#include "runtime/base/progress.h"
#include "runtime/base/units.h"
#include "tools/ktc/compile_report.h"
#include "tools/ktc/families.h"
#include "tools/ktc/run_interrupt.h"
#include "tools/ktc/text_file.h"

namespace ktc::tools {
namespace {

namespace fs = std::filesystem;

Status write_text(const std::optional<fs::path>& path, const std::string& text) {
  std::FILE* out = path ? std::fopen(path->c_str(), "wb") : stdout;
  if (!out)
    return make_error(StatusCode::io_error, {.place = path->string(), .what = "cannot create", .found = std::strerror(errno)});
  bool good = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  good = (path ? std::fclose(out) : std::fflush(out)) == 0 && good;
  if (good) return {};
  return make_error(StatusCode::io_error,
                    {.place = path ? path->string() : "standard output", .what = "cannot write", .found = std::strerror(errno)});
}

Status emit(const CompileCommand& command, const CompileFacts& facts) {
  const auto start = std::chrono::steady_clock::now();
  run::Interrupt interrupt;
  Progress progress("writing " + command.output->filename().string());
  compiler::EmitOptions options;
  options.folder = *command.output;
  options.threads = command.threads;
  options.report = [&](const std::vector<compiler::WeightQuality>& quality) {
    if (!quality.empty()) fmt::print(stderr, "{}", quality_text(quality));
    return report_json(facts, quality);
  };
  options.clip_search = command.clip_search;
  std::optional<compiler::Moments> moments;
  if (command.moments) {
    KTC_ASSIGN_OR_RETURN(moments, compiler::Moments::read(*command.moments));
    options.moments = &*moments;
  }
  options.max_error = command.max_error;
  if (command.random_seed) options.random = compiler::RandomOptions{*command.random_seed, command.alias_layers, command.router_zipf, command.topics};
  std::uint64_t bytes = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    bytes = total;
    progress.update(done, total);
  };
  options.cancelled = [&] { return interrupt.flag().load(); };
  KTC_RETURN_IF_ERROR(compiler::emitPlan(facts.lowered, facts.model, options));
  progress.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(stderr, "ktc: wrote {}: {} of weights in {}\n", command.output->string(), format_bytes(bytes), format_seconds(seconds));
  return {};
}

}  // namespace

Status run_compile(const CompileCommand& command) {
  // The small files first: a typo in the policy is reported before a thousand shards are opened.
  KTC_ASSIGN_OR_RETURN(placement::Policy policy, placement::read_policy(command.policy));
  if (command.activation_group)
    policy.activation_group = *command.activation_group == "row" ? 0 : static_cast<std::uint32_t>(std::stoul(*command.activation_group));
  placement::Target target = placement::host_target();
  if (command.target) {
    KTC_ASSIGN_OR_RETURN(target, placement::read_target(*command.target));
  }
  policy = placement::for_target(std::move(policy), target);
  KTC_ASSIGN_OR_RETURN(const fs::path families, families_folder(command.families));
  KTC_ASSIGN_OR_RETURN(const models::ModelDesc model, command.random_seed ? models::read_model_shapes(command.model, families)
                                                                         : models::read_model(command.model, families));
  if (!command.dry_run)
    for (const std::string& warning : model.warnings) fmt::print(stderr, "ktc: warning: {}\n", warning);

  // Once, for kt-place and for the report.
  placement::Placement placed;
  if (!command.stop_after || *command.stop_after >= compiler::Phase::placed) {
    KTC_ASSIGN_OR_RETURN(placed, placement::place(model, policy, target));
  }
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  std::vector<std::string> remarks;
  compiler::CompileOptions options{command.stop_after.value_or(compiler::Phase::lowered), &remarks, command.tile, command.disabled};
  options.halves_below = command.halves_below;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  if (command.start_from) {
    KTC_ASSIGN_OR_RETURN(const std::string text, read_text_file("--start-from", *command.start_from));
    KTC_ASSIGN_OR_RETURN(module, compiler::parseModule(context, text, command.start_from->filename().string()));
    KTC_RETURN_IF_ERROR(compiler::resume(*module, std::nullopt, policy, target, options));
  } else {
    options.placed = &placed;
    KTC_ASSIGN_OR_RETURN(module, compiler::compileTo(context, model, policy, target, options));
  }
  if (command.remarks)
    for (const std::string& remark : remarks) fmt::print(stderr, "remark: {}\n", remark);
  if (command.stop_after) return write_text(command.output, compiler::printModule(*module));

  KTC_ASSIGN_OR_RETURN(const placement::CostModel cost,
                       placement::CostModel::create(model, placed.modules, policy, target, placed.counts));
  KTC_ASSIGN_OR_RETURN(placement::Prediction prediction, cost.predict(placed.hot));
  if (placed.stream.from == 0) std::erase_if(prediction.steps, [](const placement::StepCost& step) { return step.entry.starts_with("stream"); });
  const CompileFacts facts{model, policy, target, placed, *module, prediction};
  if (command.dry_run) return write_text(std::nullopt, report_text(facts));
  return emit(command, facts);
}

}  // namespace ktc::tools
