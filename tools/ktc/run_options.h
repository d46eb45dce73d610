// The command line of ktc-run. Parsed by a table of our own because prompts are arbitrary text: CLI11 gives values such
// as
// "[a]" and "{}" a meaning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/cpu_features.h"
#include "runtime/base/status.h"
#include "runtime/exec/executor.h"

namespace ktc::run {

enum class Mode : std::uint8_t { generate, chat, perplexity, logits, bench };

// FILE.safetensors:TENSOR
struct TensorPath {
  std::filesystem::path file;
  std::string tensor;
};

// What --prompt and --prompt-file said, in the order of the command line.
struct PromptSource {
  std::string text;                           // of --prompt
  std::optional<std::filesystem::path> file;  // of --prompt-file
};

// What a flag asks of the plan's choices (runtime/plan/choices.h).
struct Chosen {
  std::string_view choice;  // its name there
  std::string option, flag;
};

struct Options {
  bool help = false;
  std::filesystem::path plan;
  Mode mode = Mode::generate;
  bool json = false;

  std::vector<PromptSource> prompts;
  bool chat = false;
  std::optional<std::string> system;
  std::uint32_t max_tokens = 256;
  bool ignore_eos = false;
  // where silent, the plan's defaults hold, then greedy
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int32_t> top_k;
  std::optional<std::uint64_t> seed;

  std::optional<std::filesystem::path> perplexity_text;
  std::optional<TensorPath> perplexity_ids;
  std::optional<std::filesystem::path> record_moments;  // OUT.safetensors
  std::optional<std::uint32_t> window;  // predictions per window of text
  std::optional<std::filesystem::path> logits;
  std::optional<TensorPath> ids;

  std::uint32_t bench_prompt = 0, bench_new = 0;
  std::uint32_t repeat = 3;
  std::uint32_t topics = 1;            // ranges of ids that the runs of --bench draw from in turn
  std::optional<std::uint32_t> topic;  // always from this one

  int threads = 0;  // 0: the executor decides
  int nodes = 0;    // likewise

  std::vector<Chosen> chosen;  // in the order of the command line; already in the settings below, checked when the plan is open
  IsaLevel isa = IsaLevel::best;

  bool emulate_gpu = false;
  bool device_sampling = true;
  bool graphs = true;
  exec::UpdateKind update = exec::UpdateKind::automatic;
  exec::HandoffKind handoff = exec::HandoffKind::automatic;
  exec::ProductsKind products = exec::ProductsKind::own;
  bool statistics = false;  // shares of the time in which CPU and GPU were busy
  std::optional<std::filesystem::path> trace;
  std::optional<std::filesystem::path> record_experts;
};

// arguments: without the program's name. Only syntax and combinations are checked here; no file is opened.
// Errors: one line that names the flag.
Expected<Options> parse_options(const std::vector<std::string>& arguments);

std::string help_text();

}  // namespace ktc::run
