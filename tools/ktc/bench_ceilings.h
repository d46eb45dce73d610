// What this machine can do at most at this moment, measured by the workers that run the layer.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/status.h"
#include "tools/ktc/bench_layer.h"

namespace ktc::bench {

struct ReadTime {
  double bytes = 0, seconds = 0;
};
// Reads `memory` once in chunks of 128 KiB that the workers claim from a counter: unlike equal shares it does not end with the
// slowest core, so it is what a kernel that claims its work can reach.
ReadTime read_all(std::span<const std::byte> memory, exec::Workers& workers);

// Operations (two per multiply-add) per second on operands that stay in a core's second cache: of the bare loop of tile loads and
// multiplications, 2 x 1 tiles, 512 KiB of activations and 16 KiB of weights, where the kernels have tiles; else of the panel
// kernel for few rows, one scale per row.
class ComputePeak {
 public:
  static Expected<ComputePeak> create(bool integer, Engine& engine);
  double measure(double seconds) const;
  bool tiled() const { return tiled_; }

 private:
  ComputePeak() = default;
  std::uint64_t one_worker(double deadline) const;  // operations

  Engine* engine_ = nullptr;
  PanelLayout layout_;
  bool tiled_ = false, bf16_ = false;
  std::size_t worker_bytes_ = 0, values_bytes_ = 0;
  weights::HostBlock memory_;
};

}  // namespace ktc::bench
