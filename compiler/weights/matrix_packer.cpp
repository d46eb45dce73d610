#include "compiler/weights/matrix_packer.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>

#include "compiler/weights/pack.h"
#include "compiler/weights/pack_gpu_rows.h"
#include "compiler/weights/pack_panel.h"

namespace ktc::compiler {
namespace {

constexpr std::uint64_t kElementsPerTask = std::uint64_t{1} << 16;

}  // namespace

MatrixPacker::MatrixPacker(const WeightJob& job, std::span<std::byte> matrix) : job_(job), matrix_(matrix) {
  if (job.packing == Packing::gpu_rows)
    gpu_rows_ = gpu_rows_layout(job.format, job.group, job.rows, job.columns);
  else if (job.packing != Packing::row_major)
    panels_ = panel_layout(job.format, job.group, job.packing == Packing::panel_paired, job.rows, job.columns);
}

void MatrixPacker::begin() {
  quality_ = {};
  if (panels_) clear_panels(*panels_, matrix_);
  if (gpu_rows_) clear_gpu_rows(*gpu_rows_, matrix_);
}

// Codes of a row with scales, fp8's as bits.
void MatrixPacker::put(std::uint64_t row, const std::int8_t* codes, const float* scales) const {
  if (gpu_rows_)
    pack_gpu_row(*gpu_rows_, row, codes, scales, matrix_);
  else if (job_.format == Format::fp8)
    pack_panel_fp8(*panels_, row, reinterpret_cast<const std::uint8_t*>(codes), scales, matrix_);
  else
    pack_panel_codes(*panels_, row, codes, scales, matrix_);
}

RowQuality MatrixPacker::add_row(const SourceRows& source, std::uint64_t from, std::uint64_t row) const {
  const std::byte* data =
      source.data + from * source.row_stride * static_cast<std::uint64_t>(models::tensor_type_bytes(source.type));
  if (!panels_ && !gpu_rows_) {
    pack_row(source.type, data, source.stride, job_.columns, job_.format, job_.packing,
             matrix_.data() + row * packed_row_bytes(job_.format, job_.packing, job_.columns));
    return {};
  }
  if (source.scales != nullptr) {
    const std::size_t groups = scales_of({job_.format, job_.group}, job_.columns);
    put(row, reinterpret_cast<const std::int8_t*>(data), source.scales + from * groups);
    return {};
  }
  thread_local std::vector<float> weights, scales;
  thread_local std::vector<std::int8_t> codes;
  weights.resize(job_.columns);
  load_row(source.type, data, source.stride, job_.columns, weights.data());
  if (job_.format == Format::bf16) {
    thread_local std::vector<std::uint16_t> values;
    values.resize(job_.columns);
    for (std::uint64_t i = 0; i < job_.columns; ++i) values[i] = f32_to_bf16(weights[i]);
    pack_panel_bf16(*panels_, row, values.data(), matrix_);
    return {};
  }
  const QuantiseSpec spec{job_.format, job_.group, job_.clip_search};
  codes.resize(job_.columns);
  scales.resize(scales_of(spec, job_.columns));
  const RowQuality quality = quantise_row(weights, job_.importance, spec, codes.data(), scales.data());
  put(row, codes.data(), scales.data());
  return quality;
}

void MatrixPacker::add(const SourceRows& source, std::uint64_t row, std::uint64_t rows) {
  rows_.resize(rows);
  const std::uint64_t grain = std::max<std::uint64_t>(1, kElementsPerTask / job_.columns);
  // isolated: a worker that waits here must not begin another job, whose matrix would be one more in memory
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(tbb::blocked_range<std::uint64_t>(0, rows, grain),
                      [&](const tbb::blocked_range<std::uint64_t>& range) {
                        for (std::uint64_t r = range.begin(); r < range.end(); ++r)
                          rows_[r] = add_row(source, r, row + r);
                      });
  });
  for (const RowQuality& one : rows_) {
    quality_.squared_error += one.squared_error;
    quality_.squared_norm += one.squared_norm;
    quality_.finite = quality_.finite && one.finite;
  }
}

}  // namespace ktc::compiler
