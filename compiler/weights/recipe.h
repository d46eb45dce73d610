// How a packed weight is made from the slots of a model: which rows of which slot land where, in which format and packing.
//
// The IR carries recipes as attributes (#kt.piece); emission turns them into WeightJobs. A recipe names slots, never tensors:
// how a slot is stored in the checkpoint (one tensor per expert, or one 3-D tensor) is the business of WeightSlot::pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_desc.h"
#include "runtime/base/status.h"
#include "runtime/formats/formats.h"

namespace ktc::compiler {

// Takes the rows src_row + i * row_step, i in [0, rows), of a slot; `transpose` turns the block taken, [rows, columns], into
// [columns, rows]. The block goes to rows [dst_row, dst_row + its rows) of destination matrix dst_batch.
//
// A slot with batch > 1 (an expert bank) is taken matrix by matrix: source matrix b goes to destination matrix dst_batch + b; with
// WeightJob::matrices only those are taken, the i-th of them to dst_batch + i.
// `repeat` does the same `repeat` times for a slot with batch 1 (attention heads): repetition r reads from src_row +
// r * repeat_src_row and writes to matrix dst_batch + r * repeat_dst_batch, row dst_row + r * repeat_dst_row.
struct RecipePiece {
  std::uint32_t slot = 0;                 // index in ModelDesc::slots
  std::uint64_t src_row = 0;
  std::uint64_t row_step = 1;
  std::uint64_t rows = 0;
  bool transpose = false;
  std::uint64_t dst_batch = 0;
  std::uint64_t dst_row = 0;
  std::uint64_t repeat = 1;
  std::uint64_t repeat_src_row = 0;
  std::uint64_t repeat_dst_batch = 0;
  std::uint64_t repeat_dst_row = 0;
};

// One packed [batch, rows, columns] weight at `offset` of a weight file.
struct WeightJob {
  std::string name;
  std::uint64_t batch = 1, rows = 1, columns = 0;
  Format format = Format::bf16;
  Packing packing = Packing::row_major;
  std::vector<RecipePiece> pieces;        // cover every row of every matrix exactly once
  std::uint64_t offset = 0;               // in the file
  std::uint64_t bytes = 0;                // packed_bytes(...)
  std::uint32_t group = 0;                // int4, fp8: input features per scale; 0: one scale per row, or none
  bool clip_search = true;                // int8, int4: see quantise.h
  std::vector<std::uint32_t> matrices = {};  // of slots with batch > 1: which are taken, in this order; empty: all
  std::vector<float> importance = {};        // int8, int4: second moments of the input features, or empty
};

// Checks that the pieces lie inside their slots and cover the destination exactly once, column counts included.
Status check_job(const WeightJob& job, const models::ModelDesc& model);

}  // namespace ktc::compiler
