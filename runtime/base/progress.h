// Progress of a long job in bytes: how far, how fast, how long to go.
//
// On a terminal one line is rewritten ten times a second; elsewhere (a log, a pipe) a plain line appears at most every
// two seconds. A job of less than two seconds says nothing at all. Threading: update may be called from any thread; the
// others from one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace ktc {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  struct Output {
    bool terminal = false;
    std::function<void(std::string_view)> write;
    std::function<Clock::time_point()> now = Clock::now;  // replaced in tests
  };
  static Output standard_error();

  // The clock starts now. `label`: what is being done, "writing weights".
  explicit Progress(std::string label, Output output = standard_error());
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::uint64_t done, std::uint64_t total);  // bytes; total 0: not known
  void finish();                                         // says how long it took; further calls do nothing

  // For interfaces that take a function and a context.
  static void report(void* progress, std::uint64_t done, std::uint64_t total) {
    static_cast<Progress*>(progress)->update(done, total);
  }

 private:
  std::string line(Clock::time_point now) const;
  void print(std::string_view text, bool last);

  const std::string label_;
  const Output output_;
  const Clock::time_point start_;
  std::mutex mutex_;        // guards what follows
  Clock::time_point next_;  // no line before
  std::uint64_t done_ = 0, total_ = 0;
  bool finished_ = false;
};

}  // namespace ktc
