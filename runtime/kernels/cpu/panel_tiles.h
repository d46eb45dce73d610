// The tile kernels beyond the rows of panel_kernels.def: other shapes of tiles, and the same bodies on emulated tiles.
#pragma once

#include <string>
#include <string_view>

#include "runtime/kernels/cpu/kernels.h"

namespace ktc::kernels {

// Tiles of rows by blocks of features whose sums a `many` kernel keeps in registers: with the operands, 2 x 1 and 1 x 2 take
// four tile registers, 1 x 1 three, 2 x 2 seven. Which is fastest depends on the machine, not on the shape of the weights.
// Results are equal to the bit.
enum class TileShape { two_by_one, one_by_two, one_by_one, two_by_two };
constexpr TileShape kTileShapes[] = {TileShape::two_by_one, TileShape::one_by_two, TileShape::one_by_one, TileShape::two_by_two};
std::string_view to_string(TileShape shape);  // "2x1"

// Bytes and bf16 do not favour the same shape: twice the bytes pass for one multiplication.
struct TileShapes {
  TileShape integers = TileShape::two_by_one;  // weights int8, int4
  TileShape floats = TileShape::two_by_one;    // bf16, fp8
};
std::string to_string(TileShapes shapes);  // "2x1", or "2x1 (floats 1x2)"

// Times all on int8 and on bf16 for some 10 ms, on this thread with threads - 1 others at the same work: a core by itself may
// prefer 2 x 2, which with all cores at work is the slowest. 1 x 2 (floats 2 x 1) unless another is faster by more than what such
// a measurement is off, and without measuring where this thread may not run on so many CPUs, as when it is bound to one;
// two_by_one where the level amx is not available. Starts threads, allocates; do not call in a region that is being timed.
TileShapes probe_tile_shapes(int threads);

// Sets the `many` kernels of a set whose level has them to shapes (select_kernels gives two_by_one).
void set_tile_shapes(KernelSet& set, TileShapes shapes);

// For tests: the bodies of level amx with the tile instructions in software, to the bit; slow. Needs the features of avx512.
bool emulated_tiles_available(const CpuFeatures& features);
void emulate_tiles(KernelSet& set, TileShape shape);

// For benchmarks: `steps` (even) times 32 rows by 16 features by 64 (bf16: 32) K, in the shape 2 x 1 and nothing else. The
// operands are read over and over: a_bytes is a multiple of 4096, b_bytes of 2048; 64-byte aligned. Level amx, between
// enter_tiles and leave_tiles.
void bare_tiles_amx(bool bf16, const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes,
                    std::size_t steps);

#define KTC_TILE_KERNELS(suffix)                                                                                   \
  void panel_int8_many_##suffix(const TileArgs&), panel_int4_many_##suffix(const TileArgs&),                       \
      panel_fp8_many_##suffix(const TileArgs&), panel_bf16_many_##suffix(const TileArgs&)
KTC_TILE_KERNELS(amx);
KTC_TILE_KERNELS(amx_1x2);
KTC_TILE_KERNELS(amx_1x1);
KTC_TILE_KERNELS(amx_2x2);
KTC_TILE_KERNELS(emulated);
KTC_TILE_KERNELS(emulated_1x2);
KTC_TILE_KERNELS(emulated_1x1);
KTC_TILE_KERNELS(emulated_2x2);
#undef KTC_TILE_KERNELS
void enter_tiles_emulated();
void leave_tiles_emulated();

}  // namespace ktc::kernels
