// Panel kernels on all cores at once, each on operands of its own that stay in its second-level cache: what a core does where
// memory does not limit it. Vector kernels in bytes of weights, tile kernels against the bare loop of tile loads and
// multiplications. Medians of ROUNDS rounds, in which all cases take turns. Usage: panel_cores_bench [THREADS] [ROUNDS] [SECONDS]
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/exec/cpu_count.h"
#include "runtime/exec/panel_steps.h"
#include "runtime/kernels/cpu/panel_tiles.h"
#include "runtime/weights/host_memory.h"

namespace ktc::exec {
namespace {

constexpr std::size_t kPanels = 4, kRows = 256, kMiB = std::size_t{1} << 20, kArea = 8 * kMiB;
constexpr std::uint32_t kScale = 0x3a003a00;  // 2^-11 and a little, as f32 and as two bf16

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Case {
  std::string name;
  PanelLayout layout;              // its panels lie at the beginning of an area
  bool tiles;                      // work is operations, not bytes
  std::function<double(std::byte* area)> run;  // once; returns the work: bytes or operations
  std::vector<double> rates;       // per core
};

class Bench {
 public:
  Bench(int threads, double seconds) : seconds_(seconds), workers_(Workers::create(threads).value()) {
    kernels_ = kernels::select_kernels(host_cpu_features());
    state_.workers = workers_.get();
    state_.enter_tiles = kernels_.enter_tiles;
    state_.leave_tiles = kernels_.leave_tiles;
    areas_ = weights::HostBlock::allocate(kArea * static_cast<std::size_t>(workers_->threads()), "operands").value();
    state_.tile_scratch = areas_.data();  // not read: every case has its own
  }

  void add_few(Format format, std::uint32_t group, std::uint32_t granule, std::size_t rows) {
    const PanelLayout layout = *panel_layout(format, group, false, kPanels * kPanelFeatures, 2048);
    const kernels::PanelFn few = kernels_.panel(format).few;
    cases_.push_back({fmt::format("few  {} group {} granule {}, {} rows", to_string(format), group, granule, rows), layout, false,
                      [=](std::byte* area) {
                        std::byte* const x = area + layout.matrix_bytes;
                        kernels::PanelRow operands[kernels::kFewRows];
                        for (std::size_t r = 0; r < rows; ++r)
                          operands[r] = {x + r * 2048, reinterpret_cast<const float*>(area + 2 * kMiB), reinterpret_cast<const std::int32_t*>(area + 4 * kMiB)};
                        alignas(64) float out[kernels::kFewRows * kPanelFeatures];
                        kernels::PanelArgs args = {};
                        args.layout = &layout;
                        args.rows = operands;
                        args.m = rows;
                        args.kb_stride = 64;
                        args.x_granule = granule;
                        args.out = out;
                        for (std::size_t p = 0; p < kPanels; ++p) {
                          args.panel = area + p * layout.panel_bytes;
                          args.next = area + (p + 1) % kPanels * layout.panel_bytes;
                          few(args);
                        }
                        return static_cast<double>(layout.matrix_bytes);
                      },
                      {}});
  }

  void add_bare() {
    cases_.push_back({"bare loop of tiles 2x1, int8", {}, true,
                      [](std::byte* area) {
                        kernels::bare_tiles_amx(false, area + kMiB, 512 << 10, area, 16 << 10, 512);
                        return 512.0 * 2 * 32 * 16 * 64;
                      },
                      {}});
  }
  void add_many(Format format, std::uint32_t group, std::uint32_t granule, std::size_t columns, kernels::TileShape shape,
                kernels::TileResult result) {
    const PanelLayout layout = *panel_layout(format, group, result == kernels::TileResult::gated, kPanels * kPanelFeatures, columns);
    kernels::KernelSet set = kernels_;
    kernels::set_tile_shapes(set, {shape, shape});
    const kernels::TileFn many = set.panel(format).many;
    const char* const results[] = {"rows", "gated", "sums"};
    cases_.push_back({fmt::format("many {} group {} granule {}, K {}, {}, {}", to_string(format), group, granule, columns,
                                  kernels::to_string(shape), results[static_cast<int>(result)]),
                      layout, true,
                      [=](std::byte* area) {
                        kernels::TileArgs args = {};
                        args.panels = area;
                        args.next_panel = area;
                        args.count = kPanels;
                        args.layout = &layout;
                        args.m = kRows;
                        args.x_granule = granule;
                        args.x = {area + kMiB, reinterpret_cast<const float*>(area + 2 * kMiB), reinterpret_cast<const std::int32_t*>(area + 4 * kMiB)};
                        args.k_outer = columns / 64;
                        args.k_inner = columns == 768 ? 12 : 8;
                        args.result = result;
                        args.out = reinterpret_cast<float*>(area + 3 * kMiB);
                        args.out_stride = result == kernels::TileResult::gated ? 16 * 768 : result == kernels::TileResult::sums ? kRows * 32 : 128;
                        args.columns = kPanels * kPanelFeatures;
                        std::uint32_t rows[kRows];
                        float scales[kRows];
                        for (std::size_t i = 0; i < kRows; ++i) rows[i] = static_cast<std::uint32_t>(i * 5 % kRows), scales[i] = 0.125f;
                        args.out_row = rows;
                        args.out_scale = scales;
                        args.scratch = area + 5 * kMiB;
                        many(args);
                        return 2.0 * static_cast<double>(kRows * columns * kPanels * kPanelFeatures);
                      },
                      {}});
  }

  void run(int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (Case& c : cases_) measure(c);
    double bare = 0;
    for (const Case& c : cases_) {
      const double rate = median(c.rates), all = rate * static_cast<double>(workers_->threads());
      if (c.name.starts_with("bare")) bare = rate;
      fmt::print("{:<60} {:8.1f} {} per core", c.name, rate / 1e9, c.tiles ? "GOPS" : "GB/s");
      if (c.tiles) fmt::print(" {:6.1f} TOPS {:.2f} of bare", all / 1e12, rate / bare);
      fmt::print("\n");
    }
  }
  bool tiles() const { return kernels_.panel_int8.many != nullptr; }

 private:
  // Weights and activations: bytes that are codes of every format. Scales: a small number. Sums, outputs: zeros.
  static void fill(std::byte* area, std::uint64_t seed) {
    std::uint64_t x = seed * 2654435761u + 88172645463325252u;
    for (std::size_t i = 0; i < kArea; i += 8) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      const std::uint64_t codes = (x | 0x1111111111111111u) & 0xbfbfbfbfbfbfbfbfu;
      const std::uint64_t word = i < 2 * kMiB ? codes : i < 3 * kMiB ? std::uint64_t{kScale} << 32 | kScale : 0;
      std::memcpy(area + i, &word, 8);
    }
  }
  void measure(Case& c) {
    std::vector<double> rates(static_cast<std::size_t>(workers_->threads()));
    std::atomic<int> arrived{0};
    workers_->enter([&] {
      workers_->parallel_for(rates.size(), 1, [&](std::size_t, std::size_t) {
        const auto index = static_cast<std::size_t>(workers_->index());
        std::byte* const area = areas_.data() + index * kArea;
        if (!filled_[index]) fill(area, index + 1);
        filled_[index] = true;
        for (std::size_t p = 0; p < c.layout.panels; ++p)  // scales of any bits would make results that are slow to compute with
          for (std::size_t at = 0; at < c.layout.head_bytes; at += 4) std::memcpy(area + p * c.layout.panel_bytes + at, &kScale, 4);
        const TileScope scope(state_, tiles());
        arrived.fetch_add(1);
        const double deadline = now() + 10;  // a worker that never comes does not hold up the others for ever
        while (arrived.load() < workers_->threads() && now() < deadline) {
        }
        c.run(area);
        double work = 0;
        const double start = now();
        while (now() < start + seconds_) work += c.run(area);
        rates[index] = work / (now() - start);
      });
    });
    double sum = 0;
    for (const double rate : rates) sum += rate;
    c.rates.push_back(sum / static_cast<double>(rates.size()));
  }

  double seconds_;
  std::unique_ptr<Workers> workers_;
  kernels::KernelSet kernels_ = {};
  StepState state_;
  weights::HostBlock areas_;
  bool filled_[kMostThreads] = {};
  std::vector<Case> cases_;
};

int run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : default_thread_count(), rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0.003;
  if (threads < 1 || threads > kMostThreads || rounds < 1 || !(seconds > 0)) {
    fmt::print(stderr, "panel_cores_bench: expected [THREADS, 1 to {}] [ROUNDS] [SECONDS]\n", kMostThreads);
    return 2;
  }
  Bench bench(threads, seconds);
  for (const auto& [format, group] : {std::pair{Format::int8, 0u}, {Format::int4, 64u}})
    for (const std::uint32_t granule : {0u, 64u})
      for (const std::size_t rows : {1, 2, 4, 8}) bench.add_few(format, group, granule, rows);
  if (bench.tiles()) {
    using kernels::TileResult, kernels::TileShape;
    bench.add_bare();
    for (const std::size_t columns : {2048, 768})
      for (const TileShape shape : kernels::kTileShapes)
        for (const TileResult result : {TileResult::rows, TileResult::gated, TileResult::sums})
          bench.add_many(Format::int8, 0, 0, columns, shape, result);
    for (const TileResult result : {TileResult::gated, TileResult::sums}) {
      bench.add_many(Format::int4, 0, 0, 2048, TileShape::one_by_two, result);
      bench.add_many(Format::int4, 64, 0, 2048, TileShape::one_by_two, result);
      bench.add_many(Format::int8, 0, 64, 2048, TileShape::one_by_two, result);
      bench.add_many(Format::int4, 64, 64, 2048, TileShape::one_by_two, result);
    }
  }
  bench.run(rounds);
  return 0;
}

}  // namespace
}  // namespace ktc::exec

int main(int argc, char** argv) { return ktc::exec::run(argc, argv); }
