// Opens a tiny model and runs sequences through it, for the executor's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "test/support/tiny_model.h"

namespace ktc::test {

using Logits = std::vector<std::vector<float>>;  // [row][vocabulary]

inline std::vector<std::int32_t> random_ids(std::size_t count, std::uint32_t seed) {
  std::vector<std::int32_t> ids(count);
  for (std::int32_t& id : ids) {
    seed = seed * 1664525u + 1013904223u;
    id = static_cast<std::int32_t>((seed >> 8) % TinyModel::kVocabulary);
  }
  return ids;
}

// A tiny model on disk, opened as a plan once.
struct OnDisk {
  explicit OnDisk(const TinyOptions& options) : model(options) {
    EXPECT_TRUE(model.builder.write(folder.path() / "tiny.ktp"));
    auto opened = plan::open_plan(folder.path() / "tiny.ktp");
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) plan = *opened;
  }
  std::unique_ptr<exec::Executor> open(int threads, IsaLevel isa = IsaLevel::best) const {
    exec::ExecutorOptions options;
    options.threads = threads;
    options.isa = isa;
    return open(options);
  }
  std::unique_ptr<exec::Executor> open(const exec::ExecutorOptions& options) const {
    if (plan == nullptr) return nullptr;
    auto executor = exec::Executor::open(plan, options);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    return executor.ok() ? std::move(*executor) : nullptr;
  }
  TempFolder folder;
  TinyModel model;
  std::shared_ptr<const plan::OpenPlan> plan;
};

// A sequence and its pages.
struct Sequence {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> pages;
  std::size_t done = 0;  // ids in the cache
  Logits logits;         // of the ids done

  exec::StepSequence next(std::size_t count) const {
    return {std::span(ids).subspan(done, count), static_cast<std::uint32_t>(done), pages, 0};
  }
};

// Pages [slot * each, (slot + 1) * each) in reverse, so that no test relies on their order.
inline Sequence make_sequence(const exec::Executor& executor, std::vector<std::int32_t> ids, std::uint32_t slot) {
  Sequence sequence;
  sequence.ids = std::move(ids);
  const std::uint32_t each = (executor.tokens_per_sequence() + executor.page_tokens() - 1) / executor.page_tokens();
  for (std::uint32_t i = 0; i < each; ++i) sequence.pages.push_back((slot + 1) * each - 1 - i);
  return sequence;
}

// One step with the next counts[i] ids of sequences[i] (0: not in the step); appends the logits of all of them.
inline void step(exec::Executor& executor, std::span<Sequence> sequences, const std::vector<std::size_t>& counts) {
  std::vector<exec::StepSequence> batch;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] != 0) batch.push_back(sequences[i].next(counts[i]));
  auto result = executor.run(batch);
  ASSERT_TRUE(result.ok()) << result.status().message();
  std::uint32_t row = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::size_t k = 0; k < counts[i]; ++k, ++row)
      sequences[i].logits.emplace_back(result->row(row), result->row(row) + TinyModel::kVocabulary);
    sequences[i].done += counts[i];
  }
  ASSERT_EQ(result->rows, row);
}

// All ids of one sequence, in the given chunks, then the rest one by one.
inline Logits run_alone(exec::Executor& executor, const std::vector<std::int32_t>& ids, const std::vector<std::size_t>& chunks,
                        std::uint32_t slot = 0) {
  Sequence sequence = make_sequence(executor, ids, slot);
  for (const std::size_t chunk : chunks) step(executor, {&sequence, 1}, {chunk});
  while (sequence.done < ids.size() && !testing::Test::HasFatalFailure()) step(executor, {&sequence, 1}, {1});
  return sequence.logits;
}

inline testing::AssertionResult same_bits(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " rows against " << b.size();
  for (std::size_t r = 0; r < a.size(); ++r)
    for (std::size_t c = 0; c < a[r].size(); ++c)
      if (std::memcmp(&a[r][c], &b[r][c], sizeof(float)) != 0)
        return testing::AssertionFailure() << "row " << r << ", column " << c << ": " << a[r][c] << " against " << b[r][c];
  return testing::AssertionSuccess();
}

}  // namespace ktc::test
