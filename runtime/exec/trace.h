// What happened when, for people who look at a step: slices of a Chrome trace.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace ktc::exec {

enum class Track : std::uint8_t {
  step,   // a whole step, by its entry's name
  cpu,    // a step of the plan that the CPU computed, a record unpacked, a result written
  wait,   // the CPU waited for a device
  gpu,    // a device was at a step, or at a graph
  copy,   // experts were copied to a device
};

struct TraceSlice {
  Track track = Track::cpu;
  std::uint32_t device = 0;  // index in Plan.devices
  std::string_view name;     // valid in the call
  std::uint64_t begin = 0, end = 0;  // nanoseconds of steady_clock
};

// Called by the thread that runs the step, after the step; slices of one track and device ascend and do not overlap.
struct Tracer {
  void (*report)(void* context, const TraceSlice& slice) = nullptr;
  void* context = nullptr;
};

// Where the time of all steps so far went, in nanoseconds.
struct Busy {
  std::uint64_t steps = 0;
  std::uint64_t cpu = 0;   // the CPU computed
  std::uint64_t wait = 0;  // the CPU waited for a device, which was busy then
  std::uint64_t streamed_pairs = 0, shared_pairs = 0;  // of a token and an expert that passed through a GPU; of those, the CPU's
};

inline std::uint64_t trace_now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace ktc::exec
