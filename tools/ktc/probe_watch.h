// Ends a probe that hangs: a device that does not answer can hold any call for ever, and no Status comes back from it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace ktc::tools {

// Behind the deadline `give_up` is called on a thread of its own, unless the watch is gone by then.
class ProbeWatch {
 public:
  ProbeWatch(std::chrono::steady_clock::time_point deadline, std::function<void()> give_up)
      : thread_([this, deadline, give_up = std::move(give_up)] {
          std::unique_lock lock(mutex_);
          if (!ended_.wait_until(lock, deadline, [this] { return done_; })) give_up();
        }) {}
  ~ProbeWatch() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  ProbeWatch(const ProbeWatch&) = delete;
  ProbeWatch& operator=(const ProbeWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace ktc::tools
