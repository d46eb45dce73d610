// The choice of a router: the top_k experts of one token from its logits, by one warp. Formulas and ties are those of
// runtime/kernels/cpu/route.cpp.
#pragma once

#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kMostExperts = 4096;
constexpr unsigned kFastExperts = 512;  // whose choice lies in registers
constexpr unsigned kFastTopK = 32;      // one lane each

// Floats of shared memory that choose() takes.
__host__ __device__ inline unsigned choice_floats(unsigned experts, unsigned groups) { return 2 * experts + groups; }

// Calls chosen(k, id, score) in the order of the choice, in every lane. choice: scores as they are compared, scores: as they count.
template <unsigned kEach, typename Chosen>
__device__ void take_best(const float* choice, const float* scores, unsigned experts, unsigned top_k, const Chosen& chosen) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t key[kEach];  // 0: taken, or no expert
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) key[i] = lane + i * kWarp < experts ? ordered_bits(choice[lane + i * kWarp]) : 0;
  for (unsigned k = 0; k < top_k; ++k) {
    std::uint32_t best = 0, at = 0xffffffffu;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i)
      if (key[i] > best) {
        best = key[i];
        at = lane + i * kWarp;
      }
    const std::uint32_t most = __reduce_max_sync(kAllLanes, best);
    const std::uint32_t id = __reduce_min_sync(kAllLanes, best == most ? at : 0xffffffffu);
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i)
      if (lane + i * kWarp == id) key[i] = 0;
    chosen(k, id, scores[id]);
  }
}

// Of token `row`: taken(k, id, weight) is called by one lane for each k. scratch: choice_floats() of this warp. Logits were perhaps written by other
// blocks; they are read once, and every score is made once: a choice is a chain of dependent steps, and each look into memory would
// lengthen it.
template <typename Taken>
__device__ void choose(const RouteArgs& a, unsigned row, const float* logits, float* scratch, const Taken& taken) {
  const unsigned lane = threadIdx.x % kWarp, experts = a.experts;
  float* scores = scratch;
  float* choice = scratch + experts;
  float top = -INFINITY, sum = 0;
#pragma unroll 4
  for (unsigned e = lane; e < experts; e += kWarp) {
    const float logit = __ldcg(logits + e);
    scores[e] = a.sigmoid ? sigmoid_plain(logit) : logit;
    top = fmaxf(top, logit);
  }
  if (!a.sigmoid) {
    top = warp_max(top);
    for (unsigned e = lane; e < experts; e += kWarp) sum += scores[e] = exp_plain(scores[e] - top);
    sum = warp_sum(sum);
    for (unsigned e = lane; e < experts; e += kWarp) scores[e] /= sum;
  }
  for (unsigned e = lane; e < experts; e += kWarp) {
    const float value = a.bias != nullptr ? scores[e] + a.bias[e] : scores[e];
    choice[e] = value == value ? value : -INFINITY;
  }
  __syncwarp();
  if (a.groups > 1 && a.topk_groups < a.groups) {
    const unsigned size = experts / a.groups;
    float* groups = choice + experts;
    for (unsigned g = lane; g < a.groups; g += kWarp) {
      float first = -INFINITY, second = -INFINITY;
      for (unsigned i = 0; i < size; ++i) {
        const float value = choice[g * size + i];
        if (value > first) {
          second = first;
          first = value;
        } else if (value > second) {
          second = value;
        }
      }
      groups[g] = a.sigmoid && size > 1 ? first + second : first;
    }
    __syncwarp();
    for (unsigned g = 0; g < a.groups; ++g) {
      unsigned better = 0;
      for (unsigned h = lane; h < a.groups; h += kWarp) better += groups[h] > groups[g] || (groups[h] == groups[g] && h < g);
      if (__reduce_add_sync(kAllLanes, better) < a.topk_groups) continue;
      for (unsigned i = lane; i < size; i += kWarp) choice[g * size + i] = -INFINITY;
    }
    __syncwarp();
  }
  float total = 1e-20f;
  if (experts <= kFastExperts && a.top_k <= kFastTopK) {
    std::uint32_t mine = 0;  // lane k keeps what came k-th
    float weight = 0;
    const auto keep = [&](unsigned k, std::uint32_t id, float score) {
      total += score;
      if (lane == k) {
        mine = id;
        weight = score;
      }
    };
    if (experts <= 4 * kWarp)
      take_best<4>(choice, scores, experts, a.top_k, keep);
    else if (experts <= 8 * kWarp)
      take_best<8>(choice, scores, experts, a.top_k, keep);
    else
      take_best<kFastExperts / kWarp>(choice, scores, experts, a.top_k, keep);
    if (lane < a.top_k) taken(lane, static_cast<std::int32_t>(mine), (a.normalise ? weight / total : weight) * a.scale);
    __syncwarp();
    return;
  }
  // What is taken gets NaN: even minus infinity may have to be chosen.
  std::int32_t* const ids = row_at(a.ids, row);
  for (unsigned k = 0; k < a.top_k; ++k) {
    std::uint32_t best = 0, at = 0xffffffffu;
    for (unsigned e = lane; e < experts; e += kWarp) {
      const float value = choice[e];
      const std::uint32_t key = value == value ? ordered_bits(value) : 0;
      if (key > best) {
        best = key;
        at = e;
      }
    }
    const std::uint32_t most = __reduce_max_sync(kAllLanes, best);
    const std::uint32_t id = __reduce_min_sync(kAllLanes, best == most ? at : 0xffffffffu);
    total += scores[id];
    if (lane == 0) {
      ids[k] = static_cast<std::int32_t>(id);
      choice[id] = NAN;
    }
    __syncwarp();
  }
  for (unsigned k = lane; k < a.top_k; k += kWarp) {
    const std::int32_t id = ids[k];
    taken(k, id, (a.normalise ? scores[id] / total : scores[id]) * a.scale);
  }
  __syncwarp();
}

}  // namespace
}  // namespace ktc::gpu
