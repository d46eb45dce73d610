// Packs one destination matrix after the other of a WeightJob, from rows as the checkpoint has them: converts or
// quantises, and lays out. Rows of one call are packed in parallel; bytes and sums do not depend on how many threads
// there are. Threading: one object belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compiler/weights/quantise.h"
#include "compiler/weights/recipe.h"
#include "models/model_desc.h"
#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/panel.h"

namespace ktc::compiler {

// Row r, column c is element r * row_stride + c * stride of `data`. FP8 codes come with the scales of the job's groups, row
// after row, and are kept as they are: jobs of format fp8 alone.
struct SourceRows {
  models::TensorType type;
  const std::byte* data;
  std::uint64_t row_stride;
  std::uint64_t stride;
  const float* scales = nullptr;
};

class MatrixPacker {
 public:
  // `job` passed check_job; `matrix` has job.bytes / job.batch bytes. Both outlive the object.
  MatrixPacker(const WeightJob& job, std::span<std::byte> matrix);

  void begin();                                                               // a new matrix
  void add(const SourceRows& source, std::uint64_t row, std::uint64_t rows);  // to rows [row, row + rows)
  RowQuality quality() const { return quality_; }                             // of the rows since begin()

 private:
  RowQuality add_row(const SourceRows& source, std::uint64_t from, std::uint64_t row) const;

  void put(std::uint64_t row, const std::int8_t* codes, const float* scales) const;

  const WeightJob& job_;
  std::span<std::byte> matrix_;
  std::optional<PanelLayout> panels_;      // of packing panel, panel_paired
  std::optional<GpuRowsLayout> gpu_rows_;  // of packing gpu_rows; neither: row_major
  RowQuality quality_;
  std::vector<RowQuality> rows_;  // of one call, to be summed in order
};

}  // namespace ktc::compiler
