// The scalar level: complete, portable, and the plainest statement of what each kernel computes.
//
// Sums run in eight interleaved lanes that are added as a tree at the end: the compiler may keep the lanes in vector
// registers of the baseline, and the error grows with k / 8.
#include "runtime/kernels/cpu/kernel_table.h"
#include "runtime/kernels/cpu/scalar_math.h"

namespace ktc::kernels {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
float widen(float value) {
  return value;
}
float widen(Bf16 value) {
  return bf16_to_f32(value.bits);
}

struct Lanes {
  static constexpr std::size_t kCount = 8;
  float lane[kCount] = {};

  // lane[i mod 8] += x[i] * w[i]
  template <typename T>
  void add_products(const float* x, const T* w, std::size_t k) {
    std::size_t i = 0;
    for (; i + kCount <= k; i += kCount)
      for (std::size_t l = 0; l < kCount; ++l) lane[l] += x[i + l] * widen(w[i + l]);
    for (std::size_t l = 0; i + l < k; ++l) lane[l] += x[i + l] * widen(w[i + l]);
  }
  float sum() const {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
};

template <typename T>
float dot(const float* x, const T* w, std::size_t k) {
  Lanes lanes;
  lanes.add_products(x, w, k);
  return lanes.sum();
}

std::size_t mapped(const std::uint32_t* rows, std::size_t m) {
  return rows != nullptr ? rows[m] : m;
}
const float* x_row(const MatmulArgs& a, std::size_t m) {
  return a.x + mapped(a.x_rows, m) * a.x_stride;
}
float* y_row(const MatmulArgs& a, std::size_t m) {
  return a.y + mapped(a.y_rows, m) * a.y_stride;
}
template <typename T>
const T* w_row(const MatmulArgs& a, std::size_t n) {
  return reinterpret_cast<const T*>(a.w + n * a.w_row_bytes);
}

template <typename T>
void matmul(const MatmulArgs& a) {
  for (std::size_t n = a.n_begin; n < a.n_end; ++n) {  // a row of w stays in cache for all rows of x
    for (std::size_t m = 0; m < a.m; ++m) {
      float sum = dot(x_row(a, m), w_row<T>(a, n), a.k);
      if (a.bias != nullptr) sum += a.bias[n];
      float& y = y_row(a, m)[n];
      y = a.scale != nullptr ? y + a.scale[m] * sum : sum;
    }
  }
}

template <typename T>
void gate_up(const MatmulArgs& a, std::size_t intermediate) {
  for (std::size_t i = a.n_begin; i < a.n_end; ++i) {
    for (std::size_t m = 0; m < a.m; ++m) {
      const float gate = dot(x_row(a, m), w_row<T>(a, i), a.k);
      const float up = dot(x_row(a, m), w_row<T>(a, intermediate + i), a.k);
      y_row(a, m)[i] = silu_scalar(gate) * up;
    }
  }
}

constexpr std::size_t kHeadChunk = 128;  // bounds the state on the stack

// Online softmax, one key after the other: the sum so far is rescaled whenever a new maximum appears. Heads [first, first +
// heads) of one row.
template <typename T>
void attend_heads(const AttendArgs& a, std::size_t row, std::size_t first, std::size_t heads) {
  float top[kHeadChunk], denominator[kHeadChunk];
  const float* row_q = a.q + row * a.q_row_stride;
  float* row_out = a.out + row * a.out_row_stride;
  const std::size_t seen = a.context + row, end = seen - a.first < a.most ? seen : a.first + a.most;
  for (std::size_t j = a.first; j < end; ++j) {
    const std::byte* page = a.cache + a.pages[j / a.page_tokens] * a.page_bytes;
    const std::size_t slot = j % a.page_tokens;
    const T* k1 = reinterpret_cast<const T*>(page + a.k1_offset) + slot * a.width1;
    const T* k2 = reinterpret_cast<const T*>(page + a.k2_offset) + slot * a.width2;
    const T* v = reinterpret_cast<const T*>(page + a.v_offset) + slot * a.value_width;
    for (std::size_t h = 0; h < heads; ++h) {
      const float* q = row_q + (first + h) * a.q_stride;
      float* out = row_out + (first + h) * a.out_stride;
      Lanes lanes;
      lanes.add_products(q, k1, a.width1);
      if (a.width2 != 0) lanes.add_products(q + a.width1, k2, a.width2);
      const float score = a.scale * lanes.sum();
      if (j == a.first) {
        top[h] = score;
        denominator[h] = 1.0f;
        for (std::size_t c = 0; c < a.value_width; ++c) out[c] = widen(v[c]);
      } else if (score > top[h]) {
        const float shrink = exp_scalar(top[h] - score);
        top[h] = score;
        denominator[h] = denominator[h] * shrink + 1.0f;
        for (std::size_t c = 0; c < a.value_width; ++c) out[c] = out[c] * shrink + widen(v[c]);
      } else {
        const float p = exp_scalar(score - top[h]);
        denominator[h] += p;
        for (std::size_t c = 0; c < a.value_width; ++c) out[c] += p * widen(v[c]);
      }
    }
  }
  for (std::size_t h = 0; h < heads; ++h) {
    if (a.top != nullptr) {
      a.top[row * a.heads + first + h] = top[h];
      a.weight[row * a.heads + first + h] = denominator[h];
      continue;
    }
    float* out = row_out + (first + h) * a.out_stride;
    for (std::size_t c = 0; c < a.value_width; ++c) out[c] /= denominator[h];
  }
}

template <typename T>
void attend(const AttendArgs& a) {
  for (std::size_t row = 0; row < a.rows; ++row)
    for (std::size_t first = 0; first < a.heads; first += kHeadChunk)
      attend_heads<T>(a, row, first, a.heads - first < kHeadChunk ? a.heads - first : kHeadChunk);
}

}  // namespace

void matmul_f32_scalar(const MatmulArgs& a) {
  matmul<float>(a);
}
void matmul_bf16_scalar(const MatmulArgs& a) {
  matmul<Bf16>(a);
}
void gate_up_f32_scalar(const MatmulArgs& a, std::size_t intermediate) {
  gate_up<float>(a, intermediate);
}
void gate_up_bf16_scalar(const MatmulArgs& a, std::size_t intermediate) {
  gate_up<Bf16>(a, intermediate);
}
void attend_f32_scalar(const AttendArgs& a) {
  attend<float>(a);
}
void attend_bf16_scalar(const AttendArgs& a) {
  attend<Bf16>(a);
}

void attend_join_scalar(const AttendJoinArgs& a) {
  for (std::size_t h = 0; h < a.heads; ++h) {
    float* out = a.out + h * a.out_stride;
    if (a.part != nullptr) {
      const float* part = a.part + h * a.part_stride;
      const float most = a.part_top[h] > a.top[h] ? a.part_top[h] : a.top[h];
      const float shrink = exp_scalar(a.top[h] - most), factor = exp_scalar(a.part_top[h] - most);
      a.top[h] = most;
      a.weight[h] = shrink * a.weight[h] + factor * a.part_weight[h];
      for (std::size_t c = 0; c < a.width; ++c) out[c] = shrink * out[c] + factor * part[c];
    }
    if (a.divide)
      for (std::size_t c = 0; c < a.width; ++c) out[c] /= a.weight[h];
  }
}

void rms_norm_scalar(const float* x, const float* weight, float eps, std::size_t columns, float* out) {
  const float mean = dot(x, x, columns) / static_cast<float>(columns);
  const float factor = 1.0f / __builtin_sqrtf(mean + eps);
  for (std::size_t c = 0; c < columns; ++c) out[c] = x[c] * factor * weight[c];
}

void rope_scalar(float* x, const float* cos, const float* sin, std::size_t dim, bool interleaved) {
  const std::size_t half = dim / 2;
  for (std::size_t i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float rotated_a = a * cos[i] - b * sin[i];
    const float rotated_b = b * cos[i] + a * sin[i];
    a = rotated_a;
    b = rotated_b;
  }
}

void add_scalar(const float* const* inputs, std::size_t count, std::size_t columns, float* out) {
  for (std::size_t c = 0; c < columns; ++c) {
    float sum = inputs[0][c];
    for (std::size_t i = 1; i < count; ++i) sum += inputs[i][c];
    out[c] = sum;
  }
}

void store_f32_scalar(const float* src, std::size_t count, std::byte* dst) {
  __builtin_memcpy(dst, src, count * sizeof(float));
}
void store_bf16_scalar(const float* src, std::size_t count, std::byte* dst) {
  for (std::size_t c = 0; c < count; ++c) {
    const std::uint16_t bits = f32_to_bf16(src[c]);
    __builtin_memcpy(dst + 2 * c, &bits, 2);
  }
}
void load_f32_scalar(const std::byte* src, std::size_t count, float* dst) {
  __builtin_memcpy(dst, src, count * sizeof(float));
}
void load_bf16_scalar(const std::byte* src, std::size_t count, float* dst) {
  for (std::size_t c = 0; c < count; ++c) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, src + 2 * c, 2);
    dst[c] = bf16_to_f32(bits);
  }
}

}  // namespace ktc::kernels
