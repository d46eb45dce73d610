// A GPU as the executor sees it: memory, mapped pinned host memory, three streams, graphs. Two kinds behind one interface: a CUDA
// device, and the host-emulated accelerator, whose memory is host memory, whose streams are host threads and whose kernels are
// the reference set. The second is how everything that has to do with order is tested where no GPU is.
//
// Threading: one thread at a time uses a device, its streams and graphs. Mapped memory may be read and written by any thread.
// Errors: a Status names the device and what was asked of it. After `unavailable` from any call the device is lost: nothing more
// will work on it, and only destruction is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::device {

struct DeviceInfo {
  std::string name;              // "NVIDIA H200", "emulated"
  int sm = 0;                    // compute capability times ten; 0: emulated
  std::uint64_t memory = 0;      // bytes, all of it
  std::uint64_t free = 0;        // bytes, at open
  std::uint64_t cache = 0;       // bytes, the one that all SMs share; 0: emulated
  bool emulated = false;
  int ordinal = -1;              // N of cuda:N; emulated: -1
};

// Device memory, 256-byte aligned, zeroed. Move-only; freed with its device still open. Empty after a move.
class Block {
 public:
  struct Impl;
  Block();
  Block(std::byte* data, std::uint64_t bytes, std::unique_ptr<Impl> impl);
  Block(Block&&) noexcept;
  Block& operator=(Block&&) noexcept;
  ~Block();
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<Impl> impl_;
};

// Pinned host memory that the device maps: `host` for the CPU, `device` for kernels. 4096-byte aligned, zeroed.
class MappedBlock {
 public:
  struct Impl;
  MappedBlock();
  MappedBlock(std::byte* host, std::byte* device, std::uint64_t bytes, std::unique_ptr<Impl> impl);
  MappedBlock(MappedBlock&&) noexcept;
  MappedBlock& operator=(MappedBlock&&) noexcept;
  ~MappedBlock();
  std::byte* host() const { return host_; }
  std::byte* device() const { return device_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<Impl> impl_;
};

// What a stream was told between begin_capture and end_capture; replayed by Stream::launch, any number of times, not at once.
class Graph {
 public:
  virtual ~Graph() = default;
};

class Event {
 public:
  virtual ~Event() = default;
};

class Device;

// Work in order. Calls return before the work is done, except wait().
class Stream {
 public:
  virtual ~Stream() = default;

  // fn is a member of the device's kernel set; args are copied.
  template <typename Args>
  Status launch(int (*fn)(const Args&, void*), const Args& args) {
    static_assert(sizeof(Args) <= kMostArgs && std::is_trivially_copyable_v<Args>);
    return launch_bytes([](const void* f, const void* a, void* stream) {
      return (*static_cast<int (*const*)(const Args&, void*)>(f))(*static_cast<const Args*>(a), stream);
    }, &fn, sizeof fn, &args, sizeof args);
  }
  // Host memory may be mapped or ordinary; ordinary memory must stay unchanged until wait() (CUDA copies it through a staging
  // area and may block).
  virtual Status copy_to_device(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  virtual Status copy_to_host(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  virtual Status copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  // From memory of `peer`, another device of this kind, to this stream's device. Ordered against the peer's work by events alone.
  // Refused in a capture.
  virtual Status copy_from_peer(Device& peer, std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  virtual Status fill(std::byte* to, int value, std::uint64_t bytes) = 0;

  // fn(context) on a host thread when the stream gets there: the slow hand-off. fn must not use the device.
  virtual Status host_call(void (*fn)(void*), void* context) = 0;

  virtual Status record(Event& event) = 0;          // of this stream's device
  virtual Status wait_for(const Event& event) = 0;  // work after this waits for what was before record(); also of another device
  virtual Status wait() = 0;                        // blocks the caller; the first error of the stream's work
  virtual Expected<bool> idle() = 0;                // never blocks
  virtual Expected<bool> reached(const Event& event) = 0;  // what was before its last record() is done; never blocks

  // launch, copies, fills and host_call in between are recorded and not run. Refused in between: record, wait_for, wait, idle,
  // launch of a graph, a second begin_capture. A failed call in between makes end_capture fail.
  virtual Status begin_capture() = 0;
  virtual Expected<std::unique_ptr<Graph>> end_capture() = 0;
  virtual Status launch(const Graph& graph) = 0;

  static constexpr std::size_t kMostArgs = 1024;

 protected:
  using Invoke = int (*)(const void* fn, const void* args, void* stream);
  virtual Status launch_bytes(Invoke invoke, const void* fn, std::size_t fn_bytes, const void* args, std::size_t args_bytes) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual const gpu::KernelSet& kernels() const = 0;
  // Errors: resource_exhausted, which names asked, free and total bytes.
  virtual Expected<Block> allocate(std::uint64_t bytes, std::string name) = 0;
  // Errors: also a system that refuses mapped memory; then the caller falls back to copies and host_call.
  virtual Expected<MappedBlock> allocate_mapped(std::uint64_t bytes, std::string name) = 0;
  // Pins memory that exists, for fast copies; released with the device. 4096-byte aligned.
  virtual Status register_host(std::byte* data, std::uint64_t bytes) = 0;
  virtual Stream& compute() = 0;
  virtual Stream& copies() = 0;                     // of weights
  virtual Stream& values() { return copies(); }     // of values: they do not wait behind weights
  virtual Expected<std::unique_ptr<Event>> create_event() = 0;
  // Copies from `peer` go straight from card to card from now on, where the system permits that; elsewhere the driver takes them through
  // host memory, with the same result. Errors: a lost device.
  virtual Status reach([[maybe_unused]] Device& peer) { return {}; }
  virtual std::uint64_t allocated() const = 0;   // bytes of Blocks alive
  // Free bytes as the driver sees them now; emulated: limit minus allocated().
  virtual Expected<std::uint64_t> free_bytes() = 0;
};

// Errors, each one line: no driver, a driver that is too old, no such device, a compute capability without kernels in this
// build, a build without CUDA.
Expected<std::unique_ptr<Device>> open_cuda(int ordinal);
// memory: the limit that allocate() enforces. Its copies check that the device's side lies in memory of the device; memory that
// allocate() gave ends at a page that faults. Destruction drops what is queued: a host that gives up on a running await must set
// the poison word first, as with CUDA.
struct EmulatedFaults {
  bool refuse_mapped = false;         // allocate_mapped fails, as on systems without it
  std::uint64_t lose_after = 0;       // kernels after which the device is lost; 0: never
};
Expected<std::unique_ptr<Device>> open_emulated(std::uint64_t memory, EmulatedFaults faults = {});

}  // namespace ktc::device
