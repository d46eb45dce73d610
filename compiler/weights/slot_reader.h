// Reads rows of a slot from the checkpoint's shards, whatever way the slot is stored.
// Threading: const calls from any number of threads (pread on shared descriptors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

  // Whether the slot is FP8 and its scales are those of `group` input features (0: of whole rows), so that read_codes has
  // its values exactly.
  bool has_codes(std::uint32_t slot, std::uint32_t group) const;
  // The same rows as E4M3 codes [rows, columns] with a scale for every group, [rows, ceil(columns / group)] (1 for group 0).
  Status read_codes(std::uint32_t slot, std::uint64_t batch, std::uint64_t row, std::uint64_t rows, std::uint32_t group,
                    std::span<std::byte> codes, std::span<float> scales) const;

 private:
  explicit SlotReader(const models::ModelDesc& model) : model_(model) {}
  // Calls body(piece, row of the tensor, rows, rows done before) for the tensors that hold the rows, in order.
  using PieceBody = std::function<Status(const models::TensorPiece&, std::uint64_t, std::uint64_t, std::uint64_t)>;
  Status for_pieces(std::uint32_t slot, std::uint64_t batch, std::uint64_t row, std::uint64_t rows, const PieceBody& body) const;
  // Of rows of one FP8 tensor: their blocks' scales, and their values in f32.
  Status read_scales(const models::TensorPiece& piece, std::uint64_t columns, std::uint64_t row, std::uint64_t rows,
                     std::vector<float>& out) const;
  Status read_decoded(const models::TensorPiece& piece, std::uint64_t columns, std::uint64_t row, std::uint64_t rows,
                      std::span<std::byte> out) const;
  const models::ModelDesc& model_;
  std::vector<int> descriptors_;  // by shard, -1: not needed
};

}  // namespace ktc::compiler
