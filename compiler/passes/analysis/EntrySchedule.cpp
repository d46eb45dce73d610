#include "compiler/passes/analysis/EntrySchedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/SetVector.h"

namespace ktc::compiler {

class EntrySchedule::Impl {
 public:
  Impl(kt::EntryOp entry, const StepTimes& times) : entry_(entry), block_(entry.getBody().front()) {
    for (auto step : block_.getOps<kt::StepOpInterface>()) {
      numbers_[step] = steps_.size();
      steps_.push_back(step);
      time_.push_back(times.us(step, entry));
    }
    after_.resize(steps_.size());
    before_.resize(steps_.size());
    for (kt::StepOpInterface step : steps_) addEdges(step);
    addCacheEdges();
    addRecordEdges();
    addLateEdges();
    addShareEdges();
    findRanks();
  }

  bool onOneDevice() {
    return llvm::all_of(steps_, [&](kt::StepOpInterface s) {
      return s.operandDevice() == steps_.front().operandDevice() && s.resultDevice() == steps_.front().operandDevice();
    });
  }

  // The order as it is must not be kept: something is in front of what it has to follow.
  bool mustMove() const {
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (llvm::any_of(before_[i], [&](std::size_t before) { return before > i; })) return true;
    return false;
  }

  Order given() {
    Order order;
    for (std::size_t i = 0; i < steps_.size(); ++i) order.steps.push_back(i);
    order.us = predict(order.steps);
    return order;
  }

  // By critical path: of what can begin at once what gives the CPU work, then the step with the most work behind it. On a device that
  // would have to wait for a step with more work behind it, another one goes first when half of it fits into the wait.
  Order best() {
    begin();
    std::vector<double> start(steps_.size());
    std::set<std::size_t> ready = roots();
    while (!ready.empty()) {
      const std::size_t next = choose(ready);
      ready.erase(next);
      start[next] = place(next);
      for (std::size_t user : after_[next])
        if (--waits_[user] == 0) ready.insert(user);
    }
    Order order;
    order.steps = merge(start);
    order.us = predict(order.steps);
    return order;
  }

  // Returns how many steps have another predecessor than before.
  unsigned apply(const Order& order) {
    unsigned moved = 0;
    std::size_t expected = 0;
    for (std::size_t next : order.steps) {
      moved += next != expected;
      expected = next + 1;
      steps_[next]->moveBefore(block_.getTerminator());
    }
    return moved;
  }

 private:
  void edge(mlir::Operation* first, mlir::Operation* then) {
    auto a = numbers_.find(first), b = numbers_.find(then);
    if (a == numbers_.end() || b == numbers_.end() || a->second == b->second) return;
    after_[a->second].push_back(b->second);
    before_[b->second].push_back(a->second);
  }

  void addEdges(kt::StepOpInterface step) {
    for (mlir::Value operand : step->getOperands()) {
      if (mlir::Operation* maker = operand.getDefiningOp()) edge(maker, step);
    }
  }

  // Accesses to one cache keep their order.
  void addCacheEdges() {
    llvm::DenseMap<mlir::Attribute, mlir::Operation*> last;
    for (kt::StepOpInterface step : steps_) {
      auto effects = llvm::dyn_cast<kt::SymbolEffectsOpInterface>(step.getOperation());
      if (!effects) continue;
      for (const kt::SymbolEffect& effect : effects.getSymbolEffects()) {
        if (!effect.write) continue;
        mlir::Operation*& before = last[effect.symbol];
        if (before) edge(before, step);
        before = step;
      }
    }
  }

  // A record without pairs hands nothing over: it goes with its await.
  void addRecordEdges() {
    llvm::DenseMap<int64_t, mlir::Operation*> submits;
    for (kt::StepOpInterface step : steps_) {
      if (auto submit = llvm::dyn_cast<kt::SubmitOp>(step.getOperation())) submits[submit.getRecord()] = submit;
      auto await = llvm::dyn_cast<kt::AwaitOp>(step.getOperation());
      mlir::Operation* submit = await ? submits.lookup(await.getRecord()) : nullptr;
      if (!submit) continue;
      if (submit->use_empty()) {
        for (std::size_t other : llvm::to_vector(before_[numbers_.lookup(step)])) edge(steps_[other], submit);
      }
      edge(submit, await);
    }
  }

  // The CPU's late experts come behind the delivery of what is in time: the GPU waits for that alone.
  void addLateEdges() {
    for (kt::StepOpInterface step : steps_) {
      auto late = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (!late || !late.getLateAttr() || late.getLateAttr().getPart() != kt::ExpertsPart::late || step.operandDevice() != "cpu") continue;
      for (mlir::Operation* user : late.getIds().getUsers()) {
        auto inTime = llvm::dyn_cast<kt::ExpertsOp>(user);
        if (!inTime || inTime == late || inTime.getBankAttr() != late.getBankAttr()) continue;
        if (mlir::Operation* delivery = deliveryOf(inTime.getOut())) edge(delivery, late);
      }
    }
  }

  // What streams a bank decides which experts the CPU takes, from a choice that is on the host.
  void addShareEdges() {
    for (kt::StepOpInterface step : steps_) {
      auto streams = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (!streams || !streams.getShareAttr() || !streams.getStream()) continue;
      for (kt::StepOpInterface other : steps_) {
        auto takes = llvm::dyn_cast<kt::ExpertsOp>(other.getOperation());
        if (!takes || !takes.getShareAttr() || takes.getStream() || takes.getBankAttr() != streams.getBankAttr()) continue;
        edge(streams, takes);
        for (mlir::Value operand : takes->getOperands()) {
          if (mlir::Operation* moves = operand.getDefiningOp()) edge(moves, streams);
        }
      }
    }
  }

  // What takes the value to a GPU, perhaps in a sum; null: nothing does.
  static mlir::Operation* deliveryOf(mlir::Value value) {
    llvm::SetVector<mlir::Operation*> users(value.user_begin(), value.user_end());
    for (std::size_t i = 0; i < users.size(); ++i) {
      auto step = llvm::dyn_cast<kt::StepOpInterface>(users[i]);
      if (!step || step.operandDevice() != "cpu") continue;
      if (step.resultDevice() != "cpu") return users[i];
      if (llvm::isa<kt::AddOp>(users[i])) users.insert(users[i]->user_begin(), users[i]->user_end());
    }
    return nullptr;
  }

  // us from the start of a step to the end of the entry, were every device free.
  void findRanks() {
    rank_.assign(steps_.size(), 0);
    begin();
    std::vector<std::size_t> order;  // each behind what it needs
    for (std::size_t root : roots()) order.push_back(root);
    for (std::size_t at = 0; at < order.size(); ++at) {
      for (std::size_t user : after_[order[at]])
        if (--waits_[user] == 0) order.push_back(user);
    }
    for (std::size_t i : llvm::reverse(order)) {
      for (std::size_t user : after_[i]) rank_[i] = std::max(rank_[i], rank_[user]);
      rank_[i] += time_[i];
    }
  }

  // The device that a step keeps busy: a move to or from the CPU is the GPU's.
  llvm::StringRef deviceOf(std::size_t i) {
    llvm::StringRef from = steps_[i].operandDevice(), to = steps_[i].resultDevice();
    return from == "cpu" ? to : from;
  }
  // What gives the CPU work takes the GPU next to nothing, and waits for nobody.
  double urgency(std::size_t i) { return leavesGpu(i) && !steps_[i]->use_empty() ? HUGE_VAL : rank_[i]; }
  bool leavesGpu(std::size_t i) { return steps_[i].operandDevice() != "cpu" && steps_[i].resultDevice() == "cpu"; }

  void begin() {
    free_.clear();
    end_.assign(steps_.size(), 0);
    waits_.clear();
    for (const auto& before : before_) waits_.push_back(before.size());
  }
  std::set<std::size_t> roots() const {
    std::set<std::size_t> ready;
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (waits_[i] == 0) ready.insert(i);
    return ready;
  }
  double earliest(std::size_t i) {
    double at = free_[deviceOf(i).str()];
    for (std::size_t before : before_[i]) at = std::max(at, end_[before]);
    return at;
  }
  double place(std::size_t i) {
    const double at = earliest(i);
    end_[i] = free_[deviceOf(i).str()] = at + time_[i];
    return at;
  }

  std::size_t choose(const std::set<std::size_t>& ready) {
    const auto sooner = [&](std::size_t a, std::size_t b) {
      const double at = earliest(a), bt = earliest(b);
      return at != bt ? at < bt : urgency(a) != urgency(b) ? urgency(a) > urgency(b) : a < b;
    };
    const std::size_t first = *std::min_element(ready.begin(), ready.end(), sooner);
    std::size_t chosen = first;
    for (std::size_t other : ready) {
      if (deviceOf(other) != deviceOf(first) || urgency(other) <= urgency(chosen)) continue;
      const double wait = earliest(other) - earliest(first);
      if (wait < time_[first] && 2 * wait < time_[first]) chosen = other;
    }
    return chosen;
  }

  // The host waits for a record where it stands in the list, but for a copy only where a step of the CPU reads it.
  bool hostWaits(std::size_t i) { return llvm::isa<kt::SubmitOp>(steps_[i].getOperation()); }

  // One list for the host, which launches GPUs' steps and computes the CPU's: by start, but steps of a GPU that begin while the CPU
  // computes come in front of that, up to one that the host waits for.
  std::vector<std::size_t> merge(const std::vector<double>& start) {
    std::vector<std::size_t> byStart;
    for (std::size_t i = 0; i < steps_.size(); ++i) byStart.push_back(i);
    std::stable_sort(byStart.begin(), byStart.end(), [&](std::size_t a, std::size_t b) {
      return start[a] != start[b] ? start[a] < start[b] : rank_[a] > rank_[b];
    });
    std::vector<std::size_t> order;
    std::vector<bool> listed(steps_.size(), false);
    const auto possible = [&](std::size_t i) { return llvm::all_of(before_[i], [&](std::size_t b) { return listed[b]; }); };
    const auto list = [&](std::size_t i) {
      listed[i] = true;
      order.push_back(i);
    };
    for (std::size_t at = 0; at < byStart.size();) {
      const std::size_t next = byStart[at];
      if (listed[next]) {
        ++at;
        continue;
      }
      if (!possible(next)) {  // of no length, and behind what begins at the same time
        std::size_t other = at + 1;
        while (listed[byStart[other]] || !possible(byStart[other])) ++other;
        list(byStart[other]);
        continue;
      }
      if (deviceOf(next) == "cpu") {
        llvm::SmallVector<llvm::StringRef> closed;
        for (std::size_t other = at + 1; other < byStart.size() && start[byStart[other]] < start[next] + time_[next]; ++other) {
          const std::size_t ahead = byStart[other];
          if (listed[ahead] || deviceOf(ahead) == "cpu" || llvm::is_contained(closed, deviceOf(ahead))) continue;
          if (hostWaits(ahead) || !possible(ahead)) closed.push_back(deviceOf(ahead));
          else list(ahead);
        }
      }
      list(next);
      ++at;
    }
    return order;
  }

  // Of a list as the host walks it: in decode a GPU's steps are a graph, elsewhere they are launched when the host gets to them.
  double predict(const std::vector<std::size_t>& order) {
    begin();
    const bool launched = entry_.getKind() != kt::EntryKind::decode;
    double end = 0, host = 0;
    for (std::size_t i : order) {
      const std::string device = deviceOf(i).str();
      if (launched) free_[device] = std::max(free_[device], host);
      place(i);
      if (device == "cpu") host = end_[i];
      end = std::max(end, end_[i]);
    }
    return end;
  }

  kt::EntryOp entry_;
  mlir::Block& block_;
  std::vector<kt::StepOpInterface> steps_;
  llvm::DenseMap<mlir::Operation*, std::size_t> numbers_;
  std::vector<llvm::SmallVector<std::size_t, 4>> after_, before_;  // by step
  std::vector<double> time_, rank_;                                // by step, us

  // of the order that is being made
  std::map<std::string, double> free_;  // by device: when its last step ends
  std::vector<double> end_;
  std::vector<std::size_t> waits_;      // for how many
};

EntrySchedule::EntrySchedule(kt::EntryOp entry, const StepTimes& times) : impl_(std::make_unique<Impl>(entry, times)) {}
EntrySchedule::~EntrySchedule() = default;
bool EntrySchedule::onOneDevice() const { return impl_->onOneDevice(); }
Order EntrySchedule::given() const { return impl_->given(); }
Order EntrySchedule::best() const {
  const Order given = impl_->given();
  Order best = impl_->best();
  return impl_->mustMove() || best.us < given.us * (1 - 1e-9) ? best : given;
}
unsigned EntrySchedule::apply(const Order& order) { return impl_->apply(order); }

}  // namespace ktc::compiler
