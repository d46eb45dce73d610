// A plan whose layers are on two emulated GPUs computes what it does on one, to the bit. What happens when one of them fails:
// hybrid_faults_test.cpp.
#include "runtime/exec/generator.h"
#include "test/exec/hybrid_fixture.h"
#include "test/support/divide_plan.h"

namespace ktc::test {
namespace {

using exec::ExecutorOptions;
using exec::HandoffKind;

HybridOptions model(bool mla, std::uint32_t hot, std::uint32_t late = 0) {
  HybridOptions o;
  o.tiny.mla = mla;
  o.hot = hot;
  o.late = late;
  o.scope_all = late != 0;  // so late experts of cuda:0 cross as well
  o.defer_prefill = late != 0;
  return o;
}
HybridOptions in_halves() {
  HybridOptions o = model(false, 2);
  o.halves = true;
  return o;
}

// Logits of a prompt and of decode steps behind it, then what the GPU that has the logits chooses for three prompts at once.
struct Results {
  Logits logits;
  std::vector<std::vector<std::int32_t>> ids;
};
Results results(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  Results results;
  auto executor = exec::Executor::open(std::move(plan), options);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  if (!executor.ok()) return results;
  results.logits = run_alone(**executor, random_ids(40, 5), {25});
  std::vector<exec::Request> requests(3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = random_ids(3 + 4 * i, static_cast<std::uint32_t>(i + 1));
    requests[i].max_tokens = static_cast<std::uint32_t>(6 + 3 * i);
  }
  auto generated = exec::generate(**executor, std::move(requests));
  EXPECT_TRUE(generated.ok()) << generated.status().message();
  if (!generated.ok()) return results;
  for (exec::Completion& c : generated->completions) {
    EXPECT_TRUE(c.status.ok()) << c.status.message();
    results.ids.push_back(std::move(c.ids));
  }
  return results;
}

class TwoGpus : public testing::TestWithParam<HybridOptions> {};

TEST_P(TwoGpus, GiveTheBitsOfOne) {
  const HybridOnDisk disk(GetParam());
  ASSERT_NE(disk.plan, nullptr);
  const auto divided = divide_plan(*disk.plan, 1);
  ASSERT_TRUE(divided.ok()) << divided.status().message();
  const Results expected = results(disk.plan, HybridOnDisk::defaults());
  ASSERT_EQ(expected.logits.size(), 40u);
  for (const HandoffKind handoff : {HandoffKind::doorbell, HandoffKind::hostnode})
    for (const bool graphs : {true, false}) {
      ExecutorOptions options = HybridOnDisk::defaults();
      options.handoff = handoff;
      options.graphs = graphs;
      const Results found = results(*divided, options);
      EXPECT_TRUE(same_bits(found.logits, expected.logits)) << exec::to_string(handoff) << " " << graphs;
      EXPECT_EQ(found.ids, expected.ids) << exec::to_string(handoff) << " " << graphs;
    }
}

INSTANTIATE_TEST_SUITE_P(All, TwoGpus, testing::Values(model(false, 0), model(true, 2), model(false, 3, 1), in_halves()), [](const auto& info) {
  return std::string(info.param.tiny.mla ? "mla" : "gqa") + "_hot" + std::to_string(info.param.hot) + "_late" + std::to_string(info.param.late) +
         (info.param.halves ? "_halves" : "");
});

}  // namespace
}  // namespace ktc::test
