// How weights and work are split over the NUMA nodes of a machine: by output features, never along the dimension of a sum, so no
// number depends on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ktc::weights {

constexpr std::size_t kMostNodes = 16;

// One node of a split: where its memory is, and who works there.
struct NodeShare {
  int memory = -1;         // number of the system's memory node; -1: not known, or several
  std::vector<int> cpus;   // that its workers may run on
  std::uint32_t workers = 1;
};

// Where the share of a node begins in [0, total) when `before` of all `workers` belong to the nodes before it: shares are as large
// as nodes have workers, in whole units but for the last. With all workers before it: total.
inline std::uint64_t share_begin(std::uint64_t total, std::uint64_t before, std::uint64_t workers, std::uint64_t unit) {
  if (before == workers) return total;
  const std::uint64_t units = (total + unit - 1) / unit;
  return std::min(total, (units * before + workers / 2) / workers * unit);
}

// The panels of a weight by node: those of all matrices [first[n], first[n + 1]) lie on node n. data[n] is panel first[n] of
// matrix 0, and stride[n] the bytes from there to the same panel of the next matrix.
struct PanelSplit {
  std::size_t nodes = 1;
  std::array<std::uint64_t, kMostNodes + 1> first{};
  std::array<const std::byte*, kMostNodes> data{};
  std::array<std::uint64_t, kMostNodes> stride{};

  const std::byte* panel(std::uint64_t matrix, std::uint64_t p, std::uint64_t panel_bytes) const {
    std::size_t n = 0;
    while (p >= first[n + 1]) ++n;
    return data[n] + matrix * stride[n] + (p - first[n]) * panel_bytes;
  }
};

}  // namespace ktc::weights
