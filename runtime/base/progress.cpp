#include "runtime/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/base/units.h"

namespace ktc {
namespace {

using std::chrono::duration;
constexpr std::chrono::milliseconds kQuiet{2000}, kPlainInterval{2000}, kTerminalInterval{100};

}  // namespace

Progress::Output Progress::standard_error() {
  return {.terminal = isatty(STDERR_FILENO) == 1, .write = [](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stderr);
            std::fflush(stderr);
          }};
}

Progress::Progress(std::string label, Output output)
    : label_(std::move(label)), output_(std::move(output)), start_(output_.now()), next_(start_ + kQuiet) {}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  done_ = std::max(done_, done);  // threads may report out of order
  total_ = total;
  const Clock::time_point now = output_.now();
  if (now < next_) return;
  next_ = now + (output_.terminal ? kTerminalInterval : kPlainInterval);
  print(line(now), false);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  const double seconds = duration<double>(output_.now() - start_).count();
  if (seconds < duration<double>(kQuiet).count()) return;
  print(fmt::format("{}: {} in {}, {}/s", label_, format_bytes(done_), format_seconds(seconds),
                    format_bytes(static_cast<std::uint64_t>(static_cast<double>(done_) / seconds))),
        true);
}

std::string Progress::line(Clock::time_point now) const {
  const double seconds = duration<double>(now - start_).count();
  const double rate = static_cast<double>(done_) / seconds;
  std::string text = fmt::format("{}: {}", label_, format_bytes(done_));
  if (total_ > 0) {
    const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
    text += fmt::format(" of {} ({} %)", format_bytes(total_), static_cast<int>(share * 100));
  }
  text += fmt::format(", {}/s", format_bytes(static_cast<std::uint64_t>(rate)));
  if (total_ > done_ && rate > 0) {
    text += fmt::format(", {} left", format_seconds(static_cast<double>(total_ - done_) / rate));
  }
  return text;
}

void Progress::print(std::string_view text, bool last) {
  if (!output_.terminal) return output_.write(fmt::format("{}\n", text));
  output_.write(fmt::format("\r{}\x1b[K{}", text, last ? "\n" : ""));  // ESC [K: erase what the longer line before left
}

}  // namespace ktc
