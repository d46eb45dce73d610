// The bodies of the amx level on emulated tiles: for tests on machines without AMX, compiled with the flags of avx512.
#define KTC_EMULATE_TILES
#include "runtime/kernels/cpu/panel_tile_body.h"
#include "runtime/kernels/cpu/panel_tiles.h"

namespace ktc::kernels {

void panel_int8_many_emulated(const PanelArgs& a) {
  tile_panel<Format::int8, false>(a);
}
void panel_int4_many_emulated(const PanelArgs& a) {
  tile_panel<Format::int4, false>(a);
}
void panel_fp8_many_emulated(const PanelArgs& a) {
  tile_panel<Format::fp8, false>(a);
}
void panel_bf16_many_emulated(const PanelArgs& a) {
  tile_panel<Format::bf16, false>(a);
}
void panel_int8_many_emulated_2x2(const PanelArgs& a) {
  tile_panel<Format::int8, true>(a);
}
void panel_int4_many_emulated_2x2(const PanelArgs& a) {
  tile_panel<Format::int4, true>(a);
}
void panel_fp8_many_emulated_2x2(const PanelArgs& a) {
  tile_panel<Format::fp8, true>(a);
}
void panel_bf16_many_emulated_2x2(const PanelArgs& a) {
  tile_panel<Format::bf16, true>(a);
}

void enter_tiles_emulated() {}
void leave_tiles_emulated() {
  tile_release();
}

}  // namespace ktc::kernels
