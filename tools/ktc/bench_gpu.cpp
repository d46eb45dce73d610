#include "tools/ktc/bench_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/device/device.h"
#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/weight_layout.h"
#include "runtime/weights/random_weights.h"

namespace ktc::bench {
namespace {

using device::Block;
using device::Device;

constexpr int kReplayed = 32;                          // calls in one graph
constexpr std::uint64_t kRotate = 256ull << 20;        // weights rotate over so many bytes: an H200 caches 50 MB

class Bench {
 public:
  Bench(Device& device, const GpuOptions& options) : device_(device), options_(options) {}

  Status run(GpuResult& result) {
    result.device = device_.info().name;
    KTC_RETURN_IF_ERROR(measure_copy(result.copy_bytes_per_second));
    if (wanted("linear")) KTC_RETURN_IF_ERROR(linear());
    if (wanted("experts")) KTC_RETURN_IF_ERROR(experts());
    if (wanted("attention")) KTC_RETURN_IF_ERROR(attention());
    result.cases = std::move(cases_);
    return {};
  }

 private:
  bool wanted(const char* part) const {
    return options_.parts.empty() || std::find(options_.parts.begin(), options_.parts.end(), part) != options_.parts.end();
  }

  Expected<std::byte*> memory(std::uint64_t bytes, const char* name) {
    KTC_ASSIGN_OR_RETURN(Block block, device_.allocate(bytes, name));
    blocks_.push_back(std::move(block));
    return blocks_.back().data();
  }
  template <typename T>
  Expected<T*> values(const std::vector<T>& from, const char* name) {
    KTC_ASSIGN_OR_RETURN(std::byte * to, memory(from.size() * sizeof(T), name));
    KTC_RETURN_IF_ERROR(device_.compute().copy_to_device(to, reinterpret_cast<const std::byte*>(from.data()), from.size() * sizeof(T)));
    KTC_RETURN_IF_ERROR(device_.compute().wait());
    return reinterpret_cast<T*>(to);
  }
  Expected<float*> noise(std::size_t count, const char* name) {
    std::mt19937 random(7);
    std::vector<float> from(count);
    for (float& f : from) f = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    return values(from, name);
  }
  Expected<gpu::Weight> weight(Format format, std::uint32_t group, std::uint32_t batch, std::uint32_t rows, std::uint32_t columns) {
    gpu::Weight w = gpu::laid_out({nullptr, format, Packing::row_major, group, batch, rows, columns});
    KTC_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, weights::random_matrices(format, w.packing, group, batch, rows, columns, rows + columns));
    KTC_ASSIGN_OR_RETURN(w.data, values(bytes, "weights"));
    return w;
  }

  Expected<double> median_seconds(const std::function<Status()>& work) {
    std::vector<double> seconds;
    for (int i = 0; i <= options_.repeats; ++i) {
      KTC_RETURN_IF_ERROR(device_.compute().wait());
      const auto start = std::chrono::steady_clock::now();
      KTC_RETURN_IF_ERROR(work());
      KTC_RETURN_IF_ERROR(device_.compute().wait());
      if (i > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    return seconds[seconds.size() / 2];
  }

  // One call of many: launch(i) in a graph of kReplayed of them.
  Status add(std::string part, std::string name, double bytes, double operations, const std::function<Status(int)>& launch) {
    device::Stream& stream = device_.compute();
    KTC_RETURN_IF_ERROR(launch(0));  // loads the kernel
    KTC_RETURN_IF_ERROR(stream.begin_capture());
    for (int i = 0; i < kReplayed; ++i) KTC_RETURN_IF_ERROR(launch(i));
    KTC_ASSIGN_OR_RETURN(const std::unique_ptr<device::Graph> graph, stream.end_capture());
    KTC_ASSIGN_OR_RETURN(const double seconds, median_seconds([&] { return stream.launch(*graph); }));
    cases_.push_back({std::move(part), std::move(name), seconds / kReplayed * 1e6, bytes, operations});
    return {};
  }

  Status measure_copy(double& bytes_per_second) {
    constexpr std::uint64_t kBytes = 1ull << 30;
    KTC_ASSIGN_OR_RETURN(std::byte * from, memory(kBytes, "copy source"));
    KTC_ASSIGN_OR_RETURN(std::byte * to, memory(kBytes, "copy target"));
    KTC_ASSIGN_OR_RETURN(const double seconds, median_seconds([&]() -> Status {
      for (int i = 0; i < 8; ++i) KTC_RETURN_IF_ERROR(device_.compute().copy_on_device(to, from, kBytes));
      return {};
    }));
    bytes_per_second = 8 * 2.0 * static_cast<double>(kBytes) / seconds;
    blocks_.clear();
    return {};
  }

  struct Choice {
    Format format;
    std::uint32_t group;
    std::string text() const { return std::string(to_string(format)) + (group != 0 ? "/" + std::to_string(group) : ""); }
  };
  static constexpr Choice kChoices[] = {{Format::bf16, 0}, {Format::int8, 0}, {Format::int4, 64}, {Format::int4, 128}, {Format::fp8, 128}};

  Status linear() {
    struct Shape {
      const char* name;
      std::uint32_t rows, columns;
    };
    for (const Shape shape : {Shape{"qkv 5120x2048", 5120, 2048}, Shape{"o 2048x4096", 2048, 4096}, Shape{"head 151936x2048", 151936, 2048}})
      for (const Choice choice : kChoices) {
        if (shape.rows > 100000 && choice.format == Format::int4) continue;
        std::vector<gpu::Weight> copies;
        for (std::uint64_t bytes = 0; copies.empty() || bytes < kRotate; bytes += copies.back().matrix_bytes) {
          KTC_ASSIGN_OR_RETURN(gpu::Weight w, weight(choice.format, choice.group, 1, shape.rows, shape.columns));
          copies.push_back(w);
        }
        for (const std::uint32_t tokens : {1u, 4u, 8u, 512u}) {
          if (tokens == 512 && shape.rows > 100000) continue;
          KTC_ASSIGN_OR_RETURN(float* x, noise(std::size_t{tokens} * shape.columns, "x"));
          KTC_ASSIGN_OR_RETURN(float* out, noise(std::size_t{tokens} * shape.rows, "out"));
          gpu::LinearArgs args = {};
          args.x = {x, shape.columns, shape.columns};
          args.out = {out, shape.rows, shape.rows};
          args.rows = tokens;
          args.activations = Format::bf16;
          args.scratch.bytes = gpu_linear_workspace(Format::bf16, tokens, shape.columns).total();
          KTC_ASSIGN_OR_RETURN(args.scratch.data, memory(std::max<std::uint64_t>(256, args.scratch.bytes), "scratch"));
          KTC_RETURN_IF_ERROR(add("linear", fmt::format("{} {} {} rows", shape.name, choice.text(), tokens),
                                  static_cast<double>(copies[0].matrix_bytes), tokens > 8 ? 2.0 * tokens * shape.rows * shape.columns : 0,
                                  [&](int i) {
                                    args.w = copies[static_cast<std::size_t>(i) % copies.size()];
                                    return device_.compute().launch(device_.kernels().linear, args);
                                  }));
        }
        blocks_.clear();
      }
    return {};
  }

  Status experts() {
    constexpr std::uint32_t kExperts = 128, kHidden = 2048, kInner = 768, kTopK = 8;  // Qwen3-30B-A3B
    for (const Choice choice : kChoices) {
      KTC_ASSIGN_OR_RETURN(const gpu::Weight gate_up, weight(choice.format, choice.group, kExperts, 2 * kInner, kHidden));
      KTC_ASSIGN_OR_RETURN(const gpu::Weight down, weight(choice.format, choice.group, kExperts, kHidden, kInner));
      for (const std::uint32_t tokens : {1u, 4u, 2048u}) {
        std::mt19937 random(3);
        std::vector<std::int32_t> ids(std::size_t{kReplayed} * tokens * kTopK);
        for (std::size_t row = 0; row < ids.size() / kTopK; ++row)
          for (std::uint32_t k = 0; k < kTopK; ++k)  // distinct within a row
            ids[row * kTopK + k] = static_cast<std::int32_t>((k * (kExperts / kTopK)) + random() % (kExperts / kTopK));
        KTC_ASSIGN_OR_RETURN(std::int32_t * ids_there, values(ids, "ids"));
        KTC_ASSIGN_OR_RETURN(float* x, noise(std::size_t{tokens} * kHidden, "x"));
        KTC_ASSIGN_OR_RETURN(float* weights, noise(std::size_t{tokens} * kTopK, "weights"));
        KTC_ASSIGN_OR_RETURN(float* out, noise(std::size_t{tokens} * kHidden, "out"));
        gpu::ExpertsArgs args = {};
        args.x = {x, kHidden, kHidden};
        args.weights = {weights, kTopK, kTopK};
        args.gate_up = gate_up;
        args.down = down;
        args.out = {out, kHidden, kHidden};
        args.rows = tokens;
        args.top_k = kTopK;
        args.experts = kExperts;
        args.activations = Format::bf16;
        args.scratch.bytes = gpu_experts_workspace(Format::bf16, tokens, kTopK, kHidden, kInner, kExperts).total();
        KTC_ASSIGN_OR_RETURN(args.scratch.data, memory(args.scratch.bytes, "scratch"));
        const double matrix = static_cast<double>(gate_up.matrix_bytes + down.matrix_bytes);
        KTC_RETURN_IF_ERROR(add("experts", fmt::format("Qwen3-30B-A3B {} {} tokens", choice.text(), tokens),
                                matrix * std::min<std::uint32_t>(tokens * kTopK, kExperts),
                                tokens > 16 ? 6.0 * tokens * kTopK * kHidden * kInner : 0, [&](int i) {
                                  args.ids = {ids_there + static_cast<std::size_t>(i) * tokens * kTopK, kTopK, kTopK};
                                  return device_.compute().launch(device_.kernels().experts, args);
                                }));
      }
      blocks_.clear();
    }
    return {};
  }

  // `tokens` sequences of `context` cached tokens each, one query each.
  Expected<gpu::Batch> batch(std::uint32_t tokens, std::uint32_t context, std::uint32_t page) {
    std::vector<std::int32_t> live = {static_cast<int>(tokens), static_cast<int>(tokens), static_cast<int>(tokens)};
    std::vector<std::int32_t> sequence, positions, first, length, page_first, pages;
    const std::uint32_t each = (context + page - 1) / page;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      sequence.push_back(static_cast<int>(t));
      positions.push_back(static_cast<int>(context - 1));
      first.push_back(static_cast<int>(t));
      length.push_back(static_cast<int>(context));
      page_first.push_back(static_cast<int>(t * each));
      for (std::uint32_t p = 0; p < each; ++p) pages.push_back(static_cast<int>(p * tokens + t));  // scattered
    }
    first.push_back(static_cast<int>(tokens));
    first.push_back(static_cast<int>(tokens));
    page_first.push_back(static_cast<int>(tokens * each));
    page_first.push_back(static_cast<int>(tokens * each));
    length.push_back(0);
    gpu::Batch b;
    KTC_ASSIGN_OR_RETURN(b.live, values(live, "live"));
    KTC_ASSIGN_OR_RETURN(b.sequence, values(sequence, "sequence"));
    KTC_ASSIGN_OR_RETURN(b.positions, values(positions, "positions"));
    KTC_ASSIGN_OR_RETURN(b.q_first, values(first, "q_first"));
    KTC_ASSIGN_OR_RETURN(b.kv_length, values(length, "kv_length"));
    KTC_ASSIGN_OR_RETURN(b.page_first, values(page_first, "page_first"));
    KTC_ASSIGN_OR_RETURN(b.pages, values(pages, "pages"));
    b.tokens = b.sequences = tokens;
    return b;
  }

  Status attention() {
    constexpr std::uint32_t kPage = 16, kContext = 32768;
    for (const std::uint32_t tokens : {1u, 8u}) {
      constexpr std::uint32_t kHeads = 32, kKvHeads = 4, kDim = 128;  // Qwen3-30B-A3B
      const std::uint64_t page_bytes = 2ull * kKvHeads * kPage * kDim * 2, cached = page_bytes * (kContext / kPage) * tokens;
      KTC_ASSIGN_OR_RETURN(std::byte * cache, memory(cached, "cache"));
      KTC_ASSIGN_OR_RETURN(const gpu::Batch b, batch(tokens, kContext, kPage));
      KTC_ASSIGN_OR_RETURN(float* query, noise(std::size_t{tokens} * kHeads * kDim, "query"));
      KTC_ASSIGN_OR_RETURN(float* out, noise(std::size_t{tokens} * kHeads * kDim, "out"));
      gpu::GqaAttendArgs args = {};
      args.query = {query, kHeads * kDim, kHeads * kDim};
      args.out = {out, kHeads * kDim, kHeads * kDim};
      args.cache = {Format::bf16, kPage, {cache, page_bytes, kKvHeads, kDim}, {cache + page_bytes / 2, page_bytes, kKvHeads, kDim}};
      args.batch = b;
      args.heads = kHeads;
      args.kv_heads = kKvHeads;
      args.head_dim = kDim;
      args.scale = 0.088f;
      args.scratch.bytes = gpu_gqa_workspace(tokens, kHeads, kKvHeads, kDim).partial;
      KTC_ASSIGN_OR_RETURN(args.scratch.data, memory(std::max<std::uint64_t>(256, args.scratch.bytes), "scratch"));
      KTC_RETURN_IF_ERROR(add("attention", fmt::format("GQA 32/4 x 128, context 32768, batch {}", tokens), static_cast<double>(cached), 0,
                              [&](int) { return device_.compute().launch(device_.kernels().gqa_attend, args); }));
      blocks_.clear();
    }
    for (const std::uint32_t tokens : {1u, 8u}) {
      constexpr std::uint32_t kHeads = 128, kLatent = 512, kRope = 64, kV = 128;  // DeepSeek-V3
      const std::uint64_t page_bytes = std::uint64_t{kPage} * (kLatent + kRope) * 2, cached = page_bytes * (kContext / kPage) * tokens;
      KTC_ASSIGN_OR_RETURN(std::byte * cache, memory(cached, "cache"));
      KTC_ASSIGN_OR_RETURN(const gpu::Batch b, batch(tokens, kContext, kPage));
      KTC_ASSIGN_OR_RETURN(float* query, noise(std::size_t{tokens} * kHeads * (kLatent + kRope), "query"));
      KTC_ASSIGN_OR_RETURN(float* context, noise(std::size_t{tokens} * kHeads * kLatent, "context"));
      KTC_ASSIGN_OR_RETURN(float* out, noise(std::size_t{tokens} * kHeads * kV, "out"));
      gpu::MlaAttendArgs args = {};
      KTC_ASSIGN_OR_RETURN(args.w_uv, weight(Format::bf16, 0, kHeads, kV, kLatent));
      args.query = {query, kHeads * (kLatent + kRope), kHeads * (kLatent + kRope)};
      args.context = {context, kHeads * kLatent, kHeads * kLatent};
      args.out = {out, kHeads * kV, kHeads * kV};
      args.cache = {Format::bf16, kPage, {cache, page_bytes, 1, kLatent}, {cache + std::uint64_t{kPage} * kLatent * 2, page_bytes, 1, kRope}};
      args.batch = b;
      args.heads = kHeads;
      args.rope_dim = kRope;
      args.v_dim = kV;
      args.latent_dim = kLatent;
      args.scale = 0.07f;
      args.activations = Format::bf16;
      args.scratch.bytes = gpu_mla_workspace(tokens, kHeads, kLatent, kRope).partial;
      KTC_ASSIGN_OR_RETURN(args.scratch.data, memory(std::max<std::uint64_t>(256, args.scratch.bytes), "scratch"));
      KTC_RETURN_IF_ERROR(add("attention", fmt::format("MLA 128 heads, context 32768, batch {}", tokens), static_cast<double>(cached),
                              2.0 * tokens * kHeads * kContext * (2 * kLatent + kRope),
                              [&](int) { return device_.compute().launch(device_.kernels().mla_attend, args); }));
      blocks_.clear();
    }
    return {};
  }

  Device& device_;
  const GpuOptions& options_;
  std::vector<Block> blocks_;
  std::vector<GpuCase> cases_;
};

}  // namespace

Expected<GpuResult> measure_gpu(const GpuOptions& options) {
  KTC_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, device::open_cuda(options.device));
  GpuResult result;
  KTC_RETURN_IF_ERROR(Bench(*device, options).run(result));
  return result;
}

std::string to_table(const GpuResult& r) {
  std::string text = fmt::format("{}: a copy within its memory moves {:.0f} GB/s (read and written)\n{:<52}{:>10}{:>9}{:>8}{:>10}\n", r.device,
                                 r.copy_bytes_per_second / 1e9, "", "us", "GB/s", "of copy", "TFLOP/s");
  for (const GpuCase& c : r.cases) {
    const double rate = c.bytes / c.microseconds * 1e6;
    text += fmt::format("{:<52}{:>10.2f}{:>9.0f}{:>8.2f}{:>10}\n", c.part + " " + c.name, c.microseconds, rate / 1e9,
                        rate / r.copy_bytes_per_second, c.operations != 0 ? fmt::format("{:.0f}", c.operations / c.microseconds * 1e-6) : "");
  }
  return text;
}

std::string to_json(const GpuResult& r) {
  nlohmann::json out = {{"device", r.device}, {"copy_bytes_per_second", r.copy_bytes_per_second}, {"cases", nlohmann::json::array()}};
  for (const GpuCase& c : r.cases)
    out["cases"].push_back({{"part", c.part}, {"name", c.name}, {"microseconds", c.microseconds}, {"bytes", c.bytes}, {"operations", c.operations}});
  return out.dump(2) + "\n";
}

}  // namespace ktc::bench
