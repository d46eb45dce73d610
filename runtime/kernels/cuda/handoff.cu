// The hand-off (gpu_kernels.h, runtime/formats/handoff.h): a record up to the host and cells down from it, without copies, host
// nodes or flags of their own. Why so: docs/performance.md.
#include "runtime/formats/handoff.h"
#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kPublishThreads = 1024;
constexpr unsigned kAwaitThreads = 128;
constexpr unsigned kMostAwaitBlocks = 64;    // all of them run at once on any card; more cells take turns
constexpr unsigned kCellsInFlight = 4;       // of a thread
constexpr unsigned kPoisonEvery = 64;        // re-reads of cells between two looks at the poison word

// 16 bytes in one access, written after everything that a fence came after.
__device__ inline void store_cell(void* address, uint4 v) {
  asm volatile(
      "{\n\t.reg .b128 t;\n\t.reg .b64 lo, hi;\n\tmov.b64 lo, {%1, %2};\n\tmov.b64 hi, {%3, %4};\n\tmov.b128 t, {lo, hi};\n\t"
      "st.relaxed.sys.global.b128 [%0], t;\n\t}" ::"l"(address),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
// 16 aligned bytes, which one store wrote, in one access of this thread: whoever sees the epoch in them sees the data. The vector
// form, because a warp's accesses of it travel together, eight cells in one read over PCIe; .b128 ones travel one by one and cost
// 10 us per layer more at 7168 columns (measured).
__device__ inline uint4 load_cell(const void* address) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address) : "memory");
  return v;
}

__device__ inline std::uint32_t two_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Sixteen bytes of x in the record: 4 f32 or 8 bf16. Elements behind the row are left out.
template <Format kFormat>
__device__ void publish_x(const PublishArgs& a, std::byte* x, unsigned live) {
  constexpr unsigned kValues = kFormat == Format::bf16 ? 8 : 4;
  const unsigned columns = a.x.columns, pieces = ceil_div(columns, kValues);
  const bool whole = columns % kValues == 0 && a.x.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(a.x.data) % 16 == 0;
  for (unsigned i = threadIdx.x; i < live * pieces; i += blockDim.x) {
    const unsigned t = i / pieces, c = i % pieces * kValues;
    const float* from = row_at(a.x, t) + c;
    const std::size_t at = std::size_t{t} * columns + c;
    if (whole) {
      const float4 p = *reinterpret_cast<const float4*>(from);
      uint4 out;
      if constexpr (kFormat == Format::bf16) {
        const float4 q = *reinterpret_cast<const float4*>(from + 4);
        out = make_uint4(two_bf16(p.x, p.y), two_bf16(p.z, p.w), two_bf16(q.x, q.y), two_bf16(q.z, q.w));
      } else {
        out = make_uint4(__float_as_uint(p.x), __float_as_uint(p.y), __float_as_uint(p.z), __float_as_uint(p.w));
      }
      *reinterpret_cast<uint4*>(x + at * sizeof(std::uint32_t) * 4 / kValues) = out;
    } else {
      for (unsigned k = 0; k < kValues && c + k < columns; ++k) {
        if constexpr (kFormat == Format::bf16)
          reinterpret_cast<__nv_bfloat16*>(x)[at + k] = __float2bfloat16_rn(from[k]);
        else
          reinterpret_cast<float*>(x)[at + k] = from[k];
      }
    }
  }
}

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
  if (a.format == Format::bf16)
    publish_x<Format::bf16>(a, a.record + layout.x, live);
  else
    publish_x<Format::f32>(a, a.record + layout.x, live);
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

// Cells are read at once, for the host may be done. If it is not, one thread of each block waits until the host says that the
// result is near, looking again ever more slowly, and only then every thread re-reads its cells until their epoch is right: a
// waiting GPU must not take the bandwidth of the CPU's memory.
template <Format kFormat>
__global__ void __launch_bounds__(kAwaitThreads) await_kernel(AwaitArgs a) {
  wait_for_inputs();
  constexpr unsigned kValues = kFormat == Format::bf16 ? 6 : 3, kPerPanel = kFormat == Format::bf16 ? 6 : 11;
  const unsigned columns = a.out.columns, panels = static_cast<unsigned>(cell_panels(columns)), per_row = panels * kPerPanel;
  const unsigned live = static_cast<unsigned>(a.live[0]);
  const std::uint32_t epoch = *a.epoch;
  const bool nothing = a.skip_empty && a.pairs != nullptr && *a.pairs == 0;
  const unsigned first = blockIdx.x * kAwaitThreads + threadIdx.x, step = gridDim.x * kAwaitThreads;
  // rows without a result
  for (unsigned i = first; i < (a.rows - (nothing ? 0 : live)) * columns; i += step)
    row_at(a.out, (nothing ? 0 : live) + i / columns)[i % columns] = 0.0f;
  if (nothing || live == 0) return;

  __shared__ bool poisoned, waiting;
  bool near = false, poison = false;
  if (threadIdx.x == 0) waiting = false;
  __syncthreads();
  const unsigned cells = live * per_row;
  // every thread takes part in each round, with cells or without
  for (unsigned start = blockIdx.x * kAwaitThreads; start < cells; start += step * kCellsInFlight) {
    const unsigned base = start + threadIdx.x;
    uint4 cell[kCellsInFlight];
    unsigned missing = 0;
#pragma unroll
    for (unsigned k = 0; k < kCellsInFlight; ++k) {
      const unsigned i = base + k * step, in_row = i % per_row;
      // a cell behind the last column is written by nobody
      if (i < cells && in_row / kPerPanel * 32 + in_row % kPerPanel * kValues < columns) missing |= 1u << k;
    }
    const unsigned wanted = missing;
    const auto read_missing = [&] {  // all in flight at once
#pragma unroll
      for (unsigned k = 0; k < kCellsInFlight; ++k)
        if (missing & 1u << k) cell[k] = load_cell(a.cells + std::size_t{base + k * step} * kCellBytes);
#pragma unroll
      for (unsigned k = 0; k < kCellsInFlight; ++k)
        if ((missing & 1u << k) && cell[k].w == epoch) missing &= ~(1u << k);
    };
    if (!near) {
      read_missing();
      if (missing != 0) waiting = true;
      __syncthreads();
      const bool wait = waiting;
      __syncthreads();  // nobody sets it for the next cells before all have looked
      if (wait) {
        if (threadIdx.x == 0) poisoned = wait_until_near(a, epoch);
        __syncthreads();
        poison = poisoned;
        near = true;
      }
    }
    for (unsigned round = 1; missing != 0 && !poison; ++round) {
      read_missing();
      if (missing != 0 && round % kPoisonEvery == 0) poison = load_cell(a.words).w != 0;
    }
#pragma unroll
    for (unsigned k = 0; k < kCellsInFlight; ++k) {
      if (!(wanted & 1u << k)) continue;
      const unsigned i = base + k * step, t = i / per_row, in_row = i % per_row, panel = in_row / kPerPanel;
      const unsigned column = panel * 32 + in_row % kPerPanel * kValues;
      const unsigned end = panel * 32 + 32 < columns ? panel * 32 + 32 : columns;
      const std::uint32_t words[3] = {cell[k].x, cell[k].y, cell[k].z};
      float* out = row_at(a.out, t);
#pragma unroll
      for (unsigned v = 0; v < kValues; ++v) {
        float value;
        if constexpr (kFormat == Format::bf16)
          value = __uint_as_float(v % 2 == 0 ? words[v / 2] << 16 : words[v / 2] & 0xffff0000u);
        else
          value = __uint_as_float(words[v]);
        if (column + v < end) out[column + v] = poison ? 0.0f : value;
      }
    }
  }
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
  const std::size_t wanted = ceil_div(cells, std::size_t{kAwaitThreads});
  const unsigned blocks = wanted < kMostAwaitBlocks ? static_cast<unsigned>(wanted) : kMostAwaitBlocks;
  if (a.format == Format::bf16)
    launch(await_kernel<Format::bf16>, blocks, kAwaitThreads, 0, stream, a);
  else
    launch(await_kernel<Format::f32>, blocks, kAwaitThreads, 0, stream, a);
  return launched();
}

}  // namespace ktc::gpu
