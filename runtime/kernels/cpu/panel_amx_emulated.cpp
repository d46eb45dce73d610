// The bodies of the amx level on emulated tiles: for tests on machines without AMX, compiled with the flags of avx512.
#define KTC_EMULATE_TILES
#include "runtime/kernels/cpu/vector_avx512.h"
// the bodies come after the vectors that they are written in
#include "runtime/kernels/cpu/panel_tile_steps.h"
#include "runtime/kernels/cpu/panel_tiles.h"

namespace ktc::kernels {

KTC_DEFINE_TILE_KERNELS(emulated, 2, 1)
KTC_DEFINE_TILE_KERNELS(emulated_1x2, 1, 2)
KTC_DEFINE_TILE_KERNELS(emulated_1x1, 1, 1)
KTC_DEFINE_TILE_KERNELS(emulated_2x2, 2, 2)

void enter_tiles_emulated() {}
void leave_tiles_emulated() {
  tile_release();
}

}  // namespace ktc::kernels
