#include "runtime/kernels/cuda/kernel_table.h"

namespace ktc::gpu {

const KernelSet& reference_kernels() {
  static constexpr KernelSet kSet = {
#define KTC_GPU_KERNEL(name, Args) .name = name##_reference,
#include "runtime/kernels/cuda/gpu_kernels.def"
  };
  return kSet;
}

const KernelSet& cuda_kernels() {
  static constexpr KernelSet kSet = {
#ifdef KTC_CUDA
      .rope_table = rope_table_cuda,
      .embed = embed_cuda,
      .rms_norm = rms_norm_cuda,
      .add = add_cuda,
      .add_norm = add_norm_cuda,
      .linear = linear_cuda,
      .select_rows = select_rows_cuda,
      .gqa_append = gqa_append_cuda,
      .gqa_attend = gqa_attend_cuda,
      .mla_append = mla_append_cuda,
      .mla_attend = mla_attend_cuda,
      .route = route_cuda,
      .experts = experts_cuda,
      .mlp = mlp_cuda,
      .publish = publish_cuda,
      .await = await_cuda,
      .argmax = argmax_cuda,
      .unpack = unpack_cuda,
#endif
  };
  return kSet;
}

}  // namespace ktc::gpu
