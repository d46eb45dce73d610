// What handing work to the CPU and back costs per layer, inside one captured graph, payload included; and what a waiting GPU takes
// from the bandwidth of the CPU's memory.
//
//   handoff_bench [--emulate] [--layers N] [--steps N] [--hidden N]... [--answering N]... [--threads N] [--seconds S] [--turns N]
//
// Per hidden size: two small kernels per layer (the floor), publish and await with cells polled at once, the same with the near
// word, await and norm in one launch, and the shape with copies and host nodes. The host answers at once: one thread sees the record and
// reads it, then --answering threads (1 and 8, unless given) write the cells of their panels, as the workers of a plan do. Median and
// 90th percentile over steps; and where a layer's time goes as the host sees it: reading the record, writing the cells, and from there
// to the next record. Then, on the other threads, bytes read per second, in turns: while the GPU is idle, while it is idle and the threads
// that would answer and wait for it spin, and while it waits for an answer of 1 ms.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"
#include "test/bench/flags.h"
#include "test/bench/take.h"

namespace ktc {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Options {
  bool emulate = false;
  std::uint32_t layers = 48, steps = 60;
  std::vector<std::uint32_t> hidden;
  unsigned threads = 0;
  double seconds = 1;
  std::vector<std::uint32_t> answering;
  unsigned turns = 3;
};

constexpr std::uint32_t kTopK = 8;

class Bench {
 public:
  Bench(device::Device& device, const Options& options, std::uint32_t hidden)
      : device_(device), options_(options), hidden_(hidden), record_(record_layout(1, kTopK, hidden, Format::bf16)),
        result_(result_bytes(1, hidden, Format::bf16)), records_(take(device.allocate_mapped(options.layers * record_.bytes, "records"))),
        results_(take(device.allocate_mapped(options.layers * result_, "results"))),
        words_(take(device.allocate_mapped(sizeof(gpu::HandoffWords), "words"))), host_step_(take(device.allocate_mapped(64, "step"))),
        memory_(take(device.allocate(6 * (hidden * 4 + 256), "values"))) {
    std::byte* at = memory_.data();
    const auto area = [&](std::uint64_t bytes) {
      std::byte* here = at;
      at += (bytes + 255) / 256 * 256;
      return here;
    };
    x_ = {reinterpret_cast<float*>(area(hidden * 4)), hidden, hidden};
    y_ = {reinterpret_cast<float*>(area(hidden * 4)), hidden, hidden};
    z_ = {reinterpret_cast<float*>(area(hidden * 4)), hidden, hidden};
    normed_ = {reinterpret_cast<float*>(area(hidden * 4)), hidden, hidden};
    norm_weight_ = reinterpret_cast<const float*>(area(hidden * 4));
    ids_ = {reinterpret_cast<std::int32_t*>(area(64)), kTopK, kTopK};
    weights_ = {reinterpret_cast<float*>(area(64)), kTopK, kTopK};
    step_ = area(64);  // epoch, then live
    pairs_ = reinterpret_cast<std::uint32_t*>(area(4));
    auto* host = reinterpret_cast<std::uint32_t*>(host_step_.host());
    host[1] = 1;
  }

  enum class Shape { kernels, cells, near, near_norm, host_nodes };

  // Microseconds per layer of each step.
  std::vector<double> measure(Shape shape, unsigned answering) {
    shape_ = shape;
    answer_seconds_ = 0;
    answering_ = answering;
    parts_ = {};
    std::memset(words_.host(), 0, sizeof(gpu::HandoffWords));
    const auto graph = capture();
    quit_ = false;
    started_ = finished_ = 0;
    written_.store(0);
    rung_.store(0);
    std::thread host;
    if (shape != Shape::kernels) host = std::thread([this] { serve(); });
    std::vector<std::thread> helpers;
    for (unsigned i = 1; i < answering && shape != Shape::kernels && shape != Shape::host_nodes; ++i) helpers.emplace_back([this, i] { help(i); });
    std::vector<double> times;
    for (std::uint32_t step = 0; step < options_.steps + 5; ++step) {
      run_step(*graph);
      if (step >= 5) times.push_back(last_seconds_ * 1e6 / options_.layers);
    }
    quit_ = true;
    if (host.joinable()) host.join();
    for (std::thread& helper : helpers) helper.join();
    std::sort(times.begin(), times.end());
    return times;
  }

  // Medians of what measure() saw on the host, microseconds: reading a record, writing cells, from there to the next record.
  std::array<double, 3> parts() {
    std::array<double, 3> out = {};
    for (std::size_t i = 0; i < 3; ++i) {
      if (parts_[i].empty()) continue;
      std::nth_element(parts_[i].begin(), parts_[i].begin() + static_cast<long>(parts_[i].size() / 2), parts_[i].end());
      out[i] = parts_[i][parts_[i].size() / 2];
    }
    return out;
  }

  // Keeps steps running until `stop`; the host takes answer_seconds per layer.
  void keep_waiting(Shape shape, double answer_seconds, const std::atomic<bool>& stop) {
    shape_ = shape;
    answer_seconds_ = answer_seconds;
    answering_ = 1;
    std::memset(words_.host(), 0, sizeof(gpu::HandoffWords));
    const auto graph = capture();
    quit_ = false;
    started_ = finished_ = 0;
    std::thread host([this] { serve(); });
    while (!stop) run_step(*graph);
    quit_ = true;
    host.join();
  }

 private:
  gpu::HandoffWords* words() { return reinterpret_cast<gpu::HandoffWords*>(words_.host()); }

  void run_step(const device::Graph& graph) {
    device::Stream& stream = device_.compute();
    ++epoch_;
    reinterpret_cast<std::uint32_t*>(host_step_.host())[0] = epoch_;
    fail(stream.copy_to_device(step_, host_step_.host(), 32));
    fail(stream.wait());
    started_.store(epoch_, std::memory_order_release);
    const auto start = Clock::now();
    fail(stream.launch(graph));
    fail(stream.wait());
    last_seconds_ = seconds_since(start);
  }

  std::unique_ptr<device::Graph> capture() {
    const gpu::KernelSet& k = device_.kernels();
    device::Stream& stream = device_.compute();
    const auto* epoch = reinterpret_cast<const std::uint32_t*>(step_);
    const auto* live = reinterpret_cast<const std::int32_t*>(step_) + 1;
    fail(stream.begin_capture());
    for (std::uint32_t l = 0; l < options_.layers; ++l) {
      gpu::AddArgs add = {};
      add.in[0] = x_;
      add.in[1] = y_;
      add.count = 2;
      add.out = z_;
      add.rows = 1;
      if (shape_ == Shape::kernels || shape_ == Shape::host_nodes) {
        fail(stream.launch(k.add, add));
        if (shape_ == Shape::host_nodes) {
          fail(stream.copy_to_host(records_.host() + l * record_.bytes, reinterpret_cast<std::byte*>(z_.data), hidden_ * 2));
          fail(stream.host_call([](void* b) { static_cast<Bench*>(b)->submitted_.fetch_add(1, std::memory_order_release); }, this));
          fail(stream.host_call([](void* b) {
            auto* bench = static_cast<Bench*>(b);
            const std::uint64_t wanted = bench->submitted_.load(std::memory_order_acquire);
            while (bench->served_.load(std::memory_order_acquire) < wanted) std::this_thread::yield();
          }, this));
          fail(stream.copy_to_device(reinterpret_cast<std::byte*>(y_.data), results_.host() + l * result_, hidden_ * 2));
        }
        fail(stream.launch(k.add, add));
        continue;
      }
      fail(stream.launch(k.publish, gpu::PublishArgs{x_, ids_, weights_, nullptr, kTopK, records_.device() + l * record_.bytes, Format::bf16, live,
                                                     epoch, pairs_, 1}));
      const gpu::AwaitArgs await = {results_.device() + l * result_, Format::bf16, y_,
                                                 reinterpret_cast<gpu::HandoffWords*>(words_.device()), l, live, epoch, pairs_, false, 1};
      if (shape_ == Shape::near_norm) {
        gpu::AddNormArgs norm = {};
        norm.in[0] = x_, norm.in[1] = y_;
        norm.count = 2;
        norm.sum = z_, norm.out = normed_;
        norm.w = norm_weight_;
        norm.eps = 1e-6f;
        norm.rows = 1;
        fail(stream.launch(k.await_norm, gpu::AwaitNormArgs{await, norm, 1}));
      } else {
        fail(stream.launch(k.await, await));
      }
    }
    return take(stream.end_capture());
  }

  void pause() {
    if (options_.emulate) std::this_thread::yield();
    else __builtin_ia32_pause();
  }
  void work() {
    if (answer_seconds_ == 0) return;
    const auto start = Clock::now();
    while (seconds_since(start) < answer_seconds_) pause();
  }

  void serve() {
    std::uint64_t served = served_.load();
    std::uint32_t last = 0;
    while (!quit_) {
      if (shape_ == Shape::host_nodes) {
        if (submitted_.load(std::memory_order_acquire) > served) {
          work();
          served_.store(++served, std::memory_order_release);
        }
        pause();
        continue;
      }
      const std::uint32_t epoch = started_.load(std::memory_order_acquire);
      if (epoch == last) {
        pause();
        continue;
      }
      last = epoch;
      Clock::time_point written = {};
      for (std::uint32_t l = 0; l < options_.layers; ++l) {
        const std::byte* record = records_.host() + l * record_.bytes;
        const auto* header = reinterpret_cast<const gpu::RecordHeader*>(record);
        while (__atomic_load_n(&header->epoch, __ATOMIC_ACQUIRE) != epoch) {
          if (quit_) return;
          pause();
        }
        const auto seen = Clock::now();
        if (l != 0) note(2, written, seen);
        std::uint64_t sum = 0;  // the payload is read
        for (std::uint64_t i = 0; i < hidden_ * 2 / 8; ++i) sum += reinterpret_cast<const std::uint64_t*>(record + record_.x)[i];
        checksum_ = sum;
        const auto read = Clock::now();
        note(0, seen, read);
        work();
        if (shape_ == Shape::near || shape_ == Shape::near_norm) {
          __atomic_store_n(&words()->near_layer, l, __ATOMIC_RELAXED);
          __atomic_store_n(&words()->near_epoch, epoch, __ATOMIC_RELEASE);
        }
        rung_.store(rung_.load(std::memory_order_relaxed) + 1, std::memory_order_release);  // for the helpers
        write_cells(l, epoch, 0);
        while (written_.load(std::memory_order_acquire) != rung_.load(std::memory_order_relaxed) * (answering_ - 1)) {
          if (quit_) return;
          pause();
        }
        written = Clock::now();
        note(1, read, written);
      }
    }
  }
  void note(std::size_t part, Clock::time_point begin, Clock::time_point end) {
    if (answer_seconds_ == 0) parts_[part].push_back(std::chrono::duration<double>(end - begin).count() * 1e6);
  }
  // Worker `i` of those that answer: the cells of its panels.
  void write_cells(std::uint32_t layer, std::uint32_t epoch, unsigned i) {
    const std::byte data[12] = {};
    const std::uint64_t panels = cell_panels(hidden_), each = cells_per_panel(Format::bf16);
    std::byte* cells = results_.host() + layer * result_;
    for (std::uint64_t c = panels * i / answering_ * each; c < panels * (i + 1) / answering_ * each; ++c) write_cell(cells + c * kCellBytes, data, epoch);
  }
  void help(unsigned i) {
    for (std::uint64_t done = 0; !quit_;) {
      const std::uint64_t rung = rung_.load(std::memory_order_acquire);
      if (rung == done) {
        pause();
        continue;
      }
      done = rung;
      write_cells(static_cast<std::uint32_t>((rung - 1) % options_.layers), started_.load(std::memory_order_relaxed), i);
      written_.fetch_add(1, std::memory_order_release);
    }
  }

  device::Device& device_;
  const Options& options_;
  const std::uint32_t hidden_;
  const RecordLayout record_;
  const std::uint64_t result_;
  device::MappedBlock records_, results_, words_, host_step_;
  device::Block memory_;
  gpu::Matrix x_, y_, z_, normed_, weights_;
  const float* norm_weight_ = nullptr;
  gpu::Ids ids_;
  std::byte* step_ = nullptr;
  std::uint32_t* pairs_ = nullptr;
  std::uint32_t epoch_ = 0;
  double last_seconds_ = 0;
  Shape shape_ = Shape::kernels;
  double answer_seconds_ = 0;
  std::atomic<bool> quit_{false};
  std::atomic<std::uint32_t> started_{0}, finished_{0};
  std::atomic<std::uint64_t> submitted_{0}, served_{0};
  alignas(128) std::atomic<std::uint64_t> rung_{0};     // layers answered
  alignas(128) std::atomic<std::uint64_t> written_{0};  // by helpers
  unsigned answering_ = 1;
  std::array<std::vector<double>, 3> parts_;
  volatile std::uint64_t checksum_ = 0;
};

// Bytes per second that `threads` threads read from memory that no cache holds.
class Readers {
 public:
  Readers(unsigned threads, std::uint64_t bytes_each) : buffers_(threads) {
    for (auto& buffer : buffers_) buffer.assign(bytes_each / 8, 1);
  }
  double rate(double seconds) const {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> read{0};
    std::vector<std::thread> threads;
    for (const auto& buffer : buffers_)
      threads.emplace_back([&] {
        std::uint64_t sum = 0, mine = 0;
        while (!stop) {
          constexpr std::size_t kPiece = 1 << 17;
          for (std::size_t i = 0; i < buffer.size() && !stop; i += kPiece) {
            const std::size_t end = std::min(buffer.size(), i + kPiece);
            for (std::size_t j = i; j < end; ++j) sum += buffer[j];
            mine += (end - i) * 8;
          }
        }
        volatile std::uint64_t kept = sum;
        (void)kept;
        read += mine;
      });
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const double taken = seconds_since(start);
    stop = true;
    for (auto& thread : threads) thread.join();
    return static_cast<double>(read) / taken;
  }

 private:
  std::vector<std::vector<std::uint64_t>> buffers_;
};

int run(const Options& options) {
  auto device = options.emulate ? take(device::open_emulated(std::uint64_t{1} << 30)) : take(device::open_cuda(0));
  std::printf("%s, %u layers in one graph, %u steps, record and result bf16, one row; us per layer, median (p90)\n", device->info().name.c_str(),
              options.layers, options.steps);
  const struct { Bench::Shape shape; const char* name; bool answers; } shapes[] = {{Bench::Shape::kernels, "two small kernels", false},
                                                                                   {Bench::Shape::cells, "publish and await, cells", true},
                                                                                   {Bench::Shape::near, "publish and await, near word", true},
                                                                                   {Bench::Shape::near_norm, "the same with a norm, one launch", true},
                                                                                   {Bench::Shape::host_nodes, "copies and host nodes", false}};
  for (const std::uint32_t hidden : options.hidden) {
    Bench bench(*device, options, hidden);
    for (const auto& s : shapes)
      for (std::size_t i = 0; i < (s.answers ? options.answering.size() : 1); ++i) {
        const auto times = bench.measure(s.shape, options.answering[i]);
        std::printf("hidden %5u  %-34s %7.2f (%.2f)", hidden, s.name, times[times.size() / 2], times[times.size() * 9 / 10]);
        if (s.answers) {
          const auto parts = bench.parts();
          std::printf("  %2u answering: read %.2f, written %.2f, next record %.2f", options.answering[i], parts[0], parts[1], parts[2]);
        }
        std::printf("\n");
        std::fflush(stdout);
      }
  }
  if (options.seconds <= 0) return 0;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const unsigned threads = options.threads != 0 ? options.threads : cores > 3 ? cores - 2 : 1;
  const Readers readers(threads, options.emulate ? 1 << 22 : 256 << 20);
  std::printf("bytes read by %u threads, GB/s: GPU idle; the same with two threads that spin; GPU waiting; its ratio to either, %u turns\n", threads,
              options.turns);
  Bench bench(*device, options, options.hidden.back());
  for (const auto& s : {shapes[1], shapes[2]}) {
    std::vector<double> to_idle, to_spinning;
    for (unsigned turn = 0; turn < options.turns; ++turn) {
      double rates[3];
      rates[0] = readers.rate(options.seconds);
      for (const bool waits : {false, true}) {
        std::atomic<bool> stop{false};
        std::vector<std::thread> busy;
        if (waits) busy.emplace_back([&] { bench.keep_waiting(s.shape, 1e-3, stop); });
        for (int i = 0; !waits && i < 2; ++i) busy.emplace_back([&] { while (!stop) options.emulate ? std::this_thread::yield() : __builtin_ia32_pause(); });
        rates[waits ? 2 : 1] = readers.rate(options.seconds);
        stop = true;
        for (std::thread& thread : busy) thread.join();
      }
      to_idle.push_back(rates[2] / rates[0]), to_spinning.push_back(rates[2] / rates[1]);
      std::printf("%-30s %8.1f %8.1f %8.1f %7.3f %7.3f\n", s.name, rates[0] / 1e9, rates[1] / 1e9, rates[2] / 1e9, to_idle.back(), to_spinning.back());
      std::fflush(stdout);
    }
    std::sort(to_idle.begin(), to_idle.end());
    std::sort(to_spinning.begin(), to_spinning.end());
    std::printf("%-30s median %37.3f %7.3f\n", s.name, to_idle[to_idle.size() / 2], to_spinning[to_spinning.size() / 2]);
  }
  return 0;
}

}  // namespace
}  // namespace ktc

int main(int argc, char** argv) {
  ktc::Options options;
  const auto word = [&](std::string_view flag) { return flag == "--emulate" && (options.emulate = true); };
  const auto number = [&](std::string_view flag, double value) {
    if (flag == "--layers" && value >= 1) options.layers = static_cast<std::uint32_t>(value);
    else if (flag == "--steps" && value >= 1) options.steps = static_cast<std::uint32_t>(value);
    else if (flag == "--hidden" && value >= 4) options.hidden.push_back(static_cast<std::uint32_t>(value) / 4 * 4);
    else if (flag == "--answering" && value >= 1) options.answering.push_back(static_cast<std::uint32_t>(value));
    else if (flag == "--turns" && value >= 1) options.turns = static_cast<unsigned>(value);
    else if (flag == "--threads" && value >= 1) options.threads = static_cast<unsigned>(value);
    else if (flag == "--seconds" && value >= 0) options.seconds = value;
    else return false;
    return true;
  };
  if (!ktc::read_flags(argc, argv, word, number)) return 2;
  if (options.hidden.empty()) options.hidden = {2048, 7168};
  if (options.answering.empty()) options.answering = {1, 8};
  return ktc::run(options);
}
