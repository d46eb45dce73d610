// The tile kernels beyond the rows of panel_kernels.def: another shape of tiles, and the same bodies on emulated tiles.
#pragma once

#include "runtime/kernels/cpu/kernels.h"

namespace ktc::kernels {

// Tiles of rows by blocks of features that a `many` kernel keeps in registers: 2 x 1 takes four or five tile registers, 2 x 2
// seven or eight. Which one is faster depends on the machine, not on the shape of the weights. Results are equal to the bit.
enum class TileShape { two_by_one, two_by_two };

// Times both on int8 for some milliseconds. two_by_one where the level amx is not available. Allocates; do not call in a region
// that is being timed.
TileShape probe_tile_shape();

// Sets the `many` kernels of a set whose level has them to a shape (select_kernels gives two_by_one).
void set_tile_shape(KernelSet& set, TileShape shape);

// For tests: the bodies of level amx with the tile instructions in software, to the bit; slow. Needs the features of avx512.
bool emulated_tiles_available(const CpuFeatures& features);
void emulate_tiles(KernelSet& set, TileShape shape);

#define KTC_TILE_KERNELS(suffix)                                                                                   \
  void panel_int8_many_##suffix(const PanelArgs&), panel_int4_many_##suffix(const PanelArgs&),                     \
      panel_fp8_many_##suffix(const PanelArgs&), panel_bf16_many_##suffix(const PanelArgs&)
KTC_TILE_KERNELS(amx);
KTC_TILE_KERNELS(amx_2x2);
KTC_TILE_KERNELS(emulated);
KTC_TILE_KERNELS(emulated_2x2);
#undef KTC_TILE_KERNELS
void enter_tiles_emulated();
void leave_tiles_emulated();

}  // namespace ktc::kernels
