// Reference: appending to paged caches and attending them. Online softmax, one key after the other, as the CPU's scalar level.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"

namespace ktc::gpu {

using namespace reference;

namespace {

constexpr std::size_t kMostWidth = 1024;  // of a head, or of a latent with its rope part

// The first element of (head, position) of a sequence.
std::byte* slot(const Cache& cache, const CachePart& part, const std::int32_t* pages, std::size_t head, std::size_t position) {
  const auto page = static_cast<std::size_t>(pages[position / cache.page_tokens]);
  const std::size_t element = cache.format == Format::bf16 ? 2 : 4;
  return part.base + page * part.page_bytes +
         ((head * cache.page_tokens + position % cache.page_tokens) * part.width) * element;
}

const std::int32_t* pages_of(const Batch& batch, std::size_t token) {
  return batch.pages + batch.page_first[batch.sequence[token]];
}

void rotate(float* x, const Rope& rope, std::size_t token) {
  const std::size_t half = rope.dim / 2;
  const float* cos = rope.cos + token * half;
  const float* sin = rope.sin + token * half;
  for (std::size_t i = 0; i < half; ++i) {
    float& a = x[rope.interleaved ? 2 * i : i];
    float& b = x[rope.interleaved ? 2 * i + 1 : i + half];
    const float turned_a = a * cos[i] - b * sin[i], turned_b = b * cos[i] + a * sin[i];
    a = turned_a;
    b = turned_b;
  }
}

void put(const Cache& cache, std::byte* at, const float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) store(at, cache.format, i, values[i]);
}

// One query over `context` keys. key(j, part) gives the place of key j's part 0 (k, or latent) or 1 (rope; width 0: none);
// value(j) the place of its value.
template <typename Key, typename Value>
void attend(const float* q, Format format, std::size_t context, float scale, std::size_t width0, std::size_t width1,
            std::size_t value_width, const Key& key, const Value& value, float* out) {
  float row[kMostWidth];
  const auto read = [&](const std::byte* from, std::size_t count, float* to) {
    for (std::size_t i = 0; i < count; ++i) to[i] = load(from, format, i);
  };
  float top = 0, denominator = 0;
  for (std::size_t j = 0; j < context; ++j) {
    Lanes lanes;
    read(key(j, 0), width0, row);
    lanes.add_products(q, row, width0);
    if (width1 != 0) {
      read(key(j, 1), width1, row);
      lanes.add_products(q + width0, row, width1);
    }
    const float score = scale * lanes.sum();
    read(value(j), value_width, row);
    if (j == 0) {
      top = score;
      denominator = 1;
      std::memcpy(out, row, value_width * sizeof(float));
    } else if (score > top) {
      const float shrink = exp_plain(top - score);
      top = score;
      denominator = denominator * shrink + 1.0f;
      for (std::size_t c = 0; c < value_width; ++c) out[c] = out[c] * shrink + row[c];
    } else {
      const float p = exp_plain(score - top);
      denominator += p;
      for (std::size_t c = 0; c < value_width; ++c) out[c] += p * row[c];
    }
  }
  for (std::size_t c = 0; c < value_width; ++c) out[c] /= denominator;
}

void norm_head(const float* x, const float* w, float eps, std::size_t dim, float* out) {
  const float factor = 1.0f / __builtin_sqrtf(dot(x, x, dim) / static_cast<float>(dim) + eps);
  for (std::size_t c = 0; c < dim; ++c) out[c] = x[c] * factor * w[c];
}

}  // namespace

int gqa_append_reference(const GqaAppendArgs& a, void*) {
  if (a.head_dim > kMostWidth) return 1;
  const std::size_t dim = a.head_dim;
  const auto prepare = [&](const float* in, const float* norm, std::size_t t, float* out) {
    if (norm != nullptr)
      norm_head(in, norm, a.norm_eps, dim, out);
    else
      std::memcpy(out, in, dim * sizeof(float));
    rotate(out, a.rope, t);
  };
  for (std::size_t t = 0; t < a.batch.tokens; ++t) {
    for (std::size_t h = 0; h < a.heads; ++h) prepare(row_of(a.q, t) + h * dim, a.q_norm, t, row_of(a.query, t) + h * dim);
    const auto position = static_cast<std::size_t>(a.batch.positions[t]);
    for (std::size_t h = 0; h < a.kv_heads; ++h) {
      float key[kMostWidth];
      prepare(row_of(a.k, t) + h * dim, a.k_norm, t, key);
      put(a.cache, slot(a.cache, a.cache.a, pages_of(a.batch, t), h, position), key, dim);
      put(a.cache, slot(a.cache, a.cache.b, pages_of(a.batch, t), h, position), row_of(a.v, t) + h * dim, dim);
    }
  }
  return 0;
}

int gqa_attend_reference(const GqaAttendArgs& a, void*) {
  if (a.head_dim > kMostWidth) return 1;
  const std::size_t dim = a.head_dim, group = a.heads / a.kv_heads;
  for (std::size_t t = 0; t < a.batch.tokens; ++t) {
    const std::int32_t* pages = pages_of(a.batch, t);
    for (std::size_t h = 0; h < a.heads; ++h)
      attend(row_of(a.query, t) + h * dim, a.cache.format, static_cast<std::size_t>(a.batch.positions[t]) + 1, a.scale, dim, 0, dim,
             [&](std::size_t j, int) { return slot(a.cache, a.cache.a, pages, h / group, j); },
             [&](std::size_t j) { return slot(a.cache, a.cache.b, pages, h / group, j); }, row_of(a.out, t) + h * dim);
  }
  return 0;
}

int gqa_decode_reference(const GqaDecodeArgs& a, void* stream) {
  const int failed = gqa_append_reference(a.append, stream);
  return failed != 0 ? failed : gqa_attend_reference(a.attend, stream);
}

int mla_append_reference(const MlaAppendArgs& a, void*) {
  if (a.latent_dim > kMostWidth || a.rope_dim > kMostWidth) return 1;
  const std::size_t head_in = a.nope_dim + a.rope_dim, head_query = a.latent_dim + a.rope_dim;
  for (std::size_t h = 0; h < a.heads; ++h)
    product(a.w_uk, matrix_of(a.w_uk, h), a.batch.tokens, a.activations,
            [&](std::size_t t) { return row_of(a.q, t) + h * head_in; },
            [&](std::size_t t, std::size_t n, float sum) { row_of(a.query, t)[h * head_query + n] = sum; });
  for (std::size_t t = 0; t < a.batch.tokens; ++t) {
    for (std::size_t h = 0; h < a.heads; ++h) {
      float* query = row_of(a.query, t) + h * head_query + a.latent_dim;
      std::memcpy(query, row_of(a.q, t) + h * head_in + a.nope_dim, a.rope_dim * sizeof(float));
      rotate(query, a.rope, t);
    }
    float key[kMostWidth];
    std::memcpy(key, row_of(a.k_rope, t), a.rope_dim * sizeof(float));
    rotate(key, a.rope, t);
    const auto position = static_cast<std::size_t>(a.batch.positions[t]);
    put(a.cache, slot(a.cache, a.cache.a, pages_of(a.batch, t), 0, position), row_of(a.latent, t), a.latent_dim);
    put(a.cache, slot(a.cache, a.cache.b, pages_of(a.batch, t), 0, position), key, a.rope_dim);
  }
  return 0;
}

int mla_attend_reference(const MlaAttendArgs& a, void*) {
  if (a.latent_dim > kMostWidth || a.rope_dim > kMostWidth) return 1;
  const std::size_t head_query = a.latent_dim + a.rope_dim;
  for (std::size_t t = 0; t < a.batch.tokens; ++t) {
    const std::int32_t* pages = pages_of(a.batch, t);
    for (std::size_t h = 0; h < a.heads; ++h)
      attend(row_of(a.query, t) + h * head_query, a.cache.format, static_cast<std::size_t>(a.batch.positions[t]) + 1, a.scale,
             a.latent_dim, a.rope_dim, a.latent_dim,
             [&](std::size_t j, int part) { return slot(a.cache, part == 0 ? a.cache.a : a.cache.b, pages, 0, j); },
             [&](std::size_t j) { return slot(a.cache, a.cache.a, pages, 0, j); }, row_of(a.context, t) + h * a.latent_dim);
  }
  for (std::size_t h = 0; h < a.heads; ++h)
    product(a.w_uv, matrix_of(a.w_uv, h), a.batch.tokens, a.activations,
            [&](std::size_t t) { return row_of(a.context, t) + h * a.latent_dim; },
            [&](std::size_t t, std::size_t n, float sum) { row_of(a.out, t)[h * a.v_dim + n] = sum; });
  return 0;
}

}  // namespace ktc::gpu
