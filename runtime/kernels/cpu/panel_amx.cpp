// The panel kernels of the amx level, for many rows. This file alone is compiled with the level's flags.
#include "runtime/kernels/cpu/vector_avx512.h"
// the bodies come after the vectors that they are written in
#include "runtime/kernels/cpu/panel_tile_steps.h"
#include "runtime/kernels/cpu/panel_tiles.h"

namespace ktc::kernels {

KTC_DEFINE_TILE_KERNELS(amx, 2, 1)
KTC_DEFINE_TILE_KERNELS(amx_1x2, 1, 2)
KTC_DEFINE_TILE_KERNELS(amx_1x1, 1, 1)
KTC_DEFINE_TILE_KERNELS(amx_2x2, 2, 2)

void enter_tiles_amx() {
  host_cpu_features();  // the first call asks the operating system, for the whole process
}
void leave_tiles_amx() {
  tile_release();
}

namespace {

template <bool kBf16>
void bare_loop(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes, std::size_t steps) {
  const auto multiply = []<int kC>() __attribute__((always_inline)) {
    if constexpr (kBf16) {
      tile_dpbf16ps<kC, 2, 3>();
    } else {
      tile_dpbsud<kC, 2, 3>();
    }
  };
  TileConfig config;
  for (int t = 0; t < 4; ++t) config.rows[t] = 16, config.column_bytes[t] = 64;
  tile_configure(config);
  tile_zero<0>();
  tile_zero<1>();
  for (std::size_t i = 0, at_a = 0, at_b = 0; i < steps; i += 2) {
    for (std::size_t half = 0; half < 2; ++half) {
      tile_load<3>(b + at_b + half * 1024, 64);
      tile_load<2>(a + at_a + half * 2048, 64);
      multiply.template operator()<0>();
      tile_load<2>(a + at_a + half * 2048 + 1024, 64);
      multiply.template operator()<1>();
    }
    if ((at_a += 4096) == a_bytes) at_a = 0;
    if ((at_b += 2048) == b_bytes) at_b = 0;
  }
}

}  // namespace

void bare_tiles_amx(bool bf16, const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes,
                    std::size_t steps) {
  (bf16 ? bare_loop<true> : bare_loop<false>)(a, a_bytes, b, b_bytes, steps);
}

}  // namespace ktc::kernels
