#include "tools/ktc/probe_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "placement/target_text.h"
#include "tools/ktc/explore_measure.h"
#include "tools/ktc/families.h"
#include "tools/ktc/probe_machine.h"
#include "tools/ktc/probe_plans.h"
#include "tools/ktc/probe_watch.h"

namespace ktc::tools {
namespace {

constexpr const char* kComment =
    "Measured by ktc probe on this machine: rates of one moment. On a shared machine take it again before you compare.";

constexpr double kSeconds = 55;         // that a probe may take; a person was promised a minute
constexpr double kForPlans = 5;         // of them, kept for writing the file when plans take longer

// Small plans run in processes of their own, each of which opens the GPU.
Status probe_plans(const PlanProbe& probe, placement::Target* target) {
  fmt::print(stderr, "ktc: measuring plans on the CPU\n");
  MemoryTimes times;
  KTC_RETURN_IF_ERROR(probe_memory_plans(probe, target, &times));
  KTC_RETURN_IF_ERROR(probe_cpu_plans(probe, target));
  for (std::size_t gpu = 0; gpu < target->gpus.size(); ++gpu) {
    fmt::print(stderr, "ktc: measuring plans on {}\n", target->gpus[gpu].device);
    KTC_RETURN_IF_ERROR(probe_gpu_plans(probe, gpu, target));
  }
  fmt::print(stderr, "ktc: measuring the CPU once more\n");
  KTC_RETURN_IF_ERROR(probe_cpu_again(&target->cpu));
  KTC_RETURN_IF_ERROR(probe_memory_plans(probe, target, &times));
  std::string moments;
  for (const auto& [name, us] : times) moments += fmt::format("{}{} {:.0f} us", moments.empty() ? "" : ", ", name, fmt::join(us, " and "));
  fmt::print(stderr, "ktc: a token of plans that read much memory, first and last: {}\n", moments);
  return {};
}

}  // namespace

Status run_probe(int argc, char** argv) {
  std::optional<std::filesystem::path> output, families_flag;
  bool emulated = false;
  double seconds = kSeconds;
  CLI::App app("Measures this machine in under a minute and writes a target file for ktc compile and ktc explore.", "ktc probe");
  app.add_option("-o,--output", output, "file to write; default: standard output");
  app.add_option("--families", families_flag, "folder of model family declarations; default: beside the program");
  app.add_option("--seconds", seconds, "an error when it takes longer")->check(CLI::Range(1.0, 3600.0))->capture_default_str();
  app.add_flag("--emulate-gpu", emulated, "measure the emulated GPU, for tests: its rates mean nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return {};
  } catch (const CLI::ParseError& error) {
    return Status(StatusCode::invalid_argument, std::string(error.what()) + "; see ktc probe --help");
  }
  KTC_ASSIGN_OR_RETURN(const std::filesystem::path families, families_folder(families_flag));
  const auto after = [begin = std::chrono::steady_clock::now()](double s) {
    return begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(s));
  };
  const ProbeWatch watch(after(seconds), [seconds] {
    kill_measured();
    fmt::print(stderr, "ktc: error: ktc probe: no end after {:.0f} s; look whether the machine is overloaded or the GPU's driver hangs, "
                       "or give it more with --seconds\n", seconds);
    std::_Exit(1);
  });
  placement::Target target = placement::host_target();
  fmt::print(stderr, "ktc: measuring the CPU\n");
  KTC_RETURN_IF_ERROR(probe_cpu(&target.cpu));
  for (int ordinal = 0; ordinal < (emulated ? 1 : 100); ++ordinal) {
    auto device = emulated ? device::open_emulated(std::uint64_t{1} << 30) : device::open_cuda(ordinal);
    if (!device.ok()) {
      if (ordinal == 0) fmt::print(stderr, "ktc: no GPU measured: {}\n", device.status().message());
      break;
    }
    fmt::print(stderr, "ktc: measuring cuda:{}, {}\n", ordinal, (*device)->info().name);
    KTC_ASSIGN_OR_RETURN(placement::GpuTarget gpu, probe_gpu(**device, ordinal));
    target.gpus.push_back(std::move(gpu));
  }
  KTC_RETURN_IF_ERROR(probe_plans({families, after(std::max(seconds - kForPlans, seconds / 2)), emulated}, &target));
  const std::string text = placement::target_text(target, kComment);
  std::FILE* out = output ? std::fopen(output->c_str(), "wb") : stdout;
  bool good = out && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  good = out && (output ? std::fclose(out) : std::fflush(out)) == 0 && good;
  if (good) return {};
  return make_error(StatusCode::io_error, {.place = output ? output->string() : "standard output", .what = "cannot write",
                                           .found = std::strerror(errno)});
}

}  // namespace ktc::tools
