#include "tools/ktc/bench_ceilings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/kernels/cpu/panel_tiles.h"

namespace ktc::bench {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::size_t kChunk = std::size_t{128} << 10;
constexpr std::size_t kAhead = 4096;  // bytes of software prefetch; past the end of the memory it does nothing

#if defined(__x86_64__)
// The compiler may not drop the reads. A macro, because a function would need its caller's target.
#define KTC_KEEP(value) asm volatile("" : "+v"(value))
__attribute__((target("avx512f"))) void read_avx512(const std::byte* p, std::size_t bytes) {
  __m512i sum[4] = {};
  for (std::size_t i = 0; i < bytes; i += 256)
    for (std::size_t c = 0; c < 4; ++c) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i + kAhead + 64 * c), _MM_HINT_T0);
      sum[c] = _mm512_xor_si512(sum[c], _mm512_loadu_si512(p + i + 64 * c));
    }
  for (__m512i& s : sum) KTC_KEEP(s);
}
void read_plain(const std::byte* p, std::size_t bytes) {
  __m128i sum[4] = {};
  for (std::size_t i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + kAhead), _MM_HINT_T0);
    for (std::size_t c = 0; c < 4; ++c)
      sum[c] = _mm_xor_si128(sum[c], _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i + 16 * c)));
  }
  for (__m128i& s : sum) asm volatile("" : "+x"(s));
}
#undef KTC_KEEP
#else
void read_plain(const std::byte* p, std::size_t bytes) {
  std::uint64_t sum = 0, word;
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::memcpy(&word, p + i, 8);
    sum ^= word;
  }
  asm volatile("" : "+r"(sum));
}
#endif

void (*reader())(const std::byte*, std::size_t) {
#if defined(__x86_64__)
  if (host_cpu_features().avx512f) return read_avx512;
#endif
  return read_plain;
}

constexpr std::size_t kPeakColumns = 1024;  // few rows: 32 KiB of int8 weights
constexpr std::size_t kTileValues = std::size_t{512} << 10, kTileWeights = std::size_t{16} << 10;

}  // namespace

ReadTime read_all(std::span<const std::byte> memory, exec::Workers& workers) {
  void (*const read)(const std::byte*, std::size_t) = reader();
  const std::size_t chunks = (memory.size() + kChunk - 1) / kChunk;
  std::atomic<std::size_t> next{0};
  const double start = now();
  workers.enter([&] {
    workers.parallel_for(static_cast<std::size_t>(workers.threads()), 1, [&](std::size_t, std::size_t) {
      for (std::size_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < chunks;)
        read(memory.data() + chunk * kChunk, std::min(kChunk, memory.size() - chunk * kChunk) / 256 * 256);
    });
  });
  return {static_cast<double>(memory.size()), now() - start};
}

Expected<ComputePeak> ComputePeak::create(bool integer, Engine& engine) {
  ComputePeak peak;
  peak.engine_ = &engine;
  peak.bf16_ = !integer;
  peak.layout_ = *panel_layout(integer ? Format::int8 : Format::bf16, 0, false, kPanelFeatures, kPeakColumns);
  peak.tiled_ = engine.kernels.panel(peak.layout_.format).many != nullptr;
  // Per worker: weights, then values; for few rows then the scale and the sums that every row shares.
  PanelLayout weights = peak.layout_;
  if (peak.tiled_) {
    weights.head_bytes = 0;
    weights.panel_bytes = kTileWeights;
  }
  peak.values_bytes_ = peak.tiled_ ? kTileValues : kernels::kFewRows * kPeakColumns * (integer ? 1 : 2);
  peak.worker_bytes_ = static_cast<std::size_t>(align64(weights.panel_bytes)) + peak.values_bytes_ + 64 + kPeakColumns / 32 * 4;
  peak.layout_.panel_bytes = weights.panel_bytes;
  const std::size_t workers = static_cast<std::size_t>(engine.workers->threads());
  KTC_ASSIGN_OR_RETURN(peak.memory_, weights::HostBlock::allocate(workers * peak.worker_bytes_, "operands of the peak"));
  for (std::size_t w = 0; w < workers; ++w) {
    std::byte* panel = peak.memory_.data() + w * peak.worker_bytes_;
    fill_panel(weights, w, panel);
    std::byte* values = panel + weights.panel_bytes;
    PanelLayout random = peak.layout_;  // random values of the same kind; a signed code is as good as an unsigned one
    random.head_bytes = 0;
    random.panel_bytes = peak.values_bytes_;
    fill_panel(random, 1000 + w, values);
    const float scale = 1.0f / 4096;
    std::memcpy(values + peak.values_bytes_, &scale, sizeof(scale));  // the sums may stay 0: their value costs nothing
  }
  return peak;
}

std::uint64_t ComputePeak::one_worker(double deadline) const {
  const exec::TileScope scope(engine_->state, tiled_);
  const std::byte* panel = memory_.data() + static_cast<std::size_t>(engine_->workers->index()) * worker_bytes_;
  const std::byte* values = panel + layout_.panel_bytes;
  std::uint64_t done = 0;
  if (tiled_) {
    constexpr std::size_t kSteps = 512;
    while (now() < deadline) {
      kernels::bare_tiles_amx(bf16_, values, kTileValues, panel, kTileWeights, kSteps);
      done += kSteps * 2 * 32 * 16 * (bf16_ ? 32 : 64);
    }
    return done;
  }
  alignas(64) std::array<float, kernels::kFewRows * kPanelFeatures> out;
  std::array<kernels::PanelRow, kernels::kFewRows> rows;
  const std::size_t row_bytes = kPeakColumns * (bf16_ ? 2 : 1);
  for (std::size_t r = 0; r < rows.size(); ++r)
    rows[r] = {values + r * row_bytes, bf16_ ? nullptr : reinterpret_cast<const float*>(values + values_bytes_),
               bf16_ ? nullptr : reinterpret_cast<const std::int32_t*>(values + values_bytes_ + 64)};
  kernels::PanelArgs args = {};
  args.panel = panel;
  args.layout = &layout_;
  args.rows = rows.data();
  args.m = rows.size();
  args.kb_stride = bf16_ ? 128 : 64;
  args.out = out.data();
  const kernels::PanelFn kernel = engine_->kernels.panel(layout_.format).few;
  while (now() < deadline) {
    for (int i = 0; i < 4; ++i) kernel(args);
    done += 4 * 2 * rows.size() * kPanelFeatures * kPeakColumns;
  }
  return done;
}

double ComputePeak::measure(double seconds) const {
  exec::Workers& workers = *engine_->workers;
  std::atomic<std::uint64_t> operations{0};
  const double start = now(), deadline = start + seconds;
  const auto one = [&](std::size_t, std::size_t) { operations.fetch_add(one_worker(deadline), std::memory_order_relaxed); };
  workers.enter([&] { workers.parallel_for(static_cast<std::size_t>(workers.threads()), 1, one); });
  return static_cast<double>(operations.load()) / (now() - start);
}

}  // namespace ktc::bench
