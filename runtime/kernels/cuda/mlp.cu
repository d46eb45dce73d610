// mlp: the gated block of one matrix pair, as linear.cu and experts.cu do it.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

__global__ void swiglu_slow(const float* gate_up, float* h, std::uint32_t intermediate, std::uint64_t h_stride) {
  const std::uint32_t r = blockIdx.x;
  for (std::uint32_t i = threadIdx.x; i < intermediate; i += blockDim.x) {
    const float gate = gate_up[r * 2 * h_stride + i], up = gate_up[r * 2 * h_stride + intermediate + i];
    h[r * h_stride + i] = gate / (1.0f + expf(-gate)) * up;
  }
}

}  // namespace

int mlp_cuda(const MlpArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  const std::uint32_t intermediate = a.gate_up.rows / 2;
  const std::uint64_t h_stride = (intermediate + 63) / 64 * 64;
  const auto work = gpu_mlp_workspace(a.activations, a.rows, a.gate_up.columns, intermediate);
  std::byte* h = a.scratch.data + work.x;
  if (a.activations == Format::f32 || a.gate_up.format == Format::f32) {
    float* products = reinterpret_cast<float*>(h);  // [rows][2 * h_stride], then h behind them
    float* hidden = products + a.rows * 2 * h_stride;
    const Matrix both = {products, 2 * h_stride, 2 * intermediate}, out = {hidden, h_stride, intermediate};
    if (const int error = linear_slow({a.x, a.gate_up, nullptr, both, a.rows, Format::f32, {}}, stream)) return error;
    swiglu_slow<<<a.rows, 256, 0, stream_of(stream)>>>(products, hidden, intermediate, h_stride);
    if (const int error = cudaGetLastError()) return error;
    return linear_slow({out, a.down, nullptr, a.out, a.rows, Format::f32, {}}, stream);
  }
  const std::uint32_t most = few_rows(a.gate_up.columns), most_down = few_rows(intermediate);
  if (a.rows <= (most < most_down ? most : most_down)) {
    auto* hidden = reinterpret_cast<float*>(h);
    if (const int error = gate_up_few(a.x, a.gate_up, hidden, h_stride, a.rows, stream)) return error;
    return linear_few({hidden, h_stride, intermediate}, a.down, nullptr, a.out, a.rows, stream);
  }
  const std::uint64_t stride = (a.gate_up.columns + 63) / 64 * 64;
  auto* x = reinterpret_cast<__nv_bfloat16*>(a.scratch.data);
  if (const int error = round_rows(a.x, a.rows, x, stride, stream)) return error;
  GemmArgs g = {};
  g.a = x;
  g.a_stride = stride;
  g.rows = a.rows;
  g.w = rows_of(a.gate_up);
  g.columns = g.w.columns;
  g.paired = true;
  g.n = intermediate;
  g.h = reinterpret_cast<__nv_bfloat16*>(h);
  g.h_stride = h_stride;
  const unsigned tiles = ceil_div(a.rows, kTileM);
  if (const int error = launch_tile_gemm(a.gate_up.format, g, tiles, stream)) return error;
  const __nv_bfloat16* hidden = g.h;
  g = {};
  g.a = hidden;
  g.a_stride = h_stride;
  g.rows = a.rows;
  g.w = rows_of(a.down);
  g.columns = g.w.columns;
  g.n = g.w.rows;
  g.out = a.out.data;
  g.out_stride = a.out.stride;
  return launch_tile_gemm(a.down.format, g, tiles, stream);
}

}  // namespace ktc::gpu
