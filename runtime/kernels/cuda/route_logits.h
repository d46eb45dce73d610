// Logits of a router for many rows: x w^T with the accuracy of f32.
#pragma once

#include "runtime/kernels/cuda/split_product.h"

namespace ktc::gpu {

// logits [rows][experts] of a.x and a.w, any format. A row's bits do not depend on the rows beside it.
inline int route_logits(const RouteArgs& a, float* logits, void* stream) {
  Weight w = a.w;
  w.rows = a.experts;
  return split_product({a.x, w, logits, a.experts, a.rows}, stream);
}

}  // namespace ktc::gpu
