// Products of prompts on a GPU, in operations per second: linear layers by our kernels and by cuBLASLt, routed experts, routers, and
// the products of MLA's heads, at the shapes of Qwen3-30B-A3B and DeepSeek-V3.
//
//   products_bench [--emulate] [--repeats N]
//
// Each case is called several times inside one graph; times are medians of the repeats, so that the card is as warm as in a prompt.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/large_product.h"
#include "runtime/kernels/cuda/weight_layout.h"
#include "runtime/weights/random_weights.h"
#include "test/bench/flags.h"
#include "test/bench/take.h"

namespace ktc {
namespace {

constexpr std::uint32_t kTopK = 8;

class Bench {
 public:
  Bench(device::Device& device, std::uint32_t repeats) : device_(device), repeats_(repeats), small_(device.info().emulated) {}

  void linear(std::uint32_t n, std::uint32_t k, Format format, std::uint32_t group, std::uint32_t rows) {
    if (small_) n = 64, k = 128, rows = 16;
    const gpu::Weight w = weight(format, group, 1, n, k);
    gpu::LinearArgs a = {noise(rows, k), w, nullptr, noise(rows, n), rows, Format::bf16, {}};
    a.scratch = scratch(gpu_linear_workspace(Format::bf16, rows, k).total());
    const std::string name = "linear " + shape(n, k) + " " + text(format, group) + ", " + std::to_string(rows) + " rows";
    time(name, 2.0 * rows * n * k, [&] { fail(device_.compute().launch(device_.kernels().linear, a)); });
    if (format == Format::bf16 && !small_) {
      const auto before = take(device_.free_bytes());
      const auto start = std::chrono::steady_clock::now();
      const auto product = gpu::open_large_product(0, {n, k, (k + 63ull) / 64 * 64, w.row_bytes / 2, n, false, kMostRows});
      if (!product.ok()) {
        std::printf("%s\n", product.status().message().c_str());
      } else {
        a.large = product->get();
        fail(device_.compute().launch(device_.kernels().linear, a));
        fail(device_.compute().wait());
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const auto after = take(device_.free_bytes());
        time(name + ", library", 2.0 * rows * n * k, [&] { fail(device_.compute().launch(device_.kernels().linear, a)); });
        if (seconds > 0.01 || before != after)
          std::printf("  the library took %.0f ms and %.0f MiB\n", seconds * 1e3, (static_cast<double>(before) - static_cast<double>(after)) / 1048576);
      }
    }
    blocks_.clear();
  }

  void router(std::uint32_t experts, std::uint32_t hidden, std::uint32_t rows) {
    if (small_) experts = 16, hidden = 64, rows = 20;
    gpu::RouteArgs a = {};
    a.x = noise(rows, hidden);
    a.w = weight(Format::bf16, 0, 1, experts, hidden);
    a.ids = {reinterpret_cast<std::int32_t*>(memory(std::uint64_t{rows} * kTopK * 4)), kTopK, kTopK};
    a.weights = noise(rows, kTopK);
    a.rows = rows;
    a.experts = experts;
    a.top_k = kTopK;
    a.normalise = true;
    a.scale = 1;
    a.scratch = scratch(gpu_route_workspace(rows, experts).total());
    time("router " + shape(experts, hidden) + ", " + std::to_string(rows) + " rows", 2.0 * rows * hidden * experts,
         [&] { fail(device_.compute().launch(device_.kernels().route, a)); });
    blocks_.clear();
  }

  void experts(Format format, std::uint32_t group, std::uint32_t count, std::uint32_t hidden, std::uint32_t intermediate, std::uint32_t rows) {
    if (small_) count = 16, hidden = 128, intermediate = 64, rows = 40;
    std::vector<std::int32_t> ids;
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint32_t j = 0; j < kTopK; ++j)  // distinct within a row
        ids.push_back(static_cast<std::int32_t>(j * (count / kTopK) + random_() % (count / kTopK)));
    gpu::ExpertsArgs a = {};
    a.x = noise(rows, hidden);
    a.ids = {reinterpret_cast<std::int32_t*>(put(ids.data(), ids.size() * 4)), kTopK, kTopK};
    a.weights = noise(rows, kTopK);
    a.gate_up = weight(format, group, count, 2 * intermediate, hidden);
    a.down = weight(format, group, count, hidden, intermediate);
    a.out = noise(rows, hidden);
    a.rows = rows;
    a.top_k = kTopK;
    a.experts = count;
    a.activations = Format::bf16;
    a.scratch = scratch(gpu_experts_workspace(Format::bf16, rows, kTopK, hidden, intermediate, count).total());
    time("experts " + std::to_string(count) + " of " + shape(hidden, intermediate) + " " + text(format, group) + ", " + std::to_string(rows) + " rows",
         6.0 * rows * kTopK * hidden * intermediate, [&] { fail(device_.compute().launch(device_.kernels().experts, a)); });
    blocks_.clear();
  }

  // W_UK: what comes before attention.
  void heads(std::uint32_t rows, Format activations) {
    std::uint32_t heads = 128, nope = 128, latent = 512, rope = 64;
    if (small_) heads = 2, nope = latent = 32, rope = 16, rows = 5;
    constexpr std::uint32_t kPage = 16;
    const std::uint64_t page_bytes = std::uint64_t{kPage} * (latent + rope) * 2;
    std::byte* cache = memory(page_bytes * rows);
    const std::vector<std::int32_t> zeros(rows + 2);
    const auto* zero = reinterpret_cast<const std::int32_t*>(put(zeros.data(), zeros.size() * 4));
    gpu::MlaAppendArgs a = {};
    a.w_uk = weight(Format::bf16, 0, heads, latent, nope);
    a.q = noise(rows, heads * (nope + rope));
    a.latent = noise(rows, latent);
    a.k_rope = noise(rows, rope);
    a.rope = {a.k_rope.data, a.k_rope.data, rope, true};
    a.cache = {Format::bf16, kPage, {cache, page_bytes, 1, latent}, {cache + std::uint64_t{kPage} * latent * 2, page_bytes, 1, rope}};
    a.batch.live = a.batch.sequence = a.batch.positions = a.batch.q_first = a.batch.kv_length = a.batch.page_first = a.batch.pages = zero;
    a.batch.tokens = rows;
    a.batch.sequences = 1;
    a.heads = heads;
    a.nope_dim = nope;
    a.rope_dim = rope;
    a.latent_dim = latent;
    a.activations = activations;
    a.query = noise(rows, heads * (latent + rope));
    time("MLA append, " + std::to_string(heads) + " heads, x " + text(activations, 0) + ", " + std::to_string(rows) + " rows", 2.0 * rows * heads * nope * latent,
         [&] { fail(device_.compute().launch(device_.kernels().mla_append, a)); });
    blocks_.clear();
  }

 private:
  static constexpr std::uint32_t kMostRows = 8192;

  static std::string shape(std::uint32_t a, std::uint32_t b) { return std::to_string(a) + " x " + std::to_string(b); }
  static std::string text(Format format, std::uint32_t group) {
    return std::string(to_string(format)) + (group != 0 ? "/" + std::to_string(group) : "");
  }

  std::byte* memory(std::uint64_t bytes) {
    blocks_.push_back(take(device_.allocate(std::max<std::uint64_t>(bytes, 256), "bench")));
    return blocks_.back().data();
  }
  std::byte* put(const void* data, std::uint64_t bytes) {
    std::byte* to = memory(bytes);
    fail(device_.compute().copy_to_device(to, static_cast<const std::byte*>(data), bytes));
    fail(device_.compute().wait());
    return to;
  }
  gpu::Scratch scratch(std::uint64_t bytes) { return {memory(bytes), bytes}; }
  gpu::Matrix noise(std::uint32_t rows, std::uint32_t columns) {
    std::vector<float> values(std::size_t{rows} * columns);
    for (float& v : values) v = static_cast<float>(random_() % 2001) / 1000.0f - 1.0f;
    return {reinterpret_cast<float*>(put(values.data(), values.size() * 4)), columns, columns};
  }
  gpu::Weight weight(Format format, std::uint32_t group, std::uint32_t batch, std::uint32_t rows, std::uint32_t columns) {
    gpu::Weight w = gpu::laid_out({nullptr, format, Packing::row_major, group, batch, rows, columns});
    const std::vector<std::byte> bytes = take(weights::random_matrices(format, w.packing, group, batch, rows, columns, random_()));
    w.data = put(bytes.data(), bytes.size());
    return w;
  }

  void time(const std::string& name, double operations, const std::function<void()>& call) {
    device::Stream& stream = device_.compute();
    call();
    fail(stream.wait());
    const int calls = small_ ? 1 : static_cast<int>(std::clamp(5e12 / operations, 4.0, 64.0));
    fail(stream.begin_capture());
    for (int i = 0; i < calls; ++i) call();
    const auto graph = take(stream.end_capture());
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < repeats_; ++i) {
      const auto start = std::chrono::steady_clock::now();
      fail(stream.launch(*graph));
      fail(stream.wait());
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls);
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    std::printf("%-58s %9.1f us %7.1f TFLOP/s\n", name.c_str(), median * 1e6, operations / median * 1e-12);
    std::fflush(stdout);
  }

  device::Device& device_;
  std::uint32_t repeats_;
  bool small_;  // emulated: to see that it works
  std::vector<device::Block> blocks_;
  std::mt19937_64 random_{7};
};

int run(bool emulate, std::uint32_t repeats) {
  auto device = emulate ? take(device::open_emulated(std::uint64_t{1} << 30)) : take(device::open_cuda(0));
  Bench bench(*device, repeats);
  for (const std::uint32_t rows : {256u, 512u, 2048u, 8192u}) bench.linear(5120, 2048, Format::bf16, 0, rows);
  bench.linear(2048, 4096, Format::bf16, 0, 512);
  bench.linear(2048, 4096, Format::bf16, 0, 8192);
  bench.linear(18432, 7168, Format::bf16, 0, 2048);
  for (const std::uint32_t rows : {2048u, 8192u}) {
    bench.linear(5120, 2048, Format::int8, 0, rows);
    bench.linear(5120, 2048, Format::int4, 64, rows);
    bench.linear(5120, 2048, Format::fp8, 128, rows);
  }
  for (const std::uint32_t rows : {17u, 512u, 8192u}) {
    bench.router(128, 2048, rows);
    bench.router(256, 7168, rows);
  }
  for (const Format activations : {Format::bf16, Format::f32})
    for (const std::uint32_t rows : {16u, 31u, 32u, 256u, 2048u}) bench.heads(rows, activations);
  bench.experts(Format::int4, 64, 128, 2048, 768, 8192);
  bench.experts(Format::bf16, 0, 128, 2048, 768, 512);
  bench.experts(Format::bf16, 0, 128, 2048, 768, 8192);
  bench.experts(Format::int4, 64, 16, 7168, 2048, 512);
  return 0;
}

}  // namespace
}  // namespace ktc

int main(int argc, char** argv) {
  bool emulate = false;
  std::uint32_t repeats = 7;
  const auto word = [&](std::string_view flag) { return flag == "--emulate" && (emulate = true); };
  const auto number = [&](std::string_view flag, double value) {
    if (flag != "--repeats" || value < 1) return false;
    repeats = static_cast<std::uint32_t>(value);
    return true;
  };
  return ktc::read_flags(argc, argv, word, number) ? ktc::run(emulate, repeats) : 2;
}
