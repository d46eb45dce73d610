// MLA attention with FlashInfer's FA2 kernel: pairs of blocks, one block per SM, go through lists of items of 128 (token, head) rows.
// Where the keys of an item are cut, the kernel's second stage, behind a barrier of the grid, merges the parts.
#include "runtime/kernels/cuda/flashinfer/fastdiv.h"  // before FlashInfer's headers

#include <flashinfer/attention/mla.cuh>
#include <flashinfer/attention/mla_params.cuh>

#include "runtime/kernels/cuda/flashinfer/attend.h"
#include "runtime/kernels/cuda/flashinfer/plan.h"
#include "runtime/kernels/cuda/flashinfer/rows.cuh"

namespace ktc::gpu {
namespace {

namespace fi = flashinfer;

using Bf16 = __nv_bfloat16;
using Params = fi::MLAParams<Bf16, Bf16, Bf16, std::int32_t>;

constexpr unsigned kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
constexpr unsigned kBlockRows = 64, kBlocks = kGpuPlanRows / kBlockRows;  // blocks that share an item

template <unsigned kKeys>  // of a tile; two stages, the scores shared by the two groups of warps
using Traits = fi::mla::KernelTraits<true, 2, true, kLatent, kRope, kBlockRows, kKeys, Bf16, Bf16, Bf16, std::int32_t>;

struct Card {
  int shared = 0, sms = 0, major = 0;
};
cudaError_t card(Card& c) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&c.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&c.sms, cudaDevAttrMultiProcessorCount, device)) return error;
  return cudaDeviceGetAttribute(&c.major, cudaDevAttrComputeCapabilityMajor, device);
}

constexpr unsigned kPlanThreads = kPlanCutItems;  // also of the blocks that round
constexpr unsigned kPlanWarps = kPlanThreads / kWarp;

struct Plan {
  std::int32_t *work, *merge_first, *merge_end, *merge_part, *merge_part_end, *merge_stride;
  std::int32_t *q_first, *page_first, *part, *q_length, *kv_length, *row, *kv_begin, *kv_end;  // of entries
  float* lse;
  Bf16* sums;
  std::uint32_t items, workers;  // items: at most
  bool cut;
};
Plan plan_of(const MlaAttendArgs& a, std::uint32_t workers) {
  const auto items = static_cast<std::uint32_t>(gpu_plan_items(a.batch.tokens, a.batch.sequences, a.heads));
  const GpuMlaPlan at = gpu_mla_plan(items);
  const auto ints = [&](std::uint64_t offset) { return reinterpret_cast<std::int32_t*>(a.scratch.data + offset); };
  const auto merge = [&](std::size_t i) { return ints(at.merge) + i * kGpuMlaSms; };
  const auto entry = [&](std::size_t i) { return ints(at.entry) + i * (items + kGpuMlaSms / 2); };
  return {ints(at.work), merge(0), merge(1), merge(2), merge(3), merge(4), entry(0), entry(1), entry(2), entry(3), entry(4), entry(5),
          entry(6), entry(7), reinterpret_cast<float*>(a.scratch.data + at.lse), reinterpret_cast<Bf16*>(a.scratch.data + at.sums), items,
          workers, items <= kPlanCutItems};
}

__device__ inline void write_entry(const MlaAttendArgs& a, const Plan& plan, std::uint32_t at, const PlanItem& item, std::uint32_t kv_begin,
                                   std::uint32_t kv_end, std::int32_t part) {
  std::int32_t first = a.batch.q_first[item.sequence], tokens = a.batch.q_first[item.sequence + 1] - first;
  auto row = static_cast<std::int32_t>(item.tile * kGpuPlanRows);
  const std::int32_t kv_length = a.batch.kv_length[item.sequence];
  if (kv_length < tokens) {  // padding, more tokens than keys, which the kernel cannot count: every tile is a sequence of its own
    const std::int32_t before = row / static_cast<std::int32_t>(a.heads), most = static_cast<std::int32_t>(kGpuPlanRows / a.heads);
    first += before;
    tokens = tokens - before < most ? tokens - before : most;
    row = 0;
  }
  plan.q_first[at] = first;
  plan.page_first[at] = a.batch.page_first[item.sequence];
  plan.part[at] = part;
  plan.q_length[at] = kv_begin == kv_end ? 0 : tokens;  // without keys nothing may be written
  plan.kv_length[at] = kv_length;
  plan.row[at] = row;
  plan.kv_begin[at] = static_cast<std::int32_t>(kv_begin);
  plan.kv_end[at] = static_cast<std::int32_t>(kv_end);
}

// Many items: dealt. Any number of blocks.
__device__ inline void plan_dealt(const MlaAttendArgs& a, const Plan& plan) {
  const unsigned i = blockIdx.x * kPlanThreads + threadIdx.x;
  const std::uint32_t items = plan_item_count(a.batch, a.heads);
  PlanItem item = {};
  if (i < plan.items && plan_item(a.batch, a.heads, i, item))
    write_entry(a, plan, dealt_place(i, items, plan.workers), item, 0, static_cast<std::uint32_t>(a.batch.kv_length[item.sequence]), -1);
  if (i <= plan.workers) plan.work[i] = static_cast<std::int32_t>(i < plan.workers ? dealt_first(i, items, plan.workers) : items);
  if (i < kGpuMlaSms) plan.merge_first[i] = plan.merge_end[i] = plan.merge_part[i] = plan.merge_part_end[i] = plan.merge_stride[i] = 0;
}

// Values of the threads before this one, added up.
__device__ inline std::uint32_t sum_before(std::uint32_t value, std::uint32_t* shared) {
  const unsigned i = threadIdx.x;
  shared[i] = value;
  __syncthreads();
  for (unsigned step = 1; step < kPlanThreads; step *= 2) {
    const std::uint32_t below = i >= step ? shared[i - step] : 0;
    __syncthreads();
    shared[i] += below;
    __syncthreads();
  }
  return shared[i] - value;
}

// Few items: cut. One block, a thread per item, then a thread per entry.
__device__ inline void plan_cut(const MlaAttendArgs& a, const Plan& plan) {
  __shared__ std::uint32_t scan[kPlanThreads], begins[kPlanThreads + 1], lasts[kPlanThreads], parts_before[kPlanThreads];
  __shared__ std::uint32_t visible_of[kPlanThreads], item_count;
  __shared__ PlanItem item_of[kPlanThreads];
  const unsigned i = threadIdx.x;
  PlanItem item = {};
  const bool real = plan_item(a.batch, a.heads, i, item);
  std::uint32_t visible = 0;
  if (real) {
    const auto tokens = static_cast<std::uint32_t>(a.batch.q_first[item.sequence + 1] - a.batch.q_first[item.sequence]);
    visible = plan_visible(static_cast<std::uint32_t>(a.batch.kv_length[item.sequence]), tokens, item.tile, a.heads);
  }
  if (i < kGpuMlaSms) plan.merge_first[i] = plan.merge_end[i] = plan.merge_part[i] = plan.merge_part_end[i] = plan.merge_stride[i] = 0;
  const std::uint32_t units = ceil_div(visible, kPlanKeys), begin = sum_before(units, scan), all = scan[kPlanThreads - 1];
  const std::uint32_t items = static_cast<std::uint32_t>(__syncthreads_count(real)), span = plan_span(all, plan.workers);
  if (i == 0) item_count = items;
  begins[i] = begin;
  item_of[i] = item;
  visible_of[i] = visible;
  lasts[i] = real ? i + path_last(begin + units, span, plan.workers, i + 1 == items) : ~0u;  // number of the item's last entry
  const std::uint32_t parts = real ? (begin + units - 1) / span - begin / span + 1 : 0;
  parts_before[i] = sum_before(parts > 1 ? parts : 0, scan);
  if (i == 0) begins[kPlanThreads] = all;
  __syncthreads();
  const std::uint32_t entries = item_count + plan.workers - 1;
  if (i == 0) plan.work[plan.workers] = static_cast<std::int32_t>(entries);
  for (std::uint32_t e = i; e < entries; e += kPlanThreads) {
    std::uint32_t low = 0, high = item_count - 1;  // the item of the entry: the first whose last entry is not before
    while (low < high) {
      const std::uint32_t middle = (low + high) / 2;
      if (lasts[middle] < e) low = middle + 1; else high = middle;
    }
    const std::uint32_t worker = e - low, from = begins[low], to = begins[low + 1];
    if (path_enters(worker, from, span)) plan.work[worker] = static_cast<std::int32_t>(e);
    const PlanItem own = item_of[low];
    const PlanPart part = plan_part(from, to, worker, span, visible_of[low]);
    const bool cut = part.parts > 1;
    const std::uint32_t place = parts_before[low] + part.number, rows_before = place * static_cast<std::uint32_t>(kGpuPlanRows);
    write_entry(a, plan, e, own, part.begin, part.end, cut ? static_cast<std::int32_t>(rows_before) : -1);
    if (!cut) continue;
    const std::int32_t first = a.batch.q_first[own.sequence], next = a.batch.q_first[own.sequence + 1];
    const std::uint32_t left = static_cast<std::uint32_t>(next - first) * a.heads - own.tile * static_cast<std::uint32_t>(kGpuPlanRows);
    std::uint32_t merged_first, merged_end;
    merged_rows(left < kGpuPlanRows ? left : static_cast<std::uint32_t>(kGpuPlanRows), part.number, part.parts, merged_first, merged_end);
    const std::uint32_t row = static_cast<std::uint32_t>(first) * a.heads + own.tile * static_cast<std::uint32_t>(kGpuPlanRows);
    const std::uint32_t parts_first = parts_before[low] * static_cast<std::uint32_t>(kGpuPlanRows);
    plan.merge_first[place] = static_cast<std::int32_t>(row + merged_first);
    plan.merge_end[place] = static_cast<std::int32_t>(row + merged_end);
    plan.merge_part[place] = static_cast<std::int32_t>(parts_first + merged_first);
    plan.merge_part_end[place] = static_cast<std::int32_t>(parts_first + part.parts * kGpuPlanRows);
    plan.merge_stride[place] = static_cast<std::int32_t>(kGpuPlanRows);
  }
}

// The first blocks write the lists, the others round queries to bf16.
__global__ void __launch_bounds__(kPlanThreads) prepare_kernel(MlaAttendArgs a, Plan plan, unsigned plan_blocks) {
  wait_for_inputs();
  if (blockIdx.x < plan_blocks) {
    if (plan.cut) plan_cut(a, plan); else plan_dealt(a, plan);
    return;
  }
  const unsigned pair = (blockIdx.x - plan_blocks) * kPlanWarps + threadIdx.x / kWarp;
  if (pair >= a.batch.tokens * a.heads) return;
  round_head_in_place<kWidth>(row_at(a.query, pair / a.heads) + std::size_t{pair % a.heads} * kWidth, threadIdx.x % kWarp);
}

__global__ void __launch_bounds__(kRowWarps * kWarp) widen_kernel(Matrix context, unsigned tokens, unsigned heads) {
  wait_for_inputs();
  const unsigned pair = blockIdx.x * kRowWarps + threadIdx.x / kWarp;
  if (pair >= tokens * heads) return;
  widen_head_in_place<kLatent>(row_at(context, pair / heads) + std::size_t{pair % heads} * kLatent, threadIdx.x % kWarp);
}

template <unsigned kKeys>
int attend_tiles(Params params, unsigned workers, void* stream) {
  using T = Traits<kKeys>;
  auto kernel = fi::mla::BatchMLAPagedAttentionKernel<T, Params>;
  constexpr auto kShared = static_cast<int>(sizeof(typename T::SharedStorage));
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared)) return error;
  void* args[] = {&params};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(kBlocks, workers), dim3(kWarp, 4, 2), args, kShared,
                                     stream_of(stream));
}

}  // namespace

bool flashinfer_serves(const MlaAttendArgs& a) {
  const std::uint64_t most = std::uint64_t{1} << 32, query = std::uint64_t{a.heads} * kWidth, context = std::uint64_t{a.heads} * kLatent;
  const CachePart &latent = a.cache.a, &rope = a.cache.b;
  const bool shapes =
      !a.own_kernels && a.cache.format == Format::bf16 && a.latent_dim == kLatent && a.rope_dim == kRope && latent.width == kLatent &&
      rope.width == kRope && a.heads != 0 && kGpuPlanRows % a.heads == 0 &&
      aligned16(latent.base, latent.page_bytes) && aligned16(rope.base, rope.page_bytes) && latent.page_bytes / sizeof(Bf16) < most &&
      rope.page_bytes / sizeof(Bf16) < most && a.query.stride >= query && a.context.stride >= context &&
      aligned16(a.query.data, a.query.stride * 4) && aligned16(a.context.data, a.context.stride * 4) &&
      2 * a.query.stride * a.batch.tokens < most && 2 * a.context.stride * a.batch.tokens < most;
  if (!shapes || !mla_plan_serves(a.batch, a.heads, a.scratch.bytes)) return false;
  Card c;
  return card(c) == cudaSuccess && (c.major == 8 || c.major == 9) && c.sms >= 2 && static_cast<unsigned>(c.sms) <= kGpuMlaSms &&
         c.shared >= static_cast<int>(sizeof(typename Traits<32>::SharedStorage));
}

int flashinfer_attend(const MlaAttendArgs& a, void* stream) {
  Card c;
  if (const cudaError_t error = card(c)) return error;
  const auto workers = static_cast<std::uint32_t>(c.sms) / kBlocks;
  const Plan plan = plan_of(a, workers);
  const unsigned plan_blocks = plan.cut ? 1 : ceil_div(plan.items, kPlanThreads), row_blocks = ceil_div(a.batch.tokens * a.heads, kPlanWarps);
  if (const int error = launch(prepare_kernel, dim3(plan_blocks + row_blocks), kPlanThreads, 0, stream, a, plan, plan_blocks)) return error;

  Params p = {};
  p.q_nope = reinterpret_cast<Bf16*>(a.query.data);
  p.q_pe = p.q_nope + kLatent;
  p.q_nope_stride_n = p.q_pe_stride_n = static_cast<std::uint32_t>(2 * a.query.stride);  // elements of bf16 where f32 lay
  p.q_nope_stride_h = p.q_pe_stride_h = 2 * kWidth;
  p.ckv = reinterpret_cast<Bf16*>(a.cache.a.base);
  p.ckv_stride_page = static_cast<std::uint32_t>(a.cache.a.page_bytes / sizeof(Bf16));
  p.ckv_stride_n = kLatent;
  p.kpe = reinterpret_cast<Bf16*>(a.cache.b.base);
  p.kpe_stride_page = static_cast<std::uint32_t>(a.cache.b.page_bytes / sizeof(Bf16));
  p.kpe_stride_n = kRope;
  p.final_o = reinterpret_cast<Bf16*>(a.context.data);
  p.o_stride_n = static_cast<std::uint32_t>(2 * a.context.stride);
  p.o_stride_h = 2 * kLatent;
  p.q_indptr = plan.q_first;
  p.kv_indptr = plan.page_first;
  p.partial_indptr = plan.part;
  p.partial_o = plan.sums;
  p.partial_lse = plan.lse;
  p.merge_packed_offset_start = plan.merge_first;
  p.merge_packed_offset_end = plan.merge_end;
  p.merge_partial_packed_offset_start = plan.merge_part;
  p.merge_partial_packed_offset_end = plan.merge_part_end;
  p.merge_partial_stride = plan.merge_stride;
  p.kv_indices = const_cast<std::int32_t*>(a.batch.pages);
  p.q_len = plan.q_length;
  p.kv_len = plan.kv_length;
  p.q_start = plan.row;
  p.kv_start = plan.kv_begin;
  p.kv_end = plan.kv_end;
  p.work_indptr = plan.work;
  p.block_size = fi::uint_fastdiv(a.cache.page_tokens);
  p.num_heads = fi::uint_fastdiv(a.heads);
  p.sm_scale = a.scale;
  const bool large = c.shared >= static_cast<int>(sizeof(typename Traits<64>::SharedStorage));
  if (const int error = large ? attend_tiles<64>(p, workers, stream) : attend_tiles<32>(p, workers, stream)) return error;
  widen_kernel<<<ceil_div(a.batch.tokens * a.heads, kRowWarps), kRowWarps * kWarp, 0, stream_of(stream)>>>(a.context, a.batch.tokens, a.heads);
  return launched();
}

}  // namespace ktc::gpu
