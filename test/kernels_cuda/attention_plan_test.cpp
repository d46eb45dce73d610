// What FlashInfer's kernels are told (runtime/kernels/cuda/flashinfer): division, lists of work, and when they are asked at all.
#include "runtime/kernels/cuda/flashinfer/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "runtime/kernels/cuda/flashinfer/fastdiv.h"

namespace ktc::gpu {
namespace {

TEST(FastDivision, IsDivision) {
  std::mt19937 random(1);
  const auto check = [](std::uint32_t n, std::uint32_t d) {
    const flashinfer::uint_fastdiv divisor(d);
    std::uint32_t q, r;
    divisor.divmod(n, q, r);
    const std::uint32_t real = d == 0 ? 1 : d;
    ASSERT_EQ(q, n / real) << n << " / " << d;
    ASSERT_EQ(n / divisor, n / real);
    if (d == 0) return;
    ASSERT_EQ(r, n % d) << n << " % " << d;
    ASSERT_EQ(n % divisor, n % d);
    ASSERT_EQ(static_cast<unsigned>(divisor), d);
  };
  std::vector<std::uint32_t> edges = {0, 1, 2, 3, 0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff};
  for (std::uint32_t d = 0; d < 3000; ++d) {
    for (const std::uint32_t n : edges) check(n, d);
    for (std::uint32_t k = 1; k < 4; ++k) {
      check(k * d, d);
      check(k * d - 1, d);
    }
  }
  for (const std::uint32_t d : edges)
    for (const std::uint32_t n : edges) check(n, d);
  for (int i = 0; i < 500000; ++i) check(static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random()) >> (random() % 32));
}

struct Who {
  std::vector<std::int32_t> q_first{0};
  Batch batch;
  // Tokens of the sequences; padding tokens belong to the dummy behind them.
  Who(const std::vector<std::uint32_t>& fresh, std::uint32_t padding) {
    for (const std::uint32_t tokens : fresh) q_first.push_back(q_first.back() + static_cast<std::int32_t>(tokens));
    q_first.push_back(q_first.back() + static_cast<std::int32_t>(padding));
    batch.q_first = q_first.data();
    batch.tokens = static_cast<std::uint32_t>(q_first.back());
    batch.sequences = static_cast<std::uint32_t>(fresh.size());
  }
};

TEST(AttentionPlan, HasEveryRowOnce) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint32_t> fresh(1 + random() % 9);
    for (std::uint32_t& tokens : fresh) tokens = random() % 4 == 0 ? 0 : random() % (random() % 2 == 0 ? 4 : 300);
    const std::uint32_t padding = random() % 3 == 0 ? random() % 20 : 0, group = 1 + random() % 20;
    const Who who(fresh, padding);
    fresh.push_back(padding);
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    std::uint32_t items = 0, before = 0;
    PlanItem item = {}, last = {};
    for (; plan_item(who.batch, group, items, item); ++items) {
      ASSERT_LT(item.sequence, fresh.size());
      ASSERT_LT(item.tile * kGpuPlanRows, fresh[item.sequence] * group) << "a tile without rows";
      ASSERT_TRUE(seen.emplace(item.sequence, item.tile).second) << "twice";
      if (before != 0 && last.sequence == item.sequence) ASSERT_EQ(item.tile + 1, last.tile) << "the heaviest first";
      last = item;
      before = 1;
    }
    std::uint32_t expected = 0;
    for (const std::uint32_t tokens : fresh) expected += (tokens * group + 127) / 128;
    ASSERT_EQ(items, expected);
    ASSERT_EQ(plan_item_count(who.batch, group), items);
    ASSERT_LE(items, gpu_plan_items(who.batch.tokens, who.batch.sequences, group));
    ASSERT_FALSE(plan_item(who.batch, group, items + 1000, item));
  }
}

// One list, worker by worker: each place is taken once, and nobody has more than one item more than another.
TEST(AttentionPlan, DealsItemsEvenly) {
  for (const std::uint32_t workers : {1u, 2u, 54u, 66u})
    for (std::uint32_t items = 0; items < 5 * workers + 3; ++items) {
      std::vector<int> taken(items, 0);
      for (std::uint32_t i = 0; i < items; ++i) {
        const std::uint32_t place = dealt_place(i, items, workers);
        ASSERT_LT(place, items);
        ++taken[place];
      }
      for (const int times : taken) ASSERT_EQ(times, 1) << items << " items, " << workers << " workers";
      ASSERT_EQ(dealt_first(0, items, workers), 0u);
      for (std::uint32_t w = 0; w < workers; ++w) {
        const std::uint32_t end = w + 1 < workers ? dealt_first(w + 1, items, workers) : items, own = end - dealt_first(w, items, workers);
        ASSERT_GE(own, items / workers);
        ASSERT_LE(own, (items + workers - 1) / workers);
      }
    }
}

// As the kernel that cuts keys uses the functions: every key of every item once, parts in places of their own, every row merged once.
TEST(AttentionPlan, CutsKeysEvenly) {
  std::mt19937 random(4);
  for (int round = 0; round < 400; ++round) {
    const std::uint32_t workers = round % 3 == 0 ? 66 : 1 + random() % 72, items = 1 + random() % (round % 2 == 0 ? 9 : 300);
    std::vector<std::uint32_t> visible(items), begins(items + 1, 0), lasts(items), parts_before(items + 1, 0);
    for (std::uint32_t i = 0; i < items; ++i) {
      visible[i] = 1 + random() % (random() % 4 == 0 ? 30000 : 400);
      if (random() % 4 == 0) visible[i] = (visible[i] + 255) / 256 * 256;  // ends of items and workers fall together
      begins[i + 1] = begins[i] + (visible[i] + kPlanKeys - 1) / kPlanKeys;
    }
    const std::uint32_t span = plan_span(begins[items], workers);
    ASSERT_LE(begins[items], span * workers);
    for (std::uint32_t i = 0; i < items; ++i) {
      lasts[i] = i + path_last(begins[i + 1], span, workers, i + 1 == items);
      const std::uint32_t parts = (begins[i + 1] - 1) / span - begins[i] / span + 1;
      parts_before[i + 1] = parts_before[i] + (parts > 1 ? parts : 0);
    }
    ASSERT_LE(parts_before[items], 2 * workers) << "one place for each block";
    const std::uint32_t entries = items + workers - 1;
    ASSERT_EQ(lasts[items - 1] + 1, entries);
    std::vector<std::uint32_t> work(workers + 1, ~0u), worker_units(workers, 0), next_key(items, 0), merged(items * 128, 0);
    std::vector<int> taken(parts_before[items], 0);
    work[workers] = entries;
    std::uint32_t low = 0;
    for (std::uint32_t e = 0; e < entries; ++e) {
      while (lasts[low] < e) ++low;
      const std::uint32_t worker = e - low;
      ASSERT_LT(worker, workers);
      if (path_enters(worker, begins[low], span)) {
        ASSERT_EQ(work[worker], ~0u);
        work[worker] = e;
      }
      const PlanPart part = plan_part(begins[low], begins[low + 1], worker, span, visible[low]);
      if (part.begin == part.end) continue;
      ASSERT_EQ(part.begin, next_key[low]) << "keys in order and without gaps";
      ASSERT_EQ(part.begin % kPlanKeys, 0u);
      ASSERT_LE(part.end, visible[low]);
      next_key[low] = part.end;
      worker_units[worker] += (part.end - part.begin + kPlanKeys - 1) / kPlanKeys;
      if (part.parts <= 1) continue;
      ASSERT_LT(part.number, part.parts);
      ++taken[parts_before[low] + part.number];
      const std::uint32_t rows = 1 + (low * 37) % 128;
      std::uint32_t first, end;
      merged_rows(rows, part.number, part.parts, first, end);
      ASSERT_LE(first, end);
      ASSERT_LE(end, rows);
      for (std::uint32_t r = first; r < end; ++r) ++merged[low * 128 + r];
    }
    for (std::uint32_t w = 0; w < workers; ++w) {
      ASSERT_LE(worker_units[w], span);
      ASSERT_NE(work[w], ~0u) << "a worker without a list";
      ASSERT_LE(work[w], work[w + 1]);
    }
    for (const int times : taken) ASSERT_EQ(times, 1);
    for (std::uint32_t i = 0; i < items; ++i) {
      ASSERT_EQ(next_key[i], visible[i]);
      const bool cut = parts_before[i + 1] != parts_before[i];
      for (std::uint32_t r = 0; r < 1 + (i * 37) % 128; ++r) ASSERT_EQ(merged[i * 128 + r], cut ? 1u : 0u) << "row " << r;
    }
  }
}

TEST(AttentionPlan, SeesTheKeysOfItsLastRow) {
  EXPECT_EQ(plan_visible(100, 10, 0, 128), 91u);   // one token per tile
  EXPECT_EQ(plan_visible(100, 10, 9, 128), 100u);
  EXPECT_EQ(plan_visible(100, 10, 0, 16), 98u);    // eight
  EXPECT_EQ(plan_visible(100, 10, 1, 16), 100u);
  EXPECT_EQ(plan_visible(1, 7, 3, 128), 1u);       // padding
}

// What a launch carries: sizes of lists and grids come from numbers of tokens and sequences, never from who is in the step.
TEST(AttentionPlan, ItsSizesFollowTheBoundsAlone) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t sequences = 1 + random() % 8, tokens = 2 * (sequences + 1) + random() % 2000, group = 1 + random() % 16;
    for (int again = 0; again < 5; ++again) {
      std::vector<std::uint32_t> fresh(sequences, 0);
      for (std::uint32_t t = 0; t < tokens; ++t) ++fresh[random() % (again + 1) % sequences];
      const Who who(fresh, 0);
      ASSERT_EQ(who.batch.tokens, tokens);
      ASSERT_LE(plan_item_count(who.batch, group), gpu_plan_items(tokens, sequences, group));
      ASSERT_TRUE(gqa_plan_serves(who.batch, group, gpu_gqa_plan_bytes(tokens, group)));
    }
  }
}

TEST(AttentionPlan, IsRefusedWhereItDoesNotFit) {
  for (const std::uint32_t tokens : {8u, 500u, 8192u})
    for (const std::uint32_t group : {1u, 8u, 128u})
      for (const std::uint32_t sequences : {1u, 3u, tokens / 2 - 1, tokens / 2, tokens}) {
        Batch b;
        b.tokens = tokens;
        b.sequences = sequences;
        const std::uint64_t gqa = gpu_gqa_plan(gpu_plan_items(tokens, sequences, group), sequences).bytes;
        const std::uint64_t mla = gpu_mla_plan(gpu_plan_items(tokens, sequences, group)).bytes;
        const bool prompts = tokens >= 2 * (sequences + 1);
        EXPECT_EQ(gqa_plan_serves(b, group, gqa), prompts);
        EXPECT_FALSE(gqa_plan_serves(b, group, gqa - 1));
        const bool full = tokens * group >= 1024 && (group == 128 || tokens * group >= 128 * (sequences + 1));
        EXPECT_EQ(mla_plan_serves(b, group, mla), full) << tokens << " tokens, " << group << " heads, " << sequences << " sequences";
        EXPECT_FALSE(mla_plan_serves(b, group, mla - 1));
        if (prompts) EXPECT_LE(gqa, gpu_gqa_plan_bytes(tokens, group)) << tokens << " tokens of " << sequences;
        if (full) EXPECT_LE(mla, gpu_mla_plan_bytes(tokens, group, 512, 64)) << tokens << " tokens of " << sequences;
      }
  Batch b;
  b.sequences = 1;
  b.tokens = 1u << 30;
  EXPECT_FALSE(gqa_plan_serves(b, 8, ~std::uint64_t{0})) << "more rows than 31 bits count";
  EXPECT_FALSE(mla_plan_serves(b, 8, ~std::uint64_t{0}));
  EXPECT_EQ(gpu_gqa_plan_bytes(0, 8), 0u);
  EXPECT_EQ(gpu_gqa_plan_bytes(1, 128), 0u);
  EXPECT_EQ(gpu_mla_plan_bytes(7, 128, 512, 64), 0u);
  EXPECT_EQ(gpu_mla_plan_bytes(512, 4, 64, 16), 0u) << "shapes that are never served so";
}

// A step of an entry needs no more than what the plan reserved for its bounds.
TEST(AttentionPlan, WorkspaceGrowsWithTheTokens) {
  for (std::uint32_t tokens = 1; tokens < 3000; ++tokens) {
    ASSERT_LE(gpu_gqa_plan_bytes(tokens, 8), gpu_gqa_plan_bytes(tokens + 1, 8));
    ASSERT_LE(gpu_mla_plan_bytes(tokens, 128, 512, 64), gpu_mla_plan_bytes(tokens + 1, 128, 512, 64));
    ASSERT_LE(gpu_gqa_plan_bytes(tokens, 8), gpu_gqa_workspace(tokens, 32, 4, 128).partial);
    ASSERT_LE(gpu_mla_plan_bytes(tokens, 128, 512, 64), gpu_mla_workspace(tokens, 128, 512, 64).partial);
  }
}

}  // namespace
}  // namespace ktc::gpu
