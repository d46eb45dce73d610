// The panel kernels of the avx2 level: the shared bodies on its vectors. This file alone is compiled with the level's flags.
#include "runtime/kernels/cpu/vector_avx2.h"
// the bodies come after the vectors that they are written in
#include "runtime/kernels/cpu/panel_ints_avx2.h"
#include "runtime/kernels/cpu/panel_float_body.h"
#include "runtime/kernels/cpu/panel_nibble_body.h"
#include "runtime/kernels/cpu/panel_rows_body.h"

namespace ktc::kernels {

void panel_int8_few_avx2(const PanelArgs& a) {
  nibble_panel<false>(a);
}
void panel_int4_few_avx2(const PanelArgs& a) {
  nibble_panel<true>(a);
}
void panel_fp8_few_avx2(const PanelArgs& a) {
  float_panel<Fp8Weights>(a);
}
void panel_bf16_few_avx2(const PanelArgs& a) {
  float_panel<Bf16Weights>(a);
}

void quantise_row_avx2(const float* x, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                        std::size_t kb_stride, float* scales, std::int32_t* sums) {
  quantise_row(x, columns, granule, codes, kb_stride, scales, sums);
}
void round_row_avx2(const float* x, std::size_t columns, std::uint16_t* values, std::size_t kb_stride) {
  round_row(x, columns, values, kb_stride);
}
void swiglu_avx2(const float* gate_up, float* h) {
  swiglu(gate_up, h);
}
void accumulate_avx2(const float* x, float scale, std::size_t n, bool first, float* y) {
  accumulate(x, scale, n, first, y);
}

}  // namespace ktc::kernels
