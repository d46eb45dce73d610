#include "runtime/kernels/cpu/panel_tiles.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {

std::string_view to_string(TileShape shape) {
  switch (shape) {
    case TileShape::two_by_one: return "2x1";
    case TileShape::one_by_two: return "1x2";
    case TileShape::one_by_one: return "1x1";
    case TileShape::two_by_two: return "2x2";
  }
  return "?";
}

#if defined(__x86_64__)

namespace {

#define KTC_MANY(suffix) {panel_int8_many_##suffix, panel_int4_many_##suffix, panel_fp8_many_##suffix, panel_bf16_many_##suffix}
struct Many {
  TileFn int8, int4, fp8, bf16;
};
// In the order of TileShape.
constexpr Many kReal[] = {KTC_MANY(amx), KTC_MANY(amx_1x2), KTC_MANY(amx_1x1), KTC_MANY(amx_2x2)};
constexpr Many kEmulated[] = {KTC_MANY(emulated), KTC_MANY(emulated_1x2), KTC_MANY(emulated_1x1), KTC_MANY(emulated_2x2)};
#undef KTC_MANY

void set_many(KernelSet& set, const Many& many) {
  set.panel_int8.many = many.int8;
  set.panel_int4.many = many.int4;
  set.panel_fp8.many = many.fp8;
  set.panel_bf16.many = many.bf16;
}

// One panel and 128 rows of int8 in pieces of 512 K: enough rows that the weights' way into the cache does not count.
class Probe {
 public:
  Probe() : layout_(panel_layout(Format::int8, 0, false, 32, kColumns).value()), memory_(kBytes() + 64) {
    std::byte* p = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
    for (std::size_t i = 0; i < layout_.panel_bytes + kRows * kColumns; ++i) p[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    args_.panels = p;
    args_.count = 1;
    args_.layout = &layout_;
    args_.x.values = p + layout_.panel_bytes;
    std::byte* at = p + layout_.panel_bytes + kRows * kColumns;
    args_.x.scales = reinterpret_cast<const float*>(at);
    args_.x.sums = reinterpret_cast<const std::int32_t*>(at + kRows * 4);
    args_.m = kRows;
    args_.k_inner = 8;
    args_.result = TileResult::rows;
    args_.out = reinterpret_cast<float*>(at + kRows * 8);
    args_.out_stride = args_.columns = 32;
    args_.scratch = at + kRows * 8 + kRows * 128;
  }
  double seconds(TileFn function) const {
    constexpr int kCalls = 8;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) function(args_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  static constexpr std::size_t kColumns = 2048, kRows = 128;
  std::size_t kBytes() const { return layout_.panel_bytes + kRows * (kColumns + 8 + 128) + panel_scratch_bytes(layout_); }
  PanelLayout layout_;
  std::vector<std::byte> memory_;
  TileArgs args_{};
};

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

TileShape probe_tile_shape() {
  if (!isa_level_available(IsaLevel::amx, host_cpu_features())) return TileShape::two_by_one;
  const Probe probe;
  constexpr std::size_t kShapes = std::size(kTileShapes);
  std::vector<double> ratios[kShapes];
  enter_tiles_amx();
  for (int round = 0; round < 9; ++round) {  // neighbours in time: the machine's rates move
    const double usual = probe.seconds(kReal[0].int8);
    for (std::size_t s = 1; s < kShapes; ++s) {
      const double other = probe.seconds(kReal[s].int8);
      if (round != 0) ratios[s].push_back(other / usual);
    }
  }
  leave_tiles_amx();
  std::size_t best = 0;
  double least = 0.97;
  for (std::size_t s = 1; s < kShapes; ++s)
    if (const double ratio = median(ratios[s]); ratio < least) {
      least = ratio;
      best = s;
    }
  return kTileShapes[best];
}

void set_tile_shape(KernelSet& set, TileShape shape) {
  if (set.panel_int8.many != nullptr) set_many(set, kReal[static_cast<std::size_t>(shape)]);
}

bool emulated_tiles_available(const CpuFeatures& features) {
  return isa_level_available(IsaLevel::avx512, features);
}

void emulate_tiles(KernelSet& set, TileShape shape) {
  set_many(set, kEmulated[static_cast<std::size_t>(shape)]);
  set.enter_tiles = enter_tiles_emulated;
  set.leave_tiles = leave_tiles_emulated;
}

#else

TileShape probe_tile_shape() { return TileShape::two_by_one; }
void set_tile_shape(KernelSet&, TileShape) {}
bool emulated_tiles_available(const CpuFeatures&) { return false; }
void emulate_tiles(KernelSet&, TileShape) {}
void bare_tiles_amx(bool, const std::byte*, std::size_t, const std::byte*, std::size_t, std::size_t) {}

#endif

}  // namespace ktc::kernels
