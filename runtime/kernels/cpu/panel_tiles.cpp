#include "runtime/kernels/cpu/panel_tiles.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {
namespace {

#define KTC_SET_MANY(suffix)                         \
  set.panel_int8.many = panel_int8_many_##suffix;    \
  set.panel_int4.many = panel_int4_many_##suffix;    \
  set.panel_fp8.many = panel_fp8_many_##suffix;      \
  set.panel_bf16.many = panel_bf16_many_##suffix

// One panel and 128 rows of int8: enough rows that the weights' way into the cache does not count.
class Probe {
 public:
  Probe() : layout_(panel_layout(Format::int8, 0, false, 32, kColumns).value()), memory_(kBytes + 64) {
    std::byte* p = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
    for (std::size_t i = 0; i < kBytes - kRows * 128; ++i) p[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    args_.panel = p;
    std::byte* x = p + layout_.panel_bytes;
    for (std::size_t r = 0; r < kRows; ++r)
      rows_[r] = {x + r / kTileRows * kColumns * kTileRows + r % kTileRows * 64, &scale_, sums_};
    args_.layout = &layout_;
    args_.rows = rows_;
    args_.m = kRows;
    args_.kb_stride = 64 * kTileRows;
    args_.out = reinterpret_cast<float*>(x + kRows * kColumns);
  }
  double seconds(PanelFn function) const {
    constexpr int kCalls = 20;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) function(args_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  static constexpr std::size_t kColumns = 2048, kRows = 128;
  static constexpr std::size_t kBytes = 32 * kColumns + 128 + kRows * kColumns + kRows * 128;
  PanelLayout layout_;
  std::vector<std::byte> memory_;
  PanelRow rows_[kRows];
  float scale_ = 1.0f;
  std::int32_t sums_[kColumns / 32] = {};
  PanelArgs args_{};
};

}  // namespace

#if defined(__x86_64__)

TileShape probe_tile_shape() {
  if (!isa_level_available(IsaLevel::amx, host_cpu_features())) return TileShape::two_by_one;
  const Probe probe;
  std::vector<double> ratios;
  enter_tiles_amx();
  for (int round = 0; round < 9; ++round) {  // neighbours in time: the machine's rates move
    const double narrow = probe.seconds(panel_int8_many_amx), wide = probe.seconds(panel_int8_many_amx_2x2);
    if (round != 0) ratios.push_back(wide / narrow);
  }
  leave_tiles_amx();
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
  return ratios[ratios.size() / 2] < 0.98 ? TileShape::two_by_two : TileShape::two_by_one;
}

void set_tile_shape(KernelSet& set, TileShape shape) {
  if (set.panel_int8.many == nullptr) return;
  if (shape == TileShape::two_by_two) {
    KTC_SET_MANY(amx_2x2);
  } else {
    KTC_SET_MANY(amx);
  }
}

bool emulated_tiles_available(const CpuFeatures& features) {
  return isa_level_available(IsaLevel::avx512, features);
}

void emulate_tiles(KernelSet& set, TileShape shape) {
  if (shape == TileShape::two_by_two) {
    KTC_SET_MANY(emulated_2x2);
  } else {
    KTC_SET_MANY(emulated);
  }
  set.enter_tiles = enter_tiles_emulated;
  set.leave_tiles = leave_tiles_emulated;
}

#else

TileShape probe_tile_shape() { return TileShape::two_by_one; }
void set_tile_shape(KernelSet&, TileShape) {}
bool emulated_tiles_available(const CpuFeatures&) { return false; }
void emulate_tiles(KernelSet&, TileShape) {}

#endif

}  // namespace ktc::kernels
