#include "runtime/exec/page_pool.h"

#include <cassert>
#include <utility>

namespace ktc::exec {

PageHold::PageHold(PageHold&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), pages_(std::exchange(other.pages_, {})) {}

PageHold& PageHold::operator=(PageHold&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

void PageHold::release() {
  // backwards, so that taking again gives the same order
  for (auto page = pages_.rbegin(); page != pages_.rend(); ++page) pool_->free_.push_back(*page);
  pages_.clear();
  pool_ = nullptr;
}

PagePool::PagePool(std::uint32_t pages) : total_(pages) {
  free_.reserve(pages);
  for (std::uint32_t page = pages; page > 0; --page) free_.push_back(page - 1);
}

bool PagePool::take(std::uint32_t count, PageHold& hold) {
  assert((hold.pool_ == nullptr || hold.pool_ == this) && "a hold belongs to one pool");
  if (count > free_.size()) return false;
  hold.pool_ = this;
  hold.pages_.reserve(hold.pages_.size() + count);
  for (std::uint32_t i = 0; i < count; ++i) {
    hold.pages_.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

}  // namespace ktc::exec
