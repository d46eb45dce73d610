// What the vector and tile kernels over panels share. Rules of body.h hold: no inline function of another header.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"
#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {
namespace {

// Prefetch to the second level, 4 KiB ahead of the reader: cut at the panel's end and continued at `next`.
struct Ahead {
  const char* panel;
  const char* next;
  std::size_t bytes, distance;

  KTC_INLINE explicit Ahead(const PanelArgs& a)
      : panel(reinterpret_cast<const char*>(a.panel)),
        next(reinterpret_cast<const char*>(a.next != nullptr ? a.next : a.panel)),
        bytes(a.layout->panel_bytes),
        distance(at_most(a.layout->panel_bytes, 4096)) {}

  // For a reader that is about to read Lines cache lines at `offset` of the panel.
  template <int Lines>
  KTC_INLINE void ask(std::size_t offset) const {
    const std::size_t to = offset + distance;
    const char* p = to < bytes ? panel + to : next + (to - bytes);
    KTC_UNROLL for (int i = 0; i < Lines; ++i) _mm_prefetch(p + 64 * i, _MM_HINT_T1);
  }
};

// In blocks of 64 K: where a step of the arithmetic ends, and which scales it uses.
struct Steps {
  std::size_t blocks;                // of the row
  std::size_t period;                // of one step
  unsigned group_shift, granule_shift;  // block >> shift = index of the scale

  KTC_INLINE explicit Steps(const PanelArgs& a) : blocks(a.layout->k_blocks), period(blocks) {
    if (a.layout->group != 0) period = at_most(period, a.layout->group < 64 ? 1 : a.layout->group / 64);
    if (a.x_granule != 0) period = at_most(period, a.x_granule / 64);
    group_shift = a.layout->group == 128 ? 1 : 0;
    granule_shift = a.x_granule == 128 ? 1 : 0;
  }
};

KTC_INLINE std::int32_t load_i32(const std::byte* p) {
  std::int32_t value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

}  // namespace
}  // namespace ktc::kernels
