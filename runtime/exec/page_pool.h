// Hands out the pages of a KV cache. A page id is in [0, pages), as in plan.fbs.
//
// A page belongs to the pool or to exactly one PageHold; a hold returns its pages when it dies, so no path (finish,
// cancel, error) can forget them. Not thread-safe: the scheduler's thread owns it. A hold must not outlive its pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ktc::exec {

class PagePool;

class PageHold {
 public:
  PageHold() = default;
  PageHold(PageHold&& other) noexcept;
  PageHold& operator=(PageHold&& other) noexcept;
  ~PageHold() { release(); }

  std::span<const std::uint32_t> pages() const { return pages_; }
  void release();  // all pages back to the pool; the hold is empty then

 private:
  friend class PagePool;
  PagePool* pool_ = nullptr;
  std::vector<std::uint32_t> pages_;
};

class PagePool {
 public:
  explicit PagePool(std::uint32_t pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Adds `count` pages to the hold: all of them, or none and false. A fresh pool hands out 0, 1, 2, …
  bool take(std::uint32_t count, PageHold& hold);

  std::uint32_t total() const { return total_; }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

 private:
  friend class PageHold;
  std::uint32_t total_;
  std::vector<std::uint32_t> free_;  // a stack: pages used last are still in a cache
};

}  // namespace ktc::exec
