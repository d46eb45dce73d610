// A stream of the host-emulated accelerator: one thread that works through a queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/device/device.h"

namespace ktc::device {

// What the streams of one device share. Blocks may outlive the device: they share it too.
struct EmulatedState {
  std::uint64_t limit = 0;
  EmulatedFaults faults;
  std::mutex mutex;                                  // of `ranges` and `allocated`
  std::map<const std::byte*, std::uint64_t> ranges;  // memory of the device, mapped memory included
  std::uint64_t allocated = 0;
  std::atomic<std::uint64_t> kernels{0};             // run so far
  std::atomic<bool> lost{false};

  bool owns(const std::byte* data, std::uint64_t bytes);
  Status lost_status() const;
};

struct EmulatedEvent final : Event {
  // Shared with queued commands: an event may be destroyed while one still refers to it.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0, reached = 0;  // counts of record()
    std::shared_ptr<EmulatedState> device;    // of the last record(): lost, it reaches nothing more
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

// Runs on the stream's thread. Returns 0, or what a kernel returned.
using EmulatedCommand = std::function<int()>;

struct EmulatedGraph final : Graph {
  std::vector<EmulatedCommand> commands;
};

class EmulatedStream final : public Stream {
 public:
  EmulatedStream(std::shared_ptr<EmulatedState> state, const char* name);
  ~EmulatedStream() override;

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
  void serve();
  Status add(EmulatedCommand command);         // records while capturing, else queues
  Status refuse(Status status);                // a failed call; spoils a capture
  Status not_in_capture(const char* what);
  Status check_range(const char* what, const std::byte* data, std::uint64_t bytes);

  const std::shared_ptr<EmulatedState> state_;
  const char* const name_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EmulatedCommand> queue_;          // the front one is running while busy_
  bool busy_ = false, stop_ = false;
  std::shared_ptr<EmulatedEvent::State> blocked_on_;  // event that the thread waits for

  bool capturing_ = false;                     // of the thread that uses the device
  Status capture_status_;
  std::unique_ptr<EmulatedGraph> graph_;

  std::thread thread_;                         // last: starts when all of the above is there
};

}  // namespace ktc::device
