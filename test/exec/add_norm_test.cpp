// A sum and its norm in one step give the bits of two.
#include "test/exec/executor_fixture.h"

namespace ktc::test {
namespace {

// Joins every sum with the norm that reads it next.
void join(planfb::EntryT& entry) {
  for (std::size_t s = 0; s + 1 < entry.steps.size(); ++s) {
    planfb::StepT &sum = *entry.steps[s], &norm = *entry.steps[s + 1];
    const auto* op = norm.op.AsNormOp();
    if (sum.op.AsAddOp() == nullptr || op == nullptr || norm.inputs[0].buffer() != sum.outputs[0].buffer()) continue;
    planfb::AddNormOpT both;
    both.w = op->w;
    both.eps = op->eps;
    sum.op.Set(both);
    sum.outputs.push_back(norm.outputs[0]);
    entry.steps.erase(entry.steps.begin() + static_cast<std::ptrdiff_t>(s) + 1);
  }
}

TEST(AddNorm, HasTheBitsOfASumAndANorm) {
  for (const bool mla : {false, true}) {
    TinyOptions options;
    options.mla = mla;
    const OnDisk tiny(options);
    ASSERT_NE(tiny.plan, nullptr);
    auto joined = std::make_shared<plan::OpenPlan>();
    joined->folder = tiny.plan->folder;
    joined->plan = *plan::parse_plan(plan::serialise_plan(tiny.plan->plan), "copy");
    for (auto& entry : joined->plan.entries) {
      const std::size_t before = entry->steps.size();
      join(*entry);
      EXPECT_EQ(before - entry->steps.size(), 3u);  // two of attention, one of the first layer's experts or block
    }
    const Status verified = plan::verify_plan(joined->plan);
    EXPECT_TRUE(verified.ok()) << verified.message();
    exec::ExecutorOptions two;
    two.threads = 2;
    const auto executor = exec::Executor::open(joined, two);
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    const std::vector<std::int32_t> ids = random_ids(40, 6);
    EXPECT_TRUE(same_bits(run_alone(**executor, ids, {30}), run_alone(*tiny.open(2), ids, {30})));
  }
}

}  // namespace
}  // namespace ktc::test
