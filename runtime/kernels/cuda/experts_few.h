// Experts of few tokens, pair by pair, as fast as the chosen matrices can be read (experts_few.cu).
#pragma once

#include "runtime/kernels/cuda/pair_filter.cuh"

namespace ktc::gpu {

constexpr std::uint32_t kMostTopK = 32;

// Up to 2 * kGpuFewRows rows, weights in a format of tensor cores, activations in bf16.
int experts_few(const ExpertsArgs& args, const Pairs& pairs, void* stream);

}  // namespace ktc::gpu
