// Compiled while configuring: whether FlashInfer's headers have what runtime/kernels/cuda/flashinfer names. Kernels are not instantiated.
#include "runtime/kernels/cuda/flashinfer/fastdiv.h"

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/mla.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

namespace fi = flashinfer;
using Bf16 = __nv_bfloat16;

using Prefill = fi::KernelTraits<fi::MaskMode::kCausal, 128, fi::get_num_mma_q(128), 4, 8, 8, fi::get_num_warps_q(128),
                                 fi::get_num_warps_kv(128), fi::PosEncodingMode::kNone, Bf16, Bf16, float, float, int,
                                 fi::DefaultAttention<false, false, false, false>>;
static_assert(!Prefill::IsInvalid() && sizeof(Prefill::SharedStoragePaged) <= 99 * 1024);
using Mla = fi::mla::KernelTraits<true, 2, true, 512, 64, 64, 64, Bf16, Bf16, Bf16, int>;
static_assert(sizeof(Mla::SharedStorage) <= 227 * 1024);

void named(int* list, float* out, Bf16* values) {
  fi::BatchPrefillPagedParams<Bf16, Bf16, float, int> p;
  const std::int64_t strides[3] = {1, 1, 1};
  p.paged_kv = fi::paged_kv_t<Bf16, int>(1, 1, 1, 1, fi::QKVLayout::kHND, values, values, strides, list, list, nullptr);
  p.q = values;
  p.o = out;
  p.q_stride_n = p.q_stride_h = 1;
  p.q_indptr = p.o_indptr = p.request_indices = p.qo_tile_indices = p.kv_tile_indices = p.kv_chunk_size_ptr = list;
  p.group_size = fi::uint_fastdiv(1);
  p.num_qo_heads = p.padded_batch_size = 1;
  p.window_left = -1;
  p.sm_scale = 1;
  p.block_valid_mask = nullptr;
  p.partition_kv = false;
  fi::MLAParams<Bf16, Bf16, Bf16, int> m = {};
  m.q_nope = m.q_pe = m.ckv = m.kpe = m.final_o = values;
  m.q_indptr = m.kv_indptr = m.partial_indptr = m.kv_indices = m.q_len = m.kv_len = m.q_start = m.kv_start = m.kv_end = m.work_indptr = list;
  m.merge_packed_offset_start = m.merge_packed_offset_end = m.merge_partial_packed_offset_start = m.merge_partial_packed_offset_end =
      m.merge_partial_stride = list;
  m.block_size = m.num_heads = fi::uint_fastdiv(1);
}
