// Which pairs of a token an op computes: the rule of PairFilter (gpu_kernels.h), for hosts and devices.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KTC_HOST_DEVICE __host__ __device__
#else
#define KTC_HOST_DEVICE
#endif

namespace ktc::gpu {

// The matrix of an expert, negative for one that is not this op's. ids from `experts` on are nobody's.
KTC_HOST_DEVICE inline std::int32_t pair_slot(const std::int32_t* slots, std::int32_t id, std::uint32_t experts) {
  if (id < 0 || static_cast<std::uint32_t>(id) >= experts) return -1;
  return slots != nullptr ? slots[id] : id;
}

// The slot of pair k of a token, or negative when the op leaves it to others. ids, weights: [top_k] of this token.
KTC_HOST_DEVICE inline std::int32_t filtered_slot(const std::int32_t* slots, bool deferred, std::uint32_t late, std::uint32_t part,
                                                  bool among_all, std::uint32_t experts, const std::int32_t* ids,
                                                  const float* weights, std::uint32_t top_k, std::uint32_t k) {
  const std::int32_t slot = pair_slot(slots, ids[k], experts);
  if (slot < 0 || part == 0) return slot;
  bool is_late = false;
  if (deferred && late != 0) {
    std::uint32_t lower = 0;  // pairs of the ranking that are lower than this one
    for (std::uint32_t j = 0; j < top_k; ++j) {
      if (j == k || (among_all ? pair_slot(nullptr, ids[j], experts) : pair_slot(slots, ids[j], experts)) < 0) continue;
      lower += weights[j] < weights[k] || (weights[j] == weights[k] && ids[j] > ids[k]);
    }
    is_late = lower < late;
  }
  return is_late == (part == 2) ? slot : -1;
}

}  // namespace ktc::gpu
