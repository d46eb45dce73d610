// MLA attention of prompts with FlashInfer's FA2 kernel: pairs of blocks, one block per SM, go through lists of items of 128 (token,
// head) rows. The kernel's second stage merges parts of split keys; there are none here.
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
constexpr unsigned kBlockRows = 64, kBlocks = kGpuPlanRows / kBlockRows;  // that share an item

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

// Arrays of each item in the plan, in this order.
struct Plan {
  std::int32_t *work, *zeros, *q_first, *page_first, *partial, *q_length, *kv_length, *row, *kv_begin, *kv_end;
  std::uint32_t items, workers;
};
Plan plan_of(const MlaAttendArgs& a, std::uint32_t workers) {
  const auto items = static_cast<std::uint32_t>(plan_most_items(a.batch.tokens, a.batch.sequences, a.heads));
  const GpuAttendPlan at = gpu_attend_plan(items, a.batch.sequences);
  const auto ints = [&](std::uint64_t offset) { return reinterpret_cast<std::int32_t*>(a.scratch.data + offset); };
  const auto array = [&](std::size_t i) { return ints(at.item) + i * items; };
  return {ints(at.work), ints(at.zeros), array(0), array(1), array(2), array(3), array(4), array(5), array(6), array(7), items, workers};
}

// The first blocks write the lists, the others round queries to bf16.
__global__ void __launch_bounds__(kRowWarps * kWarp) prepare_kernel(MlaAttendArgs a, Plan plan, unsigned plan_blocks) {
  wait_for_inputs();
  if (blockIdx.x < plan_blocks) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const std::uint32_t items = plan_item_count(a.batch, a.heads);
    PlanItem item = {};
    if (i < plan.items && plan_item(a.batch, a.heads, i, item)) {
      const std::uint32_t at = dealt_place(i, items, plan.workers);
      const std::int32_t first = a.batch.q_first[item.sequence], length = a.batch.kv_length[item.sequence];
      plan.q_first[at] = first;
      plan.page_first[at] = a.batch.page_first[item.sequence];
      plan.partial[at] = -1;
      plan.q_length[at] = a.batch.q_first[item.sequence + 1] - first;
      plan.kv_length[at] = plan.kv_end[at] = length;
      plan.row[at] = static_cast<std::int32_t>(item.tile * kGpuPlanRows);
      plan.kv_begin[at] = 0;
    }
    if (i <= plan.workers) plan.work[i] = static_cast<std::int32_t>(i < plan.workers ? dealt_first(i, items, plan.workers) : items);
    if (i < kGpuMostSms) plan.zeros[i] = 0;
    return;
  }
  const unsigned pair = (blockIdx.x - plan_blocks) * kRowWarps + threadIdx.x / kWarp;
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
      rope.width == kRope && a.heads != 0 && (a.heads % kGpuPlanRows == 0 || kGpuPlanRows % a.heads == 0) &&
      aligned16(latent.base, latent.page_bytes) && aligned16(rope.base, rope.page_bytes) && latent.page_bytes / sizeof(Bf16) < most &&
      rope.page_bytes / sizeof(Bf16) < most && a.query.stride >= query && a.context.stride >= context &&
      aligned16(a.query.data, a.query.stride * 4) && aligned16(a.context.data, a.context.stride * 4) &&
      2 * a.query.stride * a.batch.tokens < most && 2 * a.context.stride * a.batch.tokens < most;
  if (!shapes || !plan_serves(a.batch, a.heads, a.scratch.bytes)) return false;
  Card c;
  return card(c) == cudaSuccess && (c.major == 8 || c.major == 9) && static_cast<unsigned>(c.sms) <= kGpuMostSms &&
         c.shared >= static_cast<int>(sizeof(typename Traits<32>::SharedStorage)) &&
         std::uint64_t{a.batch.tokens} * a.heads >= kGpuPlanRows * static_cast<unsigned>(c.sms) / kBlocks;
}

int flashinfer_attend(const MlaAttendArgs& a, void* stream) {
  Card c;
  if (const cudaError_t error = card(c)) return error;
  const auto workers = static_cast<std::uint32_t>(c.sms) / kBlocks;
  const Plan plan = plan_of(a, workers);
  const unsigned threads = kRowWarps * kWarp, wanted = plan.items > kGpuMostSms ? plan.items : kGpuMostSms;
  const unsigned plan_blocks = ceil_div(wanted, threads), row_blocks = ceil_div(a.batch.tokens * a.heads, kRowWarps);
  if (const int error = launch(prepare_kernel, dim3(plan_blocks + row_blocks), threads, 0, stream, a, plan, plan_blocks)) return error;

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
  p.partial_indptr = plan.partial;
  p.merge_packed_offset_start = p.merge_packed_offset_end = p.merge_partial_packed_offset_start = p.merge_partial_packed_offset_end =
      p.merge_partial_stride = plan.zeros;
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
  return launch(widen_kernel, dim3(ceil_div(a.batch.tokens * a.heads, kRowWarps)), threads, 0, stream, a.context, a.batch.tokens, a.heads);
}

}  // namespace ktc::gpu
