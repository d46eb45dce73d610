// The panel kernels of the amx level, for many rows. This file alone is compiled with the level's flags.
#include "runtime/kernels/cpu/panel_tile_body.h"
#include "runtime/kernels/cpu/panel_tiles.h"

namespace ktc::kernels {

void panel_int8_many_amx(const PanelArgs& a) {
  tile_panel<Format::int8, false>(a);
}
void panel_int4_many_amx(const PanelArgs& a) {
  tile_panel<Format::int4, false>(a);
}
void panel_fp8_many_amx(const PanelArgs& a) {
  tile_panel<Format::fp8, false>(a);
}
void panel_bf16_many_amx(const PanelArgs& a) {
  tile_panel<Format::bf16, false>(a);
}
void panel_int8_many_amx_2x2(const PanelArgs& a) {
  tile_panel<Format::int8, true>(a);
}
void panel_int4_many_amx_2x2(const PanelArgs& a) {
  tile_panel<Format::int4, true>(a);
}
void panel_fp8_many_amx_2x2(const PanelArgs& a) {
  tile_panel<Format::fp8, true>(a);
}
void panel_bf16_many_amx_2x2(const PanelArgs& a) {
  tile_panel<Format::bf16, true>(a);
}

void enter_tiles_amx() {
  host_cpu_features();  // the first call asks the operating system, for the whole process
}
void leave_tiles_amx() {
  tile_release();
}

}  // namespace ktc::kernels
