// ktc-bench: measures parts of the engine against what the machine can do. Exit codes: 0; 1 for an error; 2 for wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "tools/ktc/bench_gpu.h"
#include "tools/ktc/bench_report.h"

namespace {

int fail(const std::string& message, int code) {
  std::fprintf(stderr, "ktc-bench: %s\n", message.c_str());
  return code;
}

// A line when a round can begin (with --step, the protocol of test/device/peers), then the times of every round.
ktc::bench::NextRound stepper(const ktc::bench::ExpertsOptions& options) {
  return [&options, round = 0](std::span<const double> seconds) mutable {
    std::size_t i = 0;
    if (seconds.empty()) std::puts("{\"ready\": true, \"peer\": \"ktc\"}");
    for (const auto& format : options.formats)
      for (const std::uint32_t m : options.tokens)
        if (i < seconds.size())
          std::printf("{\"peer\": \"ktc\", \"format\": \"%s\", \"tokens_per_expert\": %u, \"round\": %d, \"microseconds\": %.2f}\n",
                      to_string(format).c_str(), m, round, seconds[i++] * 1e6);
    if (!seconds.empty()) std::printf("{\"round\": %d, \"done\": true}\n", round++);
    std::fflush(stdout);
    std::string line;
    return static_cast<bool>(std::getline(std::cin, line));
  };
}

// What was measured, as text on standard output and, if asked for, as JSON in a file.
int report(const std::string& table, const std::string& json, const std::string& json_path) {
  if (!json_path.empty()) {
    std::ofstream file(json_path, std::ios::binary);
    file << json;
    file.close();
    if (!file) return fail(json_path + ": cannot write the file; choose another --json", 1);
  }
  if (std::fwrite(table.data(), 1, table.size(), stdout) != table.size() || std::fflush(stdout) != 0)
    return fail("cannot write to standard output", 1);
  return 0;
}

int gpu(const ktc::bench::GpuOptions& options) {
  const auto result = ktc::bench::measure_gpu(options);
  if (!result.ok()) return fail(result.status().message(), 1);
  return report(ktc::bench::to_table(*result), ktc::bench::to_json(*result), options.json);
}

int experts(ktc::bench::ExpertsOptions& options) {
  if (const ktc::Status status = ktc::bench::check(options); !status.ok()) return fail(status.message(), 2);
  const auto result = ktc::bench::measure_experts(options, options.step ? stepper(options) : ktc::bench::NextRound());
  if (!result.ok()) return fail(result.status().message(), 1);
  return report(ktc::bench::to_table(options, *result), ktc::bench::to_json(options, *result), options.json);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures parts of the engine against what the machine can do", "ktc-bench");
  app.require_subcommand(1);
  ktc::bench::ExpertsOptions options;
  CLI::App* bank = app.add_subcommand("experts", "One layer of experts on random weights, against read bandwidth and compute peak");
  bank->add_option("--experts", options.experts, "experts of the layer")->required();
  bank->add_option("--hidden", options.hidden, "width of its input and output")->required();
  bank->add_option("--intermediate", options.intermediate, "width of an expert")->required();
  bank->add_option("--top-k", options.top_k, "experts of a token")->required();
  bank->add_option("--tokens", options.tokens,
                   "tokens per active expert, as in 1,4,16. Below 16 all tokens choose the same experts; from 16 on "
                   "64 experts are active, or 16 large ones")
      ->required()
      ->delimiter(',');
  bank->add_option("--format", options.format_names, "formats of weights, as in int8,int4/64,int4/row,fp8/128,bf16")
      ->required()
      ->delimiter(',');
  bank->add_option("--isa", options.isa, "kernels: scalar, avx2, avx512, avx512_vnni, amx or best (best)");
  bank->add_option("--threads", options.threads, "workers (one per physical core)");
  bank->add_option("--rounds", options.rounds, "rounds, of which the median counts (9)");
  bank->add_option("--gib", options.gib, "weights per format in GiB (4, or less where memory is short)");
  bank->add_option("--x-granule", options.x_granule, "inputs per int8 scale: 64, 128, or 0 for the row (64)");
  bank->add_option("--h-granule", options.h_granule, "the same between the two products (64)");
  bank->add_option("--tile-rows", options.tile_rows, "from how many tokens tile kernels serve; 0: never (as the compiler plans)");
  bank->add_option("--variant", options.variant_names,
                   "how tiles are cut and shaped: words with commas between them, of 2x1 1x2 1x1 2x2 probe inner=N outer=KiB rows=N "
                   "up=N down=N sums=KiB nofetch; several variants run side by side in the same rounds (default)");
  bank->add_flag("--step", options.step, "a round per line of standard input, each followed by its times as JSON lines");
  bank->add_option("--json", options.json, "also write the results to FILE");
  ktc::bench::GpuOptions card;
  CLI::App* kernels = app.add_subcommand("gpu", "Kernels of a GPU at the shapes of real models, against a copy within its memory");
  kernels->add_option("--device", card.device, "which GPU (0)");
  kernels->add_option("--parts", card.parts, "of linear, experts, attention (all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"linear", "experts", "attention"}));
  kernels->add_option("--repeats", card.repeats, "measurements, of which the median counts (5)")->check(CLI::Range(1, 1000));
  kernels->add_option("--json", card.json, "also write the results to FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + "; see ktc-bench --help", 2);
  }
  return kernels->parsed() ? gpu(card) : experts(options);
}
