// Reference: operations on rows.
#include <cmath>

#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"

namespace ktc::gpu {

using namespace reference;

void reference::decode_row(const Weight& w, const std::byte* matrix, std::size_t row, std::size_t first, std::size_t count,
                           float* out) {
  const std::byte* data = matrix + row * w.row_bytes;
  if (w.packing == Packing::row_major) {
    if (w.format == Format::f32) {
      std::memcpy(out, data + 4 * first, 4 * count);
    } else {
      for (std::size_t i = 0; i < count; ++i) out[i] = load(data, Format::bf16, first + i);
    }
    return;
  }
  const std::size_t group = w.group == 0 ? w.columns : w.group;
  for (std::size_t i = 0; i < count;) {
    const std::size_t g = (first + i) / group, end = (g + 1) * group - first < count ? (g + 1) * group - first : count;
    const float scale = gpu_rows_scale(w, matrix, row, g);
    for (; i < end; ++i) out[i] = gpu_rows_code(data, w.format, first + i) * scale;
  }
}

int rope_table_reference(const RopeTableArgs& a, void*) {
  for (std::size_t t = 0; t < a.tokens; ++t)
    for (std::size_t i = 0; i < a.half; ++i) {
      const double angle = a.positions[t] * double{a.inv_freq[i]};
      a.cos[t * a.half + i] = static_cast<float>(std::cos(angle) * a.factor);
      a.sin[t * a.half + i] = static_cast<float>(std::sin(angle) * a.factor);
    }
  return 0;
}

int embed_reference(const EmbedArgs& a, void*) {
  for (std::size_t r = 0; r < a.rows; ++r) {
    const std::int32_t id = a.feed != nullptr && a.feed[r] >= 0 ? a.fed[a.feed[r]] : *row_of(a.ids, r);
    if (id < 0 || static_cast<std::uint32_t>(id) >= a.w.rows)
      std::memset(row_of(a.out, r), 0, a.out.columns * sizeof(float));
    else
      decode_row(a.w, a.w.data, static_cast<std::size_t>(id), 0, a.out.columns, row_of(a.out, r));
  }
  return 0;
}

static void norm_row(const float* x, const float* w, float eps, std::size_t columns, float* out) {
  const float mean = dot(x, x, columns) / static_cast<float>(columns);
  const float factor = 1.0f / std::sqrt(mean + eps);
  for (std::size_t c = 0; c < columns; ++c) out[c] = x[c] * factor * w[c];
}

int rms_norm_reference(const NormArgs& a, void*) {
  for (std::size_t r = 0; r < a.rows; ++r) norm_row(row_of(a.x, r), a.w, a.eps, a.x.columns, row_of(a.out, r));
  return 0;
}

template <typename Args>
static void add_row(const Args& a, std::size_t r, std::size_t columns, float* out) {
  for (std::size_t c = 0; c < columns; ++c) {
    float sum = row_of(a.in[0], r)[c];
    for (std::size_t i = 1; i < a.count; ++i) sum += row_of(a.in[i], r)[c];
    out[c] = sum;
  }
}

int add_reference(const AddArgs& a, void*) {
  for (std::size_t r = 0; r < a.rows; ++r) add_row(a, r, a.out.columns, row_of(a.out, r));
  return 0;
}

int add_norm_reference(const AddNormArgs& a, void*) {
  for (std::size_t r = 0; r < a.rows; ++r) {
    float* sum = row_of(a.sum, r);
    add_row(a, r, a.sum.columns, sum);
    norm_row(sum, a.w, a.eps, a.sum.columns, row_of(a.out, r));
  }
  return 0;
}

int select_rows_reference(const SelectRowsArgs& a, void*) {
  for (std::size_t r = 0; r < a.rows; ++r)
    std::memcpy(row_of(a.out, r), row_of(a.x, static_cast<std::size_t>(*row_of(a.output_rows, r))), a.out.columns * sizeof(float));
  return 0;
}

}  // namespace ktc::gpu
