// The router: for few tokens one launch does it all (route_few.cu); for many, logits come from route_logits.cu, and the choice follows.
#include "runtime/kernels/cuda/route_choose.cuh"
#include "runtime/kernels/cuda/route_few.h"
#include "runtime/kernels/cuda/route_logits.h"

namespace ktc::gpu {
namespace {

constexpr unsigned kWarps = 4;
constexpr unsigned kSharedBytes = 48 * 1024;

__global__ void __launch_bounds__(kWarps * kWarp) choose_kernel(RouteArgs a, const float* logits) {
  wait_for_inputs();
  extern __shared__ float choice[];
  const unsigned warp = threadIdx.x / kWarp, r = blockIdx.x * (blockDim.x / kWarp) + warp;
  if (r >= a.rows) return;
  choose(a, r, logits + std::size_t{r} * a.experts, choice + warp * choice_floats(a.experts, a.groups),
         [&](unsigned k, std::int32_t id, float weight) {
           row_at(a.ids, r)[k] = id;
           row_at(a.weights, r)[k] = weight;
         });
}

}  // namespace

int route_cuda(const RouteArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  if (a.rows <= kRouteFewRows) return route_few(a, stream);
  if (a.experts > kMostExperts || a.scratch.bytes < std::uint64_t{a.rows} * a.experts * 4) return cudaErrorInvalidValue;
  float* logits = reinterpret_cast<float*>(a.scratch.data);
  const unsigned each = choice_floats(a.experts, a.groups) * 4, fitting = kSharedBytes / each, choosers = fitting < kWarps ? fitting : kWarps;
  if (const int error = route_logits(a, logits, stream)) return error;
  return launch(choose_kernel, ceil_div(a.rows, choosers), choosers * kWarp, choosers * each, stream, a, logits);
}

}  // namespace ktc::gpu
