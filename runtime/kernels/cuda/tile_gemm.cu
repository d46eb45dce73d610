// Launches of tile_gemm, which is compiled here alone, and the products of MLA's heads by it.
#include "runtime/kernels/cuda/head_tiles.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {

namespace {

template <Format F, bool kWide>
int launch_tiles(const GemmArgs& args, std::uint32_t most_tiles, void* stream, std::uint32_t batch) {
  constexpr auto kernel = tile_gemm<F, kWide>;
  if (const int error = allow_shared(kernel, kTileShared)) return error;
  const dim3 grid(ceil_div(args.n, args.paired ? kTileN / 2 : kTileN), most_tiles, batch);
  return launch_wide(kernel, grid, kTileThreads, kTileShared, stream, args);
}

}  // namespace

int launch_tile_gemm(Format format, const GemmArgs& args, std::uint32_t most_tiles, void* stream, std::uint32_t batch) {
  if (args.wide != nullptr)
    return format == Format::bf16 ? launch_tiles<Format::bf16, true>(args, most_tiles, stream, batch) : cudaErrorNotSupported;
  return for_format(format, [&](auto f) -> int { return launch_tiles<decltype(f)::value, false>(args, most_tiles, stream, batch); });
}

int launch_head_tiles(const HeadTiles& p, void* stream) {
  GemmArgs g = gemm_args(nullptr, p.x_stride, p.w);
  g.wide = p.x;
  g.a_batch = p.x_head;
  g.rows = p.tokens;
  g.n = g.w.rows;
  g.out = p.out;
  g.out_stride = p.out_stride;
  g.out_batch = p.out_head;
  return launch_tile_gemm(p.w.format, g, ceil_div(p.tokens, kTileM), stream, p.w.batch);
}

}  // namespace ktc::gpu
