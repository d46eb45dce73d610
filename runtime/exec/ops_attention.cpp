// Gqa and Mla: first append this step's keys and values to the cache, then attend. The barrier between the two lets a token
// see the tokens of its own step that stand before it, so prefill in chunks equals prefill at once.
#include <algorithm>
#include <cstring>

#include "runtime/exec/attend_phase.h"
#include "runtime/exec/matmul_phase.h"

namespace ktc::exec {

void run_step(const GqaStep& s, const StepState& state) {
  const std::size_t dim = s.head_dim, half = s.rope->half;
  const std::size_t query_stride = s.heads * dim, parts = s.heads + s.kv_heads;
  const auto prepare = [&](const float* in, const float* norm, std::size_t t, float* out) {
    if (norm != nullptr)
      s.norm(in, norm, s.norm_eps, dim, out);
    else
      std::memcpy(out, in, dim * sizeof(float));
    s.rotate(out, s.rope->cos + (state.first + t) * half, s.rope->sin + (state.first + t) * half, 2 * half, s.rope->interleaved);
  };
  state.workers->parallel_for(state.tokens * parts, claim_grain(8 * dim), [&](std::size_t begin, std::size_t end) {
    alignas(64) float key[kMostHeadWidth];
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t t = item / parts, h = item % parts;
      if (h < s.heads) {
        prepare(s.q.row(t) + h * dim, s.q_norm, t, s.query + t * query_stride + h * dim);
        continue;
      }
      const std::size_t kv = h - s.heads;
      const Token& token = state.token[t];
      prepare(s.k.row(t) + kv * dim, s.k_norm, t, key);
      s.store(key, dim, s.layer.slot(s.k_part, kv, token.pages, token.position));
      s.store(s.v.row(t) + kv * dim, dim, s.layer.slot(s.v_part, kv, token.pages, token.position));
    }
  });

  const std::size_t group = s.heads / s.kv_heads;
  // hardly any model: heads of one key head that are too many for one call
  std::size_t cuts = blocks(group, kernels::kMostAttendRows);
  while (group % cuts != 0) ++cuts;
  const std::size_t heads = group / cuts;
  const AttendShape shape{s.kv_heads * cuts, heads, s.heads, dim, s.attend, s.join};
  attend_phase(shape, state, [&](std::size_t t, std::size_t part) {
    const std::size_t kv = part / cuts;
    kernels::AttendArgs args = {};
    args.q = s.query + t * query_stride + part * heads * dim;
    args.q_stride = dim;
    args.heads = heads;
    args.width1 = dim;
    args.value_width = dim;
    args.cache = s.layer.base;
    args.pages = state.token[t].pages;
    args.page_bytes = s.layer.page_bytes;
    args.page_tokens = s.layer.page_tokens;
    args.k1_offset = s.k_part.offset + kv * s.k_part.head_bytes;
    args.v_offset = s.v_part.offset + kv * s.v_part.head_bytes;
    args.context = state.token[t].position + std::size_t{1};
    args.scale = s.scale;
    args.out = s.out.row(t) + part * heads * dim;
    args.out_stride = dim;
    args.q_row_stride = query_stride;
    args.out_row_stride = s.out.stride;
    return args;
  });
}

void run_step(const MlaStep& s, const StepState& state) {
  const std::size_t tokens = state.tokens, half = s.rope->half;
  const std::size_t head_in = s.nope_dim + s.rope_dim, head_query = s.latent_dim + s.rope_dim;
  const std::size_t query_stride = s.heads * head_query, context_stride = s.heads * s.latent_dim;
  const std::size_t threads = static_cast<std::size_t>(state.workers->threads());

  // Items [0, products) are blocks of the latent queries, the rest are tokens: rope of the queries and the cache.
  const std::size_t row_step = row_block(tokens, s.nope_dim * sizeof(float));
  const std::size_t row_blocks = blocks(tokens, row_step);
  const std::size_t step = column_block(s.latent_dim, s.w_uk.row_bytes, s.heads * row_blocks, threads);
  const std::size_t column_blocks = blocks(s.latent_dim, step);
  const std::size_t products = s.heads * row_blocks * column_blocks;
  const std::size_t grain = claim_grain(row_step * step * s.nope_dim);
  state.workers->parallel_for(products + tokens, grain, [&](std::size_t begin, std::size_t end) {
    alignas(64) float key[kMostHeadWidth];
    for (std::size_t item = begin; item < end; ++item) {
      if (item >= products) {
        const std::size_t t = item - products;
        const Token& token = state.token[t];
        const float* cos = s.rope->cos + (state.first + t) * half;
        const float* sin = s.rope->sin + (state.first + t) * half;
        for (std::size_t h = 0; h < s.heads; ++h) {
          float* query = s.query + t * query_stride + h * head_query + s.latent_dim;
          std::memcpy(query, s.q.row(t) + h * head_in + s.nope_dim, s.rope_dim * sizeof(float));
          s.rotate(query, cos, sin, s.rope_dim, s.rope->interleaved);
        }
        std::memcpy(key, s.k_rope.row(t), s.rope_dim * sizeof(float));
        s.rotate(key, cos, sin, s.rope_dim, s.rope->interleaved);
        s.store(key, s.rope_dim, s.layer.slot(s.rope_part, 0, token.pages, token.position));
        s.store(s.latent.row(t), s.latent_dim, s.layer.slot(s.latent_part, 0, token.pages, token.position));
        continue;
      }
      const std::size_t m = item % row_blocks * row_step, n = item / row_blocks % column_blocks * step;
      const std::size_t h = item / row_blocks / column_blocks;
      kernels::MatmulArgs args = {};
      args.x = s.q.row(m) + h * head_in;
      args.x_stride = s.q.stride;
      args.w = s.w_uk.matrix(h);
      args.w_row_bytes = s.w_uk.row_bytes;
      args.y = s.query + m * query_stride + h * head_query;
      args.y_stride = query_stride;
      args.m = std::min(tokens, m + row_step) - m;
      args.k = s.nope_dim;
      args.n_begin = n;
      args.n_end = std::min(s.latent_dim, n + step);
      s.matmul_uk(args);
    }
  });

  // All heads share the keys. Where tokens and parts of their keys are few, groups of heads make more items, at least four
  // because each group reads the keys again.
  std::size_t parts = 0;
  for (std::size_t t = 0; t < tokens; ++t) parts += attend_parts(state.token[t].position + std::size_t{1});
  const std::size_t wanted = std::max(blocks(s.heads, kernels::kMostAttendRows), blocks(2 * threads, std::max<std::size_t>(1, parts)));
  const std::size_t group = blocks(s.heads, std::clamp<std::size_t>(wanted, 1, blocks(s.heads, 4)));
  const AttendShape shape{blocks(s.heads, group), group, s.heads, s.latent_dim, s.attend, s.join};
  attend_phase(shape, state, [&](std::size_t t, std::size_t part) {
    const std::size_t h = part * group;
    kernels::AttendArgs args = {};
    args.q = s.query + t * query_stride + h * head_query;
    args.q_stride = head_query;
    args.heads = std::min(group, s.heads - h);
    args.width1 = s.latent_dim;
    args.width2 = s.rope_dim;
    args.value_width = s.latent_dim;
    args.cache = s.layer.base;
    args.pages = state.token[t].pages;
    args.page_bytes = s.layer.page_bytes;
    args.page_tokens = s.layer.page_tokens;
    args.k1_offset = s.latent_part.offset;
    args.k2_offset = s.rope_part.offset;
    args.v_offset = s.latent_part.offset;
    args.context = state.token[t].position + std::size_t{1};
    args.scale = s.scale;
    args.out = s.context + t * context_stride + h * s.latent_dim;
    args.out_stride = s.latent_dim;
    args.q_row_stride = query_stride;
    args.out_row_stride = context_stride;
    return args;
  });

  // Head outputs, heads as one long range of columns: a block that meets several heads is several calls.
  matmul_phase(*state.workers, tokens, s.heads * s.v_dim, s.latent_dim, s.w_uv.row_bytes,
               [&](std::size_t m, std::size_t m_end, std::size_t n, std::size_t n_end) {
                 for (std::size_t h = n / s.v_dim; h * s.v_dim < n_end; ++h) {
                   kernels::MatmulArgs args = {};
                   args.x = s.context + m * context_stride + h * s.latent_dim;
                   args.x_stride = context_stride;
                   args.w = s.w_uv.matrix(h);
                   args.w_row_bytes = s.w_uv.row_bytes;
                   args.y = s.out.row(m) + h * s.v_dim;
                   args.y_stride = s.out.stride;
                   args.m = m_end - m;
                   args.k = s.latent_dim;
                   args.n_begin = std::max(n, h * s.v_dim) - h * s.v_dim;
                   args.n_end = std::min(n_end - h * s.v_dim, s.v_dim);
                   s.matmul_uv(args);
                 }
               });
}

}  // namespace ktc::exec
