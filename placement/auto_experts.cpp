#include "placement/auto_experts.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ktc::placement {
namespace {

using Ids = std::vector<std::uint32_t>;
using Table = std::vector<double>;  // cost of a layer by the number of its hot experts

constexpr std::uint64_t kMostWork = 200'000'000;  // steps of one knapsack
constexpr std::uint64_t kTrialWork = 2'000'000;   // of one that only decides where a layer goes
constexpr std::size_t kExchanged = 64;            // layers with more experts have fine steps already
constexpr int kRounds = 8;

Ids by_popularity(const StrategyInput& input, std::size_t layer) {
  Ids ids(input.experts[layer]);
  std::iota(ids.begin(), ids.end(), 0u);
  if (!input.counts.empty()) {
    const auto& counts = input.counts[layer];
    std::sort(ids.begin(), ids.end(),
              [&](std::uint32_t a, std::uint32_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  }
  return ids;
}

// How many slots each layer gets, and the sum of the costs.
struct Knapsack {
  std::vector<std::uint64_t> slots;
  double cost = 0;
};

// `tables`: of the layers that share the budget; taking `step` slots at a time where all choices would be more than `most` work.
Knapsack fill(const std::vector<const Table*>& tables, std::uint64_t budget, std::uint64_t most) {
  std::uint64_t all = 0, widest = 1;
  for (const Table* table : tables) all += table->size() - 1, widest = std::max<std::uint64_t>(widest, table->size());
  budget = std::min(budget, all);
  Knapsack result;
  if (tables.empty()) return result;
  std::uint64_t step = 1;
  while (tables.size() * (budget / step + 1) * (widest / step + 1) > most) ++step;
  const std::uint64_t units = budget / step;
  // best[u]: least cost of the layers so far with at most u units; taken[l][u]: units of layer l there
  Table best(units + 1, 0), next(units + 1);
  std::vector<std::vector<std::uint32_t>> taken(tables.size(), std::vector<std::uint32_t>(units + 1, 0));
  for (std::size_t l = 0; l < tables.size(); ++l) {
    const Table& table = *tables[l];
    const std::uint64_t experts = table.size() - 1, steps = (experts + step - 1) / step;
    for (std::uint64_t u = 0; u <= units; ++u) {
      double least = std::numeric_limits<double>::infinity();
      std::uint32_t choice = 0;
      for (std::uint64_t n = 0; n <= std::min(u, steps); ++n) {
        const double cost = best[u - n] + table[std::min(n * step, experts)];
        if (cost < least) least = cost, choice = static_cast<std::uint32_t>(n);
      }
      next[u] = least;
      taken[l][u] = choice;
    }
    std::swap(best, next);
  }
  result.cost = best[units];
  result.slots.resize(tables.size());
  std::uint64_t left = units, used = 0;
  for (std::size_t l = tables.size(); l-- > 0;) {
    const std::uint32_t n = taken[l][left];
    left -= n;
    result.slots[l] = std::min<std::uint64_t>(n * step, tables[l]->size() - 1);
    used += result.slots[l];
  }
  // what rounding to steps left over, one expert at a time to whom it serves most
  for (std::uint64_t free = budget - used; step > 1 && free > 0; --free) {
    std::size_t to = tables.size();
    double gain = 0;
    for (std::size_t l = 0; l < tables.size(); ++l) {
      const std::uint64_t n = result.slots[l];
      if (n + 1 >= tables[l]->size()) continue;
      const double more = (*tables[l])[n] - (*tables[l])[n + 1];
      if (more > gain) gain = more, to = l;
    }
    if (to == tables.size()) break;
    ++result.slots[to];
    result.cost -= gain;
  }
  return result;
}

class Auto {
 public:
  Auto(const StrategyInput& input, std::vector<std::uint64_t> budgets, const HotCost& cost)
      : input_(input), budgets_(std::move(budgets)), cost_(cost) {
    std::uint64_t left = input.budget;
    for (std::uint64_t& budget : budgets_) budget = std::min(budget, left), left -= budget;
    for (std::size_t l = 0; l < input.experts.size(); ++l) {
      order_.push_back(by_popularity(input, l));
      tables_.emplace_back();
      for (std::uint32_t g = 0; g < budgets_.size(); ++g) {
        Table& table = tables_.back().emplace_back();
        Ids ids;
        table.push_back(cost.layer(l, g, ids));
        for (const std::uint32_t id : order_[l]) {
          ids.push_back(id);
          table.push_back(cost.layer(l, g, ids));
        }
      }
    }
  }

  HotChoice run() {
    HotChoice best;
    double least = std::numeric_limits<double>::infinity();
    for (const std::vector<std::uint32_t>& start : starts()) {
      HotChoice choice = assign(improve(start));
      exchange(&choice);
      const double total = cost_.total(choice);
      if (total < least) least = total, best = std::move(choice);
    }
    return best;
  }

 private:
  std::size_t layers() const { return tables_.size(); }

  // Where layers may begin: each where its first hot expert costs least; in ranges as long as the budgets; all on the first.
  std::vector<std::vector<std::uint32_t>> starts() const {
    std::vector<std::vector<std::uint32_t>> starts(1, std::vector<std::uint32_t>(layers(), 0));
    if (budgets_.size() == 1) return starts;
    std::vector<std::uint32_t> nearest, ranges;
    const std::uint64_t sum = std::max<std::uint64_t>(1, std::accumulate(budgets_.begin(), budgets_.end(), std::uint64_t{0}));
    for (std::size_t l = 0; l < layers(); ++l) {
      std::uint32_t at = 0;
      for (std::uint32_t g = 1; g < budgets_.size(); ++g)
        if (tables_[l][g].back() < tables_[l][at].back()) at = g;
      nearest.push_back(at);
      std::uint64_t before = 0;
      std::uint32_t g = 0;
      while (g + 1 < budgets_.size() && (before += budgets_[g]) * layers() <= l * sum) ++g;
      ranges.push_back(g);
    }
    starts.push_back(std::move(nearest));
    starts.push_back(std::move(ranges));
    return starts;
  }

  Knapsack fill_gpu(const std::vector<std::uint32_t>& gpu, std::uint32_t g, std::uint64_t most) const {
    std::vector<const Table*> tables;
    for (std::size_t l = 0; l < layers(); ++l)
      if (gpu[l] == g) tables.push_back(&tables_[l][g]);
    return fill(tables, budgets_[g], most);
  }

  std::vector<std::uint32_t> improve(std::vector<std::uint32_t> gpu) const {
    if (budgets_.size() == 1) return gpu;
    std::vector<double> costs;
    for (std::uint32_t g = 0; g < budgets_.size(); ++g) costs.push_back(fill_gpu(gpu, g, kTrialWork).cost);
    bool moved = true;
    for (int round = 0; moved && round < kRounds; ++round) {
      moved = false;
      for (std::size_t l = 0; l < layers(); ++l) {
        for (std::uint32_t g = 0; g < budgets_.size(); ++g) {
          const std::uint32_t from = gpu[l];
          if (g == from) continue;
          gpu[l] = g;
          const double left = fill_gpu(gpu, from, kTrialWork).cost, joined = fill_gpu(gpu, g, kTrialWork).cost;
          if (left + joined < (costs[from] + costs[g]) * (1 - 1e-12)) {
            costs[from] = left, costs[g] = joined;
            moved = true;
          } else {
            gpu[l] = from;
          }
        }
      }
    }
    return gpu;
  }

  HotChoice assign(const std::vector<std::uint32_t>& gpu) const {
    HotChoice choice{HotSets(layers()), gpu};
    for (std::uint32_t g = 0; g < budgets_.size(); ++g) {
      const Knapsack filled = fill_gpu(gpu, g, kMostWork);
      std::size_t next = 0;
      for (std::size_t l = 0; l < layers(); ++l) {
        if (gpu[l] != g) continue;
        const std::uint64_t n = filled.slots[next++];
        choice.sets[l].assign(order_[l].begin(), order_[l].begin() + static_cast<std::ptrdiff_t>(n));
      }
    }
    return choice;
  }

  // Where the GPU is the slower side, less popular experts can fit better.
  void exchange(HotChoice* choice) const {
    for (std::size_t l = 0; l < layers(); ++l) {
      Ids& ids = choice->sets[l];
      if (!input_.counts.empty() && input_.experts[l] <= kExchanged && !ids.empty()) {
        double cost = cost_.layer(l, choice->gpu[l], ids);
        bool better = true;
        for (int round = 0; better && round < kRounds; ++round) {
          better = false;
          for (std::uint32_t& id : ids)
            for (std::uint32_t other = 0; other < input_.experts[l]; ++other) {
              if (std::find(ids.begin(), ids.end(), other) != ids.end()) continue;
              const std::uint32_t kept = id;
              id = other;
              if (const double now = cost_.layer(l, choice->gpu[l], ids); now < cost * (1 - 1e-12))
                cost = now, better = true;
              else
                id = kept;
            }
        }
      }
      std::sort(ids.begin(), ids.end());
    }
  }

  const StrategyInput& input_;
  std::vector<std::uint64_t> budgets_;
  const HotCost& cost_;
  std::vector<Ids> order_;
  std::vector<std::vector<Table>> tables_;  // [layer][gpu]
};

}  // namespace

Expected<HotChoice> choose_auto(const StrategyInput& input, const std::vector<std::uint64_t>& budgets, const HotCost& cost) {
  StrategyInput first = input;
  first.budget = std::min(input.budget, budgets.front());
  std::vector<HotChoice> others;
  for (const Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency}) {
    if (strategy == Strategy::frequency && input.counts.empty()) continue;
    KTC_ASSIGN_OR_RETURN(HotSets sets, choose(strategy, first));
    others.push_back({std::move(sets), std::vector<std::uint32_t>(input.experts.size(), 0)});
  }
  HotChoice best = Auto(input, budgets, cost).run();
  double least = cost.total(best);
  for (HotChoice& other : others)
    if (const double total = cost.total(other); total < least) least = total, best = std::move(other);
  return best;
}

}  // namespace ktc::placement
