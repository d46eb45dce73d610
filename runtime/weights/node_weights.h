// Weights in memory of their own that lies where they are read: what a machine of several memory nodes needs instead of mapped
// files, whose pages lie wherever they were first read.
//
// Weights in panels are cut by panels (node_split.h) and each node has a block for its panels of all weights, those of all matrices
// of a bank one behind the other. Other weights stay in one piece each; their pages are dealt to the nodes in order, in equal
// shares, as loops deal their columns. Files say nothing of this: one file serves any number of nodes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/formats/panel.h"
#include "runtime/weights/host_memory.h"
#include "runtime/weights/node_split.h"

namespace ktc::weights {

struct Progress;

// Where the bytes of a weight come from: a part of a file, or memory.
struct WeightSourceBytes {
  std::filesystem::path file;  // empty: memory
  std::uint64_t offset = 0;
  const std::byte* memory = nullptr;
};

class NodeWeights {
 public:
  explicit NodeWeights(std::vector<NodeShare> nodes) : nodes_(std::move(nodes)) {}

  // Before reserve(): a weight in panels, `batch` matrices of the layout. The split holds when reserve() has returned, for as long
  // as this lives.
  const PanelSplit* add_panels(const PanelLayout& layout, std::uint64_t batch, WeightSourceBytes source);
  // Before reserve(): any other. The number of its piece, for piece().
  std::size_t add_piece(std::uint64_t bytes, WeightSourceBytes source);

  // Takes the memory of everything that was added and binds it; nothing is read or touched. What the system refuses to bind is a
  // line of `notes`; no memory at all is an error.
  Status reserve(std::vector<std::string>& notes);
  const std::byte* piece(std::size_t number) const { return block_.data() + pieces_[number].at; }

  // Reads everything, each node's share by threads on its CPUs. `progress` is reported by the calling thread. Errors: a file that
  // cannot be read, or that became shorter.
  Status load(const Progress& progress);

  std::uint64_t bytes() const { return total_; }
  std::uint64_t bytes_of(std::size_t node) const { return parts_[node].bytes(); }  // in panels

 private:
  struct Panels {
    PanelLayout layout;
    std::uint64_t batch;
    WeightSourceBytes source;
    PanelSplit split;                            // data: set by reserve()
    std::array<std::uint64_t, kMostNodes> at{};  // in the block of each node
  };
  struct Piece {
    std::uint64_t at, bytes;
    WeightSourceBytes source;
  };
  struct Job {
    const WeightSourceBytes* source;
    std::uint64_t from, bytes;
    std::byte* to;
  };
  std::uint64_t before(std::size_t node) const;
  std::vector<std::vector<Job>> jobs() const;  // of each node
  void bind(const std::byte* begin, std::uint64_t bytes, std::size_t node, bool strict, std::vector<std::string>& notes) const;

  std::vector<NodeShare> nodes_;
  std::deque<Panels> panels_;
  std::vector<Piece> pieces_;
  std::array<std::uint64_t, kMostNodes> part_bytes_{};
  std::uint64_t piece_bytes_ = 0, total_ = 0;
  std::vector<HostBlock> parts_;  // of each node
  HostBlock block_;
};

}  // namespace ktc::weights
