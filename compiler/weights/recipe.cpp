#include "compiler/weights/recipe.h"

#include <fmt/format.h>

#include <algorithm>

namespace ktc::compiler {
namespace {

Status bad_job(const WeightJob& job, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::internal, {.place = "weight @" + job.name,
                                           .what = std::move(what),
                                           .found = std::move(found),
                                           .expected = std::move(expected),
                                           .remedy = "please report this with the model and the policy"});
}

struct Interval {
  std::uint64_t batch, begin, end;
  bool operator<(const Interval& other) const {
    return batch != other.batch ? batch < other.batch : begin < other.begin;
  }
};

}  // namespace

Status check_job(const WeightJob& job, const models::ModelDesc& model) {
  const auto bytes = packed_bytes(job.format, job.packing, job.batch, job.rows, job.columns, job.group);
  if (!bytes || *bytes != job.bytes)
    return bad_job(job, "packed size", fmt::format("{}", job.bytes), bytes ? fmt::format("{}", *bytes) : "64 bits");

  if (!job.importance.empty() && job.importance.size() != job.columns)
    return bad_job(job, "second moments", fmt::format("{}", job.importance.size()), fmt::format("{}", job.columns));

  std::vector<Interval> covered;
  for (const RecipePiece& piece : job.pieces) {
    if (piece.slot >= model.slots.size())
      return bad_job(job, "slot index", fmt::format("{}", piece.slot), fmt::format("below {}", model.slots.size()));
    const models::WeightSlot& slot = model.slots[piece.slot];
    if (piece.rows == 0 || piece.row_step == 0 || piece.repeat == 0)
      return bad_job(job, "empty piece of slot " + slot.name, "0", "at least 1 row, step and repetition");
    if (slot.batch > 1 && piece.repeat > 1)
      return bad_job(job, "piece of slot " + slot.name, "repeat over a slot with a batch", "one of the two");

    const std::uint64_t last_src =
        piece.src_row + (piece.rows - 1) * piece.row_step + (piece.repeat - 1) * piece.repeat_src_row;
    if (last_src >= slot.rows)
      return bad_job(job, "source row of slot " + slot.name, fmt::format("{}", last_src),
                     fmt::format("below {}", slot.rows));
    const std::uint64_t out_rows = piece.transpose ? slot.columns : piece.rows;
    const std::uint64_t out_columns = piece.transpose ? piece.rows : slot.columns;
    if (out_columns != job.columns)
      return bad_job(job, "columns from slot " + slot.name, fmt::format("{}", out_columns),
                     fmt::format("{}", job.columns));
    const std::uint64_t taken = job.matrices.empty() ? slot.batch : job.matrices.size();
    const std::uint64_t copies = slot.batch > 1 ? taken : piece.repeat;
    for (const std::uint32_t matrix : job.matrices)
      if (slot.batch > 1 && matrix >= slot.batch)
        return bad_job(job, "matrix of slot " + slot.name, fmt::format("{}", matrix), fmt::format("below {}", slot.batch));
    for (std::uint64_t i = 0; i < copies; ++i) {
      const std::uint64_t batch = piece.dst_batch + i * (slot.batch > 1 ? 1 : piece.repeat_dst_batch);
      const std::uint64_t row = piece.dst_row + i * (slot.batch > 1 ? 0 : piece.repeat_dst_row);
      if (batch >= job.batch || row + out_rows > job.rows)
        return bad_job(job, "destination of slot " + slot.name,
                       fmt::format("matrix {} rows [{}, {})", batch, row, row + out_rows),
                       fmt::format("{} matrices of {} rows", job.batch, job.rows));
      covered.push_back({batch, row, row + out_rows});
    }
  }

  std::sort(covered.begin(), covered.end());
  std::uint64_t batch = 0, row = 0;
  for (const Interval& interval : covered) {
    if (interval.batch != batch || interval.begin != row)
      return bad_job(job, "coverage", fmt::format("rows from {} of matrix {}", interval.begin, interval.batch),
                     fmt::format("row {} of matrix {} next", row, batch));
    row = interval.end;
    if (row == job.rows) {
      row = 0;
      ++batch;
    }
  }
  if (batch != job.batch || row != 0)
    return bad_job(job, "coverage", fmt::format("end at row {} of matrix {}", row, batch),
                   fmt::format("{} matrices of {} rows", job.batch, job.rows));
  return {};
}

}  // namespace ktc::compiler
