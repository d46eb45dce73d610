// One loop for a whole layer of few rows, where memory decides and what the workers wait for each other is lost. Its items:
//
//   rows      some rows of x quantised
//   gate, up  one expert, some 64 columns of h: both products and their activation. Where the item is whole granules of h it
//             quantises them at once. With one scale per row, or where such items would be too few for the workers, whoever
//             ends the last item of an expert quantises its rows.
//   down      32 columns of the output, some experts in ascending order. The item of the same columns and the experts before had
//             its turn first, so a sum has one order. Short items, because what they leave over at the end nobody else can do
//
// An item waits only for items below it (claims.h): gate and up for the rows, down for each expert and for its turn. With several nodes
// each line above is a phase, and an item's columns are those of one node.
#include "runtime/exec/few_rows.h"

#include <atomic>
#include <cstring>
#include <optional>

#include "runtime/exec/node_grid.h"

namespace ktc::exec {
namespace {

constexpr std::size_t kUnitPanels = 4, kMostUnitPanels = 8;  // of gate and up: 64 and 128 columns of h, one granule
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kDownItemsPerWorker = 64, kDownItemBytes = std::size_t{32} << 10;
constexpr std::size_t kMostTurns = 1024;  // parts of the output that may be summed in turns

std::atomic_ref<std::uint32_t> shared(std::uint32_t& word) { return std::atomic_ref<std::uint32_t>(word); }

class Loop {
 public:
  Loop(const FewRows& f, Workers& workers) : f_(f), workers_(workers) {
    const std::size_t panels = f.gate_up.layout.panels;
    const std::size_t unit = f.h_operands.granule == 128 ? kMostUnitPanels : kUnitPanels;
    const std::size_t pairs_each = f.active == 0 ? 0 : blocks(f.pairs, f.active);
    const std::size_t least = claim_grain(pairs_each * kPanelFeatures * f.x_operands.padded / 4);
    const std::size_t fair = panels * f.active / (kItemsPerWorker * static_cast<std::size_t>(workers.threads()));
    h_at_once_ = f.h_operands.bf16 || f.h_operands.granule != 0;
    up_panels_ = unit * blocks(least, unit);
    if (fair < up_panels_ && f.rows <= kernels::kFewRows) {
      up_panels_ = std::max({std::size_t{1}, fair, least});
      h_at_once_ = h_at_once_ && up_panels_ % unit == 0;
    }
    up_.emplace(workers, f.gate_up.split, panels, up_panels_, f.active, unit);
    h_at_once_ = h_at_once_ && up_->borders_at(unit);
    const std::size_t down_panels = claim_grain(f.pairs * kPanelFeatures * f.h_operands.padded / 4);
    const std::size_t parts = NodeGrid(workers, f.down.split, f.down.layout.panels, down_panels, 1).parts();
    down_experts_ = std::max<std::size_t>(1, f.active);
    if (f.accumulate != nullptr && down_panels == 1 && parts <= kMostTurns && workers.threads() > 1) {
      const std::size_t wanted = kDownItemsPerWorker * static_cast<std::size_t>(workers.threads());
      const std::size_t each = blocks(down_experts_, std::max<std::size_t>(1, wanted / parts));
      down_experts_ = std::min(down_experts_, std::max(blocks(kDownItemBytes, f.down.layout.panel_bytes), each));
    }
    down_.emplace(workers, f.down.split, f.down.layout.panels, down_panels, std::max<std::size_t>(1, blocks(f.active, down_experts_)));
    rows_each_ = f.rows <= kernels::kFewRows ? 1 : std::min(f.rows, claim_grain(4 * f.x_operands.columns));
    row_items_ = blocks(f.rows, rows_each_);
    up_items_ = up_->items();
    items_ = row_items_ + up_items_ + down_->items();
  }

  void run() {
    for (std::size_t rank = 0; rank < f_.active; ++rank) f_.places[rank] = {};
    for (std::size_t pair = 0; pair < f_.pairs; ++pair) {
      const std::size_t row = row_of(pair);
      f_.x_rows[pair] = f_.x_operands.row(row);
      f_.h_rows[pair] = f_.h_operands.row(pair);
    }
    Deal deal(workers_.nodes());
    deal.add([this](std::size_t n) { return workers_.share(row_items_, n + 1) - workers_.share(row_items_, n); });
    deal.add([this](std::size_t n) { return up_->items_of(n); });
    deal.add([this](std::size_t n) { return down_->items_of(n); });
    workers_.for_claims(deal, [this](Claims& claims) {
      for (; claims.more(); claims.advance()) {
        const std::size_t item = claims.current();
        if (item + 1 == items_ && f_.near != nullptr) f_.near->announce();
        if (item < row_items_)
          quantise_rows(item);
        else if (item < row_items_ + up_items_)
          gate_up(item - row_items_, claims);
        else
          down(item - row_items_ - up_items_, claims);
      }
    });
  }

 private:
  std::size_t row_of(std::size_t pair) const { return f_.pair_row == nullptr ? pair : f_.pair_row[pair]; }

  // The first panel that an item reads, null where it reads none or there is no such item.
  const std::byte* weights_of(std::size_t item) const {
    if (item < row_items_ || item >= items_ || f_.active == 0) return nullptr;
    item -= row_items_;
    if (item >= up_items_) {
      const NodeGrid::Item down = down_->by_outer(item - up_items_);
      return f_.down.panel(f_.experts[down.outer * down_experts_], down.begin);
    }
    const NodeGrid::Item up = up_->by_outer(item);
    return f_.gate_up.panel(f_.experts[up.outer], up.begin);
  }

  void quantise_rows(std::size_t item) {
    const std::size_t begin = item * rows_each_, end = std::min(f_.rows, begin + rows_each_);
    for (std::size_t r = begin; r < end; ++r) f_.x_operands.fill(f_.x.row(r), r);
    rows_done_.fetch_add(1, std::memory_order_release);
  }

  void gate_up(std::size_t item, Claims& claims) {
    const auto [rank, part, begin, end] = up_->by_outer(item);
    const std::uint32_t expert = f_.experts[rank];
    const std::byte* const weights = f_.gate_up.panel(expert, begin);
    await_item(workers_, [this] { return rows_done_.load(std::memory_order_acquire) == row_items_; },
               (end - begin) * f_.gate_up.layout.panel_bytes / kLineBytes,
               [&](std::size_t i) { return weights + i * kLineBytes; });

    const std::size_t first = f_.first[expert], m = f_.first[expert + 1] - first;
    const bool local = h_at_once_ && m <= kernels::kFewRows && up_panels_ <= kMostUnitPanels;
    alignas(64) float few[kernels::kFewRows * kMostUnitPanels * kBlockFeatures];
    float* const h = local ? few : f_.hidden.row(first) + begin * kBlockFeatures;
    const std::size_t h_stride = local ? kMostUnitPanels * kBlockFeatures : f_.hidden.stride;
    const auto product = [&](std::size_t p, const auto& body) {
      const std::byte* next = p + 1 < end ? f_.gate_up.panel(expert, p + 1) : weights_of(claims.ahead());
      panel_product(f_.gate_up, f_.gate_up.panel(expert, p), next, f_.x_rows + first, m, f_.x_operands, body);
    };
    if (m <= kernels::kFewRows && end - begin <= kMostUnitPanels) {
      // All activations at the end: between two panels they would keep the memory waiting, and each would wait for itself.
      alignas(64) float products[kMostUnitPanels * kernels::kFewRows * kPanelFeatures];
      float* to = products;
      for (std::size_t p = begin; p < end; ++p, to += m * kPanelFeatures)
        product(p, [&](std::size_t, std::size_t n, const float* out) { std::memcpy(to, out, n * kPanelFeatures * sizeof(float)); });
      const float* at = products;
      for (std::size_t p = 0; p < end - begin; ++p)
        for (std::size_t r = 0; r < m; ++r, at += kPanelFeatures) f_.swiglu(at, h + r * h_stride + p * kBlockFeatures);
    } else {
      for (std::size_t p = begin; p < end; ++p)
        product(p, [&](std::size_t row, std::size_t n, const float* out) {
          for (std::size_t r = 0; r < n; ++r)
            f_.swiglu(out + r * kPanelFeatures, h + (row + r) * h_stride + (p - begin) * kBlockFeatures);
        });
    }
    if (h_at_once_) {
      const std::size_t column = begin * kBlockFeatures;
      const std::size_t count = std::min<std::size_t>(f_.h_operands.columns, end * kBlockFeatures) - column;
      for (std::size_t r = 0; r < m; ++r)
        f_.h_operands.fill_part(h + r * h_stride, column, count, first + r);
    }
    // Whoever counts the last item sees what all others wrote, and so does who reads `ready` after it.
    if (shared(f_.places[rank].finished).fetch_add(1, std::memory_order_acq_rel) + 1 != up_->parts()) return;
    if (!h_at_once_)
      for (std::size_t pair = first; pair < first + m; ++pair) f_.h_operands.fill(f_.hidden.row(pair), pair);
    shared(f_.places[rank].ready).store(1, std::memory_order_release);
  }

  void down(std::size_t item, Claims& claims) {
    const std::size_t panel_lines = f_.down.layout.panel_bytes / kLineBytes;
    const auto [turn, part, begin, end] = down_->by_outer(item);
    const std::size_t from = turn * down_experts_, to = std::min(f_.active, from + down_experts_);
    for (std::size_t p = begin; p < end; ++p) {
      const std::size_t column = p * kPanelFeatures;
      const std::size_t columns = std::min<std::size_t>(kPanelFeatures, f_.out.columns - column);
      // Sums of few rows are kept here until the item is done.
      alignas(64) float few[kernels::kFewRows * kPanelFeatures];
      const bool sums = f_.accumulate != nullptr, local = sums && f_.rows <= kernels::kFewRows;
      const auto sum_of = [&](std::size_t row) { return local ? few + row * kPanelFeatures : f_.out.row(row) + column; };
      if (turn != 0)
        await_item(workers_, [&] { return turns_[part].load(std::memory_order_acquire) == turn; }, (to - from) * panel_lines,
                   [&](std::size_t i) { return line_of(from, p, i); });
      for (std::size_t r = 0; sums && r < f_.rows; ++r) {
        if (turn == 0)
          std::memset(sum_of(r), 0, columns * sizeof(float));
        else if (local)
          std::memcpy(sum_of(r), f_.out.row(r) + column, columns * sizeof(float));
      }
      for (std::size_t rank = from; rank < to; ++rank) {
        const std::uint32_t expert = f_.experts[rank];
        await_item(workers_, [&] { return shared(f_.places[rank].ready).load(std::memory_order_acquire) != 0; },
                   (to - rank) * panel_lines, [&](std::size_t i) { return line_of(rank, p, i); });
        const std::byte* next = rank + 1 < to ? f_.down.panel(f_.experts[rank + 1], p)
                                : p + 1 < end ? f_.down.panel(f_.experts[from], p + 1)
                                              : weights_of(claims.ahead());
        const std::size_t first = f_.first[expert], m = f_.first[expert + 1] - first;
        const auto add = [&](std::size_t row, std::size_t n, const float* out) {
          for (std::size_t pair = first + row; pair < first + row + n; ++pair, out += kPanelFeatures) {
            float* const y = sum_of(row_of(pair));
            if (sums)
              f_.accumulate(out, f_.pair_weight[pair], columns, false, y);
            else
              std::memcpy(y, out, columns * sizeof(float));
          }
        };
        panel_product(f_.down, f_.down.panel(expert, p), next, f_.h_rows + first, m, f_.h_operands, add);
      }
      for (std::size_t r = 0; local && r < f_.rows; ++r) std::memcpy(f_.out.row(r) + column, sum_of(r), columns * sizeof(float));
      if (f_.cells != nullptr && to == f_.active)
        for (std::size_t r = 0; r < f_.rows; ++r) f_.cells->write(r, p, f_.out.row(r) + column);
    }
    if (to != f_.active) turns_[part].store(static_cast<std::uint32_t>(turn + 1), std::memory_order_release);
  }

  // The i-th line of panel p of the expert of this rank and, behind it, of those that follow.
  const std::byte* line_of(std::size_t rank, std::size_t p, std::size_t i) const {
    const std::size_t panel_lines = f_.down.layout.panel_bytes / kLineBytes;
    return f_.down.panel(f_.experts[rank + i / panel_lines], p) + i % panel_lines * kLineBytes;
  }

  const FewRows& f_;
  Workers& workers_;
  bool h_at_once_;  // an item of gate and up quantises its part of h
  std::optional<NodeGrid> up_, down_;
  std::size_t up_panels_, rows_each_;
  std::size_t down_experts_;  // of one item
  std::size_t row_items_, up_items_, items_;
  alignas(kApart) std::atomic<std::size_t> rows_done_{0};  // items
  std::atomic<std::uint32_t> turns_[kMostTurns] = {};      // by part of the output: items that are done
};

}  // namespace

void run_few_rows(const FewRows& few, Workers& workers) {
  static_assert(kPanelFeatures == kCellPanelColumns, "a panel of the output is a panel of cells");
  Loop(few, workers).run();
  if (few.cells != nullptr) few.cells->written = true;
}

}  // namespace ktc::exec
