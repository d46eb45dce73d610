// MLA attention in absorbed form: all heads share one latent key per token.
#include "runtime/kernels/cuda/attend_plain.cuh"
#include "runtime/kernels/cuda/head_product.cuh"

namespace ktc::gpu {

int mla_attend_cuda(const MlaAttendArgs& a, void* stream) {
  if (a.batch.tokens == 0) return 0;
  PlainAttention p = {};
  p.query = a.query;
  p.out = a.context;
  p.cache = a.cache;
  p.batch = a.batch;
  p.heads = a.heads;
  p.group = a.heads;
  p.width_a = p.value_width = a.latent_dim;
  p.width_b = a.rope_dim;
  p.value_is_a = true;
  p.scale = a.scale;
  if (const int error = attend_plain(p, stream)) return error;
  HeadProduct product = {};
  product.x = a.context.data;
  product.x_stride = a.context.stride;
  product.x_head = a.latent_dim;
  product.w = a.w_uv;
  product.out = a.out.data;
  product.out_stride = a.out.stride;
  product.out_head = a.v_dim;
  product.tokens = a.batch.tokens;
  product.rounded = a.activations == Format::bf16;
  return head_product(product, stream);
}

}  // namespace ktc::gpu
