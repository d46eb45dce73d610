// Speed of the panel kernels on one thread: weights stream from a pool larger than the caches, panel after panel, as a decode
// step reads experts. Every benchmark first checks its kernel against double precision.
//
// Counters: GB/s of weights, the read bandwidth of this machine measured right before and after, and their ratio; TOPS.
// panel_bench [--pool-mib=1280] [--benchmark_filter=REGEX]
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kernels/cpu/kernel_table.h"
#include "test/bench/ceilings.h"
#include "test/support/panel_pack.h"

namespace ktc::kernels {
namespace {

std::size_t pool_bytes = std::size_t{1280} << 20;
bool any_wrong = false;  // makes the process fail: a fast wrong kernel is no news

class Lines {  // memory on cache lines
 public:
  explicit Lines(std::size_t bytes) : memory_(bytes + 64) {
    begin_ = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
  }
  std::byte* begin() const { return begin_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* begin_;
};

std::byte* pool() {
  static const Lines lines(pool_bytes);
  return lines.begin();
}

struct Shape {
  Format format;
  std::uint32_t group, granule;
  std::size_t columns;
};

bool integer(Format format) {
  return format == Format::int8 || format == Format::int4;
}

test::PanelMatrix random_matrix(const Shape& shape, std::size_t rows) {
  std::mt19937 random(7);
  test::PanelMatrix matrix;
  matrix.layout = panel_layout(shape.format, shape.group, false, rows, shape.columns).value();
  matrix.codes.resize(rows * shape.columns);
  std::normal_distribution<float> normal;
  for (std::int32_t& code : matrix.codes) {
    const auto bits = static_cast<std::int32_t>(random() % 1000);
    switch (shape.format) {
      case Format::int8: code = bits % 255 - 127; break;
      case Format::int4: code = bits % 15 - 7; break;
      case Format::fp8: code = bits % 0x7f + (bits / 500) * 0x80; break;
      default: code = f32_to_bf16(normal(random));
    }
  }
  if (shape.format == Format::bf16) return matrix;
  matrix.scales.resize(rows * matrix.scale_groups());
  for (float& s : matrix.scales) s = bf16_to_f32(f32_to_bf16(0.01f + 0.001f * static_cast<float>(random() % 8)));
  return matrix;
}

// m rows; tiles where the kernel asks for them.
struct Rows {
  Rows(const Shape& shape, std::size_t m, bool tiles)
      : stride((integer(shape.format) ? 64 : 128) * (tiles ? kTileRows : 1)),
        granule(shape.granule == 0 ? shape.columns : shape.granule),
        row_bytes(shape.columns / 64 * stride),
        values((tiles ? (m + kTileRows - 1) / kTileRows : m) * row_bytes),
        scales((shape.columns + granule - 1) / granule, 0.02f),
        sums(m * shape.columns / 32) {
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    const std::size_t piece = integer(shape.format) ? 64 : 128;
    for (std::size_t r = 0; r < m; ++r) {
      std::byte* row = tiles ? values.begin() + r / kTileRows * row_bytes + r % kTileRows * piece : values.begin() + r * row_bytes;
      std::int32_t* sum = sums.data() + r * shape.columns / 32;
      for (std::size_t k = 0; k < shape.columns; ++k) {
        std::byte* at = row + k / 64 * stride + k % 64 * piece / 64;
        if (integer(shape.format)) {
          const int code = static_cast<int>(random() % 255) - 127;
          *at = static_cast<std::byte>(code);
          sum[k / 32] += code;
        } else {
          const std::uint16_t bits = f32_to_bf16(normal(random));
          std::memcpy(at, &bits, 2);
        }
      }
      rows.push_back({row, scales.data(), sum});
    }
  }
  double value(const Shape& shape, std::size_t r, std::size_t k) const {
    const std::byte* at = rows[r].values + k / 64 * stride;
    if (integer(shape.format)) return static_cast<double>(static_cast<std::int8_t>(at[k % 64])) * scales[k / granule];
    std::uint16_t bits;
    std::memcpy(&bits, at + k % 64 * 2, 2);
    return bf16_to_f32(bits);
  }
  std::size_t stride, granule, row_bytes;
  Lines values;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  std::vector<PanelRow> rows;
};

bool right(const Shape& shape, const test::PanelMatrix& matrix, const Rows& x, std::size_t panel, std::size_t m,
           const float* out) {
  for (std::size_t r = 0; r < m; r += 1 + m / 8)
    for (std::size_t column = 0; column < 32; ++column) {
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < shape.columns; ++k) {
        const double term = matrix.value(panel * 32 + column, k) * x.value(shape, r, k);
        sum += term;
        magnitude += std::abs(term);
      }
      if (!(std::abs(out[r * 32 + column] - sum) <= 1e-5 * magnitude)) return false;
    }
  return true;
}

// Calls one kernel on a panel: whatever its arguments are.
struct Call {
  Call(const Shape& shape, const PanelLayout& layout, const Rows& x, std::size_t m)
      : out(m * 128), scratch(panel_scratch_bytes(layout)) {
    few.layout = many.layout = &layout;
    few.rows = x.rows.data();
    few.m = many.m = m;
    few.kb_stride = x.stride;
    few.x_granule = many.x_granule = shape.granule;
    few.out = many.out = reinterpret_cast<float*>(out.begin());
    many.count = 1;
    many.x.values = x.values.begin();
    many.result = TileResult::rows;
    many.out_stride = many.columns = 32;
    many.k_inner = 8;
    many.scratch = scratch.begin();
    if (!integer(shape.format)) return;
    // scales of all granules are equal, so one tile's serve all
    for (std::size_t i = 0; i < x.scales.size() * kTileRows * ((m + 15) / 16); ++i) scales.push_back(x.scales[0]);
    for (std::size_t r = 0; r < m; ++r) {
      std::int32_t total = 0;
      for (std::size_t i = 0; i < shape.columns / 32; ++i) total += x.rows[r].sums[i];
      sums.push_back(total);
    }
    sums.resize((m + 15) / 16 * 16);
    many.x.scales = scales.data();
    many.x.sums = sums.data();
  }
  void operator()(PanelFn function, const std::byte* panel, const std::byte* next) {
    few.panel = panel;
    few.next = next;
    function(few);
  }
  void operator()(TileFn function, const std::byte* panel, const std::byte* next) {
    many.panels = panel;
    many.next_panel = next;
    function(many);
  }
  Lines out, scratch;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  PanelArgs few{};
  TileArgs many{};
};

template <typename Fn>
void run_panels(benchmark::State& state, const Shape& shape, std::size_t m, Fn function) {
  constexpr std::size_t kDistinct = 4;
  const test::PanelMatrix matrix = random_matrix(shape, kDistinct * 32);
  const PanelLayout& layout = matrix.layout;
  const std::size_t bytes = layout.panel_bytes, count = pool_bytes / bytes;
  if (count < kDistinct) return state.SkipWithError("does not fit the pool: raise --pool-mib");
  for (std::size_t p = 0; p < kDistinct; ++p) test::pack_panel(matrix, p, pool() + p * bytes);
  for (std::size_t p = kDistinct; p < count; ++p) std::memcpy(pool() + p * bytes, pool() + p % kDistinct * bytes, bytes);
  const Rows x(shape, m, std::is_same_v<Fn, TileFn>);
  Call call(shape, layout, x, m);
  for (std::size_t p : {std::size_t{0}, count - 1}) {
    call(function, pool() + p * bytes, nullptr);
    if (!right(shape, matrix, x, p % kDistinct, m, call.few.out)) {
      any_wrong = true;
      return state.SkipWithError("wrong result");
    }
  }
  const std::span<const std::byte> memory(pool(), pool_bytes);
  const double before = bench::read_bandwidth(memory);
  std::size_t p = 0;
  for (auto _ : state) {
    const std::size_t next = p + 1 == count ? 0 : p + 1;
    call(function, pool() + p * bytes, pool() + next * bytes);
    benchmark::ClobberMemory();
    p = next;
  }
  const double read = (before + bench::read_bandwidth(memory)) / 2;
  using benchmark::Counter;
  const double b = static_cast<double>(bytes), operations = 2.0 * 32 * static_cast<double>(shape.columns * m);
  state.counters["GB/s"] = Counter(b / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["of_read"] = Counter(b / read, Counter::kIsIterationInvariantRate);
  state.counters["TOPS"] = Counter(operations / 1e12, Counter::kIsIterationInvariantRate);
  state.counters["read_GB/s"] = read / 1e9;
}

template <typename Fn>
void register_row(Fn function, const std::string& name, IsaLevel level, Format format) {
  constexpr bool many = std::is_same_v<Fn, TileFn>;
  if constexpr (many || std::is_same_v<Fn, PanelFn>) {
    if (!isa_level_available(level, host_cpu_features())) return;
    std::vector<Shape> shapes = {{format, 0, integer(format) ? 64u : 0u, 2048}};
    if (integer(format)) shapes.push_back({format, 0, 0, 2048});
    if (format == Format::int4) shapes.push_back({format, 64, 64, 2048});
    if (format == Format::int4) shapes.push_back({format, 128, 64, 7168});
    if (format == Format::fp8) shapes.push_back({format, 128, 0, 7168});
    for (const Shape& shape : shapes)
      for (std::size_t m : many ? std::vector<std::size_t>{16, 64, 256} : std::vector<std::size_t>{1, 4, 8}) {
        const std::string title = name + "/group:" + std::to_string(shape.group) + "/granule:" +
                                  std::to_string(shape.granule) + "/k:" + std::to_string(shape.columns) + "/m:" + std::to_string(m);
        benchmark::RegisterBenchmark(
            title.c_str(), [=](benchmark::State& state) { run_panels(state, shape, m, function); });
      }
  }
}

}  // namespace

int run(int argc, char** argv) {
  std::vector<char*> rest;
  constexpr std::string_view kPool = "--pool-mib=";
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, kPool.size()) == kPool) {
      pool_bytes = static_cast<std::size_t>(std::strtoul(argv[i] + kPool.size(), nullptr, 10)) << 20;
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  rest.push_back(nullptr);
#define KTC_PANEL_KERNEL(slot, level, format, function) \
  register_row(&function, #function, IsaLevel::level, Format::format);
#include "runtime/kernels/cpu/panel_kernels.def"
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  const KernelSet set = select_kernels(host_cpu_features());
  set.enter_tiles();
  const bool none = benchmark::RunSpecifiedBenchmarks() == 0;
  set.leave_tiles();
  return none || any_wrong;
}

}  // namespace ktc::kernels

int main(int argc, char** argv) {
  return ktc::kernels::run(argc, argv);
}
