// What the vector and tile kernels over panels share. Rules of body.h hold: no inline function of another header.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"
#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {
namespace {

// Prefetch to the second level, 16 KiB of blocks ahead of the reader (who does other things between panels) and in the order of the
// memory: cut at the panel's end and continued at `next`. The head is read along with the blocks behind it, so its length is added;
// its lines are asked for along with the blocks: exactly so many in all as the panel has, so that the next one starts as far ahead.
template <std::size_t kPairBytes>  // of the two blocks of 64 K
struct Ahead {
  static constexpr std::size_t kAheadBytes = 16384;
  const char* at;     // where the prefetch stands
  const char* next;
  std::ptrdiff_t left;  // to the panel's end; without end once it is in the next

  KTC_INLINE explicit Ahead(const PanelArgs& a) {
    const PanelLayout& l = *a.layout;
    const std::size_t wanted = l.head_bytes + kAheadBytes;
    std::size_t distance = wanted;
    if (l.group != 0) {  // whole periods of blocks with their scales, at the places where the panel may end
      const std::size_t scales = 32 * l.scale_bytes;
      distance = l.group == 128 ? (wanted + 2 * kPairBytes - 1) / (2 * kPairBytes) * (2 * kPairBytes + scales)
                                : (wanted + kPairBytes - 1) / kPairBytes * (kPairBytes + (l.group == 32 ? 2 : 1) * scales);
    }
    distance = at_most(distance, l.panel_bytes);
    const char* panel = reinterpret_cast<const char*>(a.panel);
    next = a.next != nullptr ? reinterpret_cast<const char*>(a.next) : panel;
    at = panel + distance;
    left = static_cast<std::ptrdiff_t>(l.panel_bytes - distance);
    turn();
  }

  // Line `i` of those that pass() leaves behind.
  KTC_INLINE void line(std::size_t i) const { _mm_prefetch(at + 64 * i, _MM_HINT_T1); }
  KTC_INLINE void pass(std::size_t lines) {
    at += 64 * lines;
    left -= static_cast<std::ptrdiff_t>(64 * lines);
    turn();
  }

  // With each pair of blocks, and for the lines of scales in between.
  template <std::size_t kLines = kPairBytes / 64>
  KTC_INLINE void ask() {
    KTC_UNROLL for (std::size_t i = 0; i < kLines; ++i) line(i);
    pass(kLines);
  }

 private:
  KTC_INLINE void turn() {
    if (left > 0) return;
    at = next;
    left = PTRDIFF_MAX;
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
