#include "tools/ktc/probe_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "placement/target_text.h"
#include "tools/ktc/probe_machine.h"

namespace ktc::tools {
namespace {

constexpr const char* kComment =
    "Measured by ktc probe on this machine: rates of one moment. On a shared machine take it again before you compare.";

}  // namespace

Status run_probe(int argc, char** argv) {
  std::optional<std::filesystem::path> output;
  bool emulated = false;
  CLI::App app("Measures this machine in under a minute and writes a target file for ktc compile and ktc explore.", "ktc probe");
  app.add_option("-o,--output", output, "file to write; default: standard output");
  app.add_flag("--emulate-gpu", emulated, "measure the emulated GPU, for tests: its rates mean nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return {};
  } catch (const CLI::ParseError& error) {
    return Status(StatusCode::invalid_argument, std::string(error.what()) + "; see ktc probe --help");
  }
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
  const std::string text = placement::target_text(target, kComment);
  std::FILE* out = output ? std::fopen(output->c_str(), "wb") : stdout;
  bool good = out && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  good = out && (output ? std::fclose(out) : std::fflush(out)) == 0 && good;
  if (good) return {};
  return make_error(StatusCode::io_error, {.place = output ? output->string() : "standard output", .what = "cannot write",
                                           .found = std::strerror(errno)});
}

}  // namespace ktc::tools
