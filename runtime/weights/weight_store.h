// The weights of an open plan, by index, as pointers into memory-mapped files.
//
// mmap residency: opening costs milliseconds and no memory; the first pass over a weight reads it from disk.
// A file that is cut short after open() cannot be survived: its pages are gone (SIGBUS). open() compares all lengths first.
// splat weights get one page-aligned anonymous block filled once, and so do random weights of a CPU; alias weights share their
// target's pointer. Random weights of a GPU have no bytes here (data is null, of their aliases too): whoever uploads them makes them
// with RandomWeights::fill.
// For several memory nodes place_on_nodes() and load() put a CPU's weights into memory of their own instead (node_weights.h).
// Ownership: pointers live as long as the store. Threading: immutable after open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/formats/formats.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/node_split.h"

namespace ktc::weights {

class NodeWeights;

struct WeightView {
  const std::byte* data = nullptr;
  Format format = Format::f32;
  Packing packing = Packing::row_major;
  std::uint64_t batch = 1, rows = 1, columns = 0;
  std::uint32_t group = 0;                          // input features per scale; 0: one scale per row, or none
  std::uint64_t row_bytes = 0;                      // packing row_major: packed_row_bytes; panels have no rows of bytes
  std::uint64_t matrix_bytes = 0;                   // of one matrix of the batch
  const PanelSplit* split = nullptr;                // not null: its panels lie on several nodes, and data is null
  const std::byte* matrix(std::uint64_t b) const { return data + b * matrix_bytes; }
  const float* vector() const { return reinterpret_cast<const float*>(data); }  // format f32, one row
};

// Called now and then while bytes are read: done, total.
struct Progress {
  void (*report)(void* context, std::uint64_t done, std::uint64_t total) = nullptr;
  void* context = nullptr;
};

class WeightStore {
 public:
  // `populate` reads every byte now (with progress), so that the first token is not slow. Random weights are always made now, with
  // progress of their own.
  static Expected<std::unique_ptr<WeightStore>> open(std::shared_ptr<const plan::OpenPlan> plan, bool populate,
                                                     Progress progress = {});
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // What open() does for `populate`, later: the caller may have cheaper ways to fail first. Files of a CPU's weights alone. Fails when a file shrank meanwhile.
  Status populate(Progress progress = {});

  // Reads the file weights among these (or what they are aliases of) into memory of their own, with several threads, and pointers to
  // them change: memory that a device can pin, which a mapped file is not. For those who have kept no pointer yet.
  Status make_resident(const std::vector<std::uint32_t>& indices, Progress progress = {});

  // Gives a CPU's weights memory on these nodes, but for those of `whole`, which stay where they are; pointers to them change, so
  // before anybody keeps one. Nothing is read: load() must follow. False where there is not enough memory for that and
  // for `beside` bytes more: nothing changes then. `notes`: lines for people, also about what the system would not bind.
  Expected<bool> place_on_nodes(const std::vector<NodeShare>& nodes, const std::vector<std::uint32_t>& whole, std::uint64_t beside,
                                std::vector<std::string>& notes);
  // Reads what place_on_nodes() gave memory to, with several threads of each node. Fails when a file shrank meanwhile.
  Status load(Progress progress = {});

  const WeightView& operator[](std::uint32_t index) const { return views_[index]; }
  std::uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  WeightStore() = default;
  void share_with_aliases();
  void merge_resident();
  struct Mapping { void* address; std::size_t bytes; };
  std::shared_ptr<const plan::OpenPlan> plan_;
  struct Range { std::uint32_t file; std::uint64_t begin, end; };
  std::vector<Mapping> mappings_;
  std::vector<Range> resident_;  // of files: what lies in memory of its own
  std::unique_ptr<NodeWeights> placed_;
  std::vector<const std::byte*> copied_;  // mappings that nobody needs after load()
  std::vector<WeightView> views_;
  std::uint64_t mapped_bytes_ = 0;
};

}  // namespace ktc::weights
