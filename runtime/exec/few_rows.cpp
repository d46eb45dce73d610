// One loop for a whole layer of few rows, where memory decides and what the workers wait for each other is lost. Its items:
//
//   rows      some rows of x quantised
//   gate, up  one expert, some 64 columns of h: both products and their activation. Where the item is whole granules of h it
//             quantises them at once. With one scale per row, or where such items would be too few for the workers, whoever
//             ends the last item of an expert quantises its rows.
//   down      32 columns of the output, all experts in ascending order: one worker owns the sum, so it has one order
//
// An item waits only for items below it (claims.h): gate and up for the rows, down for each expert in turn.
#include "runtime/exec/few_rows.h"

#include <atomic>
#include <cstring>

#include "runtime/exec/partition.h"

namespace ktc::exec {
namespace {

constexpr std::size_t kUnitPanels = 4, kMostUnitPanels = 8;  // of gate and up: 64 and 128 columns of h, one granule
constexpr std::size_t kLineBytes = 64;

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
    up_parts_ = blocks(panels, up_panels_);
    down_panels_ = claim_grain(f.pairs * kPanelFeatures * f.h_operands.padded / 4);
    rows_each_ = std::min(f.rows, claim_grain(4 * f.x_operands.columns));
    row_items_ = blocks(f.rows, rows_each_);
    up_items_ = f.active * up_parts_;
    items_ = row_items_ + up_items_ + blocks(f.down.layout.panels, down_panels_);
  }

  void run() {
    for (std::size_t rank = 0; rank < f_.active; ++rank) f_.places[rank] = {};
    for (std::size_t pair = 0; pair < f_.pairs; ++pair) {
      const std::size_t row = row_of(pair);
      f_.x_rows[pair] = f_.x_operands.row(row);
      f_.h_rows[pair] = f_.h_operands.row(pair);
    }
    workers_.for_claims(items_, [this](Claims& claims) {
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
    if (item < up_items_) return f_.gate_up.panel(f_.experts[item / up_parts_], item % up_parts_ * up_panels_);
    return f_.down.panel(f_.experts[0], (item - up_items_) * down_panels_);
  }

  void quantise_rows(std::size_t item) {
    const std::size_t begin = item * rows_each_, end = std::min(f_.rows, begin + rows_each_);
    for (std::size_t r = begin; r < end; ++r) f_.x_operands.fill(f_.x.row(r), r);
    rows_done_.fetch_add(1, std::memory_order_release);
  }

  void gate_up(std::size_t item, Claims& claims) {
    const std::size_t rank = item / up_parts_, part = item % up_parts_;
    const std::uint32_t expert = f_.experts[rank];
    const std::size_t begin = part * up_panels_, end = std::min<std::size_t>(f_.gate_up.layout.panels, begin + up_panels_);
    const std::byte* const weights = f_.gate_up.panel(expert, begin);
    await_item(workers_, [this] { return rows_done_.load(std::memory_order_acquire) == row_items_; },
               (end - begin) * f_.gate_up.layout.panel_bytes / kLineBytes,
               [&](std::size_t i) { return weights + i * kLineBytes; });

    const std::size_t first = f_.first[expert], m = f_.first[expert + 1] - first;
    const bool local = h_at_once_ && m <= kernels::kFewRows && up_panels_ <= kMostUnitPanels;
    alignas(64) float few[kernels::kFewRows * kMostUnitPanels * kBlockFeatures];
    float* const h = local ? few : f_.hidden.row(first) + begin * kBlockFeatures;
    const std::size_t h_stride = local ? kMostUnitPanels * kBlockFeatures : f_.hidden.stride;
    for (std::size_t p = begin; p < end; ++p) {
      const std::byte* next = p + 1 < end ? f_.gate_up.panel(expert, p + 1) : weights_of(claims.ahead());
      panel_product(f_.gate_up, f_.gate_up.panel(expert, p), next, f_.x_rows + first, m, f_.x_operands, [&](std::size_t row, std::size_t n, const float* out) {
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
    if (shared(f_.places[rank].finished).fetch_add(1, std::memory_order_acq_rel) + 1 != up_parts_) return;
    if (!h_at_once_)
      for (std::size_t pair = first; pair < first + m; ++pair) f_.h_operands.fill(f_.hidden.row(pair), pair);
    shared(f_.places[rank].ready).store(1, std::memory_order_release);
  }

  void down(std::size_t item, Claims& claims) {
    const std::size_t panels = f_.down.layout.panels, panel_lines = f_.down.layout.panel_bytes / kLineBytes;
    const std::size_t begin = item * down_panels_, end = std::min(panels, begin + down_panels_);
    for (std::size_t p = begin; p < end; ++p) {
      const std::size_t column = p * kPanelFeatures;
      const std::size_t columns = std::min<std::size_t>(kPanelFeatures, f_.out.columns - column);
      if (f_.accumulate != nullptr)
        for (std::size_t r = 0; r < f_.rows; ++r) std::memset(f_.out.row(r) + column, 0, columns * sizeof(float));
      for (std::size_t rank = 0; rank < f_.active; ++rank) {
        const std::uint32_t expert = f_.experts[rank];
        await_item(workers_, [&] { return shared(f_.places[rank].ready).load(std::memory_order_acquire) != 0; },
                   (f_.active - rank) * panel_lines, [&](std::size_t i) {
                     return f_.down.panel(f_.experts[rank + i / panel_lines], p) + i % panel_lines * kLineBytes;
                   });
        const std::byte* next = rank + 1 < f_.active ? f_.down.panel(f_.experts[rank + 1], p)
                                : p + 1 < end        ? f_.down.panel(f_.experts[0], p + 1)
                                                     : weights_of(claims.ahead());
        const std::size_t first = f_.first[expert], m = f_.first[expert + 1] - first;
        panel_product(f_.down, f_.down.panel(expert, p), next, f_.h_rows + first, m, f_.h_operands, [&](std::size_t row, std::size_t n, const float* out) {
                        for (std::size_t pair = first + row; pair < first + row + n; ++pair, out += kPanelFeatures) {
                          float* const y = f_.out.row(row_of(pair)) + column;
                          if (f_.accumulate != nullptr)
                            f_.accumulate(out, f_.pair_weight[pair], columns, false, y);
                          else
                            std::memcpy(y, out, columns * sizeof(float));
                        }
                      });
      }
    }
  }

  const FewRows& f_;
  Workers& workers_;
  bool h_at_once_;  // an item of gate and up quantises its part of h
  std::size_t up_panels_, up_parts_, down_panels_, rows_each_;
  std::size_t row_items_, up_items_, items_;
  alignas(kApart) std::atomic<std::size_t> rows_done_{0};  // items
};

}  // namespace

void run_few_rows(const FewRows& few, Workers& workers) { Loop(few, workers).run(); }

}  // namespace ktc::exec
