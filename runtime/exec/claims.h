// One worker's way through the items of a loop: it takes one after the other, and may take the next while it is at one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ktc::exec {

constexpr std::size_t kApart = 128;  // two cache lines: neighbours are fetched in pairs

// for (; claims.more(); claims.advance()) do_item(claims.current());
//
// Items are claimed in ascending order, by all workers of the loop together, and each worker does its own in ascending order.
// So an item may wait for items below it: whoever holds the lowest one that is not done is at it, or comes to it after others
// of which the same holds. A worker must do every item that it claimed, and go on until there are no more.
class Claims {
 public:
  // All of [0, count), by one worker alone.
  explicit Claims(std::size_t count) : count_(count) {}
  // `remaining` counts down the items that nobody has claimed; `first` is claimed already.
  Claims(std::atomic<std::int64_t>& remaining, std::size_t count, std::size_t first)
      : remaining_(&remaining), count_(count), current_(first), ahead_(first) {}

  bool more() const { return current_ < count_; }
  std::size_t current() const { return current_; }
  // Claims the next item, if it was not, and says which it is: count() when none is left. The later this is asked, the less
  // another worker will wait for what is claimed and not begun.
  std::size_t ahead() {
    if (ahead_ == current_) ahead_ = claim();
    return ahead_;
  }
  void advance() {
    current_ = ahead();
    ++taken_;
  }

  std::size_t count() const { return count_; }
  std::size_t taken() const { return taken_; }  // items that this worker is past

 private:
  std::size_t claim() {
    if (remaining_ == nullptr) return current_ + 1;
    if (remaining_->load(std::memory_order_relaxed) <= 0) return count_;
    const std::int64_t left = remaining_->fetch_sub(1, std::memory_order_relaxed);
    return left <= 0 ? count_ : count_ - static_cast<std::size_t>(left);
  }

  std::atomic<std::int64_t>* remaining_ = nullptr;
  std::size_t count_;
  std::size_t current_ = 0, ahead_ = 0, taken_ = 0;
};

}  // namespace ktc::exec
