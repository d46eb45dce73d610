// The host-emulated accelerator.
#include <fmt/format.h>
#include <sys/mman.h>

#include "runtime/base/units.h"
#include "runtime/device/block_impl.h"
#include "runtime/device/emulated_stream.h"

namespace ktc::device {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

// Zeroed pages with a page behind them that faults.
struct Pages {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;

  static Pages map(std::uint64_t bytes) {
    void* base = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return {};
    mprotect(static_cast<std::byte*>(base) + bytes, kPage, PROT_NONE);
    return {static_cast<std::byte*>(base), bytes};
  }
  void unmap() const { munmap(base, bytes + kPage); }
};

template <typename Base>
struct EmulatedMemory final : Base {
  EmulatedMemory(std::shared_ptr<EmulatedState> s, Pages p, const std::byte* d, std::uint64_t c)
      : state(std::move(s)), pages(p), data(d), counted(c) {}
  ~EmulatedMemory() override {
    {
      std::lock_guard lock(state->mutex);
      state->ranges.erase(data);
      state->allocated -= counted;
    }
    pages.unmap();
  }
  std::shared_ptr<EmulatedState> state;
  Pages pages;
  const std::byte* data;
  std::uint64_t counted;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(std::uint64_t memory, EmulatedFaults faults) : state_(std::make_shared<EmulatedState>()) {
    state_->limit = memory;
    state_->faults = faults;
    info_ = {.name = "emulated", .sm = 0, .memory = memory, .free = memory, .emulated = true};
    compute_ = std::make_unique<EmulatedStream>(state_, "compute");
    copies_ = std::make_unique<EmulatedStream>(state_, "copies");
    values_ = std::make_unique<EmulatedStream>(state_, "values");
  }

  const DeviceInfo& info() const override { return info_; }
  const gpu::KernelSet& kernels() const override { return gpu::reference_kernels(); }

  Expected<Block> allocate(std::uint64_t bytes, std::string name) override {
    if (state_->lost) return state_->lost_status();
    {
      std::lock_guard lock(state_->mutex);
      if (bytes > state_->limit - state_->allocated)
        return make_error(StatusCode::resource_exhausted,
                          {.place = fmt::format("emulated device, {}", name),
                           .what = "not enough memory",
                           .found = fmt::format("{} free of {}", format_bytes(state_->limit - state_->allocated),
                                                format_bytes(state_->limit)),
                           .expected = format_bytes(bytes)});
      state_->allocated += bytes;
    }
    const std::uint64_t padded = round_up(bytes == 0 ? 1 : bytes, 256);
    const Pages pages = Pages::map(round_up(padded, kPage));
    if (pages.base == nullptr) {
      std::lock_guard lock(state_->mutex);
      state_->allocated -= bytes;
      return no_host_memory(name, bytes);
    }
    std::byte* data = pages.base + (pages.bytes - padded);
    add_range(data, bytes);
    return Block(data, bytes, std::make_unique<EmulatedMemory<Block::Impl>>(state_, pages, data, bytes));
  }

  Expected<MappedBlock> allocate_mapped(std::uint64_t bytes, std::string name) override {
    if (state_->lost) return state_->lost_status();
    if (state_->faults.refuse_mapped)
      return make_error(StatusCode::unsupported,
                        {.place = fmt::format("emulated device, {}", name), .what = "mapped host memory is refused"});
    const Pages pages = Pages::map(round_up(bytes == 0 ? 1 : bytes, kPage));
    if (pages.base == nullptr) return no_host_memory(name, bytes);
    add_range(pages.base, bytes);
    return MappedBlock(pages.base, pages.base, bytes,
                       std::make_unique<EmulatedMemory<MappedBlock::Impl>>(state_, pages, pages.base, 0));
  }

  Status register_host(std::byte* data, std::uint64_t bytes) override {
    if (reinterpret_cast<std::uintptr_t>(data) % kPage == 0) return {};
    return make_error(StatusCode::invalid_argument, {.place = "emulated device",
                                                     .what = "host memory to register",
                                                     .found = fmt::format("address {}", static_cast<const void*>(data)),
                                                     .expected = "a multiple of 4096"});
  }

  Stream& compute() override { return *compute_; }
  Stream& copies() override { return *copies_; }
  Stream& values() override { return *values_; }
  Expected<std::unique_ptr<Event>> create_event() override { return std::unique_ptr<Event>(std::make_unique<EmulatedEvent>()); }
  std::uint64_t allocated() const override {
    std::lock_guard lock(state_->mutex);
    return state_->allocated;
  }
  Expected<std::uint64_t> free_bytes() override {
    if (state_->lost) return state_->lost_status();
    return state_->limit - allocated();
  }

 private:
  void add_range(const std::byte* data, std::uint64_t bytes) {
    std::lock_guard lock(state_->mutex);
    state_->ranges[data] = bytes;
  }
  static Status no_host_memory(const std::string& name, std::uint64_t bytes) {
    return make_error(StatusCode::resource_exhausted, {.place = fmt::format("emulated device, {}", name),
                                                       .what = fmt::format("the host refused {}", format_bytes(bytes))});
  }

  const std::shared_ptr<EmulatedState> state_;
  DeviceInfo info_;
  std::unique_ptr<EmulatedStream> compute_, copies_, values_;
};

}  // namespace

Expected<std::unique_ptr<Device>> open_emulated(std::uint64_t memory, EmulatedFaults faults) {
  return std::unique_ptr<Device>(std::make_unique<EmulatedDevice>(memory, faults));
}

}  // namespace ktc::device
