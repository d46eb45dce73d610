// Runs a plan of a sweep on this machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "models/model_desc.h"
#include "placement/policy.h"
#include "placement/target.h"
#include "runtime/base/status.h"

namespace ktc::tools {

struct MeasureOptions {
  std::uint32_t prompt = 128, new_tokens = 64;  // of ktc-run --bench
  std::optional<std::uint64_t> random_seed;     // weights made up; else the checkpoint's
  double seconds = 0;                           // until ktc-run is killed; 0: as long as it likes
  bool emulate_gpu = false;
  bool zipf = false;   // routers choose by Zipf's law; else made-up ones choose the same few experts for most tokens
  bool drawn = false;  // tokens are: greedy ones of made-up weights repeat, and so do their experts, which a large cache then holds
  bool quiet = false;  // the second fastest of five runs instead of the median of three: what other programs leave out
};

struct Measured {
  double decode = 0, prefill = 0;  // tokens/s, medians
};

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  static Expected<TemporaryFolder> create();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// Compiles the plan into `scratch` and runs the ktc-run beside this program with --bench on it. Errors: those of compiling, and the
// last line that ktc-run said: no such device, for example; unavailable when it took longer than options.seconds.
Expected<Measured> measure_plan(const models::ModelDesc& model, const placement::Policy& policy, const placement::Target& target,
                                const MeasureOptions& options, const std::filesystem::path& scratch);

// Kills the ktc-run that measure_plan started last, if it runs: for a thread that gives up.
void kill_measured();

}  // namespace ktc::tools
