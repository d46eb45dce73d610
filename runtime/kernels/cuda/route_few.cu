// The router for few tokens: logits by many blocks, the last block to finish chooses the experts of all of them. In a decode step the
// sum and norm in front of it and the record behind it are of the same launch: every block norms the rows for itself, which takes less
// time than a launch, and the last one, which has the choice and the rows, writes the record.
#include "runtime/kernels/cuda/route_few.h"

#include "runtime/kernels/cuda/handoff.cuh"
#include "runtime/kernels/cuda/route_choose.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kWarps = 4, kThreads = kWarps * kWarp;
constexpr unsigned kRowsAtOnce = 4;              // that share one pass over a row of the weight
constexpr unsigned kHeld = 8;                    // pieces of 8 weights that a lane has before its inputs are there
constexpr unsigned kChoiceBytes = 48 * 1024;     // of shared memory, for the choosers
constexpr unsigned kStagedBytes = 48 * 1024;     // likewise, for rows of x: every card has both

CounterPool route_pool;
__device__ unsigned route_counters[kCounters];

struct FewArgs {
  RoutePublishArgs a;
  RecordLayout layout;
  float* logits;
  unsigned counter, choosers;
  unsigned staged;                               // rows of x lie in shared memory
};

// Eight neighbours of a row of the weight as they lie in memory.
template <Format kFormat>
struct Piece {
  static constexpr unsigned kVectors = kFormat == Format::f32 ? 2 : 1;
  uint4 raw[kVectors];
  __device__ void load(const std::byte* row, unsigned column) {
#pragma unroll
    for (unsigned i = 0; i < kVectors; ++i) raw[i] = reinterpret_cast<const uint4*>(row)[column / 8 * kVectors + i];
  }
  __device__ void decode(float (&out)[8]) const {
    const std::uint32_t words[4] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if constexpr (kFormat == Format::f32) {
        const std::uint32_t more[4] = {raw[1].x, raw[1].y, raw[1].z, raw[1].w};
        out[i] = __uint_as_float(words[i]);
        out[4 + i] = __uint_as_float(more[i]);
      } else {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
  }
};

constexpr unsigned kKept = 4;                    // pieces of four columns of a row that a thread has at once

// Pieces first, first + threads, ... of one row of x, or of the sum of the terms; what is behind the row is 0. All loads of a term are
// in flight together.
template <bool kNorm>
__device__ void load_pieces(const RoutePublishArgs& a, unsigned row, unsigned first, unsigned threads, unsigned pieces, float4 (&out)[kKept]) {
  const auto load = [&](const Matrix& m, float4(&to)[kKept]) {
    const float4* const from = reinterpret_cast<const float4*>(row_at(m, row));
#pragma unroll
    for (unsigned k = 0; k < kKept; ++k) {
      const unsigned c = first + k * threads;
      to[k] = c < pieces ? from[c] : make_float4(0, 0, 0, 0);
    }
  };
  load(kNorm ? a.norm.in[0] : a.route.x, out);
  for (unsigned i = 1; kNorm && i < a.norm.count; ++i) {
    float4 term[kKept];
    load(a.norm.in[i], term);
#pragma unroll
    for (unsigned k = 0; k < kKept; ++k) out[k].x += term[k].x, out[k].y += term[k].y, out[k].z += term[k].z, out[k].w += term[k].w;
  }
}

// Rows of x into shared memory, normed where kNorm. scale: the first pieces of the norm's weight. The caller synchronises.
template <bool kNorm>
__device__ void stage_rows(const RoutePublishArgs& a, const float4 (&scale)[kKept], float* xs) {
  __shared__ float shared[kWarp];
  const unsigned columns = a.route.w.columns, pieces = columns / 4;
  const auto normed = [](float4 v, float factor, float4 w) {
    return make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
  };
  for (unsigned r = 0; r < a.route.rows; ++r) {
    float4* const to = reinterpret_cast<float4*>(xs + std::size_t{r} * columns);
    float squares = 0;
    float4 v[kKept];
    for (unsigned first = threadIdx.x; first < pieces; first += kKept * kThreads) {
      load_pieces<kNorm>(a, r, first, kThreads, pieces, v);
#pragma unroll
      for (unsigned k = 0; k < kKept; ++k) {
        squares += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
        if (const unsigned c = first + k * kThreads; c < pieces) to[c] = v[k];
      }
    }
    if constexpr (kNorm) {
      const float factor = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(columns) + a.norm.eps);
#pragma unroll
      for (unsigned k = 0; k < kKept; ++k)
        if (const unsigned c = threadIdx.x + k * kThreads; c < pieces) to[c] = normed(to[c], factor, scale[k]);
#pragma unroll 4
      for (unsigned c = threadIdx.x + kKept * kThreads; c < pieces; c += kThreads)
        to[c] = normed(to[c], factor, reinterpret_cast<const float4*>(a.norm.w)[c]);
      __syncthreads();  // `shared` is free again
    }
  }
}

template <Format kFormat, bool kNorm, bool kPublish>
__global__ void __launch_bounds__(kThreads) few_kernel(FewArgs f) {
  const RouteArgs& route = f.a.route;
  const PublishArgs& publish = f.a.publish;
  extern __shared__ __align__(16) float memory[];  // rows of x, then what choosers need, then slots
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, e = blockIdx.x * kWarps + warp;
  const unsigned columns = route.w.columns, padded = ceil_div(columns, 8u) * 8;
  float* const xs = memory;
  float* const choice = memory + (f.staged ? std::size_t{route.rows} * columns : 0);
  float* const own_choice = choice + warp * choice_floats(route.experts, route.groups);
  auto* const slots = reinterpret_cast<std::int32_t*>(choice + f.choosers * choice_floats(route.experts, route.groups));

  // Neither weights, slots nor the step block change while a step runs.
  using Held = Piece<kFormat>;
  Held held[kHeld];
  const std::byte* const row = route.w.data + (e < route.experts ? e : 0) * route.w.row_bytes;
#pragma unroll
  for (unsigned i = 0; i < kHeld; ++i)
    if (const unsigned c = (i * kWarp + lane) * 8; c < padded) held[i].load(row, c);
  if constexpr (kPublish)
    for (unsigned i = threadIdx.x; i < route.experts && publish.slots != nullptr; i += kThreads) slots[i] = publish.slots[i];
  float4 scale[kKept];
#pragma unroll
  for (unsigned k = 0; k < kKept; ++k)
    if (const unsigned c = threadIdx.x + k * kThreads; kNorm && c < columns / 4) scale[k] = reinterpret_cast<const float4*>(f.a.norm.w)[c];
  const unsigned live = kPublish ? static_cast<unsigned>(publish.live[0]) : 0;
  const std::uint32_t epoch = kPublish ? *publish.epoch : 0;
  wait_for_inputs();

  if (kNorm || f.staged) stage_rows<kNorm>(f.a, scale, xs);
  __syncthreads();
  const auto x_row = [&](unsigned r) { return f.staged ? xs + std::size_t{r} * columns : row_at(route.x, r); };
  if (e < route.experts) {
    const bool vectors = f.staged || (route.x.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(route.x.data) % 16 == 0);
    for (unsigned first = 0; first < route.rows; first += kRowsAtOnce) {
      float sums[kRowsAtOnce] = {};
      const auto add = [&](unsigned c, const float (&w)[8]) {
#pragma unroll
        for (unsigned r = 0; r < kRowsAtOnce; ++r) {
          if (first + r >= route.rows) break;
          const float* x = x_row(first + r) + c;
          if (vectors && c + 8 <= columns) {
            const float4 p = *reinterpret_cast<const float4*>(x), q = *reinterpret_cast<const float4*>(x + 4);
            sums[r] += p.x * w[0] + p.y * w[1] + p.z * w[2] + p.w * w[3] + q.x * w[4] + q.y * w[5] + q.z * w[6] + q.w * w[7];
          } else {
#pragma unroll
            for (unsigned i = 0; i < 8; ++i)
              if (c + i < columns) sums[r] += x[i] * w[i];
          }
        }
      };
#pragma unroll
      for (unsigned i = 0; i < kHeld; ++i) {
        const unsigned c = (i * kWarp + lane) * 8;
        if (c >= columns) break;
        float w[8];
        held[i].decode(w);
        add(c, w);
      }
#pragma unroll 4
      for (unsigned c = (kHeld * kWarp + lane) * 8; c < columns; c += kWarp * 8) {
        float w[8];
        decode8<kFormat>(route.w, route.w.data, e, c, w);
        add(c, w);
      }
#pragma unroll
      for (unsigned r = 0; r < kRowsAtOnce; ++r) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0 && first + r < route.rows) f.logits[std::size_t{first + r} * route.experts + e] = sum;
      }
    }
  }
  if (!last_block(&route_counters[f.counter], gridDim.x)) return;

  __shared__ unsigned pairs;
  if (kPublish && threadIdx.x == 0) pairs = 0;
  if (kPublish) __syncthreads();
  if (warp < f.choosers)
    for (unsigned r = warp; r < route.rows; r += f.choosers)
      choose(route, r, f.logits + std::size_t{r} * route.experts, own_choice, [&](unsigned k, std::int32_t id, float weight) {
        row_at(route.ids, r)[k] = id;
        row_at(route.weights, r)[k] = weight;
        if (!kPublish || r >= live) return;
        const std::size_t at = std::size_t{r} * route.top_k + k;
        reinterpret_cast<std::int32_t*>(publish.record + f.layout.ids)[at] = id;
        reinterpret_cast<float*>(publish.record + f.layout.weights)[at] = weight;
        if (publish.slots == nullptr || slots[id] >= 0) atomicAdd(&pairs, 1u);
      });
  // The sum and its norm: all blocks have read the inputs, of which the sum may be one.
  const auto leave_norm = [&](unsigned thread, unsigned threads) {
    const unsigned pieces = columns / 4;
    for (unsigned r = 0; r < route.rows; ++r)
      for (unsigned first = thread; first < pieces; first += kKept * threads) {
        float4 sum[kKept];
        load_pieces<true>(f.a, r, first, threads, pieces, sum);
#pragma unroll
        for (unsigned k = 0; k < kKept; ++k) {
          const unsigned c = first + k * threads;
          if (c >= pieces) break;
          reinterpret_cast<float4*>(row_at(f.a.norm.sum, r))[c] = sum[k];
          reinterpret_cast<float4*>(row_at(f.a.norm.out, r))[c] = reinterpret_cast<const float4*>(xs)[r * pieces + c];
        }
      }
  };
  // who has nothing to choose writes x, or what the norm leaves, meanwhile
  const unsigned busy = f.choosers < route.rows ? f.choosers : route.rows, idle = kWarps - busy;
  const bool writes = idle == 0 || warp >= busy;
  const unsigned thread = idle == 0 ? threadIdx.x : threadIdx.x - busy * kWarp, threads = idle == 0 ? kThreads : idle * kWarp;
  if constexpr (kNorm && !kPublish)
    if (writes) leave_norm(thread, threads);
  if constexpr (kPublish) {
    if (writes) {
      publish_x(publish.format, x_row, f.staged || (route.x.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(route.x.data) % 16 == 0), columns,
                live, publish.record + f.layout.x, thread, threads);
    }
    __threadfence_system();  // each thread's own stores are there before the header, which is a single store
    __syncthreads();
    if (threadIdx.x == 0) {
      store_cell(publish.record, make_uint4(epoch, live, pairs, 0));
      if (publish.pairs != nullptr) *publish.pairs = pairs;
    }
  }
  if constexpr (kNorm && kPublish) leave_norm(threadIdx.x, kThreads);
}

// staged: rows of x lie in shared memory.
template <bool kNorm, bool kPublish>
int launch_few(const RoutePublishArgs& a, bool staged, void* stream) {
  const RouteArgs& route = a.route;
  if (route.experts > kMostExperts || route.scratch.bytes < std::uint64_t{route.rows} * route.experts * 4) return cudaErrorInvalidValue;
  const unsigned each = choice_floats(route.experts, route.groups) * 4, fitting = kChoiceBytes / each;
  FewArgs f = {a, {}, reinterpret_cast<float*>(route.scratch.data), route_pool.take(1), fitting < kWarps ? fitting : kWarps, staged};
  if (kPublish) f.layout = record_layout(route.rows, route.top_k, route.w.columns, a.publish.format);
  const std::size_t shared = f.choosers * std::size_t{each} + (staged ? std::size_t{route.rows} * route.w.columns * 4 : 0) +
                             (kPublish ? route.experts * 4 : 0);
  int error = 0;
  const auto run = [&](auto kernel) {
    if (shared > 48 * 1024)
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error == 0) error = launch(kernel, ceil_div(route.experts, kWarps), kThreads, shared, stream, f);
  };
  // routers keep what the checkpoint has
  if (route.w.format == Format::bf16)
    run(few_kernel<Format::bf16, kNorm, kPublish>);
  else if (route.w.format == Format::f32)
    run(few_kernel<Format::f32, kNorm, kPublish>);
  else
    return cudaErrorInvalidValue;
  return error;
}

// Whether rows of x fit into shared memory.
bool fits(const RouteArgs& route) {
  return std::uint64_t{route.rows} * route.w.columns * 4 <= kStagedBytes && route.w.columns % 8 == 0;
}
// Whether the norm in front of the router, if there is one, can be of its launch.
bool norm_fits(const AddNormArgs& norm, const RouteArgs& route) {
  bool together = route.rows <= kRouteFewRows && norm.count != 0 && fits(route) && vector_rows(norm.sum) && vector_rows(norm.out) &&
                  aligned16(norm.w, 0);
  for (unsigned i = 0; i < norm.count; ++i) together = together && vector_rows(norm.in[i]);
  return together;
}

}  // namespace

int route_few(const RouteArgs& a, void* stream) {
  RoutePublishArgs args = {};
  args.route = a;
  return launch_few<false, false>(args, fits(a) && vector_rows(a.x), stream);
}

int norm_route_cuda(const NormRouteArgs& a, void* stream) {
  if (a.route.rows == 0) return 0;
  if (norm_fits(a.norm, a.route)) {
    RoutePublishArgs args = {};
    args.norm = a.norm;
    args.route = a.route;
    return launch_few<true, false>(args, true, stream);
  }
  if (const int error = add_norm_cuda(a.norm, stream)) return error;
  return route_cuda(a.route, stream);
}

int route_publish_cuda(const RoutePublishArgs& a, void* stream) {
  if (a.route.rows == 0) return 0;
  if (a.publish.format != Format::f32 && a.publish.format != Format::bf16) return cudaErrorInvalidValue;
  const bool few = a.route.rows <= kRouteFewRows;
  if (norm_fits(a.norm, a.route)) return launch_few<true, true>(a, true, stream);
  if (a.norm.count != 0)
    if (const int error = add_norm_cuda(a.norm, stream)) return error;
  if (few) return launch_few<false, true>(a, fits(a.route) && vector_rows(a.route.x), stream);
  if (const int error = route_cuda(a.route, stream)) return error;
  return publish_cuda(a.publish, stream);
}

}  // namespace ktc::gpu
