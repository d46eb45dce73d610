// GQA attention of prompts with FlashInfer's FA2 kernel: tiles of 128 (token, head) rows, keys through the page list.
#include "runtime/kernels/cuda/flashinfer/fastdiv.h"  // before FlashInfer's headers

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include "runtime/kernels/cuda/flashinfer/attend.h"
#include "runtime/kernels/cuda/flashinfer/plan.h"
#include "runtime/kernels/cuda/flashinfer/rows.cuh"

namespace ktc::gpu {
namespace {

namespace fi = flashinfer;

using Bf16 = __nv_bfloat16;
using Variant = fi::DefaultAttention<false, false, false, false>;

// Lengths come from the step block as they are, not as pages and a last page. Sums are written in f32, straight to their place.
struct Params : fi::BatchPrefillPagedParams<Bf16, Bf16, float, std::int32_t> {
  const std::int32_t* kv_length = nullptr;
  __host__ __device__ __forceinline__ std::uint32_t get_kv_len(std::uint32_t sequence) const { return kv_length[sequence]; }
};

template <unsigned kDim, unsigned kKeyTiles>  // of 16 keys
using Traits = fi::KernelTraits<fi::MaskMode::kCausal, kGpuPlanRows, fi::get_num_mma_q(kGpuPlanRows), kKeyTiles, kDim / 16, kDim / 16,
                                fi::get_num_warps_q(kGpuPlanRows), fi::get_num_warps_kv(kGpuPlanRows), fi::PosEncodingMode::kNone, Bf16, Bf16,
                                float, float, std::int32_t, Variant>;

struct Plan {
  std::int32_t *page_first, *sequence, *tile;
  bool* valid;
  std::uint32_t items;
};
Plan plan_of(const GqaAttendArgs& a) {
  const auto items = static_cast<std::uint32_t>(gpu_plan_items(a.batch.tokens, a.batch.sequences, a.heads / a.kv_heads));
  const GpuGqaPlan at = gpu_gqa_plan(items, a.batch.sequences);
  auto* item = reinterpret_cast<std::int32_t*>(a.scratch.data + at.item);
  return {reinterpret_cast<std::int32_t*>(a.scratch.data + at.page_first), item, item + items,
          reinterpret_cast<bool*>(item + 2 * std::size_t{items}), items};
}

// The first blocks write the lists, the others round queries to bf16.
template <unsigned kDim>
__global__ void __launch_bounds__(kRowWarps * kWarp) prepare_kernel(GqaAttendArgs a, Plan plan, unsigned plan_blocks) {
  wait_for_inputs();
  if (blockIdx.x < plan_blocks) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < plan.items) {
      PlanItem item = {};
      plan.valid[i] = plan_item(a.batch, a.heads / a.kv_heads, i, item);
      plan.sequence[i] = static_cast<std::int32_t>(item.sequence);
      plan.tile[i] = static_cast<std::int32_t>(item.tile);
    }
    if (i < a.batch.sequences + 2) {  // without padding there may be nothing behind the last sequence
      const std::uint32_t last = plan_sequences(a.batch);
      plan.page_first[i] = a.batch.page_first[i < last ? i : last];
    }
    if (i == 0) plan.page_first[a.batch.sequences + 2] = 1;
    return;
  }
  const unsigned pair = (blockIdx.x - plan_blocks) * kRowWarps + threadIdx.x / kWarp;
  if (pair >= a.batch.tokens * a.heads) return;
  round_head_in_place<kDim>(row_at(a.query, pair / a.heads) + std::size_t{pair % a.heads} * kDim, threadIdx.x % kWarp);
}

template <unsigned kDim, unsigned kKeyTiles>
int attend_tiles(const Params& params, unsigned kv_heads, void* stream) {
  using T = Traits<kDim, kKeyTiles>;
  static_assert(!T::IsInvalid());
  constexpr bool kSameStrides = true;  // of keys and values
  auto kernel = fi::BatchPrefillWithPagedKVCacheKernel<kSameStrides, T, Params>;
  constexpr auto kShared = static_cast<int>(sizeof(typename T::SharedStoragePaged));
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared)) return error;
  kernel<<<dim3(params.padded_batch_size, 1, kv_heads), dim3(kWarp, T::NUM_WARPS_Q, T::NUM_WARPS_KV), kShared, stream_of(stream)>>>(params);
  return launched();
}

template <unsigned kDim>
int attend_heads(const GqaAttendArgs& a, void* stream) {
  const Plan plan = plan_of(a);
  const unsigned threads = kRowWarps * kWarp, wanted = plan.items > a.batch.sequences + 2 ? plan.items : a.batch.sequences + 2;
  const unsigned plan_blocks = ceil_div(wanted, threads), row_blocks = ceil_div(a.batch.tokens * a.heads, kRowWarps);
  if (const int error = launch(prepare_kernel<kDim>, dim3(plan_blocks + row_blocks), threads, 0, stream, a, plan, plan_blocks)) return error;

  Params p;
  p.q = reinterpret_cast<Bf16*>(a.query.data);
  p.q_stride_n = static_cast<std::int32_t>(2 * a.query.stride);  // elements of bf16 where f32 lay
  p.q_stride_h = 2 * kDim;
  const std::int64_t strides[3] = {static_cast<std::int64_t>(a.cache.a.page_bytes / sizeof(Bf16)), std::int64_t{a.cache.page_tokens} * kDim, kDim};
  p.paged_kv = fi::paged_kv_t<Bf16, std::int32_t>(a.kv_heads, a.cache.page_tokens, kDim, a.batch.sequences + 1, fi::QKVLayout::kHND,
                                                  reinterpret_cast<Bf16*>(a.cache.a.base), reinterpret_cast<Bf16*>(a.cache.b.base), strides,
                                                  const_cast<std::int32_t*>(a.batch.pages), plan.page_first, nullptr);
  p.kv_length = a.batch.kv_length;
  p.q_indptr = p.o_indptr = const_cast<std::int32_t*>(a.batch.q_first);
  p.o = a.out.data;
  p.group_size = fi::uint_fastdiv(a.heads / a.kv_heads);
  p.num_qo_heads = a.heads;
  p.window_left = -1;
  p.sm_scale = a.scale;
  p.request_indices = plan.sequence;
  p.qo_tile_indices = plan.tile;
  p.kv_tile_indices = plan.sequence;  // read, and without a meaning where keys are not cut; so is the size of a part
  p.kv_chunk_size_ptr = plan.page_first + a.batch.sequences + 2;
  p.block_valid_mask = plan.valid;
  p.padded_batch_size = plan.items;
  p.partition_kv = false;
  // Two blocks per SM; with 100 KB the smaller tile of keys is what fits.
  int device = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)) return error;
  if constexpr (kDim == 128) {
    if (most < 2 * static_cast<int>(sizeof(typename Traits<kDim, 4>::SharedStoragePaged))) return attend_tiles<kDim, 2>(p, a.kv_heads, stream);
  }
  return attend_tiles<kDim, 4>(p, a.kv_heads, stream);
}

}  // namespace

bool flashinfer_serves(const GqaAttendArgs& a) {
  const std::uint64_t width = std::uint64_t{a.heads} * a.head_dim, most = std::uint64_t{1} << 32;
  const CachePart &k = a.cache.a, &v = a.cache.b;
  return !a.own_kernels && (a.head_dim == 64 || a.head_dim == 128) && a.cache.format == Format::bf16 && k.width == a.head_dim &&
         v.width == a.head_dim && k.page_bytes == v.page_bytes && aligned16(k.base, k.page_bytes) && aligned16(v.base, v.page_bytes) &&
         k.page_bytes / sizeof(Bf16) < most && a.out.stride == width && aligned16(a.query.data, a.query.stride * 4) &&
         aligned16(a.out.data, a.out.stride * 4) && 2 * a.query.stride * a.batch.tokens < most / 2 && width * a.batch.tokens < most &&
         gqa_plan_serves(a.batch, a.heads / a.kv_heads, a.scratch.bytes);
}

int flashinfer_attend(const GqaAttendArgs& a, void* stream) {
  return a.head_dim == 64 ? attend_heads<64>(a, stream) : attend_heads<128>(a, stream);
}

}  // namespace ktc::gpu
