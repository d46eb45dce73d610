// The pairs of an experts op as its kernels ask for them, by the rule of pair_filter.h.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"
#include "runtime/kernels/cuda/pair_filter.h"

namespace ktc::gpu {

struct Pairs {
  Ids ids;
  Matrix weights;
  PairFilter filter;
  std::uint32_t top_k, experts, matrices;  // matrices: of the bank
  std::uint32_t first;                     // the bank's first matrix, of those that slots speak of
  bool accumulate;
};

// The matrix of pair (token, j), or -1 where the pair is not this op's.
__device__ inline int matrix_of_pair(const Pairs& p, std::uint32_t token, std::uint32_t j) {
  const bool deferred = p.filter.late != 0 && p.filter.deferred[token] != 0;
  const int slot = filtered_slot(p.filter.slots, deferred, p.filter.late, p.filter.part, p.filter.among_all, p.experts,
                                 p.ids.data + token * p.ids.stride, p.weights.data + token * p.weights.stride, p.top_k, j);
  const std::uint32_t m = static_cast<std::uint32_t>(slot) - p.first;
  return slot >= 0 && m < p.matrices ? static_cast<int>(m) : -1;
}

}  // namespace ktc::gpu
