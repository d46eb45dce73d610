// A CUDA device.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/base/units.h"
#include "runtime/device/block_impl.h"
#include "runtime/device/cuda_stream.h"

namespace ktc::device {
namespace {

struct CudaBlock final : Block::Impl {
  explicit CudaBlock(std::byte* d, std::uint64_t b, std::uint64_t* a) : data(d), bytes(b), allocated(a) {}
  ~CudaBlock() override {
    (void)cudaFree(data);
    *allocated -= bytes;
  }
  std::byte* data;
  std::uint64_t bytes;
  std::uint64_t* allocated;
};
struct CudaMapped final : MappedBlock::Impl {
  explicit CudaMapped(void* d) : data(d) {}
  ~CudaMapped() override { (void)cudaFreeHost(data); }
  void* data;
};

std::string capability(int sm) { return fmt::format("{}.{}", sm / 10, sm % 10); }

// Whether an entry of CMAKE_CUDA_ARCHITECTURES serves a card: real code runs on later minors of its major, PTX on all later.
bool serves(std::string_view entry, int sm) {
  int built = 0;
  std::size_t i = 0;
  for (; i < entry.size() && entry[i] >= '0' && entry[i] <= '9'; ++i) built = built * 10 + (entry[i] - '0');
  const bool exact = i < entry.size() && (entry[i] == 'a' || entry[i] == 'f');
  if (exact) return built == sm;
  const bool real = entry.substr(i) == "-real";
  return built <= sm && (!real || built / 10 == sm / 10);
}
bool build_serves(int sm) {
  std::string_view list = KTC_CUDA_ARCHITECTURES;
  while (!list.empty()) {
    const std::size_t end = list.find(';');
    if (serves(list.substr(0, end), sm)) return true;
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
  }
  return false;
}

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

Status check_driver(const std::string& place) {
  int driver = 0, runtime = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return make_error(StatusCode::unsupported, {.place = place,
                                                .what = "no NVIDIA driver answers",
                                                .remedy = "install the driver, or run with --emulate-gpu or a plan for the CPU"});
  if (driver / 1000 < runtime / 1000)
    return make_error(StatusCode::incompatible, {.place = place,
                                                 .what = "the NVIDIA driver is too old",
                                                 .found = "one for CUDA " + version(driver),
                                                 .expected = "CUDA " + version(runtime / 1000 * 1000) + " or later",
                                                 .remedy = "install driver 580 or later"});
  return {};
}

class CudaDevice final : public Device {
 public:
  ~CudaDevice() override {
    (void)cudaSetDevice(state_.ordinal);
    compute_.reset();
    copies_.reset();
    values_.reset();
    for (std::byte* data : registered_) (void)cudaHostUnregister(data);
  }

  Status open(int ordinal) {
    state_.ordinal = ordinal;
    state_.place = fmt::format("cuda:{}", ordinal);
    // A kernel that is loaded late may wait for the running one, and that one may be waiting for us: load all of them at start.
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    KTC_RETURN_IF_ERROR(check_driver(state_.place));
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorNoDevice) count = 0;
    else KTC_RETURN_IF_ERROR(state_.check(error, "asking for devices"));
    if (ordinal < 0 || ordinal >= count)
      return make_error(StatusCode::not_found, {.place = state_.place,
                                                .what = "no such device",
                                                .found = fmt::format("{} device{}", count, count == 1 ? "" : "s"),
                                                .remedy = count == 0 ? "check nvidia-smi and CUDA_VISIBLE_DEVICES"
                                                                     : fmt::format("use cuda:0 to cuda:{}", count - 1)});
    cudaDeviceProp properties = {};
    KTC_RETURN_IF_ERROR(state_.check(cudaGetDeviceProperties(&properties, ordinal), "asking for properties"));
    state_.place = fmt::format("cuda:{} ({})", ordinal, properties.name);
    info_.name = properties.name;
    info_.ordinal = ordinal;
    info_.sm = properties.major * 10 + properties.minor;
    info_.cache = static_cast<std::uint64_t>(properties.l2CacheSize);
    mappable_ = properties.canMapHostMemory != 0;
    if (!build_serves(info_.sm))
      return make_error(StatusCode::incompatible,
                        {.place = state_.place,
                         .what = "this build has no kernels for the card",
                         .found = "compute capability " + capability(info_.sm),
                         .expected = std::string("one of ") + KTC_CUDA_ARCHITECTURES,
                         .remedy = fmt::format("configure with -DKTC_CUDA_ARCHITECTURES={}-real", info_.sm)});
    KTC_RETURN_IF_ERROR(state_.check(cudaInitDevice(ordinal, 0, 0), "creating a context"));
    KTC_RETURN_IF_ERROR(state_.select());
    std::size_t free = 0, total = 0;
    KTC_RETURN_IF_ERROR(state_.check(cudaMemGetInfo(&free, &total), "asking for free memory"));
    info_.memory = total;
    info_.free = free;
    KTC_ASSIGN_OR_RETURN(compute_, CudaStream::create(state_, "compute", true));
    KTC_ASSIGN_OR_RETURN(copies_, CudaStream::create(state_, "copies", false));
    KTC_ASSIGN_OR_RETURN(values_, CudaStream::create(state_, "values", true));
    return {};
  }

  const DeviceInfo& info() const override { return info_; }
  const gpu::KernelSet& kernels() const override { return gpu::cuda_kernels(); }

  Expected<Block> allocate(std::uint64_t bytes, std::string name) override {
    KTC_RETURN_IF_ERROR(state_.select());
    void* data = nullptr;
    const std::uint64_t size = bytes == 0 ? 1 : bytes;
    const cudaError_t error = cudaMalloc(&data, size);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      std::size_t free = 0, total = 0;
      (void)cudaMemGetInfo(&free, &total);
      return make_error(StatusCode::resource_exhausted,
                        {.place = fmt::format("{}, {}", state_.place, name),
                         .what = "not enough memory",
                         .found = fmt::format("{} free of {}", format_bytes(free), format_bytes(total)),
                         .expected = format_bytes(bytes)});
    }
    KTC_RETURN_IF_ERROR(state_.check(error, fmt::format("allocating {} for {}", format_bytes(bytes), name)));
    allocated_ += bytes;
    Block block(static_cast<std::byte*>(data), bytes,
                std::make_unique<CudaBlock>(static_cast<std::byte*>(data), bytes, &allocated_));
    KTC_RETURN_IF_ERROR(compute_->fill(block.data(), 0, size));
    KTC_RETURN_IF_ERROR(compute_->wait());
    return block;
  }

  Expected<MappedBlock> allocate_mapped(std::uint64_t bytes, std::string name) override {
    KTC_RETURN_IF_ERROR(state_.select());
    if (!mappable_)
      return make_error(StatusCode::unsupported,
                        {.place = fmt::format("{}, {}", state_.place, name), .what = "mapped host memory is refused"});
    void *host = nullptr, *device = nullptr;
    const std::uint64_t size = (bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0);
    const std::string what = fmt::format("pinning {} for {}", format_bytes(bytes), name);
    KTC_RETURN_IF_ERROR(state_.check(cudaHostAlloc(&host, size, cudaHostAllocMapped | cudaHostAllocPortable), what));
    auto impl = std::make_unique<CudaMapped>(host);
    KTC_RETURN_IF_ERROR(state_.check(cudaHostGetDevicePointer(&device, host, 0), what));
    std::memset(host, 0, size);
    return MappedBlock(static_cast<std::byte*>(host), static_cast<std::byte*>(device), bytes, std::move(impl));
  }

  Status register_host(std::byte* data, std::uint64_t bytes) override {
    KTC_RETURN_IF_ERROR(state_.select());
    if (reinterpret_cast<std::uintptr_t>(data) % 4096 != 0)
      return make_error(StatusCode::invalid_argument, {.place = state_.place,
                                                       .what = "host memory to register",
                                                       .found = fmt::format("address {}", static_cast<const void*>(data)),
                                                       .expected = "a multiple of 4096"});
    KTC_RETURN_IF_ERROR(state_.check(cudaHostRegister(data, bytes, cudaHostRegisterPortable),
                                     fmt::format("pinning {} of host memory", format_bytes(bytes))));
    registered_.push_back(data);
    return {};
  }

  Stream& compute() override { return *compute_; }
  Stream& copies() override { return *copies_; }
  Stream& values() override { return *values_; }
  Expected<std::unique_ptr<Event>> create_event() override {
    KTC_RETURN_IF_ERROR(state_.select());
    auto event = std::make_unique<CudaEvent>();
    KTC_RETURN_IF_ERROR(state_.check(cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming), "creating an event"));
    return std::unique_ptr<Event>(std::move(event));
  }
  Status reach(Device& peer) override {
    KTC_RETURN_IF_ERROR(state_.select());
    int can = 0;
    const int other = peer.info().ordinal;
    if (other < 0 || other == state_.ordinal || cudaDeviceCanAccessPeer(&can, state_.ordinal, other) != cudaSuccess || can == 0 ||
        cudaDeviceEnablePeerAccess(other, 0) != cudaSuccess)
      (void)cudaGetLastError();  // enabled before, or never: either way copies arrive
    return {};
  }
  std::uint64_t allocated() const override { return allocated_; }
  Expected<std::uint64_t> free_bytes() override {
    KTC_RETURN_IF_ERROR(state_.select());
    std::size_t free = 0, total = 0;
    KTC_RETURN_IF_ERROR(state_.check(cudaMemGetInfo(&free, &total), "asking for free memory"));
    return free;
  }

 private:
  CudaState state_;
  DeviceInfo info_;
  bool mappable_ = false;
  std::uint64_t allocated_ = 0;
  std::vector<std::byte*> registered_;
  std::unique_ptr<CudaStream> compute_, copies_, values_;
};

}  // namespace

Expected<std::unique_ptr<Device>> open_cuda(int ordinal) {
  auto device = std::make_unique<CudaDevice>();
  KTC_RETURN_IF_ERROR(device->open(ordinal));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace ktc::device
