// The router for few tokens (route_few.cu), with what may be in front of it and behind it in the same launch.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

constexpr std::uint32_t kRouteFewRows = 16;

// Up to kRouteFewRows rows.
int route_few(const RouteArgs& args, void* stream);

}  // namespace ktc::gpu
