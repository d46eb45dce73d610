// One worker's way through the items of a loop: it takes one after the other, and may take the next while it is at one.
//
// With several nodes (runtime/exec/cpu_nodes.h) an item belongs to the node on which the weights lie that it reads. A loop's
// items come in phases; within a phase each node has a queue of its own, with a counter that its workers alone touch while they
// have work. Who finds no more of its own node takes what other nodes have left of the same phase, and only then goes on to the
// next phase: nothing depends on which worker comes, or on all nodes being equally fast.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/weights/node_split.h"

namespace ktc::exec {

using weights::kMostNodes;

constexpr std::size_t kApart = 128;     // two cache lines: neighbours are fetched in pairs
constexpr std::size_t kMostPhases = 5;  // of a loop

// How the items of a loop are dealt: numbered phase by phase, within a phase node by node. With one node all phases are one
// queue.
class Deal {
 public:
  explicit Deal(std::size_t nodes) : nodes_(nodes) {}
  Deal(const Deal&) = delete;
  Deal& operator=(const Deal&) = delete;

  // One more phase, after at most kMostPhases - 1 others: items_of(node) items of each node.
  template <typename ItemsOf>
  void add(const ItemsOf& items_of) {
    if (nodes_ == 1) {
      ends_[0] = count() + items_of(std::size_t{0});
      queues_ = 1;
      return;
    }
    std::size_t end = count();
    for (std::size_t n = 0; n < nodes_; ++n) ends_[queues_++] = end += items_of(n);
  }

  std::size_t nodes() const { return nodes_; }
  std::size_t queues() const { return queues_; }
  std::size_t count() const { return queues_ == 0 ? 0 : ends_[queues_ - 1]; }
  // Items [end(q - 1), end(q)) are those of queue q: of phase q / nodes() and node q % nodes().
  std::size_t end(std::size_t queue) const { return ends_[queue]; }

 private:
  std::size_t nodes_, queues_ = 0;
  std::array<std::size_t, kMostPhases * kMostNodes> ends_;  // [queues_]
};

// Counts down the items of a queue that nobody has claimed; below zero: claims that failed.
struct alignas(kApart) ItemQueue {
  std::atomic<std::int64_t> remaining{0};
};

// for (; claims.more(); claims.advance()) do_item(claims.current());
//
// The items of a queue are claimed in ascending order, by all workers of the loop together, and each worker does what it claimed
// in the order in which it did. So an item may wait for items below it in its own queue, and for all items of earlier phases:
// those are claimed by then, and of all claimed items that are not done, one that was claimed first in the earliest phase is at
// work. A worker must do every item that it claimed, and go on until there are no more.
class Claims {
 public:
  // All of [0, count), by one worker alone.
  explicit Claims(std::size_t count) : count_(count) {}
  // By a worker of `node` that has claimed item `first`, of queue `queue`.
  Claims(ItemQueue* queues, const Deal& deal, std::size_t node, std::size_t queue, std::size_t first)
      : queues_(queues),
        deal_(&deal),
        node_(node),
        phase_(queue / deal.nodes() * deal.nodes()),
        count_(deal.count()),
        current_(first),
        ahead_(first) {}

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
    if (queues_ == nullptr) return current_ + 1;
    for (const std::size_t nodes = deal_->nodes(); phase_ < deal_->queues(); phase_ += nodes) {
      for (std::size_t i = 0; i < nodes; ++i) {
        const std::size_t queue = phase_ + (node_ + i < nodes ? node_ + i : node_ + i - nodes);
        std::atomic<std::int64_t>& remaining = queues_[queue].remaining;
        if (remaining.load(std::memory_order_relaxed) <= 0) continue;
        const std::int64_t left = remaining.fetch_sub(1, std::memory_order_relaxed);
        if (left > 0) return deal_->end(queue) - static_cast<std::size_t>(left);
      }
    }
    return count_;
  }

  ItemQueue* queues_ = nullptr;
  const Deal* deal_ = nullptr;
  std::size_t node_ = 0, phase_ = 0;  // phase_: its first queue
  std::size_t count_;
  std::size_t current_ = 0, ahead_ = 0, taken_ = 0;
};

}  // namespace ktc::exec
