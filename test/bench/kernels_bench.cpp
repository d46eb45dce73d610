// Speed of every row of kernels.def on one thread, next to what the machine can do at that moment.
//
// Weights and caches rotate through a pool larger than the caches, as a decode step walks through a model. Each
// benchmark checks its result against double precision first. Counters: GB/s of weights or cache read, GFLOP/s, `roof`
// = the time that the nearer ceiling (read bandwidth or multiply-add rate) allows, divided by the time taken.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/kernels/cpu/kernel_table.h"
#include "test/bench/ceilings.h"

namespace ktc::kernels {
namespace {

using bench::multiply_add_rate;
using bench::read_bandwidth;

// Activations, weights and caches lie on cache lines, as the arena and the weight files lay them.
template <typename T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, std::size_t) { ::operator delete (p, std::align_val_t{64}); }
  bool operator==(const LineAllocator&) const { return true; }
};
template <typename T>
using Array = std::vector<T, LineAllocator<T>>;

std::size_t pool_bytes = std::size_t{512} << 20;

// bf16 values in (-1, 1); read as f32, two of them are a value in (-1, 1) too.
const Array<std::byte>& pool() {
  static const Array<std::byte> bytes = [] {
    Array<std::byte> made(pool_bytes);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    constexpr std::size_t kPeriod = 1048573;  // prime: repeats never line up with rows
    std::vector<std::uint16_t> pattern(kPeriod);
    for (std::uint16_t& bits : pattern) bits = f32_to_bf16(value(random));
    for (std::size_t at = 0; at < made.size(); at += 2 * kPeriod)
      std::memcpy(made.data() + at, pattern.data(), std::min(2 * kPeriod, made.size() - at));
    return made;
  }();
  return bytes;
}

// Hands out consecutive areas of the pool, round and round.
class Rotation {
 public:
  explicit Rotation(std::size_t bytes) : step_((bytes + 63) / 64 * 64) {}
  bool fits() const { return step_ <= pool().size(); }
  const std::byte* next() {
    if (at_ + step_ > pool().size()) at_ = 0;
    const std::byte* area = pool().data() + at_;
    at_ += step_;
    return area;
  }

 private:
  std::size_t step_, at_ = 0;
};

float element(Format format, const std::byte* p, std::size_t i) {
  if (format == Format::bf16) {
    std::uint16_t bits;
    std::memcpy(&bits, p + 2 * i, 2);
    return bf16_to_f32(bits);
  }
  float value;
  std::memcpy(&value, p + 4 * i, 4);
  return value;
}

Array<float> random_floats(std::size_t count) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  Array<float> floats(count);
  for (float& v : floats) v = value(random);
  return floats;
}

bool any_wrong = false;  // makes the process fail: a fast wrong kernel is no news

void wrong_result(benchmark::State& state) {
  any_wrong = true;
  state.SkipWithError("wrong result");
}

bool close(double got, double expected, double scale) {
  return std::abs(got - expected) <= 1e-5 * scale + 1e-6;
}

// Times `work(area)` over rotating areas of `bytes`.
void measure(benchmark::State& state, IsaLevel level, double bytes, double flops,
             const std::function<void(const std::byte*)>& work, Rotation& rotation) {
  const double bandwidth = read_bandwidth(pool()), rate = multiply_add_rate(level);
  for (auto _ : state) work(rotation.next());
  using benchmark::Counter;
  const auto per_second = Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = Counter(bytes / 1e9, per_second);
  state.counters["GFLOP/s"] = Counter(flops / 1e9, per_second);
  state.counters["roof"] = Counter(std::max(bytes / bandwidth, flops / rate), per_second);
  state.counters["read_GB/s"] = bandwidth / 1e9;
  state.counters["peak_GFLOP/s"] = rate / 1e9;
}

struct Product {
  const char* name;
  std::size_t k, n;  // n: columns of the output
  bool gate_up;
};
constexpr Product kProducts[] = {
    {"qwen3-30b.gate_up", 2048, 768, true},    {"qwen3-30b.down", 768, 2048, false}, {"qwen3-30b.q", 2048, 4096, false},
    {"deepseek-v3.gate_up", 7168, 2048, true}, {"mini.gate_up", 192, 64, true},      {"mini.down", 64, 192, false},
    {"mini.head", 192, 4096, false},
};

void product(benchmark::State& state, const Product& shape, std::size_t m, IsaLevel level, Format format,
             const std::function<void(const MatmulArgs&)>& run) {
  const std::size_t rows = shape.n * (shape.gate_up ? 2 : 1);
  const std::size_t row_bytes = packed_row_bytes(format, Packing::row_major, shape.k);
  Rotation rotation(rows * row_bytes);
  if (!rotation.fits()) return state.SkipWithError("does not fit the pool: raise --pool-mib");
  const Array<float> x = random_floats(m * shape.k);
  Array<float> y(m * shape.n);
  MatmulArgs args{};
  args.x = x.data();
  args.x_stride = shape.k;
  args.w_row_bytes = row_bytes;
  args.y = y.data();
  args.y_stride = shape.n;
  args.m = m;
  args.k = shape.k;
  args.n_end = shape.n;
  args.w = rotation.next();
  run(args);
  for (std::size_t check = 0; check < 50; ++check) {
    const std::size_t i = check * 31 % m, c = check * 67 % shape.n;
    const auto dot = [&](std::size_t row) {
      double sum = 0;
      for (std::size_t e = 0; e < shape.k; ++e)
        sum += static_cast<double>(x[i * shape.k + e]) * element(format, args.w + row * row_bytes, e);
      return sum;
    };
    const double gate = dot(c);
    const double expected = shape.gate_up ? gate / (1 + std::exp(-gate)) * dot(shape.n + c) : gate;
    if (!close(y[i * shape.n + c], expected, shape.gate_up ? shape.k : std::sqrt(shape.k))) return wrong_result(state);
  }
  measure(
      state, level, static_cast<double>(rows * row_bytes), 2.0 * m * rows * shape.k,
      [&](const std::byte* w) {
        args.w = w;
        run(args);
        benchmark::ClobberMemory();
      },
      rotation);
}

struct Attention {
  const char* name;
  std::size_t heads, width1, width2, value_width;
  bool value_is_k1;
};
constexpr Attention kAttentions[] = {
    {"qwen3-30b", 8, 128, 0, 128, false},     {"one-head", 1, 128, 0, 128, false},
    {"deepseek-v3", 128, 512, 64, 512, true}, {"mini-qwen3", 3, 64, 0, 64, false},
    {"mini-deepseek", 4, 512, 64, 512, true},
};

void attention(benchmark::State& state, const Attention& shape, std::size_t context, IsaLevel level, Format format,
               AttendFn run) {
  constexpr std::size_t kPageTokens = 16;
  const std::size_t width = shape.width1 + shape.width2, bytes = format_bits(format) / 8;
  const std::size_t token_elements = width + (shape.value_is_k1 ? 0 : shape.value_width);
  const std::size_t page_count = (context + kPageTokens - 1) / kPageTokens;
  std::vector<std::uint32_t> pages(page_count);
  for (std::size_t i = 0; i < page_count; ++i) pages[i] = static_cast<std::uint32_t>(i);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
  const Array<float> q = random_floats(shape.heads * width);
  Array<float> out(shape.heads * shape.value_width);
  AttendArgs args{};
  args.q = q.data();
  args.q_stride = width;
  args.heads = shape.heads;
  args.width1 = shape.width1;
  args.width2 = shape.width2;
  args.value_width = shape.value_width;
  args.pages = pages.data();
  args.page_tokens = kPageTokens;
  args.page_bytes = kPageTokens * token_elements * bytes;
  args.k2_offset = kPageTokens * shape.width1 * bytes;
  args.v_offset = shape.value_is_k1 ? 0 : kPageTokens * width * bytes;
  args.context = context;
  args.scale = 1.0f / std::sqrt(static_cast<float>(width));
  args.out = out.data();
  args.out_stride = shape.value_width;
  Rotation rotation(page_count * args.page_bytes);
  if (!rotation.fits()) return state.SkipWithError("does not fit the pool: raise --pool-mib");
  args.cache = rotation.next();
  run(args);
  const std::size_t head = shape.heads - 1;
  double denominator = 0, expected = 0;  // of the last head, element 5; scores are small here, so no maximum is needed
  for (std::size_t j = 0; j < context; ++j) {
    const std::byte* page = args.cache + pages[j / kPageTokens] * args.page_bytes;
    const std::size_t slot = j % kPageTokens;
    double dot = 0;
    for (std::size_t c = 0; c < shape.width1; ++c)
      dot += q[head * width + c] * element(format, page, slot * shape.width1 + c);
    for (std::size_t c = 0; c < shape.width2; ++c)
      dot += q[head * width + shape.width1 + c] * element(format, page + args.k2_offset, slot * shape.width2 + c);
    const double p = std::exp(args.scale * dot);
    denominator += p;
    expected += p * element(format, page + args.v_offset, slot * shape.value_width + 5);
  }
  if (!close(out[head * shape.value_width + 5], expected / denominator, 1)) return wrong_result(state);
  measure(
      state, level, static_cast<double>(context * token_elements * bytes),
      2.0 * shape.heads * context * (width + shape.value_width),
      [&](const std::byte* cache) {
        args.cache = cache;
        run(args);
        benchmark::ClobberMemory();
      },
      rotation);
}

template <typename Fn>
void register_row(Fn function, const char* name, IsaLevel level, Format format) {
  if (!isa_level_available(level, host_cpu_features())) return;
  if constexpr (std::is_same_v<Fn, MatmulFn> || std::is_same_v<Fn, GateUpFn>) {
    for (const Product& shape : kProducts) {
      if (shape.gate_up != std::is_same_v<Fn, GateUpFn>) continue;
      for (std::size_t m : {1, 4, 16, 64, 512}) {
        const std::string title = std::string(name) + "/" + shape.name + "/m:" + std::to_string(m);
        benchmark::RegisterBenchmark(title.c_str(), [=, &shape](benchmark::State& state) {
          product(state, shape, m, level, format, [&](const MatmulArgs& args) {
            if constexpr (std::is_same_v<Fn, GateUpFn>) {
              function(args, shape.n);
            } else {
              function(args);
            }
          });
        });
      }
    }
  } else if constexpr (std::is_same_v<Fn, AttendFn>) {
    for (const Attention& shape : kAttentions)
      for (std::size_t context : {128, 1024, 8192, 32768}) {
        const std::string title = std::string(name) + "/" + shape.name + "/context:" + std::to_string(context);
        benchmark::RegisterBenchmark(title.c_str(), [=, &shape](benchmark::State& state) {
          attention(state, shape, context, level, format, function);
        });
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
#define KTC_KERNEL(slot, level, format, packing, function) \
  register_row<decltype(KernelSet::slot)>(function, #function, IsaLevel::level, Format::format);
#include "runtime/kernels/cpu/kernels.def"
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  const bool none = benchmark::RunSpecifiedBenchmarks() == 0;
  return none || any_wrong;
}

}  // namespace ktc::kernels

int main(int argc, char** argv) {
  return ktc::kernels::run(argc, argv);
}
