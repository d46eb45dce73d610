// Reads rows of a slot from the checkpoint's shards, whatever way the slot is stored.
// Threading: const calls from any number of threads (pread on shared descriptors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

class SlotReader {
 public:
  // Opens every shard that a slot needs.
  static Expected<std::unique_ptr<SlotReader>> open(const models::ModelDesc& model);
  ~SlotReader();
  SlotReader(const SlotReader&) = delete;
  SlotReader& operator=(const SlotReader&) = delete;

  // The type in which rows of a slot are handed out: its own, but f32 for FP8, whose codes mean nothing without scales.
  static models::TensorType row_type(const models::WeightSlot& slot);

  // Rows [row, row + rows) of matrix `batch` of a slot, in row_type, contiguous. `out` has the exact size.
  Status read_rows(std::uint32_t slot, std::uint64_t batch, std::uint64_t row, std::uint64_t rows,
                   std::span<std::byte> out) const;

 private:
  explicit SlotReader(const models::ModelDesc& model) : model_(model) {}
  Status read_fp8(const models::TensorPiece& piece, std::uint64_t columns, std::uint64_t row, std::uint64_t rows,
                  std::span<std::byte> out) const;
  const models::ModelDesc& model_;
  std::vector<int> descriptors_;  // by shard, -1: not needed
};

}  // namespace ktc::compiler
