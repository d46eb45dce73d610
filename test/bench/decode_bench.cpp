// What a GPU does between two expert layers of a decode step: each kernel by itself, each kernel's share of the chain, and the chain
// with the CPU's answer in it. Attention, projections and router of Qwen3-30B-A3B, one token.
//
//   decode_bench [--emulate] [--layers N] [--context N] [--rounds N] [--answer MICROSECONDS] [--copies N] [--experts | --card]
//
// A layer's weights and cache are one of --copies in turn, so that those of the layer before do not lie in the card's cache. "alone":
// a graph of that kernel only, once per layer. "share": the chain less the chain without it. With --answer a host thread answers
// each record after so long, as experts would, and the figure is the time of a layer less the answer. First kernel by kernel, then as
// the executor joins them, the last line with what the wait fetches. --experts: also the routed experts
// of a card that has all of them, 8 of 128 for one token, and the layers of such a card; --card: nothing else. Medians over the rounds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"
#include "runtime/kernels/cuda/weight_layout.h"
#include "test/bench/flags.h"
#include "test/bench/take.h"

namespace ktc {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  bool emulate = false, experts = false, between = true;
  std::uint32_t layers = 48, context = 4096, rounds = 15, copies = 6, answer = 160;
};

constexpr std::uint32_t kHidden = 2048, kHeads = 32, kKvHeads = 4, kDim = 128, kExperts = 128, kTopK = 8, kPage = 16,
                        kIntermediate = 768;
constexpr std::uint32_t kChoices = 16;  // of experts
constexpr std::uint32_t kQ = kHeads * kDim, kKv = kKvHeads * kDim, kQkv = kQ + 2 * kKv;

class Bench {
 public:
  Bench(device::Device& device, const Options& options) : device_(device), options_(options), k_(device.kernels()) {
    const std::uint32_t pages = (options.context + kPage - 1) / kPage;
    page_bytes_ = std::uint64_t{2} * kKv * kPage * 2;
    for (std::uint32_t c = 0; c < options.copies; ++c) {
      qkv_.push_back(filled(std::uint64_t{kQkv} * kHidden * 2));
      o_.push_back(filled(std::uint64_t{kHidden} * kQ * 2));
      router_.push_back(filled(std::uint64_t{kExperts} * kHidden * 2));
      cache_.push_back(filled(page_bytes_ * pages));
    }
    norm_ = filled(kHidden * 4);
    table_ = filled(kDim * 4);
    values_ = filled(1 << 20);
    std::byte* at = values_.data();
    const auto area = [&](std::uint64_t columns) {
      const gpu::Matrix m = {reinterpret_cast<float*>(at), columns, static_cast<std::uint32_t>(columns)};
      at += (columns * 4 + 255) / 256 * 256;
      return m;
    };
    residual_ = area(kHidden), x_ = area(kHidden), result_ = area(kHidden), mixed_ = area(kHidden), projected_ = area(kQkv), query_ = area(kQ);
    attended_ = area(kQ), weights_ = area(kTopK);
    ids_ = {reinterpret_cast<std::int32_t*>(area(kTopK).data), kTopK, kTopK};
    pairs_ = reinterpret_cast<std::uint32_t*>(area(1).data);
    nothing_ = reinterpret_cast<std::uint32_t*>(area(1).data);
    fail(device.compute().fill(reinterpret_cast<std::byte*>(nothing_), 0, 4));
    scratch_ = take(device.allocate(gpu_gqa_workspace(1, kHeads, kKvHeads, kDim).partial + 4 * kExperts + 4096, "scratch"));

    // live 1 1 1 | epoch | sequence 0 | position | q_first 0 1 | kv_length | page_first 0 n | pages
    const auto last = static_cast<std::int32_t>(options.context - 1);
    std::vector<std::int32_t> block = {1, 1, 1, 0, 0, last, 0, 1, last + 1, 0, static_cast<std::int32_t>(pages)};
    for (std::uint32_t p = 0; p < pages; ++p) block.push_back(static_cast<std::int32_t>(std::uint64_t{p} * 7919 % pages));
    block_ = take(device.allocate(block.size() * 4, "step block"));
    fail(device.compute().copy_to_device(block_.data(), reinterpret_cast<const std::byte*>(block.data()), block.size() * 4));
    fail(device.compute().wait());
    const auto* b = reinterpret_cast<const std::int32_t*>(block_.data());
    batch_ = {b, b + 4, b + 5, b + 6, b + 8, b + 9, b + 11, 1, 1};
    record_ = record_layout(1, kTopK, kHidden, Format::bf16);
    result_bytes_ = result_bytes(1, kHidden, Format::bf16);
    records_ = take(device.allocate_mapped(options.layers * record_.bytes, "records"));
    results_ = take(device.allocate_mapped(options.layers * result_bytes_, "results"));
    words_ = take(device.allocate_mapped(4096, "words"));
    epoch_block_ = take(device.allocate_mapped(64, "epoch"));
  }

  struct Kernel {
    const char* name;
    bool handoff;                                // nothing but that
    std::function<void(device::Stream&, std::uint32_t)> add;
  };
  // What is captured next: with hand-offs, and whether waits fetch.
  bool handoff = false, fetch = false;

  // A layer, its await first.
  std::vector<Kernel> joined() {
    auto list = kernels();
    std::vector<Kernel> out;
    out.push_back({"await, add and norm", false, [this](auto& s, auto l) {
      fail(s.launch(k_.await_norm, gpu::AwaitNormArgs{await(l), sum_and_norm(result_), 1}));
    }});
    out.push_back(list[2]);
    out.push_back({"append and attention", false, [this](auto& s, auto l) {
      fail(s.launch(k_.gqa_decode, gpu::GqaDecodeArgs{append(l), attend(l)}));
    }});
    out.push_back(list[5]);
    out.push_back({"add, norm, router, publish", false, [this](auto& s, auto l) {
      fail(s.launch(k_.route_publish, gpu::RoutePublishArgs{sum_and_norm(mixed_), route(l), publish(l)}));
    }});
    return out;
  }
  std::vector<Kernel> kernels() {
    return {
        {"await", true, [this](auto& s, auto l) { fail(s.launch(k_.await, await(l))); }},
        {"add and norm (experts)", false, [this](auto& s, auto) { fail(s.launch(k_.add_norm, sum_and_norm(result_))); }},
        {"product q, k, v", false, [this](auto& s, auto l) { product(s, x_, qkv_[copy(l)], kQkv, kHidden, projected_); }},
        {"append", false, [this](auto& s, auto l) { fail(s.launch(k_.gqa_append, append(l))); }},
        {"attention", false, [this](auto& s, auto l) { fail(s.launch(k_.gqa_attend, attend(l))); }},
        {"product o", false, [this](auto& s, auto l) { product(s, attended_, o_[copy(l)], kHidden, kQ, mixed_); }},
        {"add and norm (attention)", false, [this](auto& s, auto) { fail(s.launch(k_.add_norm, sum_and_norm(mixed_))); }},
        {"router", false, [this](auto& s, auto l) { fail(s.launch(k_.route, route(l))); }},
        {"publish", true, [this](auto& s, auto l) { fail(s.launch(k_.publish, publish(l))); }},
    };
  }

  // Routed experts on the card.
  struct Bank {
    gpu::ExpertsArgs args = {};
    double bytes = 0;                            // of the experts of one token
    device::Block up, down, scratch;
  };
  Bank bank(Format format, std::uint32_t group) {
    Bank bank;
    gpu::ExpertsArgs& a = bank.args;
    const auto packed = [&](std::uint32_t rows, std::uint32_t columns) {
      return gpu::laid_out({nullptr, format, Packing::row_major, group, kExperts, rows, columns});
    };
    a.gate_up = packed(2 * kIntermediate, kHidden);
    a.down = packed(kHidden, kIntermediate);
    bank.up = filled(a.gate_up.matrix_bytes * kExperts), bank.down = filled(a.down.matrix_bytes * kExperts);
    a.gate_up.data = bank.up.data(), a.down.data = bank.down.data();
    bank.bytes = kTopK * static_cast<double>(a.gate_up.matrix_bytes + a.down.matrix_bytes);
    if (choices_.bytes() == 0) {
      std::vector<std::int32_t> ids(kChoices * kTopK);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 37 % kExperts);
      choices_ = take(device_.allocate(ids.size() * 4, "ids"));
      fail(device_.compute().copy_to_device(choices_.data(), reinterpret_cast<const std::byte*>(ids.data()), ids.size() * 4));
      fail(device_.compute().wait());
    }
    bank.scratch = take(device_.allocate(gpu_experts_workspace(Format::bf16, 1, kTopK, kHidden, kIntermediate, kExperts).total(), "scratch"));
    a.x = x_, a.weights = weights_, a.out = result_;
    a.rows = 1, a.top_k = kTopK, a.experts = kExperts;
    a.activations = Format::bf16;
    a.scratch = {bank.scratch.data(), bank.scratch.bytes()};
    return bank;
  }
  // Of a layer, others than of the one before.
  gpu::ExpertsArgs experts_of(const Bank& bank, std::uint32_t layer) const {
    gpu::ExpertsArgs a = bank.args;
    a.ids = {reinterpret_cast<std::int32_t*>(choices_.data()) + layer % kChoices * kTopK, kTopK, kTopK};
    return a;
  }
  // A layer whose experts are on the card; joined: as the executor joins its steps.
  std::vector<Kernel> on_card(const Bank& bank, bool joined) {
    auto list = kernels();
    std::vector<Kernel> out = {list[1], list[2], {"append and attention", false, [this](auto& s, auto l) {
      fail(s.launch(k_.gqa_decode, gpu::GqaDecodeArgs{append(l), attend(l)}));
    }}, list[5]};
    if (joined)
      out.push_back({"add, norm, router", false, [this](auto& s, auto l) { fail(s.launch(k_.norm_route, gpu::NormRouteArgs{sum_and_norm(mixed_), route(l)})); }});
    else
      out.insert(out.end(), {list[6], list[7]});
    out.push_back({"experts", false, [this, &bank](auto& s, auto l) { fail(s.launch(k_.experts, experts_of(bank, l))); }});
    return out;
  }
  double experts(const Bank& bank) {
    return graph_of([&](device::Stream& s) {
      for (std::uint32_t l = 0; l < options_.layers; ++l) fail(s.launch(k_.experts, experts_of(bank, l)));
    });
  }

  // Microseconds per layer of a graph of all kernels that `wanted` takes. answer: see above; negative: no hand-off in it.
  double measure(const std::vector<Kernel>& list, const std::function<bool(std::size_t)>& wanted, double answer = -1) {
    handoff = answer >= 0;
    return graph_of([&](device::Stream& stream) {
      for (std::uint32_t l = 0; l < options_.layers; ++l) {
        // a layer ends with the await of its record
        for (std::size_t i = 1; i <= list.size(); ++i)
          if (const std::size_t at = i % list.size(); wanted(at) && (handoff || !list[at].handoff)) list[at].add(stream, l);
      }
    }, answer);
  }

 private:
  double graph_of(const std::function<void(device::Stream&)>& capture, double answer = -1) {
    device::Stream& stream = device_.compute();
    std::memset(words_.host(), 0, 64);
    fail(stream.begin_capture());
    capture(stream);
    const auto graph = take(stream.end_capture());
    quit_ = false;
    started_ = 0;
    std::thread host;
    if (answer >= 0) host = std::thread([&] { serve(answer); });
    std::vector<double> times;
    for (std::uint32_t round = 0; round < options_.rounds + 3; ++round) {
      if (++number_ == 0) ++number_;
      std::memcpy(epoch_block_.host(), &number_, 4);
      fail(stream.copy_to_device(block_.data() + 12, epoch_block_.host(), 4));
      fail(stream.wait());
      started_.store(number_, std::memory_order_release);
      const auto start = Clock::now();
      fail(stream.launch(*graph));
      fail(stream.wait());
      const double us = std::chrono::duration<double>(Clock::now() - start).count() * 1e6 / options_.layers;
      if (round >= 3) times.push_back(us - std::max(0.0, answer));
    }
    quit_ = true;
    if (host.joinable()) host.join();
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  device::Block filled(std::uint64_t bytes) {
    device::Block block = take(device_.allocate(bytes, "values"));
    fail(device_.compute().fill(block.data(), 0x3c, bytes));  // 0.0115 in bf16 and in f32
    fail(device_.compute().wait());
    return block;
  }
  std::uint32_t copy(std::uint32_t layer) const { return layer % options_.copies; }
  const std::uint32_t* epoch() const { return reinterpret_cast<const std::uint32_t*>(block_.data()) + 3; }
  static gpu::Weight weight(const device::Block& block, std::uint32_t rows, std::uint32_t columns) {
    return gpu::laid_out({block.data(), Format::bf16, Packing::row_major, 0, 1, rows, columns});
  }
  gpu::Cache cache(std::uint32_t layer) const {
    gpu::Cache c;
    c.page_tokens = kPage;
    c.a = {cache_[copy(layer)].data(), page_bytes_, kKvHeads, kDim};
    c.b = {c.a.base + page_bytes_ / 2, page_bytes_, kKvHeads, kDim};
    return c;
  }
  gpu::AddNormArgs sum_and_norm(const gpu::Matrix& other) const {
    gpu::AddNormArgs a = {};
    a.in[0] = residual_, a.in[1] = other;
    a.count = 2;
    a.sum = residual_;
    a.w = reinterpret_cast<const float*>(norm_.data());
    a.eps = 1e-6f;
    a.out = x_;
    a.rows = 1;
    return a;
  }
  gpu::AwaitArgs await(std::uint32_t l) {
    gpu::AwaitArgs a = {results_.device() + l * result_bytes_, Format::bf16, result_, reinterpret_cast<gpu::HandoffWords*>(words_.device()), l,
                        batch_.live, epoch(), handoff ? pairs_ : nothing_, !handoff, 1};
    if (fetch) {  // of the layer behind it
      a.fetch[0] = {qkv_[copy(l + 1)].data(), std::uint64_t{kQkv} * kHidden * 2};
      a.fetch[1] = {o_[copy(l + 1)].data(), std::uint64_t{kHidden} * kQ * 2};
      a.fetch[2] = {router_[copy(l + 1)].data(), std::uint64_t{kExperts} * kHidden * 2};
    }
    return a;
  }
  gpu::PublishArgs publish(std::uint32_t l) {
    return {x_, ids_, weights_, nullptr, kTopK, records_.device() + l * record_.bytes, Format::bf16, batch_.live, epoch(), pairs_, 1};
  }
  gpu::RouteArgs route(std::uint32_t l) const {
    gpu::RouteArgs a = {};
    a.x = x_;
    a.w = weight(router_[copy(l)], kExperts, kHidden);
    a.ids = ids_;
    a.weights = weights_;
    a.rows = 1, a.experts = kExperts, a.top_k = kTopK, a.groups = a.topk_groups = 1;
    a.normalise = true, a.scale = 1;
    a.scratch = {scratch_.data(), scratch_.bytes()};
    return a;
  }
  gpu::GqaAppendArgs append(std::uint32_t l) const {
    gpu::GqaAppendArgs a = {};
    a.q = {projected_.data, kQkv, kQ};
    a.k = {projected_.data + kQ, kQkv, kKv};
    a.v = {projected_.data + kQ + kKv, kQkv, kKv};
    a.q_norm = a.k_norm = reinterpret_cast<const float*>(norm_.data());
    a.norm_eps = 1e-6f;
    a.rope = {reinterpret_cast<const float*>(table_.data()), reinterpret_cast<const float*>(table_.data()) + kDim / 2, kDim, false};
    a.cache = cache(l);
    a.batch = batch_;
    a.heads = kHeads, a.kv_heads = kKvHeads, a.head_dim = kDim;
    a.query = query_;
    return a;
  }
  gpu::GqaAttendArgs attend(std::uint32_t l) const {
    gpu::GqaAttendArgs a = {};
    a.query = query_;
    a.out = attended_;
    a.cache = cache(l);
    a.batch = batch_;
    a.heads = kHeads, a.kv_heads = kKvHeads, a.head_dim = kDim;
    a.scale = 0.1f;
    a.scratch = {scratch_.data(), scratch_.bytes()};
    return a;
  }
  gpu::LinearArgs linear(const gpu::Matrix& x, const device::Block& w, std::uint32_t rows, std::uint32_t columns, const gpu::Matrix& out) const {
    gpu::LinearArgs a = {};
    a.x = x;
    a.w = weight(w, rows, columns);
    a.out = out;
    a.rows = 1;
    a.activations = Format::bf16;
    a.scratch = {scratch_.data(), scratch_.bytes()};
    return a;
  }
  void product(device::Stream& s, const gpu::Matrix& x, const device::Block& w, std::uint32_t rows, std::uint32_t columns, const gpu::Matrix& out) {
    fail(s.launch(k_.linear, linear(x, w, rows, columns, out)));
  }

  void rest() const {
    if (options_.emulate) std::this_thread::yield();
    else __builtin_ia32_pause();
  }
  void serve(double answer) {
    std::uint32_t last = 0;
    auto* words = reinterpret_cast<gpu::HandoffWords*>(words_.host());
    while (!quit_) {
      const std::uint32_t epoch = started_.load(std::memory_order_acquire);
      if (epoch == last) {
        rest();
        continue;
      }
      last = epoch;
      for (std::uint32_t l = 0; l < options_.layers; ++l) {
        const std::byte* record = records_.host() + l * record_.bytes;
        const auto* header = reinterpret_cast<const gpu::RecordHeader*>(record);
        while (__atomic_load_n(&header->epoch, __ATOMIC_ACQUIRE) != epoch) {
          if (quit_) return;
          rest();
        }
        const auto seen = Clock::now();
        while (std::chrono::duration<double>(Clock::now() - seen).count() * 1e6 < answer) rest();
        __atomic_store_n(&words->near_layer, l, __ATOMIC_RELAXED);
        __atomic_store_n(&words->near_epoch, epoch, __ATOMIC_RELEASE);
        const std::byte data[12] = {};
        std::byte* cells = results_.host() + l * result_bytes_;
        const std::uint64_t count = cell_panels(kHidden) * cells_per_panel(Format::bf16);
        for (std::uint64_t c = 0; c < count; ++c) write_cell(cells + c * kCellBytes, data, epoch);
      }
    }
  }

  device::Device& device_;
  const Options& options_;
  const gpu::KernelSet& k_;
  std::vector<device::Block> qkv_, o_, router_, cache_;
  device::Block choices_, norm_, table_, values_, scratch_, block_;
  device::MappedBlock records_, results_, words_, epoch_block_;
  std::uint64_t page_bytes_ = 0, result_bytes_ = 0;
  RecordLayout record_ = {};
  gpu::Matrix residual_, x_, result_, mixed_, projected_, query_, attended_, weights_;
  gpu::Ids ids_;
  std::uint32_t *pairs_ = nullptr, *nothing_ = nullptr;
  gpu::Batch batch_;
  std::uint32_t number_ = 0;
  std::atomic<bool> quit_{false};
  std::atomic<std::uint32_t> started_{0};
};

int run(const Options& options) {
  auto device = options.emulate ? take(device::open_emulated(std::uint64_t{4} << 30)) : take(device::open_cuda(0));
  std::printf("%s, %u layers in one graph, context %u, us per layer, medians of %u\n", device->info().name.c_str(), options.layers,
              options.context, options.rounds);
  Bench bench(*device, options);
  const auto all = [](std::size_t) { return true; };
  for (const auto& list : {bench.kernels(), bench.joined()}) {
    if (!options.between) break;
    const double chain = bench.measure(list, all);
    std::printf("%-28s %8s %8s\n", "kernel", "alone", "share");
    double alone = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].handoff) continue;
      const double one = bench.measure(list, [&](std::size_t k) { return k == i; }), without = bench.measure(list, [&](std::size_t k) { return k != i; });
      alone += one;
      std::printf("%-28s %8.2f %8.2f\n", list[i].name, one, chain - without);
      std::fflush(stdout);
    }
    std::printf("%-28s %8.2f %8.2f\n", "chain without hand-off", alone, chain);
    std::printf("%-28s %8s %8.2f\n", "with an answer at once", "", bench.measure(list, all, 0));
    for (const bool fetch : {false, true}) {
      bench.fetch = fetch;
      std::printf("%-28s %8s %8.2f\n", ((fetch ? "fetching, less an answer of " : "less an answer of ") + std::to_string(options.answer)).c_str(), "",
                  bench.measure(list, all, options.answer));
    }
    bench.fetch = false;
  }
  if (!options.experts) return 0;
  std::vector<std::pair<const char*, Bench::Bank>> banks;
  banks.emplace_back("experts on the card, bf16", bench.bank(Format::bf16, 0));
  banks.emplace_back("experts on the card, int8", bench.bank(Format::int8, 0));
  banks.emplace_back("experts on the card, int4/64", bench.bank(Format::int4, 64));
  for (const auto& [name, bank] : banks) {
    const double us = bench.experts(bank);
    std::printf("%-28s %8.2f %8.0f GB/s\n", name, us, bank.bytes / us / 1e3);
  }
  for (const bool joined : {false, true}) {
    const auto list = bench.on_card(banks[0].second, joined);
    const double chain = bench.measure(list, all);
    std::printf("all on the card, bf16%s\n", joined ? ", joined" : "");
    for (std::size_t i = 0; i < list.size(); ++i) {
      const double one = bench.measure(list, [&](std::size_t k) { return k == i; }), without = bench.measure(list, [&](std::size_t k) { return k != i; });
      std::printf("%-28s %8.2f %8.2f\n", list[i].name, one, chain - without);
    }
    std::printf("%-28s %8s %8.2f\n", "chain", "", chain);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace ktc

int main(int argc, char** argv) {
  ktc::Options options;
  const auto word = [&](std::string_view flag) {
    if (flag == "--emulate") return options.emulate = true;
    if (flag == "--card") return options.between = false, options.experts = true;
    return flag == "--experts" && (options.experts = true);
  };
  const auto number = [&](std::string_view flag, double value) {
    const auto whole = static_cast<std::uint32_t>(value < 0 ? 0 : value);
    if (flag == "--layers" && whole >= 1) options.layers = whole;
    else if (flag == "--context" && whole >= 1) options.context = whole;
    else if (flag == "--rounds" && whole >= 1) options.rounds = whole;
    else if (flag == "--copies" && whole >= 1) options.copies = whole;
    else if (flag == "--answer" && value >= 0) options.answer = whole;
    else return false;
    return true;
  };
  return ktc::read_flags(argc, argv, word, number) ? ktc::run(options) : 2;
}
