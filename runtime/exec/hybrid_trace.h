// Slices of one step: those of the CPU as it goes, those of devices by host calls in their streams.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/exec/trace.h"

namespace ktc::exec {

// A host call costs a device some 10 us: a traced step is slower, and its steps are in the right order and proportion. Kernels in
// a graph are one slice. Threading: as the executor; stamps are written by the streams' host calls and read after the step.
class TraceRecorder {
 public:
  void add(TraceSlice slice) { slices_.push_back(slice); }
  Status begin(device::Stream& stream, std::uint32_t device, std::string_view name, Track track = Track::gpu) {
    spans_.push_back({.track = track, .device = device, .name = name});
    Span*& open = track == Track::copy ? open_copy_ : open_gpu_;
    open = &spans_.back();
    return stream.host_call([](void* span) { static_cast<Span*>(span)->begin = trace_now(); }, open);
  }
  // What was begun last on this track.
  Status end(device::Stream& stream, Track track = Track::gpu) {
    return stream.host_call([](void* span) { static_cast<Span*>(span)->end = trace_now(); }, track == Track::copy ? open_copy_ : open_gpu_);
  }
  // All streams are idle. A tracer without a function: drops them.
  void report(const Tracer& tracer) {
    if (tracer.report != nullptr) {
      for (const TraceSlice& slice : slices_) tracer.report(tracer.context, slice);
      for (const Span& span : spans_)
        tracer.report(tracer.context, {.track = span.track, .device = span.device, .name = span.name, .begin = span.begin, .end = span.end});
    }
    slices_.clear();
    spans_.clear();
  }

 private:
  struct Span {
    Track track = Track::gpu;
    std::uint32_t device = 0;
    std::string_view name;
    std::uint64_t begin = 0, end = 0;
  };
  std::vector<TraceSlice> slices_;
  std::deque<Span> spans_;  // addresses stay
  Span *open_gpu_ = nullptr, *open_copy_ = nullptr;
};

}  // namespace ktc::exec
