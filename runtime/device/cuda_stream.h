// A CUDA device's errors and streams.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "runtime/device/device.h"

namespace ktc::device {

// What a device and its streams share.
struct CudaState {
  int ordinal = 0;
  std::string place;   // "cuda:0 (NVIDIA H200)"
  bool lost = false;

  // Makes this device the calling thread's; false when it is lost.
  Status select() const;
  // ok, or what went wrong in one line; remembers a loss.
  Status check(cudaError_t error, const std::string& what);
};

class CudaStream final : public Stream {
 public:
  static Expected<std::unique_ptr<CudaStream>> create(CudaState& state, const char* name, bool first);
  ~CudaStream() override;

  Status copy_to_device(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  Status copy_to_host(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  Status copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  Status copy_from_peer(Device& peer, std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  Status fill(std::byte* to, int value, std::uint64_t bytes) override;
  Status host_call(void (*fn)(void*), void* context) override;
  Status record(Event& event) override;
  Status wait_for(const Event& event) override;
  Status wait() override;
  Expected<bool> idle() override;
  Expected<bool> reached(const Event& event) override;
  Status begin_capture() override;
  Expected<std::unique_ptr<Graph>> end_capture() override;
  Status launch(const Graph& graph) override;

 protected:
  Status launch_bytes(Invoke invoke, const void* fn, std::size_t fn_bytes, const void* args, std::size_t args_bytes) override;

 private:
  CudaStream(CudaState& state, const char* name, cudaStream_t stream) : state_(state), name_(name), stream_(stream) {}
  Status done(cudaError_t error, const char* what);  // a failed call spoils a capture
  Status not_in_capture(const char* what);

  CudaState& state_;
  const char* const name_;
  const cudaStream_t stream_;
  bool capturing_ = false;
  Status capture_status_;
};

struct CudaEvent final : Event {
  ~CudaEvent() override {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  cudaEvent_t event = nullptr;
};

}  // namespace ktc::device
