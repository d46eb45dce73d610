#include "runtime/kernels/cpu/panel_tiles.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
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

std::string to_string(TileShapes shapes) {
  std::string text(to_string(shapes.integers));
  if (shapes.floats != shapes.integers) text += " (floats " + std::string(to_string(shapes.floats)) + ")";
  return text;
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

void set_many(KernelSet& set, const Many& integers, const Many& floats) {
  set.panel_int8.many = integers.int8;
  set.panel_int4.many = integers.int4;
  set.panel_fp8.many = floats.fp8;
  set.panel_bf16.many = floats.bf16;
}

// Four panels and 256 rows in pieces of 512 bytes of a row, with the next weights asked for meanwhile, as in a layer: with less,
// 2 x 2 looks faster than it is there.
class Probe {
 public:
  explicit Probe(Format format)
      : value_bytes_(format == Format::bf16 ? 2 : 1), layout_(panel_layout(format, 0, false, kPanels * 32, kColumns).value()), memory_(kBytes() + 64) {
    std::byte* p = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
    for (std::size_t i = 0; i < layout_.matrix_bytes + kRows * kColumns * value_bytes_; ++i)
      p[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    args_.panels = p;
    args_.count = kPanels;
    args_.next_panel = p;
    args_.layout = &layout_;
    args_.x.values = p + layout_.matrix_bytes;
    std::byte* at = p + layout_.matrix_bytes + kRows * kColumns * value_bytes_;
    args_.x.scales = reinterpret_cast<const float*>(at);
    args_.x.sums = reinterpret_cast<const std::int32_t*>(at + kRows * 4);
    args_.m = kRows;
    args_.k_inner = 8 / value_bytes_;
    args_.result = TileResult::rows;
    args_.out = reinterpret_cast<float*>(at + kRows * 8);
    args_.out_stride = args_.columns = kPanels * 32;
    args_.scratch = at + kRows * 8 + kRows * kPanels * 128;
  }
  double seconds(TileFn function) const {
    const auto start = std::chrono::steady_clock::now();
    function(args_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  static constexpr std::size_t kColumns = 2048, kRows = 256, kPanels = 4;
  std::size_t kBytes() const {
    return layout_.matrix_bytes + kRows * (kColumns * value_bytes_ + 8 + kPanels * 128) + panel_scratch_bytes(layout_);
  }
  const std::size_t value_bytes_;
  PanelLayout layout_;
  std::vector<std::byte> memory_;
  TileArgs args_{};
};

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Threads that run what the probing one runs: a core by itself prefers shapes that are the slowest when all are at it.
class Crowd {
 public:
  Crowd(Format format, int threads) {
    for (int i = 0; i < threads; ++i) probes_.push_back(std::make_unique<Probe>(format));
    try {
      for (const auto& probe : probes_) threads_.emplace_back([this, &probe = *probe] { work(probe); });
    } catch (const std::system_error&) {  // no more threads: fewer then
    }
  }
  ~Crowd() {
    done_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  void run(TileFn function) { function_.store(function); }

 private:
  void work(const Probe& probe) const {
    enter_tiles_amx();
    while (!done_.load()) {
      if (const TileFn function = function_.load())
        probe.seconds(function);
      else
        std::this_thread::yield();
    }
    leave_tiles_amx();
  }
  std::atomic<TileFn> function_{nullptr};
  std::atomic<bool> done_{false};
  std::vector<std::unique_ptr<Probe>> probes_;
  std::vector<std::thread> threads_;
};

// CPUs that this thread, and threads that it starts, may run on.
int usable_cpus() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
}

// `usual` unless another takes less than `share` of its time.
TileShape fastest_shape(Format format, TileFn Many::*function, TileShape usual, double share, int threads) {
  const Probe probe(format);
  Crowd crowd(format, threads - 1);
  const auto seconds = [&](std::size_t shape) {
    crowd.run(kReal[shape].*function);
    probe.seconds(kReal[shape].*function);  // until all have changed over
    return probe.seconds(kReal[shape].*function);
  };
  constexpr std::size_t kShapes = std::size(kTileShapes);
  std::vector<double> ratios[kShapes];
  for (int round = 0; round < 9; ++round) {  // neighbours in time: the machine's rates move
    const double base = seconds(static_cast<std::size_t>(usual));
    for (std::size_t s = 0; s < kShapes; ++s)
      if (kTileShapes[s] != usual) {
        const double other = seconds(s);
        if (round != 0) ratios[s].push_back(other / base);
      }
  }
  auto best = static_cast<std::size_t>(usual);
  double least = share;
  for (std::size_t s = 0; s < kShapes; ++s)
    if (ratios[s].empty()) {
      continue;
    } else if (const double ratio = median(ratios[s]); ratio < least) {
      least = ratio;
      best = s;
    }
  return kTileShapes[best];
}

}  // namespace

TileShapes probe_tile_shapes(int threads) {
  TileShapes shapes;
  if (!isa_level_available(IsaLevel::amx, host_cpu_features())) return shapes;
  shapes.integers = TileShape::one_by_two;
  if (usable_cpus() < threads) return shapes;
  enter_tiles_amx();
  // This loop still favours 2 x 2 where layers are 7 to 14 % slower with it. Where live registers cost nothing it takes two thirds
  // of the time, because it loads two thirds of the tiles: so much must show.
  shapes.integers = fastest_shape(Format::int8, &Many::int8, shapes.integers, 0.80, threads);
  shapes.floats = fastest_shape(Format::bf16, &Many::bf16, shapes.floats, 0.97, threads);
  leave_tiles_amx();
  return shapes;
}

void set_tile_shapes(KernelSet& set, TileShapes shapes) {
  if (set.panel_int8.many != nullptr)
    set_many(set, kReal[static_cast<std::size_t>(shapes.integers)], kReal[static_cast<std::size_t>(shapes.floats)]);
}

bool emulated_tiles_available(const CpuFeatures& features) {
  return isa_level_available(IsaLevel::avx512, features);
}

void emulate_tiles(KernelSet& set, TileShape shape) {
  set_many(set, kEmulated[static_cast<std::size_t>(shape)], kEmulated[static_cast<std::size_t>(shape)]);
  set.enter_tiles = enter_tiles_emulated;
  set.leave_tiles = leave_tiles_emulated;
}

#else

TileShapes probe_tile_shapes(int) { return {}; }
void set_tile_shapes(KernelSet&, TileShapes) {}
bool emulated_tiles_available(const CpuFeatures&) { return false; }
void emulate_tiles(KernelSet&, TileShape) {}
void bare_tiles_amx(bool, const std::byte*, std::size_t, const std::byte*, std::size_t, std::size_t) {}

#endif

}  // namespace ktc::kernels
