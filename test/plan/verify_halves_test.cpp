// Extend entries whose tokens are cut in two.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/formats/halves.h"
#include "runtime/formats/step_block.h"
#include "test/plan/hybrid_plan.h"
#include "test/plan/verify_case.h"
#include "test/support/cut_plan.h"

namespace ktc::test {
namespace {

using namespace planfb;

EntryT& extend(PlanT& plan) { return entry(plan, "extend[4]"); }
PlanT cut_plan() {
  PlanT plan = hybrid_plan();
  cut_in_halves(plan, extend(plan));
  return plan;
}

TEST(Halves, FollowFromTheStepAlone) {
  static_assert(first_half_bound(9) == 5 && second_half_bound(9) == 4 && first_half_bound(1) == 1 && second_half_bound(1) == 0);
  for (const std::uint64_t most : {2u, 3u, 8u, 9u, 512u})
    for (std::uint64_t tokens = 1; tokens <= most; ++tokens) {
      const std::uint64_t first = first_half_tokens(tokens, most);
      EXPECT_TRUE(first >= 1 && first <= first_half_bound(most) && tokens - first <= second_half_bound(most)) << tokens << " of " << most;
      // what has room in one half is not cut, the rest evenly
      EXPECT_EQ(first == tokens, tokens <= first_half_bound(most));
      if (first != tokens) {
        EXPECT_LE(first - (tokens - first), 1u);
      }
    }
}

TEST(Halves, HaveAStepBlockEach) {
  const StepBlocks whole = step_blocks(9, 4, 3, 5, false), cut = step_blocks(9, 4, 3, 5, true);
  EXPECT_EQ(whole.bytes, step_block_layout(9, 4, 3, 5).bytes);
  EXPECT_EQ(cut.half[0].epoch, whole.bytes);
  EXPECT_EQ(cut.half[1].epoch, cut.half[0].bytes);
  EXPECT_EQ(cut.bytes, whole.bytes + step_block_layout(5, 0, 3, 5).bytes + step_block_layout(4, 0, 3, 5).bytes);
}

TEST(Halves, VerifyAndAreReadBack) {
  const PlanT plan = cut_plan();
  ASSERT_EQ(plan::verify_plan(plan).message(), "");
  EXPECT_EQ(plan.required_features, 5u);  // hybrid, halves
  const auto again = plan::parse_plan(plan::serialise_plan(plan), "plan.ktp");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(plan::dump(*again), plan::dump(plan));
  EXPECT_NE(plan::dump(plan).find("second_half"), std::string::npos);
  EXPECT_TRUE(plan::is_cut(*again->entries[0]));
  EXPECT_EQ(plan::bound_of(*again->entries[0], Symbol::second_half), 2u);
}

TEST(Halves, AReaderMustKnowThem) {
  PlanT plan = cut_plan();
  plan.required_features &= ~static_cast<std::uint64_t>(plan::Feature::halves);
  EXPECT_NE(plan::verify_plan(plan).message().find("required_features"), std::string::npos);
}

// Broken is made from the small plan, which has no halves: each change begins with the plan that has them.
Broken broken(const char* name, std::function<void(PlanT&)> change, std::string message) {
  return {name, [change](PlanT& plan) {
            plan = cut_plan();
            change(plan);
          }, std::move(message)};
}
std::size_t index_of(EntryT& entry, std::string_view name) {
  return static_cast<std::size_t>(std::find_if(entry.steps.begin(), entry.steps.end(), [&](const auto& s) { return s->name == name; }) -
                                  entry.steps.begin());
}

KTC_BROKEN_PLANS(BrokenHalves,
    {broken("HalvesOfDecode", [](PlanT& p) { buffer(entry(p, "decode[2]"), "h").symbol = Symbol::first_half; },
            "entry \"decode[2]\": buffers[5] \"h\": symbol: found first_half, expected halves in extend entries of 2 tokens or more alone"),
     broken("WholeInput", [](PlanT& p) { buffer(extend(p), "positions.second").symbol = Symbol::tokens; },
            "entry \"extend[4]\": symbol of role positions: found tokens, expected a half: others of the entry's buffers are of halves"),
     broken("TwoOfOneHalf", [](PlanT& p) { buffer(extend(p), "positions.second").symbol = Symbol::first_half; },
            "entry \"extend[4]\": buffers of role positions: found 2 on \"cuda:0\", expected 1 on a device"),
     broken("OtherHalf", [](PlanT& p) {
              StepT& s = step(extend(p), "layers.0.mlp.add.second");
              s.inputs[0] = step(extend(p), "layers.0.mlp.add").inputs[0];
            },
            "entry \"extend[4]\": step 25 \"layers.0.mlp.add.second\": AddNormOp: inputs[1]: found f32 [second_half, 16], expected f32 [first_half, 16]"),
     broken("RowsOfOneHalf", [](PlanT& p) { step(extend(p), "select").inputs.pop_back(); },
            "entry \"extend[4]\": step 56 \"select\": SelectRowsOp: operands: found 2 inputs, 1 outputs, expected 3 inputs, 1 outputs"),
     broken("SecondHalfFirst", [](PlanT& p) {
              EntryT& e = extend(p);
              const std::size_t first = index_of(e, "layers.0.attention");
              std::swap(e.steps[first], e.steps[first + 1]);
            },
            "entry \"extend[4]\": step 6 \"layers.0.attention.second\": cache_layer: found 0 of a second half, expected it behind that of the first half")});

}  // namespace
}  // namespace ktc::test
