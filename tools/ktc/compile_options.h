// The command line of `ktc compile`.
#pragma once

#include <filesystem>
#include <optional>

#include "compiler/pipeline/Pipeline.h"
#include "runtime/base/status.h"

namespace ktc::tools {

struct CompileCommand {
  std::filesystem::path model;                       // checkpoint folder
  std::filesystem::path policy;
  std::optional<std::filesystem::path> target;       // absent: this machine
  std::optional<std::filesystem::path> output;       // plan folder; with stop_after: file for the IR, absent: standard output
  bool dry_run = false;
  bool remarks = false;
  std::optional<compiler::Phase> stop_after;
  std::optional<std::filesystem::path> start_from;   // IR that --stop-after printed
  std::optional<std::filesystem::path> families;     // absent: beside the program
  int threads = 0;
  bool clip_search = true;
  std::optional<std::filesystem::path> moments;      // written by ktc-run --record-moments
  bool tile = true;
  std::optional<std::string> activation_group;       // overrides the policy's key: 64, 128 or row
  double halves_below = compiler::kHalvesBelow;
  std::vector<std::string> disabled;                 // optimisations to leave out, of compiler::kSwitchable
  std::optional<std::uint64_t> random_seed;          // weights made up at open; only config.json is needed
  std::uint32_t alias_layers = 0;                    // with random_seed: how many layers of a kind have bytes of their own; 0: all
  float router_zipf = 0;                             // with random_seed: planfb::Weight.zipf of routers
  std::uint32_t topics = 0;                          // with random_seed: planfb::Weight.topics of embedding and head
  std::optional<double> max_error;                   // relative, of one matrix
};

// Only syntax and combinations; no file is opened. nullopt: help was asked for and printed.
Expected<std::optional<CompileCommand>> parse_compile_options(int argc, char** argv);

}  // namespace ktc::tools
