// An executor without a model, for tests of what drives one. Its "KV cache" stores the ids themselves, page by page,
// and the next id is a hash of what a sequence reads back, so a wrong page, position or chunk shows up as a wrong id.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"

namespace ktc::exec {

class FakeExecutor : public Executor {
 public:
  struct Shape {
    std::uint32_t vocabulary = 50, page_tokens = 4, pages = 40, tokens_per_sequence = 40;
    StepLimits extend{.max_tokens = 16, .max_rows = 8, .max_sequences = 8};
    StepLimits decode{.max_tokens = 4, .max_rows = 4, .max_sequences = 4};
  };
  // One sequence of one step, as it was asked for.
  struct Part {
    std::uint32_t position, tokens, rows;
    bool operator==(const Part&) const = default;
  };

  explicit FakeExecutor(Shape shape) : shape_(shape), cells_(shape.pages * shape.page_tokens, -1) {
    plan_.plan.model = std::make_unique<planfb::ModelT>();
    plan_.plan.model->vocab_size = shape.vocabulary;
  }
  FakeExecutor() : FakeExecutor(Shape{}) {}

  // The id that greedy sampling must find after `ids`.
  std::int32_t next(std::span<const std::int32_t> ids) const {
    std::uint64_t hash = 1469598103934665603u;
    for (const std::int32_t id : ids) hash = (hash ^ static_cast<std::uint64_t>(id + 1)) * 1099511628211u;
    return static_cast<std::int32_t>((hash >> 20) % shape_.vocabulary);
  }
  std::vector<std::int32_t> continuation(std::vector<std::int32_t> ids, std::size_t count) const {
    const std::size_t prompt = ids.size();
    while (ids.size() < prompt + count) ids.push_back(next(ids));
    return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
  }

  Expected<StepResult> run(std::span<const StepSequence> sequences) override {
    steps.emplace_back();
    if (before_run) {
      const Status status = before_run(steps.size() - 1);
      if (!status.ok()) return status;
    }
    std::set<std::uint32_t> used;
    std::uint32_t tokens = 0;
    logits_.clear();
    for (const StepSequence& s : sequences) {
      const std::size_t length = s.position + s.ids.size();
      if (s.ids.empty() || length > shape_.tokens_per_sequence) return broken("length");
      if (s.pages.size() * shape_.page_tokens < length) return broken("too few pages");
      for (const std::uint32_t page : s.pages) {
        if (page >= shape_.pages || !used.insert(page).second) return broken("page outside the pool or used twice");
      }
      auto cell = [&](std::size_t i) -> std::int32_t& {
        return cells_[s.pages[i / shape_.page_tokens] * shape_.page_tokens + i % shape_.page_tokens];
      };
      for (std::size_t i = 0; i < s.ids.size(); ++i) cell(s.position + i) = s.ids[i];
      std::vector<std::int32_t> read;
      for (std::size_t i = 0; i < length; ++i) {
        read.push_back(cell(i));
        if (i >= s.position + s.logits_from) add_row(next(read), read);
      }
      tokens += static_cast<std::uint32_t>(s.ids.size());
      steps.back().push_back({s.position, static_cast<std::uint32_t>(s.ids.size()),
                              static_cast<std::uint32_t>(s.ids.size()) - s.logits_from});
      generated_from[s.pages[0]] = s.generated_from;
    }
    const auto rows = static_cast<std::uint32_t>(logits_.size() / shape_.vocabulary);
    if (tokens > shape_.extend.max_tokens || rows > shape_.extend.max_rows ||
        sequences.size() > shape_.extend.max_sequences) {
      return broken("over the limits");
    }
    return StepResult{.logits = logits_.data(), .row_stride = shape_.vocabulary, .rows = rows};
  }

  // Chooses the largest logit, whatever the parameters say: a device's greedy rows.
  std::uint32_t most_begun() const override { return ahead; }
  Status begin(std::span<const StepSequence> sequences, std::span<const SampleRow> rows) override {
    if (begun_.size() >= ahead || rows.size() != sequences.size()) return broken("begun too often");
    std::vector<StepSequence> now(sequences.begin(), sequences.end());
    std::vector<std::int32_t> fed(now.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i].fed_by == StepSequence::kNothing) continue;
      if (begun_.empty() || now[i].fed_by >= begun_.back().size()) return broken("a row that is not there");
      fed[i] = std::max(begun_.back()[now[i].fed_by], 0);  // a row without a choice has a bad id, which nobody asks for
      now[i].ids = {&fed[i], 1};
    }
    const Expected<StepResult> result = run(now);
    if (!result.ok()) return result.status();
    std::vector<std::int32_t> chosen;
    for (std::uint32_t r = 0; r < result->rows; ++r) {
      const float* row = result->row(r);
      const float* bad = std::find_if_not(row, row + shape_.vocabulary, [](float x) { return std::isfinite(x); });
      chosen.push_back(static_cast<std::int32_t>(bad != row + shape_.vocabulary ? ~(bad - row) : std::max_element(row, row + shape_.vocabulary) - row));
    }
    begun_.push_back(std::move(chosen));
    return {};
  }
  Expected<std::span<const std::int32_t>> finish(bool discard) override {
    if (begun_.empty()) return broken("none was begun");
    discarded += discard;
    chosen_ = std::move(begun_.front());
    begun_.pop_front();
    return std::span<const std::int32_t>(chosen_);
  }
  std::size_t under_way() const { return begun_.size(); }

  StepLimits extend_limits() const override { return shape_.extend; }
  StepLimits decode_limits() const override { return shape_.decode; }
  std::uint32_t best_tokens(std::uint32_t waiting) const override { return best ? best(waiting) : Executor::best_tokens(waiting); }
  std::uint32_t page_tokens() const override { return shape_.page_tokens; }
  std::uint32_t page_count() const override { return shape_.pages; }
  std::uint32_t tokens_per_sequence() const override { return shape_.tokens_per_sequence; }
  const plan::OpenPlan& plan() const override { return plan_; }
  int threads() const override { return 1; }
  IsaLevel isa() const override { return IsaLevel::scalar; }

  std::vector<std::vector<Part>> steps;                                                   // what was run
  std::map<std::uint32_t, std::uint32_t> generated_from;                                  // by first page, of the last step
  std::function<std::uint32_t(std::uint32_t waiting)> best;                               // instead of all that fits
  std::uint32_t ahead = 0;                                                                // most_begun()
  int discarded = 0;                                                                      // steps that were finished in vain
  std::function<Status(std::size_t step)> before_run;                                     // may fail a step
  std::function<void(std::span<const std::int32_t> ids, std::span<float> row)> edit_row;  // may spoil a row

 private:
  static Status broken(const char* what) { return Status(StatusCode::internal, std::string("fake executor: ") + what); }

  void add_row(std::int32_t best, std::span<const std::int32_t> ids) {
    const std::size_t start = logits_.size();
    for (std::uint32_t id = 0; id < shape_.vocabulary; ++id) {
      logits_.push_back(-0.05f * static_cast<float>((id * 7 + static_cast<std::uint32_t>(best)) % shape_.vocabulary));
    }
    logits_[start + static_cast<std::size_t>(best)] = 3;
    if (edit_row) edit_row(ids, std::span(logits_).subspan(start));
  }

  Shape shape_;
  plan::OpenPlan plan_;
  std::vector<std::int32_t> cells_;
  std::vector<float> logits_;
  std::deque<std::vector<std::int32_t>> begun_;
  std::vector<std::int32_t> chosen_;
};

}  // namespace ktc::exec
