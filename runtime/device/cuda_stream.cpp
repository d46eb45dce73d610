#include "runtime/device/cuda_stream.h"

#include <fmt/format.h>

namespace ktc::device {
namespace {

// Errors after which a context works no more; the others concern one call alone.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorCudartUnloading:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

struct CudaGraph final : Graph {
  ~CudaGraph() override {
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
  }
  cudaGraphExec_t executable = nullptr;
};

}  // namespace

Status CudaState::select() const {
  if (lost) return make_error(StatusCode::unavailable, {.place = place, .what = "the device is lost", .remedy = "start again"});
  (void)cudaSetDevice(ordinal);  // a failure shows in the call that follows
  return {};
}

Status CudaState::check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // what is not sticky would else be found by the next launch
  const std::string found = fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  if (is_sticky(error)) {
    lost = true;
    return make_error(StatusCode::unavailable,
                      {.place = place, .what = what + ": the device is lost", .found = found, .remedy = "start again; see dmesg for Xid messages"});
  }
  const StatusCode code = error == cudaErrorMemoryAllocation  ? StatusCode::resource_exhausted
                          : error == cudaErrorNotSupported    ? StatusCode::unsupported
                          : error == cudaErrorNoKernelImageForDevice ? StatusCode::incompatible
                                                              : StatusCode::internal;
  return make_error(code, {.place = place, .what = what, .found = found});
}

Expected<std::unique_ptr<CudaStream>> CudaStream::create(CudaState& state, const char* name, bool first) {
  int least = 0, greatest = 0;
  KTC_RETURN_IF_ERROR(state.check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities"));
  cudaStream_t stream = nullptr;
  KTC_RETURN_IF_ERROR(state.check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, first ? greatest : least),
                                  fmt::format("creating the stream {}", name)));
  return std::unique_ptr<CudaStream>(new CudaStream(state, name, stream));
}

CudaStream::~CudaStream() { (void)cudaStreamDestroy(stream_); }

Status CudaStream::done(cudaError_t error, const char* what) {
  Status status = state_.check(error, fmt::format("stream {}, {}", name_, what));
  if (!status.ok() && capturing_ && capture_status_.ok()) capture_status_ = status;
  return status;
}

Status CudaStream::not_in_capture(const char* what) {
  if (!capturing_) return {};
  Status status = make_error(StatusCode::invalid_argument, {.place = fmt::format("{}, stream {}", state_.place, name_),
                                                            .what = fmt::format("{} during a capture", what)});
  if (capture_status_.ok()) capture_status_ = status;
  return status;
}

Status CudaStream::launch_bytes(Invoke invoke, const void* fn, std::size_t, const void* args, std::size_t) {
  KTC_RETURN_IF_ERROR(state_.select());
  return done(static_cast<cudaError_t>(invoke(fn, args, stream_)), "a kernel");
}

Status CudaStream::copy_to_device(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the device");
}
Status CudaStream::copy_to_host(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "a copy to the host");
}
Status CudaStream::copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy on the device");
}
Status CudaStream::copy_from_peer(Device& peer, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(not_in_capture("a copy between devices"));
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaMemcpyPeerAsync(to, state_.ordinal, from, peer.info().ordinal, bytes, stream_), "a copy between devices");
}
Status CudaStream::fill(std::byte* to, int value, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaMemsetAsync(to, value, bytes, stream_), "a fill");
}
Status CudaStream::host_call(void (*fn)(void*), void* context) {
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaLaunchHostFunc(stream_, fn, context), "a host call");
}

Status CudaStream::record(Event& event) {
  KTC_RETURN_IF_ERROR(not_in_capture("record"));
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaEventRecord(static_cast<CudaEvent&>(event).event, stream_), "record");
}
Status CudaStream::wait_for(const Event& event) {
  KTC_RETURN_IF_ERROR(not_in_capture("wait_for"));
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).event, 0), "wait_for");
}

Status CudaStream::wait() {
  KTC_RETURN_IF_ERROR(not_in_capture("wait"));
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaStreamSynchronize(stream_), "wait");
}
Expected<bool> CudaStream::idle() {
  KTC_RETURN_IF_ERROR(not_in_capture("idle"));
  KTC_RETURN_IF_ERROR(state_.select());
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  KTC_RETURN_IF_ERROR(done(error, "idle"));
  return true;
}

Expected<bool> CudaStream::reached(const Event& event) {
  KTC_RETURN_IF_ERROR(not_in_capture("reached"));
  KTC_RETURN_IF_ERROR(state_.select());
  const cudaError_t error = cudaEventQuery(static_cast<const CudaEvent&>(event).event);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  KTC_RETURN_IF_ERROR(done(error, "reached"));
  return true;
}

Status CudaStream::begin_capture() {
  KTC_RETURN_IF_ERROR(not_in_capture("begin_capture"));
  KTC_RETURN_IF_ERROR(state_.select());
  KTC_RETURN_IF_ERROR(done(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin_capture"));
  capturing_ = true;
  capture_status_ = {};
  return {};
}

Expected<std::unique_ptr<Graph>> CudaStream::end_capture() {
  if (!capturing_)
    return make_error(StatusCode::invalid_argument, {.place = fmt::format("{}, stream {}", state_.place, name_),
                                                     .what = "end_capture without begin_capture"});
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream_, &captured);
  if (!capture_status_.ok()) {
    (void)cudaGetLastError();
    if (captured != nullptr) (void)cudaGraphDestroy(captured);
    return std::exchange(capture_status_, {}).with_context("the capture failed");
  }
  KTC_RETURN_IF_ERROR(done(error, "end_capture"));
  auto graph = std::make_unique<CudaGraph>();
  Status status = done(cudaGraphInstantiate(&graph->executable, captured, 0), "instantiating a graph");
  (void)cudaGraphDestroy(captured);
  KTC_RETURN_IF_ERROR(status);
  KTC_RETURN_IF_ERROR(done(cudaGraphUpload(graph->executable, stream_), "uploading a graph"));
  return std::unique_ptr<Graph>(std::move(graph));
}

Status CudaStream::launch(const Graph& graph) {
  KTC_RETURN_IF_ERROR(not_in_capture("launch of a graph"));
  KTC_RETURN_IF_ERROR(state_.select());
  return done(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).executable, stream_), "launch of a graph");
}

}  // namespace ktc::device
