#include "runtime/exec/emulated_kernels.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/kernels/cpu/kernels.h"
#include "runtime/kernels/cuda/pair_filter.h"

namespace ktc::exec {
namespace {

const kernels::KernelSet& cpu() {
  static const kernels::KernelSet set = kernels::select_kernels(host_cpu_features(), IsaLevel::best);
  return set;
}

// What the CPU's kernels multiply: rows of f32 or bf16, left operands as they are.
bool plain(const gpu::Weight& w, Format activations) { return w.packing == Packing::row_major && activations == Format::f32; }

constexpr std::size_t kColumns = 64;  // of one call: its weights stay in cache while all rows pass

// y = x w^T of one matrix.
void multiply(const gpu::Weight& w, std::size_t matrix, kernels::MatmulArgs args) {
  args.w = w.data + matrix * w.matrix_bytes;
  args.w_row_bytes = w.row_bytes;
  args.k = w.columns;
  if (args.m == 0) return;
  for (args.n_begin = 0; args.n_begin < w.rows; args.n_begin = args.n_end) {
    args.n_end = std::min<std::size_t>(w.rows, args.n_begin + kColumns);
    cpu().matmul(w.format)(args);
  }
}

void multiply_gate_up(const gpu::Weight& w, std::size_t matrix, kernels::MatmulArgs args) {
  const std::size_t intermediate = w.rows / 2;
  args.w = w.data + matrix * w.matrix_bytes;
  args.w_row_bytes = w.row_bytes;
  args.k = w.columns;
  if (args.m == 0) return;
  for (args.n_begin = 0; args.n_begin < intermediate; args.n_begin = args.n_end) {
    args.n_end = std::min(intermediate, args.n_begin + kColumns);
    cpu().gate_up(w.format)(args, intermediate);
  }
}

kernels::MatmulArgs rows(const gpu::Matrix& x, const gpu::Matrix& y, std::size_t m) {
  kernels::MatmulArgs args = {};
  args.x = x.data;
  args.x_stride = x.stride;
  args.y = y.data;
  args.y_stride = y.stride;
  args.m = m;
  return args;
}

int linear(const gpu::LinearArgs& a, void* stream) {
  if (!plain(a.w, a.activations)) return gpu::reference_kernels().linear(a, stream);
  kernels::MatmulArgs args = rows(a.x, a.out, a.rows);
  args.bias = a.bias;
  multiply(a.w, 0, args);
  return 0;
}

int mlp(const gpu::MlpArgs& a, void* stream) {
  const std::uint64_t intermediate = a.down.columns;
  if (!plain(a.gate_up, a.activations) || !plain(a.down, a.activations) || a.scratch.bytes < a.rows * intermediate * 4)
    return gpu::reference_kernels().mlp(a, stream);
  const gpu::Matrix h = {reinterpret_cast<float*>(a.scratch.data), intermediate, static_cast<std::uint32_t>(intermediate)};
  multiply_gate_up(a.gate_up, 0, rows(a.x, h, a.rows));
  multiply(a.down, 0, rows(h, a.out, a.rows));
  return 0;
}

// Matrices in ascending order, so that every sum has one order.
int experts(const gpu::ExpertsArgs& a, void* stream) {
  if (!plain(a.gate_up, a.activations) || !plain(a.down, a.activations)) return gpu::reference_kernels().experts(a, stream);
  struct Pair {
    std::int32_t slot;
    std::uint32_t row;
    float weight;
  };
  std::vector<Pair> pairs;
  for (std::size_t t = 0; t < a.rows; ++t) {
    const std::int32_t* ids = a.ids.data + t * a.ids.stride;
    const float* weights = a.weights.data + t * a.weights.stride;
    if (!a.accumulate) std::memset(a.out.data + t * a.out.stride, 0, a.out.columns * sizeof(float));
    const bool deferred = a.filter.late != 0 && a.filter.deferred != nullptr && a.filter.deferred[t] != 0;
    for (std::uint32_t k = 0; k < a.top_k; ++k) {
      const std::int32_t slot = gpu::filtered_slot(a.filter.slots, deferred, a.filter.late, a.filter.part, a.filter.among_all,
                                                   a.experts, ids, weights, a.top_k, k);
      if (slot < 0 || static_cast<std::uint32_t>(slot) - a.first >= a.gate_up.batch) continue;
      pairs.push_back({slot - static_cast<std::int32_t>(a.first), static_cast<std::uint32_t>(t), weights[k]});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) { return x.slot < y.slot; });
  std::vector<std::uint32_t> row(pairs.size());
  std::vector<float> weight(pairs.size());
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    row[p] = pairs[p].row;
    weight[p] = pairs[p].weight;
  }
  const std::size_t intermediate = a.down.columns;
  std::vector<float> hidden;
  for (std::size_t first = 0, end = 0; first < pairs.size(); first = end) {
    while (end < pairs.size() && pairs[end].slot == pairs[first].slot) ++end;
    const auto matrix = static_cast<std::size_t>(pairs[first].slot);
    hidden.resize((end - first) * intermediate);
    const gpu::Matrix h = {hidden.data(), intermediate, static_cast<std::uint32_t>(intermediate)};
    kernels::MatmulArgs up = rows(a.x, h, end - first);
    up.x_rows = row.data() + first;
    multiply_gate_up(a.gate_up, matrix, up);
    kernels::MatmulArgs down = rows(h, a.out, end - first);
    down.y_rows = row.data() + first;
    down.scale = weight.data() + first;
    multiply(a.down, matrix, down);
  }
  return 0;
}

int route(const gpu::RouteArgs& a, void* stream) {
  if (!plain(a.w, Format::f32) || a.scratch.bytes < std::uint64_t{a.rows} * a.experts * 4)
    return gpu::reference_kernels().route(a, stream);
  const gpu::Matrix logits = {reinterpret_cast<float*>(a.scratch.data), a.experts, a.experts};
  multiply(a.w, 0, rows(a.x, logits, a.rows));
  for (std::size_t r = 0; r < a.rows; ++r) {
    kernels::RouteArgs args = {};
    args.logits = logits.data + r * a.experts;
    args.bias = a.bias;
    args.experts = a.experts;
    args.top_k = a.top_k;
    args.groups = a.groups;
    args.topk_groups = a.topk_groups;
    args.sigmoid = a.sigmoid;
    args.normalise = a.normalise;
    args.scale = a.scale;
    args.ids = a.ids.data + r * a.ids.stride;
    args.weights = a.weights.data + r * a.weights.stride;
    kernels::route_token(args);
  }
  return 0;
}

int route_publish(const gpu::RoutePublishArgs& a, void* stream) {
  int failed = a.norm.count == 0 ? 0 : gpu::reference_kernels().add_norm(a.norm, stream);
  if (failed == 0) failed = route(a.route, stream);
  return failed != 0 ? failed : gpu::reference_kernels().publish(a.publish, stream);
}

int norm_route(const gpu::NormRouteArgs& a, void* stream) {
  const int failed = gpu::reference_kernels().add_norm(a.norm, stream);
  return failed != 0 ? failed : route(a.route, stream);
}

// Of one token; heads, widths and places are the caller's.
kernels::AttendArgs attention(const gpu::Batch& batch, const gpu::Cache& cache, std::size_t token, float scale) {
  kernels::AttendArgs args = {};
  args.cache = cache.a.base;
  args.pages = reinterpret_cast<const std::uint32_t*>(batch.pages + batch.page_first[batch.sequence[token]]);
  args.page_bytes = cache.a.page_bytes;
  args.page_tokens = cache.page_tokens;
  args.context = static_cast<std::size_t>(batch.positions[token]) + 1;
  args.scale = scale;
  return args;
}

int gqa_attend(const gpu::GqaAttendArgs& a, void*) {
  const std::size_t dim = a.head_dim, group = a.heads / a.kv_heads;
  const std::size_t element = a.cache.format == Format::bf16 ? 2 : 4, head_bytes = a.cache.page_tokens * dim * element;
  for (std::size_t t = 0; t < a.batch.tokens; ++t) {
    for (std::size_t kv = 0; kv < a.kv_heads; ++kv) {
      kernels::AttendArgs args = attention(a.batch, a.cache, t, a.scale);
      args.q = a.query.data + t * a.query.stride + kv * group * dim;
      args.q_stride = dim;
      args.heads = group;
      args.width1 = dim;
      args.value_width = dim;
      args.k1_offset = kv * head_bytes;
      args.v_offset = static_cast<std::size_t>(a.cache.b.base - a.cache.a.base) + kv * head_bytes;
      args.out = a.out.data + t * a.out.stride + kv * group * dim;
      args.out_stride = dim;
      cpu().attend(a.cache.format)(args);
    }
  }
  return 0;
}

int gqa_decode(const gpu::GqaDecodeArgs& a, void* stream) {
  const int failed = gpu::reference_kernels().gqa_append(a.append, stream);
  return failed != 0 ? failed : gqa_attend(a.attend, stream);
}

int mla_attend(const gpu::MlaAttendArgs& a, void* stream) {
  if (!plain(a.w_uv, a.activations)) return gpu::reference_kernels().mla_attend(a, stream);
  const std::size_t width = a.latent_dim + a.rope_dim;
  for (std::size_t t = 0; t < a.batch.tokens; ++t) {
    kernels::AttendArgs args = attention(a.batch, a.cache, t, a.scale);
    args.q = a.query.data + t * a.query.stride;
    args.q_stride = width;
    args.heads = a.heads;
    args.width1 = a.latent_dim;
    args.width2 = a.rope_dim;
    args.value_width = a.latent_dim;
    args.k2_offset = static_cast<std::size_t>(a.cache.b.base - a.cache.a.base);
    args.out = a.context.data + t * a.context.stride;
    args.out_stride = a.latent_dim;
    cpu().attend(a.cache.format)(args);
  }
  for (std::size_t h = 0; h < a.heads; ++h) {
    kernels::MatmulArgs args = rows(a.context, a.out, a.batch.tokens);
    args.x += h * a.latent_dim;
    args.y += h * a.v_dim;
    multiply(a.w_uv, h, args);
  }
  return 0;
}

// The reference multiplies W_UK; here it gets the rest of its work, and the product is the CPU's.
int mla_append(const gpu::MlaAppendArgs& a, void* stream) {
  if (!plain(a.w_uk, a.activations)) return gpu::reference_kernels().mla_append(a, stream);
  gpu::MlaAppendArgs rest = a;
  rest.w_uk.rows = 0;
  const int failed = gpu::reference_kernels().mla_append(rest, stream);
  if (failed != 0) return failed;
  for (std::size_t h = 0; h < a.heads; ++h) {
    kernels::MatmulArgs args = rows(a.q, a.query, a.batch.tokens);
    args.x += h * (a.nope_dim + a.rope_dim);
    args.y += h * (a.latent_dim + a.rope_dim);
    multiply(a.w_uk, h, args);
  }
  return 0;
}

}  // namespace

const gpu::KernelSet& emulated_kernels() {
  static const gpu::KernelSet set = [] {
    gpu::KernelSet s = gpu::reference_kernels();
    s.linear = linear;
    s.mlp = mlp;
    s.experts = experts;
    s.route = route;
    s.route_publish = route_publish;
    s.norm_route = norm_route;
    s.gqa_attend = gqa_attend;
    s.gqa_decode = gqa_decode;
    s.mla_attend = mla_attend;
    s.mla_append = mla_append;
    return s;
  }();
  return set;
}

}  // namespace ktc::exec
