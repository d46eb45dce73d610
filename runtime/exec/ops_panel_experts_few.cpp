// Experts on panels where no expert has rows enough for tiles: decode and small batches, where memory decides and what the
// workers wait for each other is lost. One loop for the whole layer, its items in this order:
//
//   tokens    some rows of x quantised
//   gate, up  one expert, some 64 columns of h: both products, their activation, and h quantised at once where the item holds
//             whole granules of it. With one scale per row whoever ends the last item of an expert quantises its rows.
//   down      32 columns of the output, all experts in ascending order: one worker owns the sum, so it has one order
//
// An item waits only for items below it (claims.h): gate and up for the tokens, down for each expert in turn. Whoever waits
// fetches its own weights into the cache meanwhile, so that the memory does not.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/exec/panel_steps.h"
#include "runtime/exec/partition.h"
#include "runtime/exec/spin_wait.h"

namespace ktc::exec {
namespace {

constexpr std::size_t kItemPanels = 4, kMostItemPanels = 8;         // of gate and up: 64 and 128 columns of h
constexpr std::size_t kLine64 = 64, kWaitingLines = 4096, kLinesPerLook = 4;

std::atomic_ref<std::uint32_t> shared(std::uint32_t& word) { return std::atomic_ref<std::uint32_t>(word); }

class Layer {
 public:
  Layer(const PanelExpertsStep& s, const StepState& state, std::size_t active, std::size_t rows)
      : s_(s), routed_(s.routed), workers_(*state.workers), active_(active), rows_(rows) {
    h_at_once_ = s.h_operands.bf16 || s.h_operands.granule != 0;
    const std::size_t unit = s.h_operands.granule == 128 ? kMostItemPanels : kItemPanels;
    const std::size_t pairs_each = active == 0 ? 0 : blocks(rows * routed_.top_k, active);
    const std::size_t panel_work = pairs_each * kPanelFeatures * s.x_operands.padded / 4;
    up_panels_ = unit * blocks(claim_grain(panel_work), unit);
    up_parts_ = blocks(s.gate_up.layout.panels, up_panels_);
    down_panels_ = claim_grain(rows * routed_.top_k * kPanelFeatures * s.h_operands.padded / 4);
    token_rows_ = std::min(rows, claim_grain(4 * s.x_operands.columns));
    token_items_ = blocks(rows, token_rows_);
    up_items_ = active * up_parts_;
    items_ = token_items_ + up_items_ + blocks(s.down.layout.panels, down_panels_);
  }

  void run() {
    prepare();
    workers_.for_claims(items_, [this](Claims& claims) {
      for (; claims.more(); claims.advance()) {
        const std::size_t item = claims.current();
        if (item < token_items_)
          quantise_tokens(item);
        else if (item < token_items_ + up_items_)
          gate_up(item - token_items_, claims);
        else
          down(item - token_items_ - up_items_, claims);
      }
    });
  }

 private:
  std::size_t pairs_of(std::uint32_t expert) const { return routed_.first[expert + 1] - routed_.first[expert]; }
  kernels::PanelRow* h_rows() const { return s_.rows + s_.most_pairs; }

  void prepare() {
    for (std::size_t i = 0; i < active_; ++i) {
      s_.places[i] = {};
      const std::uint32_t expert = routed_.active[i];
      for (std::size_t pair = routed_.first[expert]; pair < routed_.first[expert + 1]; ++pair) {
        const std::size_t token = routed_.pair_row[pair];
        s_.rows[pair] = s_.x_operands.row(token, false, token);
        h_rows()[pair] = s_.h_operands.row(pair, false, pair);
      }
    }
  }

  // The first panel that an item reads, null where it reads none or there is no such item.
  const std::byte* weights_of(std::size_t item) const {
    if (item < token_items_ || item >= items_ || active_ == 0) return nullptr;
    item -= token_items_;
    if (item < up_items_) return s_.gate_up.panel(routed_.active[item / up_parts_], item % up_parts_ * up_panels_);
    return s_.down.panel(routed_.active[0], (item - up_items_) * down_panels_);
  }

  // line(i): the i-th line of weights that this worker will read.
  template <typename Ready, typename Line>
  void await(const Ready& ready, std::size_t lines, const Line& line) const {
    if (ready()) return;
    lines = std::min(lines, kWaitingLines);
    for (std::size_t i = 0; i < lines && !ready(); i += kLinesPerLook)
      for (std::size_t k = i; k < std::min(lines, i + kLinesPerLook); ++k) __builtin_prefetch(line(k), 0, 2);
    for (SpinWait wait(workers_.spin()); !ready();) wait.rest();
  }

  void quantise_tokens(std::size_t item) {
    const std::size_t begin = item * token_rows_, end = std::min(rows_, begin + token_rows_);
    for (std::size_t r = begin; r < end; ++r) s_.x_operands.fill(routed_.x.row(r), r, false, r);
    tokens_done_.fetch_add(1, std::memory_order_release);
  }

  void gate_up(std::size_t item, Claims& claims) {
    const std::size_t rank = item / up_parts_, part = item % up_parts_;
    const std::uint32_t expert = routed_.active[rank];
    const std::size_t panels = s_.gate_up.layout.panels;
    const std::size_t begin = part * up_panels_, end = std::min(panels, begin + up_panels_);
    const std::byte* const weights = s_.gate_up.panel(expert, begin);
    await([this] { return tokens_done_.load(std::memory_order_acquire) == token_items_; },
          (end - begin) * s_.gate_up.layout.panel_bytes / kLine64, [&](std::size_t i) { return weights + i * kLine64; });

    const std::size_t first = routed_.first[expert], m = pairs_of(expert);
    const bool local = h_at_once_ && m <= kernels::kFewRows && up_panels_ <= kMostItemPanels;
    alignas(64) float few[kernels::kFewRows * kMostItemPanels * kBlockFeatures];
    float* const h = local ? few : s_.hidden.row(first) + begin * kBlockFeatures;
    const std::size_t h_stride = local ? kMostItemPanels * kBlockFeatures : s_.hidden.stride;
    for (std::size_t p = begin; p < end; ++p) {
      const std::byte* next = p + 1 < end ? s_.gate_up.panel(expert, p + 1) : weights_of(claims.ahead());
      panel_product(s_.gate_up, s_.gate_up.panel(expert, p), next, s_.rows + first, m, false, s_.x_operands.kb_stride(false),
                    s_.x_operands.granule, nullptr, [&](std::size_t row, std::size_t n, const float* out) {
                      for (std::size_t r = 0; r < n; ++r)
                        s_.swiglu(out + r * kPanelFeatures, h + (row + r) * h_stride + (p - begin) * kBlockFeatures);
                    });
    }
    if (h_at_once_) {
      const std::size_t column = begin * kBlockFeatures, columns = s_.h_operands.columns;
      const std::size_t count = std::min(columns, end * kBlockFeatures) - column;
      for (std::size_t r = 0; r < m; ++r)
        s_.h_operands.fill_part(h + r * h_stride, column, count, first + r, false, first + r);
    }
    // Whoever counts the last item sees what all others wrote, and so does who reads `ready` after it.
    if (shared(s_.places[rank].finished).fetch_add(1, std::memory_order_acq_rel) + 1 != up_parts_) return;
    if (!h_at_once_)
      for (std::size_t pair = first; pair < first + m; ++pair) s_.h_operands.fill(s_.hidden.row(pair), pair, false, pair);
    shared(s_.places[rank].ready).store(1, std::memory_order_release);
  }

  void down(std::size_t item, Claims& claims) {
    const std::size_t panels = s_.down.layout.panels, panel_lines = s_.down.layout.panel_bytes / kLine64;
    const std::size_t begin = item * down_panels_, end = std::min(panels, begin + down_panels_);
    for (std::size_t p = begin; p < end; ++p) {
      const std::size_t column = p * kPanelFeatures;
      const std::size_t columns = std::min<std::size_t>(kPanelFeatures, routed_.out.columns - column);
      for (std::size_t r = 0; r < rows_; ++r) std::memset(routed_.out.row(r) + column, 0, columns * sizeof(float));
      for (std::size_t rank = 0; rank < active_; ++rank) {
        const std::uint32_t expert = routed_.active[rank];
        await([&] { return shared(s_.places[rank].ready).load(std::memory_order_acquire) != 0; },
              (active_ - rank) * panel_lines, [&](std::size_t i) {
                return s_.down.panel(routed_.active[rank + i / panel_lines], p) + i % panel_lines * kLine64;
              });
        const std::byte* next = rank + 1 < active_ ? s_.down.panel(routed_.active[rank + 1], p)
                                : p + 1 < end      ? s_.down.panel(routed_.active[0], p + 1)
                                                   : weights_of(claims.ahead());
        const std::size_t first = routed_.first[expert];
        panel_product(s_.down, s_.down.panel(expert, p), next, h_rows() + first, pairs_of(expert), false,
                      s_.h_operands.kb_stride(false), s_.h_operands.granule, nullptr,
                      [&](std::size_t row, std::size_t n, const float* out) {
                        for (std::size_t r = first + row; r < first + row + n; ++r, out += kPanelFeatures)
                          s_.accumulate(out, routed_.pair_weight[r], columns, false,
                                        routed_.out.row(routed_.pair_row[r]) + column);
                      });
      }
    }
  }

  const PanelExpertsStep& s_;
  const ExpertsStep& routed_;
  Workers& workers_;
  const std::size_t active_, rows_;
  bool h_at_once_;                                 // an item of gate and up quantises its part of h
  std::size_t up_panels_, up_parts_, down_panels_, token_rows_;
  std::size_t token_items_, up_items_, items_;
  alignas(kApart) std::atomic<std::size_t> tokens_done_{0};
};

}  // namespace

void run_few_tokens(const PanelExpertsStep& s, const StepState& state, std::size_t active, std::size_t rows) {
  Layer(s, state, active, rows).run();
}

}  // namespace ktc::exec
