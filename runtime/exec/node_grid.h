// Items over the columns of a weight, so that each reads what lies on one node.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "runtime/exec/parallel.h"
#include "runtime/exec/partition.h"

namespace ktc::exec {

// Columns (panels) [0, columns) cut into parts of at most `step`, no part across the border of two nodes, times `outer` of
// something else (experts, blocks of rows). Items are numbered node by node, as Deal wants it; within a node in either order.
class NodeGrid {
 public:
  // `split`: where the weight says it is cut; null: as large as the workers' shares, in units.
  NodeGrid(const Workers& workers, const weights::PanelSplit* split, std::size_t columns, std::size_t step, std::size_t outer,
           std::size_t unit = 1)
      : nodes_(workers.nodes()), step_(step), outer_(outer) {
    for (std::size_t n = 0; n <= nodes_; ++n) {
      first_[n] = split != nullptr ? static_cast<std::size_t>(split->first[n]) : workers.share(columns, n, unit);
      parts_before_[n] = n == 0 ? 0 : parts_before_[n - 1] + blocks(first_[n] - first_[n - 1], step_);
    }
  }

  std::size_t parts() const { return parts_before_[nodes_]; }
  std::size_t items() const { return outer_ * parts(); }
  std::size_t items_of(std::size_t node) const { return outer_ * parts_of(node); }
  // Whether every part but the last of all is whole units when `step` is.
  bool borders_at(std::size_t unit) const {
    for (std::size_t n = 1; n < nodes_; ++n)
      if (first_[n] % unit != 0 && first_[n] != first_[nodes_]) return false;
    return true;
  }

  // The items of claim `chunk` when each node's are claimed `grain` at a time.
  struct Range {
    std::size_t begin, end;
  };
  Range range(std::size_t chunk, std::size_t grain) const {
    std::size_t n = 0, before = 0;
    for (; n + 1 < nodes_ && chunk >= blocks(items_of(n), grain); ++n) {
      chunk -= blocks(items_of(n), grain);
      before += items_of(n);
    }
    return {before + chunk * grain, before + std::min(items_of(n), (chunk + 1) * grain)};
  }

  struct Item {
    std::size_t outer, part;  // part: its number among parts()
    std::size_t begin, end;   // columns
  };
  // All parts of a node for each of the outer in turn.
  Item by_outer(std::size_t item) const {
    const std::size_t n = node_of(item), parts = parts_of(n);
    return at(n, item / parts, item % parts);
  }
  // All of the outer for each part in turn.
  Item by_part(std::size_t item) const {
    const std::size_t n = node_of(item);
    return at(n, item % outer_, item / outer_);
  }

 private:
  std::size_t parts_of(std::size_t node) const { return parts_before_[node + 1] - parts_before_[node]; }
  // `item` becomes its number within the node.
  std::size_t node_of(std::size_t& item) const {
    std::size_t n = 0;
    for (; n + 1 < nodes_ && item >= items_of(n); ++n) item -= items_of(n);
    return n;
  }
  Item at(std::size_t node, std::size_t outer, std::size_t part) const {
    const std::size_t begin = first_[node] + part * step_;
    return {outer, parts_before_[node] + part, begin, std::min(first_[node + 1], begin + step_)};
  }

  std::size_t nodes_, step_, outer_;
  std::array<std::size_t, kMostNodes + 1> first_, parts_before_;  // [nodes_ + 1]
};

// Workers::parallel_for over the items of a grid, no range across the border of two nodes.
template <typename Fn>
void for_grid(Workers& workers, const NodeGrid& grid, std::size_t grain, const Fn& fn) {
  const std::size_t items = grid.items();
  if (items == 0) return;
  if (workers.threads() == 1 || items <= grain) return fn(std::size_t{0}, items);
  Deal deal(workers.nodes());
  deal.add([&](std::size_t n) { return blocks(grid.items_of(n), grain); });
  workers.for_claims(deal, [&](Claims& claims) {
    for (; claims.more(); claims.advance()) {
      const NodeGrid::Range range = grid.range(claims.current(), grain);
      fn(range.begin, range.end);
    }
  });
}

}  // namespace ktc::exec
