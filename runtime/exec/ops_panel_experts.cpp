// Experts on panels where some have rows enough for tiles. One loop for the whole layer, its items in this order:
//
//   tokens    some rows of x quantised
//   gather    16 sorted pairs of one expert: their rows of x as a tile
//   gate, up  one expert, some panels: products and activation
//   h         16 pairs of one expert: h quantised, as a tile
//   down      some panels of the output, some experts in ascending order: products added up. Whoever does the same panels for
//             the experts before had its turn first, so each sum has one order; the last one writes the rows of the output
//
// Experts with few rows run on the kernels for few rows within the same items. An item waits only for items below it
// (claims.h): gather for the tokens, gate and up for the tiles, h for all parts of its expert, down for h and for its turn. With
// several nodes each line above is a phase, and an item's panels are those of one node.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>

#include "runtime/exec/node_grid.h"
#include "runtime/exec/panel_steps.h"
#include "runtime/exec/result_cells.h"
#include "runtime/exec/spin_wait.h"
#include "runtime/exec/tile_product.h"

namespace ktc::exec {
namespace {

using kernels::kTileRows;

constexpr std::size_t kItemsEach = 16;  // of gate and up, and of down, per worker: what dynamic claims need to end together
constexpr std::size_t kChains = 2;      // per worker: parts of the output whose items wait for their turns

std::atomic_ref<std::uint32_t> shared(std::uint32_t& word) { return std::atomic_ref<std::uint32_t>(word); }

thread_local std::uint64_t waited = 0;  // nanoseconds of this thread, for ExpertTimes

class Layer {
 public:
  Layer(const PanelExpertsStep& s, const StepState& state, std::size_t active, std::size_t rows)
      : s_(s), routed_(s.routed), state_(state), workers_(*state.workers), active_(active), rows_(rows) {
    const std::size_t wanted = kItemsEach * static_cast<std::size_t>(workers_.threads());
    const TileTuning& tuning = s.tuning;
    token_rows_ = std::min(rows, claim_grain(4 * s.x_operands.columns));
    token_items_ = blocks(rows, token_rows_);
    const std::size_t up = s.gate_up.layout.panels, down = s.down.layout.panels;
    const std::size_t up_panels = std::clamp<std::size_t>(up * active / wanted, 1, std::min(tuning.up_panels, kernels::kMostTilePanels));
    up_.emplace(workers_, s.gate_up.split, up, up_panels, active);
    const std::size_t fit = std::max<std::size_t>(1, tuning.sum_bytes / (rows * kPanelFeatures * sizeof(float)));
    const std::size_t most = std::min({tuning.down_panels, kernels::kMostTilePanels, fit});
    const std::size_t down_panels = std::clamp<std::size_t>(down / (kChains * static_cast<std::size_t>(workers_.threads())), 1, most);
    down_parts_ = NodeGrid(workers_, s.down.split, down, down_panels, 1).parts();
    down_experts_ = blocks(active, std::clamp<std::size_t>(wanted / down_parts_, 1, active));
    down_.emplace(workers_, s.down.split, down, down_panels, blocks(active, down_experts_));
    place_experts();
    up_items_ = up_->items();
    gather_end_ = token_items_ + tiles_;
    up_end_ = gather_end_ + up_items_;
    h_end_ = up_end_ + sixteens_;
    items_ = h_end_ + down_->items();
    tile_floats_ = kTileRows * s.hidden.stride;
  }

  void run() {
    Deal deal(workers_.nodes());
    const auto evenly = [&](std::size_t items) {
      deal.add([&, items](std::size_t n) { return workers_.share(items, n + 1) - workers_.share(items, n); });
    };
    evenly(token_items_);
    evenly(tiles_);
    deal.add([this](std::size_t n) { return up_->items_of(n); });
    evenly(sixteens_);
    deal.add([this](std::size_t n) { return down_->items_of(n); });
    workers_.for_claims(deal, [this](Claims& claims) {
      const TileScope scope(state_, true);
      for (; claims.more(); claims.advance()) {
        if (s_.times == nullptr)
          work(claims, scope);
        else
          timed_work(claims, scope);
      }
    });
  }

 private:
  std::size_t pairs_of(std::uint32_t expert) const { return routed_.first[expert + 1] - routed_.first[expert]; }
  kernels::PanelRow* h_rows() const { return s_.rows + s_.most_pairs; }

  std::atomic<std::uint64_t>* work(Claims& claims, const TileScope& scope) {
    const std::size_t item = claims.current();
    ExpertTimes* const times = s_.times;
    if (item + 1 == items_ && state_.near != nullptr) state_.near->announce();
    if (item < token_items_) {
      quantise_tokens(item);
      return times == nullptr ? nullptr : &times->tokens;
    }
    if (item < gather_end_) {
      gather(item - token_items_);
      return times == nullptr ? nullptr : &times->gather;
    }
    if (item < up_end_) {
      gate_up(item - gather_end_, claims, scope);
      return times == nullptr ? nullptr : &times->gate_up;
    }
    if (item < h_end_) {
      convert_h(item - up_end_);
      return times == nullptr ? nullptr : &times->h;
    }
    down(item - h_end_, claims, scope);
    return times == nullptr ? nullptr : &times->down;
  }

  using Clock = std::chrono::steady_clock;
  static std::uint64_t since(Clock::time_point start) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  }
  void timed_work(Claims& claims, const TileScope& scope) {
    const Clock::time_point start = Clock::now();
    waited = 0;
    std::atomic<std::uint64_t>& kind = *work(claims, scope);
    kind.fetch_add(since(start) - waited, std::memory_order_relaxed);
    s_.times->waiting.fetch_add(waited, std::memory_order_relaxed);
  }

  // Rows of experts that tile kernels serve start on a tile, one expert behind the other; the rows of the others follow. The
  // sixteens of all experts are numbered in the same order, so those of tiles have the numbers of their tiles.
  void place_experts() {
    std::size_t position = 0, number = 0;
    for (const bool tiled : {true, false}) {
      for (std::size_t i = 0; i < active_; ++i) {
        const std::uint32_t expert = routed_.active[i];
        const std::size_t pairs = pairs_of(expert);
        if ((pairs >= s_.tile_rows) != tiled) continue;
        s_.places[expert] = {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(number), tiled, 0, 0};
        const std::size_t sixteens = blocks(pairs, kTileRows);
        for (std::size_t k = 0; k < sixteens; ++k) s_.sixteens[number++] = expert;
        for (std::size_t k = 0; !tiled && k < pairs; ++k) {
          const std::size_t pair = routed_.first[expert] + k;
          s_.rows[pair] = s_.x_operands.row(routed_.pair_row[pair]);
          h_rows()[pair] = s_.h_operands.row(position + k);
        }
        position += tiled ? sixteens * kTileRows : pairs;
      }
      if (tiled) tiles_ = number;
    }
    sixteens_ = number;
    // Experts with many rows first: what ends last should be short.
    std::uint32_t* const busiest = state_.busy_experts;
    std::copy_n(routed_.active, active_, busiest);
    std::sort(busiest, busiest + active_, [this](std::uint32_t a, std::uint32_t b) {
      return pairs_of(a) != pairs_of(b) ? pairs_of(a) > pairs_of(b) : a < b;
    });
    for (std::size_t p = 0; p < down_parts_; ++p) s_.turns[p] = {};
  }

  template <typename Ready>
  void await(const Ready& ready) const {
    if (ready()) return;
    const Clock::time_point start = Clock::now();
    for (SpinWait wait(workers_.spin()); !ready();) wait.rest();
    waited += since(start);
  }

  void quantise_tokens(std::size_t item) {
    const std::size_t begin = item * token_rows_, end = std::min(rows_, begin + token_rows_);
    for (std::size_t r = begin; r < end; ++r) s_.x_operands.fill(routed_.x.row(r), r);
    tokens_done_.fetch_add(1, std::memory_order_release);
  }
  void await_tokens() const {
    await([this] { return tokens_done_.load(std::memory_order_acquire) == token_items_; });
  }

  // The rows of sixteen `number`: where they begin in their expert, and how many they are.
  struct Sixteen {
    std::uint32_t expert;
    std::size_t first, count;
  };
  Sixteen sixteen(std::size_t number) const {
    const std::uint32_t expert = s_.sixteens[number];
    const std::size_t first = (number - s_.places[expert].sixteen) * kTileRows;
    return {expert, first, std::min(kTileRows, pairs_of(expert) - first)};
  }

  void gather(std::size_t number) {
    await_tokens();
    const Sixteen rows = sixteen(number);
    const std::uint32_t* const tokens = routed_.pair_row + routed_.first[rows.expert] + rows.first;
    s_.x_tiles.gather_tile(s_.x_operands, number, rows.count, [tokens](std::size_t i) { return std::size_t{tokens[i]}; });
    gathered_.fetch_add(1, std::memory_order_release);
  }

  void gate_up(std::size_t item, Claims& claims, const TileScope& scope) {
    await_tokens();
    await([this] { return gathered_.load(std::memory_order_acquire) == tiles_; });
    const NodeGrid::Item up = up_->by_outer(item);
    const std::uint32_t expert = state_.busy_experts[up.outer];
    const ExpertPlace& place = s_.places[expert];
    const std::size_t m = pairs_of(expert), begin = up.begin, count = up.end - begin;
    // Not where the last items of this kind are claimed: others would wait for what is not begun.
    TileNext next;
    if (item + static_cast<std::size_t>(workers_.threads()) < up_items_)
      if (const std::size_t ahead = claims.ahead() - gather_end_; ahead < up_items_) {
        const NodeGrid::Item after = up_->by_outer(ahead);
        const std::uint32_t other = state_.busy_experts[after.outer];
        next.panel = s_.gate_up.panel(other, after.begin);
        if (other != expert) fetch_values(s_.x_tiles, other, next);
      }
    if (place.tiled) {
      kernels::TileArgs args = {};
      args.result = kernels::TileResult::gated;
      args.out = s_.hidden.data + place.position * s_.hidden.stride + begin * kTileRows * kBlockFeatures;
      args.out_stride = tile_floats_;
      tile_product(s_.gate_up, expert, begin, count, s_.x_tiles, place.position / kTileRows, m, s_.tuning, scope.scratch(), next,
                   args);
    } else {
      float* const h = s_.hidden.row(place.position);
      for (std::size_t p = begin; p < begin + count; ++p)
        panel_product(s_.gate_up, s_.gate_up.panel(expert, p), p + 1 < begin + count ? s_.gate_up.panel(expert, p + 1) : next.panel,
                      s_.rows + routed_.first[expert], m, s_.x_operands, [&](std::size_t row, std::size_t n, const float* out) {
                        for (std::size_t r = 0; r < n; ++r)
                          s_.swiglu(out + r * kPanelFeatures, h + (row + r) * s_.hidden.stride + p * kBlockFeatures);
                      });
    }
    shared(s_.places[expert].finished).fetch_add(1, std::memory_order_release);
  }

  void fetch_values(const PanelOperands& x, std::uint32_t expert, TileNext& next) const {
    const ExpertPlace& place = s_.places[expert];
    if (!place.tiled || !s_.tuning.fetch_values) return;
    const std::size_t tiles = std::min(blocks(pairs_of(expert), kTileRows), s_.tuning.rows / kTileRows);
    next.values = x.tiles(place.position / kTileRows).values;
    next.value_bytes = tiles * x.tile_bytes();
  }

  void convert_h(std::size_t number) {
    const Sixteen rows = sixteen(number);
    ExpertPlace& place = s_.places[rows.expert];
    await([&] { return shared(place.finished).load(std::memory_order_acquire) == up_->parts(); });
    const std::size_t position = place.position + rows.first;
    if (place.tiled)
      s_.h_operands.convert_tile(s_.hidden.row(position), number, rows.count);
    else
      for (std::size_t i = position; i < position + rows.count; ++i) s_.h_operands.fill(s_.hidden.row(i), i);
    shared(place.ready).fetch_add(1, std::memory_order_release);
  }

  void await_h(std::uint32_t expert) const {
    const std::size_t sixteens = blocks(pairs_of(expert), kTileRows);
    await([&] { return shared(s_.places[expert].ready).load(std::memory_order_acquire) == sixteens; });
  }

  void down(std::size_t item, Claims& claims, const TileScope& scope) {
    const NodeGrid::Item down = down_->by_outer(item);
    const std::size_t part = down.part, turn = down.outer, begin = down.begin, count = down.end - begin;
    const std::size_t from = turn * down_experts_, to = std::min(active_, from + down_experts_);
    const std::size_t panel_floats = rows_ * kPanelFeatures;
    float* const sums = s_.out_panels + begin * panel_floats;
    if (turn == 0)
      std::memset(sums, 0, count * panel_floats * sizeof(float));
    else
      await([&] { return shared(s_.turns[part].done).load(std::memory_order_acquire) == turn; });
    for (std::size_t i = from; i < to; ++i) {
      const std::uint32_t expert = routed_.active[i];
      const std::size_t pair = routed_.first[expert];
      await_h(expert);
      TileNext next;
      if (i + 1 < to) {
        next.panel = s_.down.panel(routed_.active[i + 1], begin);
        fetch_values(s_.h_operands, routed_.active[i + 1], next);
      } else if (h_end_ + item + static_cast<std::size_t>(workers_.threads()) < items_) {
        if (const std::size_t ahead = claims.ahead(); ahead < items_) {
          const NodeGrid::Item after = down_->by_outer(ahead - h_end_);
          next.panel = s_.down.panel(routed_.active[after.outer * down_experts_], after.begin);
          fetch_values(s_.h_operands, routed_.active[after.outer * down_experts_], next);
        }
      }
      if (s_.places[expert].tiled) {
        kernels::TileArgs args = {};
        args.result = kernels::TileResult::sums;
        args.out = sums;
        args.out_stride = panel_floats;
        args.out_row = routed_.pair_row + pair;
        args.out_scale = routed_.pair_weight + pair;
        tile_product(s_.down, expert, begin, count, s_.h_operands, s_.places[expert].position / kTileRows, pairs_of(expert), s_.tuning,
                     scope.scratch(), next, args);
        continue;
      }
      for (std::size_t p = 0; p < count; ++p)
        panel_product(s_.down, s_.down.panel(expert, begin + p), p + 1 < count ? s_.down.panel(expert, begin + p + 1) : next.panel,
                      h_rows() + pair, pairs_of(expert), s_.h_operands, [&](std::size_t row, std::size_t n, const float* out) {
                        for (std::size_t r = pair + row; r < pair + row + n; ++r, out += kPanelFeatures)
                          s_.accumulate(out, routed_.pair_weight[r], kPanelFeatures, false,
                                        sums + p * panel_floats + routed_.pair_row[r] * kPanelFeatures);
                      });
    }
    if (to == active_) write_out(sums, begin, count);
    shared(s_.turns[part].done).store(static_cast<std::uint32_t>(turn + 1), std::memory_order_release);
  }

  void write_out(const float* sums, std::size_t begin, std::size_t count) const {
    const std::size_t column = begin * kPanelFeatures;
    for (std::size_t r = 0; r < rows_; ++r)
      for (std::size_t p = 0; p < count; ++p) {
        const std::size_t left = routed_.out.columns - column - p * kPanelFeatures;
        std::memcpy(routed_.out.row(r) + column + p * kPanelFeatures, sums + (p * rows_ + r) * kPanelFeatures,
                    std::min<std::size_t>(left, kPanelFeatures) * sizeof(float));
        if (state_.cells != nullptr) state_.cells->write(r, begin + p, sums + (p * rows_ + r) * kPanelFeatures);
      }
  }

  const PanelExpertsStep& s_;
  const ExpertsStep& routed_;
  const StepState& state_;
  Workers& workers_;
  const std::size_t active_, rows_;
  std::size_t token_rows_, token_items_, tiles_ = 0, sixteens_ = 0;
  std::optional<NodeGrid> up_, down_;
  std::size_t up_items_, down_parts_, down_experts_;
  std::size_t gather_end_, up_end_, h_end_, items_;  // the first item that is not of this kind
  std::size_t tile_floats_;                          // of h of one tile
  alignas(kApart) std::atomic<std::size_t> tokens_done_{0};
  alignas(kApart) std::atomic<std::size_t> gathered_{0};
};

}  // namespace

void run_step(const PanelExpertsStep& s, const StepState& state) {
  const std::size_t rows = state.count(s.routed.of_rows);
  if (rows == 0) return;
  const std::size_t active = sort_pairs(s.routed, rows);
  if (active == 0 && state.cells == nullptr && state.near == nullptr) {  // late experts of a prompt that has none: no row to prepare
    const Matrix& out = s.routed.out;
    state.workers->parallel_for(rows, claim_grain(out.columns), [&](std::size_t begin, std::size_t end) {
      for (std::size_t r = begin; r < end; ++r) std::memset(out.row(r), 0, out.columns * sizeof(float));
    });
    return;
  }
  const bool tiled = std::any_of(s.routed.active, s.routed.active + active, [&s](std::uint32_t expert) {
    return s.routed.first[expert + 1] - s.routed.first[expert] >= s.tile_rows;
  });
  if (!tiled) return run_few_tokens(s, state, active, rows);
  Layer(s, state, active, rows).run();
  if (state.cells != nullptr) state.cells->written = true;
}

}  // namespace ktc::exec
