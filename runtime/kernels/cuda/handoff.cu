// The hand-off (gpu_kernels.h, runtime/formats/handoff.h): a record up to the host and cells down from it, without copies, host
// nodes or flags of their own. Why so: docs/performance.md.
#include "runtime/kernels/cuda/handoff.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kPublishThreads = 1024;
constexpr unsigned kAwaitThreads = 512;
constexpr unsigned kMostAwaitBlocks = 64;    // all of them run at once on any card; more cells take turns
constexpr unsigned kCellsInFlight = 4;       // of a thread
constexpr unsigned kFetchBlocks = 32;
constexpr unsigned kPoisonEvery = 64;        // re-reads of cells between two looks at the poison word

// One block: no other has to be waited for before the epoch is written.
__global__ void __launch_bounds__(kPublishThreads) publish_kernel(PublishArgs a, RecordLayout layout) {
  wait_for_inputs();
  __shared__ unsigned pairs;
  if (threadIdx.x == 0) pairs = 0;
  __syncthreads();
  const unsigned live = static_cast<unsigned>(a.live[0]);
  const std::uint32_t epoch = *a.epoch;
  unsigned mine = 0;
  for (unsigned i = threadIdx.x; i < live * a.top_k; i += blockDim.x) {
    const unsigned t = i / a.top_k, k = i % a.top_k;
    const std::int32_t id = row_at(a.ids, t)[k];
    reinterpret_cast<std::int32_t*>(a.record + layout.ids)[i] = id;
    reinterpret_cast<float*>(a.record + layout.weights)[i] = row_at(a.weights, t)[k];
    mine += pair_slot(a.slots, id, 0x7fffffffu) >= 0;
  }
  if (mine != 0) atomicAdd(&pairs, mine);
  const bool whole = a.x.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(a.x.data) % 16 == 0;
  publish_x(a.format, [&a](unsigned t) { return row_at(a.x, t); }, whole, a.x.columns, live, a.record + layout.x, threadIdx.x, blockDim.x);
  // One fence, a round trip to the host: each thread's own stores are there before the header, which is a single store.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (a.pairs != nullptr) *a.pairs = pairs;
    store_cell(a.record, make_uint4(epoch, live, pairs, 0));
  }
}

// Until the host says that the result of this layer is near, or does not say such things; true: poisoned.
__device__ bool wait_until_near(const AwaitArgs& a, std::uint32_t epoch) {
  for (unsigned pause = 20;; pause = pause < 200 ? pause * 2 : 200) {
    const uint4 words = load_cell(a.words);  // near epoch, near layer, heartbeat, poison
    if (words.w != 0) return true;
    if (words.x == 0 || (words.x == epoch && words.y >= a.layer)) return false;
    __nanosleep(pause);
  }
}

// What a block of await needs to know. A row is [panels][cells of a panel].
template <Format kFormat>
struct Cells {
  static constexpr unsigned kValues = kFormat == Format::bf16 ? 6 : 3, kPerPanel = kFormat == Format::bf16 ? 6 : 11;

  static __device__ unsigned per_row(unsigned columns) { return static_cast<unsigned>(cell_panels(columns)) * kPerPanel; }
  // The first column of a cell of a row, and how many values it has: none behind the last column, where nobody writes it.
  static __device__ unsigned column(unsigned cell) { return cell / kPerPanel * 32 + cell % kPerPanel * kValues; }
  static __device__ unsigned count(unsigned cell, unsigned columns) {
    const unsigned first = column(cell), panel_end = cell / kPerPanel * 32 + 32, end = panel_end < columns ? panel_end : columns;
    return first >= end ? 0 : end - first < kValues ? end - first : kValues;
  }
  static __device__ float value(const uint4& cell, unsigned v) {
    const std::uint32_t words[3] = {cell.x, cell.y, cell.z};
    if constexpr (kFormat == Format::bf16)
      return __uint_as_float(v % 2 == 0 ? words[v / 2] << 16 : words[v / 2] & 0xffff0000u);
    else
      return __uint_as_float(words[v]);
  }
};

// The wait of a block, over any number of rounds of kMost cells per thread. Cells are read at once, for the host may be done. If it is
// not, one thread of the block waits until the host says that the result is near, looking again ever more slowly, and only then every
// thread re-reads its cells until their epoch is right: a waiting GPU must not take the bandwidth of the CPU's memory.
struct Waiting {
  bool near = false, poisoned = false;

  // cells[k] of this thread, where bit k of `wanted` is set: from place(k). Every thread of the block calls it.
  template <unsigned kMost, typename Place>
  __device__ void read(const AwaitArgs& a, std::uint32_t epoch, unsigned wanted, uint4 (&cells)[kMost], const Place& place) {
    __shared__ bool waits, poison;
    unsigned missing = wanted;
    const auto read_missing = [&] {  // all in flight at once
#pragma unroll
      for (unsigned k = 0; k < kMost; ++k)
        if (missing & 1u << k) cells[k] = load_cell(place(k));
#pragma unroll
      for (unsigned k = 0; k < kMost; ++k)
        if ((missing & 1u << k) && cells[k].w == epoch) missing &= ~(1u << k);
    };
    if (!near) {
      if (threadIdx.x == 0) waits = false;
      __syncthreads();
      read_missing();
      if (missing != 0) waits = true;
      __syncthreads();
      if (waits) {
        if (threadIdx.x == 0) poison = wait_until_near(a, epoch);
        __syncthreads();
        poisoned = poison;
        near = true;
      }
      __syncthreads();  // nobody sets them for the next cells before all have looked
    }
    for (unsigned round = 1; missing != 0 && !poisoned; ++round) {
      read_missing();
      if (missing != 0 && round % kPoisonEvery == 0) poisoned = load_cell(a.words).w != 0;
    }
  }
};

// Block `block` of `blocks` asks for its part of what comes next.
__device__ void fetch(const AwaitArgs& a, unsigned block, unsigned blocks) {
  constexpr unsigned kPiece = 4096;
  for (const Fetch& f : a.fetch) {
    const std::uint64_t pieces = ceil_div(f.bytes, std::uint64_t{kPiece});
    for (std::uint64_t i = block * std::uint64_t{blockDim.x} + threadIdx.x; i < pieces; i += std::uint64_t{blocks} * blockDim.x) {
      const std::uint64_t left = f.bytes - i * kPiece;
      fetch_piece(f.data + i * kPiece, static_cast<std::uint32_t>(left < kPiece ? left : kPiece));
    }
  }
}
// Whether this step waits at all.
__device__ bool expects_result(const AwaitArgs& a) { return a.live[0] != 0 && !(a.skip_empty && a.pairs != nullptr && *a.pairs == 0); }

// Blocks from `readers` on have no cells but fetch.
template <Format kFormat>
__global__ void __launch_bounds__(kAwaitThreads) await_kernel(AwaitArgs a, unsigned readers) {
  wait_for_inputs();
  using Row = Cells<kFormat>;
  const bool expected = expects_result(a);
  if (blockIdx.x >= readers) {
    if (expected) fetch(a, blockIdx.x - readers, gridDim.x - readers);
    return;
  }
  const unsigned columns = a.out.columns, per_row = Row::per_row(columns);
  const unsigned live = expected ? static_cast<unsigned>(a.live[0]) : 0;
  const std::uint32_t epoch = *a.epoch;
  const unsigned first = blockIdx.x * kAwaitThreads + threadIdx.x, step = readers * kAwaitThreads;
  // rows without a result
  for (unsigned i = first; i < (a.rows - live) * columns; i += step) row_at(a.out, live + i / columns)[i % columns] = 0.0f;
  Waiting waiting;
  const unsigned cells = live * per_row;
  // every thread takes part in each round, with cells or without
  for (unsigned start = blockIdx.x * kAwaitThreads; start < cells; start += step * kCellsInFlight) {
    const unsigned base = start + threadIdx.x;
    uint4 cell[kCellsInFlight];
    unsigned wanted = 0;
#pragma unroll
    for (unsigned k = 0; k < kCellsInFlight; ++k)
      if (const unsigned i = base + k * step; i < cells && Row::count(i % per_row, columns) != 0) wanted |= 1u << k;
    waiting.read(a, epoch, wanted, cell, [&](unsigned k) { return a.cells + std::size_t{base + k * step} * kCellBytes; });
#pragma unroll
    for (unsigned k = 0; k < kCellsInFlight; ++k) {
      if (!(wanted & 1u << k)) continue;
      const unsigned i = base + k * step, in_row = i % per_row, count = Row::count(in_row, columns);
      float* out = row_at(a.out, i / per_row) + Row::column(in_row);
#pragma unroll
      for (unsigned v = 0; v < Row::kValues; ++v)
        if (v < count) out[v] = waiting.poisoned ? 0.0f : Row::value(cell[k], v);
    }
  }
}

// One block per row reads its cells into shared memory; from there on a thread has four neighbouring columns at a time, adds the other
// terms and norms the sum. The other blocks fetch.
constexpr unsigned kNormThreads = 512, kNormCells = 4, kNormVectors = 4;  // of a thread, at most
template <Format kFormat>
__global__ void __launch_bounds__(kNormThreads) await_norm_kernel(AwaitNormArgs a) {
  using Row = Cells<kFormat>;
  extern __shared__ __align__(16) float values[];  // of the result
  __shared__ float shared[kWarp];
  const AddNormArgs& n = a.norm;
  const std::uint32_t epoch = *a.await.epoch;
  const auto live = static_cast<unsigned>(a.await.live[0]);
  const unsigned r = blockIdx.x, columns = n.out.columns, vectors = columns / 4, per_row = Row::per_row(columns);
  const auto at = [&](const Matrix& m, unsigned k) { return reinterpret_cast<float4*>(row_at(m, r)) + threadIdx.x + k * kNormThreads; };
  const auto has = [&](unsigned k) { return threadIdx.x + k * kNormThreads < vectors; };
  float4 scale[kNormVectors], sum[kNormVectors] = {};
#pragma unroll
  for (unsigned k = 0; k < kNormVectors; ++k)
    if (has(k)) scale[k] = reinterpret_cast<const float4*>(n.w)[threadIdx.x + k * kNormThreads];
  wait_for_inputs();
  const bool expected = live != 0 && !(a.await.skip_empty && a.await.pairs != nullptr && *a.await.pairs == 0);
  if (r >= n.rows) {
    if (expected) fetch(a.await, r - n.rows, gridDim.x - n.rows);
    return;
  }
  const auto add = [](float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; };
  const auto add_term = [&](const Matrix& m, bool first) {  // all loads in flight at once
    float4 term[kNormVectors];
#pragma unroll
    for (unsigned k = 0; k < kNormVectors; ++k)
      if (has(k)) term[k] = *at(m, k);
#pragma unroll
    for (unsigned k = 0; k < kNormVectors; ++k)
      if (has(k)) {
        if (first) sum[k] = term[k];
        else add(sum[k], term[k]);
      }
  };
  // The terms in front of the result are added while it is waited for.
  for (unsigned i = 0; i < a.term; ++i) add_term(n.in[i], i == 0);
  bool arrived = false;
  if (expected && r < live) {
    unsigned wanted = 0;
#pragma unroll
    for (unsigned k = 0; k < kNormCells; ++k)
      if (const unsigned cell = threadIdx.x + k * kNormThreads; cell < per_row && Row::count(cell, columns) != 0) wanted |= 1u << k;
    Waiting waiting;
    uint4 cells[kNormCells];
    waiting.read(a.await, epoch, wanted, cells,
                 [&](unsigned k) { return a.await.cells + (std::size_t{r} * per_row + threadIdx.x + k * kNormThreads) * kCellBytes; });
#pragma unroll
    for (unsigned k = 0; k < kNormCells; ++k) {
      if (!(wanted & 1u << k)) continue;
      const unsigned cell = threadIdx.x + k * kNormThreads, count = Row::count(cell, columns);
#pragma unroll
      for (unsigned v = 0; v < Row::kValues; ++v)
        if (v < count) values[Row::column(cell) + v] = waiting.poisoned ? 0.0f : Row::value(cells[k], v);
    }
    __syncthreads();
    arrived = true;
  }
  float squares = 0;
#pragma unroll
  for (unsigned k = 0; k < kNormVectors; ++k) {
    if (!has(k)) break;
    const float4 value = arrived ? reinterpret_cast<const float4*>(values)[threadIdx.x + k * kNormThreads] : make_float4(0, 0, 0, 0);
    *at(a.await.out, k) = value;
    if (a.term == 0) sum[k] = value;
    else add(sum[k], value);
  }
  for (unsigned i = a.term + 1; i < n.count; ++i) add_term(n.in[i], false);
#pragma unroll
  for (unsigned k = 0; k < kNormVectors; ++k) {
    if (!has(k)) break;
    *at(n.sum, k) = sum[k];
    squares += sum[k].x * sum[k].x + sum[k].y * sum[k].y + sum[k].z * sum[k].z + sum[k].w * sum[k].w;
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(columns) + n.eps);
#pragma unroll
  for (unsigned k = 0; k < kNormVectors; ++k) {
    if (!has(k)) break;
    *at(n.out, k) = make_float4(sum[k].x * factor * scale[k].x, sum[k].y * factor * scale[k].y, sum[k].z * factor * scale[k].z,
                                sum[k].w * factor * scale[k].w);
  }
}

// Blocks that fetch, where there is something.
unsigned fetchers(const AwaitArgs& a) {
  std::uint64_t bytes = 0;
  for (const Fetch& f : a.fetch) bytes += f.bytes;
  return bytes == 0 ? 0 : kFetchBlocks;
}

}  // namespace

int publish_cuda(const PublishArgs& a, void* stream) {
  if (a.format != Format::f32 && a.format != Format::bf16) return cudaErrorInvalidValue;
  const RecordLayout layout = record_layout(a.rows, a.top_k, a.x.columns, a.format);
  const std::size_t values = a.format == Format::bf16 ? 8 : 4, pieces = ceil_div(std::size_t{a.rows} * a.x.columns, values);
  const unsigned threads = pieces >= kPublishThreads ? kPublishThreads : static_cast<unsigned>(ceil_div(pieces + 1, kWarp) * kWarp);
  launch(publish_kernel, 1, threads < kPublishThreads ? threads : kPublishThreads, 0, stream, a, layout);
  return launched();
}

int await_cuda(const AwaitArgs& a, void* stream) {
  if (a.format != Format::f32 && a.format != Format::bf16) return cudaErrorInvalidValue;
  const std::size_t cells = a.rows * cell_panels(a.out.columns) * cells_per_panel(a.format);
  if (cells == 0) return 0;
  // few blocks, since one thread of each looks at the words: up to 2048 cells, a row of 7168 columns in bf16, are one block's
  const std::size_t wanted = ceil_div(cells, std::size_t{kAwaitThreads} * kCellsInFlight);
  const unsigned blocks = wanted < kMostAwaitBlocks ? static_cast<unsigned>(wanted) : kMostAwaitBlocks;
  if (a.format == Format::bf16)
    launch(await_kernel<Format::bf16>, blocks + fetchers(a), kAwaitThreads, 0, stream, a, blocks);
  else
    launch(await_kernel<Format::f32>, blocks + fetchers(a), kAwaitThreads, 0, stream, a, blocks);
  return launched();
}

int await_norm_cuda(const AwaitNormArgs& a, void* stream) {
  if (a.await.format != Format::f32 && a.await.format != Format::bf16) return cudaErrorInvalidValue;
  if (a.norm.rows == 0) return 0;
  const std::uint32_t columns = a.norm.out.columns;
  bool together = columns / 4 <= kNormVectors * kNormThreads && columns * 4 <= 48 * 1024 && vector_rows(a.norm.out) && vector_rows(a.norm.sum) &&
                  vector_rows(a.await.out) && aligned16(a.norm.w, 0) &&
                  cell_panels(columns) * cells_per_panel(a.await.format) <= kNormCells * kNormThreads;
  for (std::uint32_t i = 0; i < a.norm.count; ++i) together = together && vector_rows(a.norm.in[i]);
  if (!together) {
    if (const int error = await_cuda(a.await, stream)) return error;
    return add_norm_cuda(a.norm, stream);
  }
  const unsigned blocks = a.norm.rows + fetchers(a.await);
  if (a.await.format == Format::bf16)
    launch(await_norm_kernel<Format::bf16>, blocks, kNormThreads, columns * 4, stream, a);
  else
    launch(await_norm_kernel<Format::f32>, blocks, kNormThreads, columns * 4, stream, a);
  return launched();
}

}  // namespace ktc::gpu
