#include "runtime/device/emulated_stream.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <utility>

namespace ktc::device {

bool EmulatedState::owns(const std::byte* data, std::uint64_t bytes) {
  std::lock_guard lock(mutex);
  auto next = ranges.upper_bound(data);
  if (next == ranges.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  const auto offset = static_cast<std::uint64_t>(data - start);
  return offset <= size && bytes <= size - offset;
}

Status EmulatedState::lost_status() const {
  return make_error(StatusCode::unavailable, {.place = "emulated device", .what = "the device is lost", .remedy = "start again"});
}

EmulatedStream::EmulatedStream(std::shared_ptr<EmulatedState> state, const char* name)
    : state_(std::move(state)), name_(name), thread_([this] { serve(); }) {}

EmulatedStream::~EmulatedStream() {
  std::shared_ptr<EmulatedEvent::State> event;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    event = blocked_on_;
  }
  changed_.notify_all();
  if (event) {  // under its mutex: the thread is either before its check of stop_ or asleep
    std::lock_guard lock(event->mutex);
    event->changed.notify_all();
  }
  thread_.join();
}

void EmulatedStream::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    EmulatedCommand command = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (!state_->lost.load(std::memory_order_relaxed) && command() != 0) state_->lost = true;
    command = nullptr;  // what it holds is released before the stream counts as idle
    lock.lock();
    busy_ = false;
    if (queue_.empty()) changed_.notify_all();
  }
}

Status EmulatedStream::refuse(Status status) {
  if (capturing_ && capture_status_.ok()) capture_status_ = status;
  return status;
}

Status EmulatedStream::not_in_capture(const char* what) {
  if (!capturing_) return {};
  return refuse(make_error(StatusCode::invalid_argument,
                           {.place = fmt::format("emulated device, stream {}", name_), .what = fmt::format("{} during a capture", what)}));
}

Status EmulatedStream::check_range(const char* what, const std::byte* data, std::uint64_t bytes) {
  if (state_->owns(data, bytes)) return {};
  return refuse(make_error(StatusCode::invalid_argument,
                           {.place = fmt::format("emulated device, stream {}", name_),
                            .what = fmt::format("{} of {} bytes", what, bytes),
                            .found = fmt::format("address {}", static_cast<const void*>(data)),
                            .expected = "memory of the device"}));
}

Status EmulatedStream::add(EmulatedCommand command) {
  if (state_->lost.load(std::memory_order_relaxed)) return refuse(state_->lost_status());
  if (capturing_) {
    graph_->commands.push_back(std::move(command));
    return {};
  }
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(command));
  }
  changed_.notify_all();
  return {};
}

Status EmulatedStream::launch_bytes(Invoke invoke, const void* fn, std::size_t fn_bytes, const void* args,
                                    std::size_t args_bytes) {
  struct Copy {
    alignas(16) std::array<std::byte, kMostArgs> args;
    alignas(16) std::array<std::byte, 2 * sizeof(void*)> fn;
  };
  auto copy = std::make_shared<Copy>();
  std::memcpy(copy->args.data(), args, args_bytes);
  std::memcpy(copy->fn.data(), fn, fn_bytes);
  return add([invoke, copy = std::move(copy), state = state_.get()] {
    const std::uint64_t before = state->kernels.fetch_add(1, std::memory_order_relaxed);
    if (state->faults.lose_after != 0 && before >= state->faults.lose_after) return 1;
    return invoke(copy->fn.data(), copy->args.data(), nullptr);
  });
}

Status EmulatedStream::copy_to_device(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(check_range("a copy to the device", to, bytes));
  return add([=] { return std::memcpy(to, from, bytes), 0; });
}
Status EmulatedStream::copy_to_host(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(check_range("a copy to the host", from, bytes));
  return add([=] { return std::memcpy(to, from, bytes), 0; });
}
Status EmulatedStream::copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(check_range("a copy on the device", to, bytes));
  KTC_RETURN_IF_ERROR(check_range("a copy on the device", from, bytes));
  return add([=] { return std::memmove(to, from, bytes), 0; });
}
Status EmulatedStream::copy_from_peer(Device& peer, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(not_in_capture("a copy between devices"));
  KTC_RETURN_IF_ERROR(check_range("a copy between devices", to, bytes));
  auto* other = dynamic_cast<EmulatedStream*>(&peer.compute());
  if (other == nullptr || other->state_ == state_)
    return refuse(make_error(StatusCode::invalid_argument, {.place = fmt::format("emulated device, stream {}", name_),
                                                            .what = "a copy between devices",
                                                            .expected = "from another emulated device"}));
  KTC_RETURN_IF_ERROR(other->check_range("a copy between devices", from, bytes));
  return add([=] { return std::memcpy(to, from, bytes), 0; });
}
Status EmulatedStream::fill(std::byte* to, int value, std::uint64_t bytes) {
  KTC_RETURN_IF_ERROR(check_range("a fill", to, bytes));
  return add([=] { return std::memset(to, value, bytes), 0; });
}
Status EmulatedStream::host_call(void (*fn)(void*), void* context) {
  return add([=] { return fn(context), 0; });
}

Status EmulatedStream::record(Event& event) {
  KTC_RETURN_IF_ERROR(not_in_capture("record"));
  auto state = static_cast<EmulatedEvent&>(event).state;
  std::uint64_t count;
  {
    std::lock_guard lock(state->mutex);
    count = ++state->recorded;
    state->device = state_;
  }
  return add([state = std::move(state), count] {
    std::lock_guard lock(state->mutex);
    state->reached = count;
    state->changed.notify_all();
    return 0;
  });
}

Status EmulatedStream::wait_for(const Event& event) {
  KTC_RETURN_IF_ERROR(not_in_capture("wait_for"));
  auto state = static_cast<const EmulatedEvent&>(event).state;
  std::uint64_t count;
  {
    std::lock_guard lock(state->mutex);
    count = state->recorded;
  }
  return add([this, state = std::move(state), count] {
    {
      std::lock_guard lock(mutex_);
      blocked_on_ = state;
    }
    const auto over = [&] {
      if (state->reached >= count || state_->lost.load(std::memory_order_relaxed)) return true;
      if (state->device != nullptr && state->device->lost.load(std::memory_order_relaxed)) {
        state_->lost = true;  // what this device was to wait for never comes
        return true;
      }
      std::lock_guard lock(mutex_);
      return stop_;
    };
    std::unique_lock event_lock(state->mutex);
    // a lost device does not reach its events and nobody tells: look now and then
    while (!over()) state->changed.wait_for(event_lock, std::chrono::milliseconds(10));
    event_lock.unlock();
    std::lock_guard lock(mutex_);
    blocked_on_ = nullptr;
    return 0;
  });
}

Status EmulatedStream::wait() {
  KTC_RETURN_IF_ERROR(not_in_capture("wait"));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  return state_->lost ? state_->lost_status() : Status();
}

Expected<bool> EmulatedStream::idle() {
  KTC_RETURN_IF_ERROR(not_in_capture("idle"));
  std::lock_guard lock(mutex_);
  if (state_->lost) return state_->lost_status();
  return queue_.empty() && !busy_;
}

Expected<bool> EmulatedStream::reached(const Event& event) {
  KTC_RETURN_IF_ERROR(not_in_capture("reached"));
  if (state_->lost.load(std::memory_order_relaxed)) return state_->lost_status();
  EmulatedEvent::State& state = *static_cast<const EmulatedEvent&>(event).state;
  std::lock_guard lock(state.mutex);
  return state.reached >= state.recorded;
}

Status EmulatedStream::begin_capture() {
  KTC_RETURN_IF_ERROR(not_in_capture("begin_capture"));
  if (state_->lost) return state_->lost_status();
  capturing_ = true;
  capture_status_ = {};
  graph_ = std::make_unique<EmulatedGraph>();
  return {};
}

Expected<std::unique_ptr<Graph>> EmulatedStream::end_capture() {
  if (!capturing_)
    return make_error(StatusCode::invalid_argument,
                      {.place = fmt::format("emulated device, stream {}", name_), .what = "end_capture without begin_capture"});
  capturing_ = false;
  std::unique_ptr<EmulatedGraph> graph = std::move(graph_);
  if (!capture_status_.ok()) return std::exchange(capture_status_, {}).with_context("the capture failed");
  return std::unique_ptr<Graph>(std::move(graph));
}

Status EmulatedStream::launch(const Graph& graph) {
  KTC_RETURN_IF_ERROR(not_in_capture("launch of a graph"));
  // the graph stays with its owner, as with CUDA: commands are copied, so it may go before they have run
  for (const EmulatedCommand& command : static_cast<const EmulatedGraph&>(graph).commands) KTC_RETURN_IF_ERROR(add(command));
  return {};
}

}  // namespace ktc::device
