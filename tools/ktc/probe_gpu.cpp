#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <thread>
#include <vector>

#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"
#include "runtime/weights/host_memory.h"
#include "tools/ktc/probe_machine.h"

namespace ktc::tools {
namespace {

using device::Block;
using device::MappedBlock;

constexpr std::uint32_t kLayers = 48, kHidden = 2048, kTopK = 8;
constexpr int kSteps = 40, kWarm = 5;
constexpr double kMostSeconds = 5;  // of a step, which takes milliseconds

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Bytes per second of `copy`, which moves `bytes`: the median of seven times.
template <typename Copy>
Expected<double> rate(device::Stream& stream, std::uint64_t bytes, const Copy& copy) {
  std::vector<double> rates;
  for (int i = 0; i < 8; ++i) {
    const double start = now();
    KTC_RETURN_IF_ERROR(copy());
    KTC_RETURN_IF_ERROR(stream.wait());
    if (i > 0) rates.push_back(static_cast<double>(bytes) / (now() - start));
  }
  return median(std::move(rates));
}

// Two small kernels a layer, or publish and await with a host that answers at once, all layers in one graph.
class Layers {
 public:
  static Expected<std::unique_ptr<Layers>> create(device::Device& device) {
    auto layers = std::unique_ptr<Layers>(new Layers(device));
    KTC_ASSIGN_OR_RETURN(layers->records_, device.allocate_mapped(kLayers * layers->record_.bytes, "records"));
    KTC_ASSIGN_OR_RETURN(layers->results_, device.allocate_mapped(kLayers * layers->result_, "results"));
    KTC_ASSIGN_OR_RETURN(layers->words_, device.allocate_mapped(sizeof(gpu::HandoffWords), "words"));
    KTC_ASSIGN_OR_RETURN(layers->host_step_, device.allocate_mapped(64, "step"));
    KTC_ASSIGN_OR_RETURN(layers->memory_, device.allocate(3 * kHidden * 4 + 4 * 256, "values"));
    std::byte* at = layers->memory_.data();
    const auto matrix = [&](std::uint32_t columns, std::uint64_t bytes) {
      const gpu::Matrix m{reinterpret_cast<float*>(at), columns, columns};
      at += bytes;
      return m;
    };
    layers->x_ = matrix(kHidden, kHidden * 4), layers->y_ = matrix(kHidden, kHidden * 4), layers->z_ = matrix(kHidden, kHidden * 4);
    layers->weights_ = matrix(kTopK, 256);
    layers->ids_ = {reinterpret_cast<std::int32_t*>(at), kTopK, kTopK};
    layers->step_ = at + 256;
    layers->pairs_ = reinterpret_cast<std::uint32_t*>(at + 512);
    reinterpret_cast<std::uint32_t*>(layers->host_step_.host())[1] = 1;  // one live row
    return layers;
  }

  // Microseconds of one layer.
  Expected<double> measure(bool handoff) {
    KTC_ASSIGN_OR_RETURN(const auto graph, capture(handoff));
    quit_ = false;
    std::thread host;
    if (handoff) host = std::thread([this, before = epoch_] { serve(before); });
    std::vector<double> times;
    Status status;
    for (int step = 0; status.ok() && step < kSteps + kWarm; ++step) {
      double seconds = 0;
      status = run_step(*graph, &seconds);
      if (step >= kWarm) times.push_back(seconds * 1e6 / kLayers);
    }
    quit_ = true;
    if (host.joinable()) host.join();
    if (!status.ok()) return status;
    return median(std::move(times));
  }

 private:
  explicit Layers(device::Device& device) : device_(device) {}
  gpu::HandoffWords* words() { return reinterpret_cast<gpu::HandoffWords*>(words_.host()); }

  Status run_step(const device::Graph& graph, double* seconds) {
    device::Stream& stream = device_.compute();
    ++epoch_;
    reinterpret_cast<std::uint32_t*>(host_step_.host())[0] = epoch_;
    KTC_RETURN_IF_ERROR(stream.copy_to_device(step_, host_step_.host(), 32));
    KTC_RETURN_IF_ERROR(stream.wait());
    started_.store(epoch_, std::memory_order_release);
    const double start = now();
    KTC_RETURN_IF_ERROR(stream.launch(graph));
    // not wait(): a hand-off that fails would hold it for ever
    for (bool poisoned = false;;) {
      KTC_ASSIGN_OR_RETURN(const bool idle, stream.idle());
      *seconds = now() - start;
      if (idle && !poisoned) return {};
      if (idle || *seconds > 2 * kMostSeconds)
        return make_error(StatusCode::unavailable, {.place = device_.info().name, .what = "a hand-off without end",
                                                    .found = fmt::format("nothing after {:.0f} s", kMostSeconds),
                                                    .remedy = "look whether the driver reports errors"});
      if (*seconds > kMostSeconds) {
        __atomic_store_n(&words()->poison, 1u, __ATOMIC_RELEASE);
        poisoned = true;
      }
      if (device_.info().emulated) std::this_thread::yield();
    }
  }

  Expected<std::unique_ptr<device::Graph>> capture(bool handoff) {
    const gpu::KernelSet& kernels = device_.kernels();
    device::Stream& stream = device_.compute();
    const auto* epoch = reinterpret_cast<const std::uint32_t*>(step_);
    const auto* live = reinterpret_cast<const std::int32_t*>(step_) + 1;
    gpu::AddArgs add = {};
    add.in[0] = x_, add.in[1] = y_, add.count = 2, add.out = z_, add.rows = 1;
    KTC_RETURN_IF_ERROR(stream.begin_capture());
    Status status;
    for (std::uint32_t l = 0; status.ok() && l < kLayers; ++l) {
      if (!handoff) {
        status = stream.launch(kernels.add, add);
        if (status.ok()) status = stream.launch(kernels.add, add);
        continue;
      }
      status = stream.launch(kernels.publish, gpu::PublishArgs{x_, ids_, weights_, nullptr, kTopK, records_.device() + l * record_.bytes,
                                                               Format::bf16, live, epoch, pairs_, 1});
      if (status.ok())
        status = stream.launch(kernels.await, gpu::AwaitArgs{results_.device() + l * result_, Format::bf16, y_,
                                                             reinterpret_cast<gpu::HandoffWords*>(words_.device()), l, live, epoch, pairs_,
                                                             false, 1});
    }
    auto graph = stream.end_capture();  // always: a stream that captures is of no use
    if (!status.ok()) return status;
    return graph;
  }

  void pause() {
    if (device_.info().emulated || std::thread::hardware_concurrency() < 4) return std::this_thread::yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // `last`: the step before the first that it serves. (Not read here: the thread may begin after that step did.)
  void serve(std::uint32_t last) {
    const std::byte data[12] = {};
    while (!quit_) {
      const std::uint32_t epoch = started_.load(std::memory_order_acquire);
      if (epoch == last) {
        pause();
        continue;
      }
      last = epoch;
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        const auto* header = reinterpret_cast<const gpu::RecordHeader*>(records_.host() + l * record_.bytes);
        while (__atomic_load_n(&header->epoch, __ATOMIC_ACQUIRE) != epoch) {
          if (quit_) return;
          pause();
        }
        __atomic_store_n(&words()->near_layer, l, __ATOMIC_RELAXED);
        __atomic_store_n(&words()->near_epoch, epoch, __ATOMIC_RELEASE);
        std::byte* cells = results_.host() + l * result_;
        const std::uint64_t count = cell_panels(kHidden) * cells_per_panel(Format::bf16);
        for (std::uint64_t c = 0; c < count; ++c) write_cell(cells + c * kCellBytes, data, epoch);
      }
    }
  }

  device::Device& device_;
  const RecordLayout record_ = record_layout(1, kTopK, kHidden, Format::bf16);
  const std::uint64_t result_ = result_bytes(1, kHidden, Format::bf16);
  MappedBlock records_, results_, words_, host_step_;
  Block memory_;
  gpu::Matrix x_ = {}, y_ = {}, z_ = {}, weights_ = {};
  gpu::Ids ids_ = {};
  std::byte* step_ = nullptr;
  std::uint32_t* pairs_ = nullptr;
  std::uint32_t epoch_ = 0;
  std::atomic<bool> quit_{false};
  std::atomic<std::uint32_t> started_{0};
};

}  // namespace

Expected<placement::GpuTarget> probe_gpu(device::Device& device, int ordinal) {
  placement::GpuTarget gpu;
  const device::DeviceInfo& info = device.info();
  gpu.device = fmt::format("cuda:{}", ordinal);
  gpu.name = info.name;
  gpu.sm = info.sm > 0 ? static_cast<std::uint32_t>(info.sm) : 90;  // an emulated device has none
  gpu.memory = info.memory;
  {
    const std::uint64_t bytes = std::min<std::uint64_t>(std::uint64_t{1} << 30, info.free / 8) / 4096 * 4096;
    KTC_ASSIGN_OR_RETURN(const Block from, device.allocate(bytes, "copies"));
    KTC_ASSIGN_OR_RETURN(const Block to, device.allocate(bytes, "copies"));
    // a copy reads and writes
    KTC_ASSIGN_OR_RETURN(const double copied, rate(device.compute(), 2 * bytes, [&] {
                           return device.compute().copy_on_device(to.data(), from.data(), bytes);
                         }));
    gpu.read_gb_per_s = copied / 1e9;
    const std::uint64_t part = std::min<std::uint64_t>(bytes, std::uint64_t{256} << 20);
    // one behind the other from far more memory than a last cache holds, as banks of experts are
    std::uint64_t free = std::uint64_t{1} << 30;
    if (const auto available = weights::available_memory()) free = *available;
    std::vector<MappedBlock> hosts;
    do {
      KTC_ASSIGN_OR_RETURN(MappedBlock host, device.allocate_mapped(part, "copies from the host"));
      std::memset(host.host(), 1, part);
      hosts.push_back(std::move(host));
    } while (hosts.size() < (info.emulated ? 1 : std::min<std::uint64_t>(8, free / 16 / part)));
    KTC_ASSIGN_OR_RETURN(const double moved, rate(device.copies(), hosts.size() * part, [&]() -> Status {
                           for (const MappedBlock& host : hosts)
                             KTC_RETURN_IF_ERROR(device.copies().copy_to_device(to.data(), host.host(), part));
                           return {};
                         }));
    gpu.pcie_gb_per_s = moved / 1e9;
  }
  KTC_ASSIGN_OR_RETURN(const auto layers, Layers::create(device));
  KTC_ASSIGN_OR_RETURN(const double kernels, layers->measure(false));
  gpu.kernel_us = kernels / 2;
  KTC_ASSIGN_OR_RETURN(gpu.handoff_us, layers->measure(true));
  return gpu;
}

}  // namespace ktc::tools
