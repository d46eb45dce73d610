// Attention of a GPU: decode over long caches as a fraction of the bandwidth of a copy, prompts in operations per second.
//
//   attention_bench [--emulate] [--context N] [--prompt N] [--memory GIB] [--repeats N]
//
// --context: of the decode rows. --prompt: tokens of the prompt rows. Rows are of what a build uses, which is FlashInfer's kernels where
// they serve; "own" are our own kernels beside it.
//
// Caches of several layers (as many as --memory allows, at most 32) are attended in turn inside one graph, so that no cache of the
// card holds them. Times are the best of the repeats; the copy's bandwidth counts bytes read and written.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/formats/gpu_workspace.h"
#include "test/bench/flags.h"
#include "test/bench/take.h"

namespace ktc {
namespace {

struct Options {
  bool emulate = false;
  std::uint32_t context = 32768, prompt = 8192, repeats = 20;
  double memory = 8;
};

class Bench {
 public:
  Bench(device::Device& device, const Options& options) : device_(device), options_(options) {
    cache_bytes_ = static_cast<std::uint64_t>(options.memory * (1 << 30)) / 4096 * 4096;
    cache_ = take(device.allocate(cache_bytes_, "caches"));
    fail(device.compute().fill(cache_.data(), 0x3c, cache_bytes_));  // 0.0115 in bf16
    fail(device.compute().wait());
  }

  // Seconds of one pass.
  double best(const std::function<void(device::Stream&)>& capture) {
    device::Stream& stream = device_.compute();
    fail(stream.begin_capture());
    capture(stream);
    const auto graph = take(stream.end_capture());
    double seconds = 1e30;
    for (std::uint32_t i = 0; i < options_.repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      fail(stream.launch(*graph));
      fail(stream.wait());
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
  }

  void copy() {
    const std::uint64_t half = cache_bytes_ / 2;
    const double seconds = best([&](device::Stream& s) { fail(s.copy_on_device(cache_.data() + half, cache_.data(), half)); });
    copy_rate_ = 2 * static_cast<double>(half) / seconds;
    std::printf("copy on the device: %.0f GB/s\n", copy_rate_ / 1e9);
  }

  // The last `fresh` tokens of each of `sequences` contexts.
  void gqa(const char* name, std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t dim, std::uint32_t sequences, std::uint32_t context,
           std::uint32_t fresh, bool own_kernels = false) {
    const std::uint64_t page_bytes = std::uint64_t{2} * kv_heads * kPage * dim * 2, offset = page_bytes / 2;
    Shape shape = make(sequences, context, fresh, page_bytes, heads * dim);
    if (shape.layers == 0) return skip(name, sequences);
    auto scratch = take(device_.allocate(gpu_gqa_workspace(shape.tokens, heads, kv_heads, dim).partial + 256, "scratch"));
    auto out = take(device_.allocate(std::uint64_t{shape.tokens} * heads * dim * 4, "out"));
    const double seconds = best([&](device::Stream& s) {
      for (std::uint32_t l = 0; l < shape.layers; ++l) {
        gpu::GqaAttendArgs a = {};
        a.query = {reinterpret_cast<float*>(shape.query.data()), std::uint64_t{heads} * dim, heads * dim};
        a.out = {reinterpret_cast<float*>(out.data()), std::uint64_t{heads} * dim, heads * dim};
        a.cache.page_tokens = kPage;
        a.cache.a = {cache_.data() + l * shape.layer_bytes, page_bytes, kv_heads, dim};
        a.cache.b = {cache_.data() + l * shape.layer_bytes + offset, page_bytes, kv_heads, dim};
        a.batch = shape.batch;
        a.heads = heads;
        a.kv_heads = kv_heads;
        a.head_dim = dim;
        a.scale = 0.1f;
        a.scratch = {scratch.data(), scratch.bytes()};
        a.own_kernels = own_kernels;
        fail(s.launch(device_.kernels().gqa_attend, a));
      }
    }) / shape.layers;
    report(name, shape, seconds, static_cast<double>(sequences) * context * kv_heads * dim * 4, 4.0 * heads * dim);
  }

  void mla(const char* name, std::uint32_t heads, std::uint32_t sequences, std::uint32_t length, std::uint32_t fresh, bool own_kernels = false) {
    constexpr std::uint32_t kLatent = 512, kRope = 64;
    const std::uint64_t page_bytes = std::uint64_t{kPage} * (kLatent + kRope) * 2, offset = std::uint64_t{kPage} * kLatent * 2;
    Shape shape = make(sequences, length, fresh, page_bytes, heads * (kLatent + kRope));
    if (shape.layers == 0) return skip(name, sequences);
    auto scratch = take(device_.allocate(gpu_mla_workspace(shape.tokens, heads, kLatent, kRope).partial + 256, "scratch"));
    auto context = take(device_.allocate(std::uint64_t{shape.tokens} * heads * kLatent * 4, "context"));
    auto out = take(device_.allocate(std::uint64_t{shape.tokens} * heads * 128 * 4, "out"));
    auto w_uv = take(device_.allocate(std::uint64_t{heads} * 128 * kLatent * 2, "w_uv"));
    const double seconds = best([&](device::Stream& s) {
      for (std::uint32_t l = 0; l < shape.layers; ++l) {
        gpu::MlaAttendArgs a = {};
        a.query = {reinterpret_cast<float*>(shape.query.data()), std::uint64_t{heads} * (kLatent + kRope), heads * (kLatent + kRope)};
        a.context = {reinterpret_cast<float*>(context.data()), std::uint64_t{heads} * kLatent, heads * kLatent};
        a.out = {reinterpret_cast<float*>(out.data()), std::uint64_t{heads} * 128, heads * 128};
        a.cache.page_tokens = kPage;
        a.cache.a = {cache_.data() + l * shape.layer_bytes, page_bytes, 1, kLatent};
        a.cache.b = {cache_.data() + l * shape.layer_bytes + offset, page_bytes, 1, kRope};
        a.batch = shape.batch;
        a.w_uv = {w_uv.data(), Format::bf16, Packing::row_major, 0, heads, 128, kLatent, kLatent * 2, std::uint64_t{128} * kLatent * 2};
        a.heads = heads;
        a.rope_dim = kRope;
        a.v_dim = 128;
        a.latent_dim = kLatent;
        a.scale = 0.1f;
        a.activations = Format::bf16;
        a.scratch = {scratch.data(), scratch.bytes()};
        a.own_kernels = own_kernels;
        fail(s.launch(device_.kernels().mla_attend, a));
      }
    }) / shape.layers;
    report(name, shape, seconds, static_cast<double>(sequences) * length * (kLatent + kRope) * 2, 2.0 * heads * (2 * kLatent + kRope));
  }

 private:
  static constexpr std::uint32_t kPage = 16;
  struct Shape {
    std::uint32_t layers = 0, tokens = 0, sequences = 0;
    std::uint64_t layer_bytes = 0;
    double pairs = 0;  // of a token and a key that it sees
    gpu::Batch batch;
    device::Block query, index;
  };
  Shape make(std::uint32_t sequences, std::uint32_t context, std::uint32_t fresh, std::uint64_t page_bytes, std::uint32_t query_columns) {
    Shape s;
    const std::uint32_t pages_each = (context + kPage - 1) / kPage;
    s.layer_bytes = page_bytes * pages_each * sequences;
    s.layers = static_cast<std::uint32_t>(std::min<std::uint64_t>(32, cache_bytes_ / s.layer_bytes));
    if (fresh > 1) s.layers = std::min(s.layers, 2u);
    if (options_.emulate) s.layers = std::min(s.layers, 1u);
    s.sequences = sequences;
    s.tokens = sequences * fresh;
    if (s.layers == 0) return s;
    std::vector<std::int32_t> all = {static_cast<std::int32_t>(s.tokens), 0, static_cast<std::int32_t>(sequences)};
    const auto area = [&](const std::vector<std::int32_t>& values) {
      const std::size_t at = all.size();
      all.insert(all.end(), values.begin(), values.end());
      return at;
    };
    std::vector<std::int32_t> sequence, positions, q_first, kv_length, page_first, pages;
    for (std::uint32_t q = 0; q < sequences; ++q) {
      q_first.push_back(static_cast<std::int32_t>(q * fresh));
      page_first.push_back(static_cast<std::int32_t>(q * pages_each));
      kv_length.push_back(static_cast<std::int32_t>(context));
      for (std::uint32_t i = 0; i < fresh; ++i) {
        sequence.push_back(static_cast<std::int32_t>(q));
        positions.push_back(static_cast<std::int32_t>(context - fresh + i));
        s.pairs += context - fresh + i + 1;
      }
      for (std::uint32_t p = 0; p < pages_each; ++p)  // no two neighbours beside each other
        pages.push_back(static_cast<std::int32_t>((std::uint64_t{p} * 7919 % pages_each) * sequences + q));
    }
    q_first.push_back(static_cast<std::int32_t>(s.tokens));
    page_first.push_back(static_cast<std::int32_t>(pages_each * sequences));
    const std::size_t at[] = {area(sequence), area(positions), area(q_first), area(kv_length), area(page_first), area(pages)};
    s.index = take(device_.allocate(all.size() * 4, "index"));
    fail(device_.compute().copy_to_device(s.index.data(), reinterpret_cast<const std::byte*>(all.data()), all.size() * 4));
    fail(device_.compute().wait());
    const auto* base = reinterpret_cast<const std::int32_t*>(s.index.data());
    s.batch = {base, base + at[0], base + at[1], base + at[2], base + at[3], base + at[4], base + at[5], s.tokens, sequences};
    s.query = take(device_.allocate(std::uint64_t{s.tokens} * query_columns * 4, "query"));
    return s;
  }
  void skip(const char* name, std::uint32_t sequences) { std::printf("%-28s batch %2u: caches need more than --memory\n", name, sequences); }
  void report(const char* name, const Shape& s, double seconds, double bytes, double operations_per_pair) {
    std::printf("%-28s batch %2u x %4u tokens, %2u layers: %9.1f us, %6.0f GB/s (%.2f of a copy), %6.1f TFLOP/s\n", name, s.sequences,
                s.tokens / s.sequences, s.layers, seconds * 1e6, bytes / seconds / 1e9, bytes / seconds / copy_rate_,
                s.pairs * operations_per_pair / seconds / 1e12);
    std::fflush(stdout);
  }

  device::Device& device_;
  const Options& options_;
  std::uint64_t cache_bytes_ = 0;
  device::Block cache_;
  double copy_rate_ = 1;
};

int run(const Options& options) {
  auto device = options.emulate ? take(device::open_emulated(std::uint64_t{4} << 30)) : take(device::open_cuda(0));
  std::printf("%s, context %u, pages of 16, bf16 caches\n", device->info().name.c_str(), options.context);
  Bench bench(*device, options);
  bench.copy();
  for (const std::uint32_t batch : {1u, 4u, 16u}) {
    bench.gqa("GQA 32/4 heads of 128", 32, 4, 128, batch, options.context, 1);
    bench.gqa("GQA 16/2 heads of 256", 16, 2, 256, batch, options.context, 1);
    bench.gqa("GQA 64/8 heads of 64", 64, 8, 64, batch, options.context, 1);
  }
  const std::uint32_t heads = options.emulate ? 4 : 128;
  for (const std::uint32_t batch : {1u, 8u, 16u}) {
    bench.mla("MLA 128 heads", heads, batch, options.context, 1);
    if (batch > 1) bench.mla("MLA 128 heads, own", heads, batch, options.context, 1, true);
  }
  const std::uint32_t prompt = options.prompt, chunk = std::max(1u, prompt / 4);
  std::printf("prompts: all of %u tokens, or the last %u of them\n", prompt, chunk);
  for (const bool own : {false, true}) {
    const std::string suffix = own ? ", own" : "";
    const auto gqa = [&](const char* name, std::uint32_t q, std::uint32_t kv, std::uint32_t dim, std::uint32_t fresh) {
      bench.gqa((name + suffix).c_str(), q, kv, dim, 1, prompt, fresh, own);
    };
    for (const std::uint32_t fresh : {prompt, chunk}) {
      gqa("GQA 32/4 heads of 128", 32, 4, 128, fresh);
      gqa("GQA 64/8 heads of 64", 64, 8, 64, fresh);
      if (own) gqa("GQA 16/2 heads of 256", 16, 2, 256, fresh);
    }
    for (const std::uint32_t fresh : {prompt, chunk, std::max(1u, chunk / 4)})
      bench.mla(("MLA 128 heads" + suffix).c_str(), heads, 1, prompt, fresh, own);
  }
  return 0;
}

}  // namespace
}  // namespace ktc

int main(int argc, char** argv) {
  ktc::Options options;
  const auto word = [&](std::string_view flag) { return flag == "--emulate" && (options.emulate = true); };
  const auto number = [&](std::string_view flag, double value) {
    if (flag == "--context" && value >= 1) options.context = static_cast<std::uint32_t>(value);
    else if (flag == "--prompt" && value >= 1) options.prompt = static_cast<std::uint32_t>(value);
    else if (flag == "--repeats" && value >= 1) options.repeats = static_cast<std::uint32_t>(value);
    else if (flag == "--memory" && value > 0) options.memory = value;
    else return false;
    return true;
  };
  return ktc::read_flags(argc, argv, word, number) ? ktc::run(options) : 2;
}
