#include "tools/ktc/compile_options.h"

#include <CLI/CLI.hpp>

#include <cstdio>

namespace ktc::tools {
namespace {

Status bad_flag(std::string place, std::string found, std::string expected, std::string remedy = {}) {
  return make_error(StatusCode::invalid_argument,
                    {.place = std::move(place), .found = std::move(found), .expected = std::move(expected), .remedy = std::move(remedy)});
}

}  // namespace

Expected<std::optional<CompileCommand>> parse_compile_options(int argc, char** argv) {
  CompileCommand command;
  std::string stop;
  CLI::App app("Compiles a Hugging Face checkpoint and a policy into a plan that ktc-run executes.", "ktc");
  app.require_subcommand(1);
  app.footer("Also: ktc explore, a table of placements; ktc probe, what this machine can do. Each has --help.");
  CLI::App* compile = app.add_subcommand("compile", "checkpoint + policy (+ target) to NAME.ktp");
  compile->add_option("MODEL", command.model, "folder with config.json, *.safetensors and tokenizer.json")->required();
  compile->add_option("--policy", command.policy, "where modules live and in which formats (docs/policy.md)")->required();
  compile->add_option("--target", command.target, "the machine to compile for; default: this one");
  compile->add_option("-o,--output", command.output, "plan folder to write, NAME.ktp; with --stop-after a file for the IR");
  compile->add_flag("--dry-run", command.dry_run, "placement and memory of every device from headers alone; writes nothing");
  compile->add_option("--stop-after", stop, "print the IR after a phase: " + compiler::listPhases());
  compile->add_option("--start-from", command.start_from, "resume from IR that --stop-after printed");
  compile->add_flag("--remarks", command.remarks, "say why passes did what they did");
  compile->add_option("--families", command.families, "folder of model family declarations; default: beside the program");
  compile->add_option("--threads", command.threads, "threads that pack weights; default: all")->check(CLI::Range(1, 4096));
  compile->add_flag("!--no-clip-search", command.clip_search, "int8 and int4: round to amax / 127 and amax / 7, without a search");
  compile->add_option("--moments", command.moments, "int8 and int4: weigh rounding errors with what ktc-run --record-moments wrote");
  compile->add_flag("!--no-tile", command.tile, "choose no tile kernels (AMX) for the target");
  compile->add_option("--activation-group", command.activation_group, "inputs that share a scale of int8 activations; overrides the policy's key")
      ->check(CLI::IsMember({"64", "128", "row"}));
  compile->add_option("--disable-pass", command.disabled, "leave an optimisation out: defer-experts, fold-weights, form-cuda-graphs, fuse, halve-batches, join-launches, schedule, split-experts, stream-experts")
      ->allow_extra_args(false);
  compile->add_option("--halves-below", command.halves_below,
                      "prompts are cut in halves, which a GPU and the CPU compute in turns, where that is predicted to take less than so much of the "
                      "time; default: 0.95")
      ->check(CLI::NonNegativeNumber);
  compile->add_option("--max-error", command.max_error, "fail when rounding changes a matrix by more: ||w - wq|| / ||w||, for example 0.1")
      ->check(CLI::PositiveNumber);
  compile->add_option("--random-weights", command.random_seed,
                      "make the weights up when the plan is opened, from this seed (1): MODEL needs config.json alone")
      ->expected(0, 1)->default_str("1");
  compile->add_option("--alias-layers", command.alias_layers,
                      "with --random-weights: so many layers of a kind have bytes of their own, the others share them")
      ->check(CLI::Range(1, 1 << 20));
  compile->add_option("--router-zipf", command.router_zipf,
                      "with --random-weights: experts are chosen about as often as rank^-X says; 0 (default): all alike")
      ->check(CLI::Range(0.0, 8.0));
  compile->add_option("--topics", command.topics,
                      "with --random-weights: so many ranges of token ids that resemble one another and prefer experts of their own")
      ->check(CLI::Range(1, 1 << 20));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs((compile->parsed() ? compile : &app)->help().c_str(), stdout);
    return std::optional<CompileCommand>();
  } catch (const CLI::ParseError& error) {
    return Status(StatusCode::invalid_argument, std::string(error.what()) + "; see ktc compile --help");
  }
  for (std::string& name : command.disabled) {
    KTC_ASSIGN_OR_RETURN(name, compiler::parseSwitchable(name));
  }
  if (!stop.empty()) {
    command.stop_after = compiler::parsePhase(stop);
    if (!command.stop_after) return bad_flag("--stop-after", "'" + stop + "'", "one of " + compiler::listPhases());
    if (command.dry_run) return bad_flag("--dry-run", "--stop-after beside it", "one of the two");
  }
  if (command.moments && !command.clip_search)
    return bad_flag("--moments", "--no-clip-search beside it", "one of the two", "plain rounding weighs nothing");
  if (command.alias_layers != 0 && !command.random_seed)
    return bad_flag("--alias-layers", "no --random-weights beside it", "both", "layers of a checkpoint differ");
  if ((command.router_zipf != 0 || command.topics != 0) && !command.random_seed)
    return bad_flag(command.topics != 0 ? "--topics" : "--router-zipf", "no --random-weights beside it", "both", "a checkpoint's routers are what they are");
  if (!command.output && !command.dry_run && !command.stop_after)
    return bad_flag("-o", "nothing", "the plan folder to write", "add -o NAME.ktp, or --dry-run to see what would happen");
  return std::optional<CompileCommand>(std::move(command));
}

}  // namespace ktc::tools
