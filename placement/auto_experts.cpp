#include "placement/auto_experts.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace ktc::placement {
namespace {

using Ids = std::vector<std::uint32_t>;
using Table = std::vector<double>;  // cost of a layer by the number of its hot experts

constexpr std::uint64_t kMostWork = 200'000'000;  // steps of one knapsack
constexpr std::uint64_t kTrialWork = 2'000'000;   // of one that only decides where a layer goes
constexpr std::size_t kExchanged = 64;            // layers with more experts have fine steps already
constexpr std::uint64_t kTraded = 64;             // experts of a model in which single ones are traded between layers and GPUs
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
  Auto(const StrategyInput& input, const SpreadInput& gpus, const HotCost& cost)
      : input_(input), budgets_(gpus.slots), whole_(gpus.whole), cost_(cost) {
    for (std::uint64_t& budget : budgets_) budget = std::min(budget, input.budget);
    for (std::size_t l = 0; l < input.experts.size(); ++l) {
      order_.push_back(by_popularity(input, l));
      tables_.emplace_back();
      for (std::uint32_t g = 0; g < budgets_.size(); ++g) {
        Table& table = tables_.back().emplace_back();
        std::vector<Ids> ids(budgets_.size());
        table.push_back(cost.layer(l, ids));
        for (const std::uint32_t id : order_[l]) {
          ids[g].push_back(id);
          table.push_back(cost.layer(l, ids));
        }
      }
    }
  }

  HotChoice run() {
    HotChoice best;
    double least = std::numeric_limits<double>::infinity();
    const auto see = [&](HotChoice choice) {
      for (HotSets& sets : choice.sets)
        for (Ids& ids : sets) std::sort(ids.begin(), ids.end());
      const double total = cost_.total(choice);
      if (total < least) least = total, best = std::move(choice);
    };
    for (const std::vector<std::uint32_t>& start : starts()) {
      const std::vector<std::uint32_t> gpu = improve(start);
      HotChoice choice = assign(gpu);
      exchange(gpu, &choice);
      if (!whole_ && budgets_.size() > 1) {
        HotChoice divided = choice;
        fill_up(&divided);
        if (trade(&divided)) fill_up(&divided);
        see(std::move(divided));
      }
      see(std::move(choice));
    }
    return best;
  }

 private:
  std::size_t layers() const { return tables_.size(); }

  // Where layers may begin: all on one GPU; each where all of its experts cost least; in ranges as long as the budgets.
  std::vector<std::vector<std::uint32_t>> starts() const {
    std::vector<std::vector<std::uint32_t>> starts;
    for (std::uint32_t g = 0; g < budgets_.size(); ++g) starts.emplace_back(layers(), g);
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

  Knapsack fill_gpu(const std::vector<std::uint32_t>& gpu, std::uint32_t g, std::uint64_t budget, std::uint64_t most) const {
    std::vector<const Table*> tables;
    for (std::size_t l = 0; l < layers(); ++l)
      if (gpu[l] == g) tables.push_back(&tables_[l][g]);
    return fill(tables, budget, most);
  }

  std::vector<std::uint32_t> improve(std::vector<std::uint32_t> gpu) const {
    if (budgets_.size() == 1) return gpu;
    std::vector<double> costs;
    for (std::uint32_t g = 0; g < budgets_.size(); ++g) costs.push_back(fill_gpu(gpu, g, budgets_[g], kTrialWork).cost);
    bool moved = true;
    for (int round = 0; moved && round < kRounds; ++round) {
      moved = false;
      for (std::size_t l = 0; l < layers(); ++l) {
        for (std::uint32_t g = 0; g < budgets_.size(); ++g) {
          const std::uint32_t from = gpu[l];
          if (g == from) continue;
          gpu[l] = g;
          const double left = fill_gpu(gpu, from, budgets_[from], kTrialWork).cost, joined = fill_gpu(gpu, g, budgets_[g], kTrialWork).cost;
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
    HotChoice choice{std::vector<HotSets>(budgets_.size(), HotSets(layers()))};
    std::uint64_t left = input_.budget;
    for (std::uint32_t g = 0; g < budgets_.size(); ++g) {
      const Knapsack filled = fill_gpu(gpu, g, std::min(budgets_[g], left), kMostWork);
      std::size_t next = 0;
      for (std::size_t l = 0; l < layers(); ++l) {
        if (gpu[l] != g) continue;
        const std::uint64_t n = filled.slots[next++];
        choice.sets[g][l].assign(order_[l].begin(), order_[l].begin() + static_cast<std::ptrdiff_t>(n));
        left -= n;
      }
    }
    return choice;
  }

  std::vector<Ids> of_layer(const HotChoice& choice, std::size_t l) const {
    std::vector<Ids> ids;
    for (const HotSets& sets : choice.sets) ids.push_back(sets[l]);
    return ids;
  }

  // Where the GPU is the slower side, less popular experts can fit better.
  void exchange(const std::vector<std::uint32_t>& gpu, HotChoice* choice) const {
    for (std::size_t l = 0; l < layers(); ++l) {
      std::vector<Ids> of = of_layer(*choice, l);
      Ids& ids = of[gpu[l]];
      if (input_.counts.empty() || input_.experts[l] > kExchanged || ids.empty()) continue;
      double cost = cost_.layer(l, of);
      bool better = true;
      for (int round = 0; better && round < kRounds; ++round) {
        better = false;
        for (std::uint32_t& id : ids)
          for (std::uint32_t other = 0; other < input_.experts[l]; ++other) {
            if (std::find(ids.begin(), ids.end(), other) != ids.end()) continue;
            const std::uint32_t kept = id;
            id = other;
            if (const double now = cost_.layer(l, of); now < cost * (1 - 1e-12))
              cost = now, better = true;
            else
              id = kept;
          }
      }
      choice->sets[gpu[l]][l] = ids;
    }
  }

  // A number of cold experts that a layer may get on a GPU.
  struct Step {
    std::uint64_t count = 0;
    double gain = 0;  // for each
  };
  Step best_step(const HotChoice& choice, std::size_t l, std::uint32_t g, std::uint64_t free) const {
    std::vector<Ids> of = of_layer(choice, l);
    const Ids cold = cold_of(of, l);
    const std::uint64_t most = std::min<std::uint64_t>(free, cold.size());
    const double now = cost_.layer(l, of);
    Step best;
    std::uint64_t taken = 0;
    for (std::uint64_t n = 1; n <= most; n = n == most ? most + 1 : std::min(2 * n, most)) {
      while (taken < n) of[g].push_back(cold[taken++]);
      const double gain = (now - cost_.layer(l, of)) / static_cast<double>(n);
      if (gain > best.gain && gain * static_cast<double>(n) > now * 1e-12) best = {n, gain};
    }
    return best;
  }
  Ids cold_of(const std::vector<Ids>& hot, std::size_t l) const {
    std::vector<bool> taken(input_.experts[l], false);
    for (const Ids& ids : hot)
      for (const std::uint32_t id : ids) taken[id] = true;
    Ids cold;
    for (const std::uint32_t id : order_[l])
      if (!taken[id]) cold.push_back(id);
    return cold;
  }

  void fill_up(HotChoice* choice) const {
    const std::size_t gpus = budgets_.size();
    std::vector<std::uint64_t> used(gpus, 0);
    for (std::size_t g = 0; g < gpus; ++g) used[g] = count_of(choice->sets[g]);
    const auto free = [&](std::size_t g) {
      return std::min(budgets_[g] - used[g], input_.budget - std::accumulate(used.begin(), used.end(), std::uint64_t{0}));
    };
    std::vector<std::vector<std::optional<Step>>> steps(layers(), std::vector<std::optional<Step>>(gpus));
    for (;;) {
      std::size_t layer = layers(), gpu = 0;
      Step best;
      for (std::size_t l = 0; l < layers(); ++l)
        for (std::uint32_t g = 0; g < gpus; ++g) {
          std::optional<Step>& step = steps[l][g];
          if (!step || step->count > free(g)) step = best_step(*choice, l, g, free(g));
          if (step->gain > best.gain) best = *step, layer = l, gpu = g;
        }
      if (layer == layers()) return;
      const Ids cold = cold_of(of_layer(*choice, layer), layer);
      Ids& ids = choice->sets[gpu][layer];
      ids.insert(ids.end(), cold.begin(), cold.begin() + static_cast<std::ptrdiff_t>(best.count));
      used[gpu] += best.count;
      for (auto& step : steps[layer]) step.reset();
    }
  }

  // Experts of small layers by themselves: from one GPU to another, in or out of one, or in the place of one of any layer. The best of
  // these at a time, while it lowers the sum of the layers. True: something was done.
  bool trade(HotChoice* choice) const {
    std::uint64_t all = 0;
    for (const std::uint32_t experts : input_.experts) all += experts;
    if (all > kTraded) return false;
    bool any = false;
    for (std::uint64_t round = 0; round < all; ++round) {
      // what a layer gains when an expert goes somewhere; GPU number `gpus`: it is cold
      struct Move {
        std::size_t layer = 0;
        std::uint32_t id = 0, from = 0, to = 0;
        double gain = 0;
      };
      const auto gpus = static_cast<std::uint32_t>(budgets_.size());
      std::vector<std::uint64_t> used(gpus + 1, 0);
      for (std::uint32_t g = 0; g < gpus; ++g) used[g] = count_of(choice->sets[g]);
      const std::uint64_t hot = std::accumulate(used.begin(), used.end(), std::uint64_t{0});
      std::vector<Move> moves;
      double scale = 0;
      for (std::size_t l = 0; l < layers(); ++l) {
        const std::vector<Ids> before = of_layer(*choice, l);
        const double now = cost_.layer(l, before);
        scale += now;
        std::vector<std::uint32_t> at(input_.experts[l], gpus);
        for (std::uint32_t g = 0; g < gpus; ++g)
          for (const std::uint32_t id : before[g]) at[id] = g;
        for (std::uint32_t id = 0; id < at.size(); ++id)
          for (std::uint32_t to = 0; to <= gpus; ++to) {
            if (to == at[id]) continue;
            std::vector<Ids> after = before;
            if (at[id] < gpus) std::erase(after[at[id]], id);
            if (to < gpus) after[to].push_back(id);
            moves.push_back({l, id, at[id], to, now - cost_.layer(l, after)});
          }
      }
      const auto fits = [&](const Move& m) { return m.to == gpus || (used[m.to] < budgets_[m.to] && (m.from < gpus || hot < input_.budget)); };
      double best = scale * 1e-12;
      const Move *first = nullptr, *second = nullptr;
      for (const Move& a : moves) {
        if (fits(a) && a.gain > best) best = a.gain, first = &a, second = nullptr;
        for (const Move& b : moves) {  // one goes where the other leaves
          if (b.to != a.from || a.to != b.from || (a.layer == b.layer && a.id == b.id)) continue;
          double gain = a.gain + b.gain;
          if (gain <= best && a.layer != b.layer) continue;
          if (a.layer == b.layer) {
            std::vector<Ids> after = of_layer(*choice, a.layer);
            const double now = cost_.layer(a.layer, after);
            for (const Move* m : {&a, &b}) {
              if (m->from < gpus) std::erase(after[m->from], m->id);
              if (m->to < gpus) after[m->to].push_back(m->id);
            }
            gain = now - cost_.layer(a.layer, after);
          }
          if (gain > best) best = gain, first = &a, second = &b;
        }
      }
      if (first == nullptr) return any;
      for (const Move* m : {first, second}) {
        if (m == nullptr) continue;
        if (m->from < gpus) std::erase(choice->sets[m->from][m->layer], m->id);
        if (m->to < gpus) choice->sets[m->to][m->layer].push_back(m->id);
      }
      any = true;
    }
    return any;
  }

  const StrategyInput& input_;
  std::vector<std::uint64_t> budgets_;
  const bool whole_;
  const HotCost& cost_;
  std::vector<Ids> order_;
  std::vector<std::vector<Table>> tables_;  // [layer][gpu]
};

}  // namespace

Expected<HotChoice> choose_auto(const StrategyInput& input, const SpreadInput& gpus, const HotCost& cost) {
  std::vector<HotChoice> others;
  for (const Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency}) {
    if (strategy == Strategy::frequency && input.counts.empty()) continue;
    KTC_ASSIGN_OR_RETURN(HotSets sets, choose(strategy, input));
    others.push_back(spread(sets, input.counts, gpus));
  }
  HotChoice best = Auto(input, gpus, cost).run();
  double least = cost.total(best);
  for (HotChoice& other : others)
    if (const double total = cost.total(other); total < least) least = total, best = std::move(other);
  return best;
}

}  // namespace ktc::placement
