// mlp: the gated block of one matrix pair, as linear.cu and experts.cu do it.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

// h over gate: row r of both starts at r * 2 * h_stride.
__global__ void swiglu_slow(float* gate_up, std::uint32_t intermediate, std::uint64_t row) {
  wait_for_inputs();
  float* gate = gate_up + blockIdx.x * row;
  for (std::uint32_t i = threadIdx.x; i < intermediate; i += blockDim.x) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * gate[intermediate + i];
}

// Half of the rows at a time: gate and up need two rows of scratch each.
int slow(const MlpArgs& a, float* scratch, std::uint32_t intermediate, std::uint64_t h_stride, void* stream) {
  const std::uint32_t at_once = (a.rows + 1) / 2;
  for (std::uint32_t first = 0; first < a.rows; first += at_once) {
    const std::uint32_t rows = a.rows - first < at_once ? a.rows - first : at_once;
    const auto from = [&](const Matrix& m) { return Matrix{m.data + first * m.stride, m.stride, m.columns}; };
    const Matrix both = {scratch, 2 * h_stride, 2 * intermediate}, h = {scratch, 2 * h_stride, intermediate};
    if (const int error = linear_slow({from(a.x), a.gate_up, nullptr, both, rows, a.activations, {}}, stream)) return error;
    if (const int error = launch(swiglu_slow, dim3(rows), 256, 0, stream, scratch, intermediate, 2 * h_stride)) return error;
    if (const int error = linear_slow({h, a.down, nullptr, from(a.out), rows, a.activations, {}}, stream)) return error;
  }
  return 0;
}

}  // namespace

int mlp_cuda(const MlpArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  const std::uint32_t intermediate = a.gate_up.rows / 2;
  const std::uint64_t h_stride = (intermediate + 63) / 64 * 64;
  const auto work = gpu_mlp_workspace(a.activations, a.rows, a.gate_up.columns, intermediate);
  std::byte* h = a.scratch.data + work.x;
  if (a.activations == Format::f32 || a.gate_up.format == Format::f32)
    return slow(a, reinterpret_cast<float*>(h), intermediate, h_stride, stream);
  const std::uint32_t most = few_rows(a.gate_up.columns), most_down = few_rows(intermediate);
  if (a.rows <= (most < most_down ? most : most_down)) {
    auto* hidden = reinterpret_cast<float*>(h);
    if (const int error = gate_up_few(a.x, a.gate_up, hidden, h_stride, a.rows, stream)) return error;
    return linear_few({hidden, h_stride, intermediate}, a.down, nullptr, a.out, a.rows, stream);
  }
  const std::uint64_t stride = (a.gate_up.columns + 63) / 64 * 64;
  auto* x = reinterpret_cast<__nv_bfloat16*>(a.scratch.data);
  if (const int error = round_rows(a.x, a.rows, x, stride, stream)) return error;
  GemmArgs g = gemm_args(x, stride, a.gate_up);
  g.rows = a.rows;
  g.paired = true;
  g.n = intermediate;
  g.h = reinterpret_cast<__nv_bfloat16*>(h);
  g.h_stride = h_stride;
  const unsigned tiles = ceil_div(a.rows, kTileM);
  if (const int error = launch_tile_gemm(a.gate_up.format, g, tiles, stream)) return error;
  g = gemm_args(g.h, h_stride, a.down);
  g.rows = a.rows;
  g.n = g.w.rows;
  g.out = a.out.data;
  g.out_stride = a.out.stride;
  return launch_tile_gemm(a.down.format, g, tiles, stream);
}

}  // namespace ktc::gpu
