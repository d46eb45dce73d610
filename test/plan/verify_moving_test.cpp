// Experts that move: the table, where the steps of its banks start, and its account.
#include <gtest/gtest.h>

#include "runtime/formats/moving.h"
#include "test/plan/hybrid_plan.h"
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using namespace planfb;

AccountLineT& account_line(PlanT& plan, std::uint32_t device, const std::string& category) {
  for (auto& line : plan.account)
    if (line->device == device && line->category == category) return *line;
  plan.account.push_back(std::make_unique<AccountLineT>());
  AccountLineT& line = *plan.account.back();
  line.device = device;
  line.category = line.name = category;
  return line;
}

// Layer 1 of the hybrid plan with all experts on the CPU.
PlanT moving_plan() {
  PlanT plan = hybrid_plan();
  for (const char* name : {"layers.1.cold.gate_up", "layers.1.cold.down"}) {
    WeightT& w = weight(plan, name);
    account_line(plan, 0, "weights").bytes -= w.bytes;
    w.batch = 4;
    w.bytes = *packed_bytes(static_cast<Format>(w.format), static_cast<Packing>(w.packing), w.batch, w.rows, w.columns, w.group);
    account_line(plan, 0, "weights").bytes += w.bytes;
  }
  const std::vector<std::int32_t> cold = {-1, 1, -1, 3};
  for (auto& entry : plan.entries) {
    if (entry->kind == EntryKind::sample) continue;
    step(*entry, "layers.1.mlp.experts.cold").op.AsExpertsOp()->slots = cold;
    if (entry->kind == EntryKind::decode) step(*entry, "layers.1.mlp.publish").op.AsPublishOp()->slots = cold;
  }
  auto moving = std::make_unique<MovingExpertsT>();
  moving->layer = 1;
  moving->w_cold_gate_up = weight_index(plan, "layers.1.cold.gate_up");
  moving->w_cold_down = weight_index(plan, "layers.1.cold.down");
  moving->w_hot_gate_up = weight_index(plan, "layers.1.hot.gate_up");
  moving->w_hot_down = weight_index(plan, "layers.1.hot.down");
  moving->slots = {0, -1, 1, -1};
  plan.moving.push_back(std::move(moving));
  plan.update_every_tokens = 256;
  account_line(plan, 0, "spare").bytes = plan::spare_host_bytes(plan);
  account_line(plan, 1, "spare").bytes = plan::spare_bytes(plan, 1);
  return plan;
}

TEST(PlanMoving, VerifiesIsReadBackAndShown) {
  const PlanT plan = moving_plan();
  ASSERT_EQ(plan::verify_plan(plan).message(), "");
  const auto again = plan::parse_plan(plan::serialise_plan(plan), "plan.ktp");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(plan::serialise_plan(*again), plan::serialise_plan(plan));
  const std::string text = plan::dump(*again);
  EXPECT_NE(text.find("  update_every_tokens 256\n"), std::string::npos);
  EXPECT_NE(text.find("moving layer=1 cold=\"layers.1.cold.gate_up\", \"layers.1.cold.down\" hot=\"layers.1.hot.gate_up\", "
                      "\"layers.1.hot.down\" slots=[0:0, 2:1]\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(plan.required_features, hybrid_plan().required_features) << "one that leaves experts where they are computes the same";
  // one expert as the CPU packs it, so many times
  const WeightT &gate_up = *plan.weights[plan.moving[0]->w_cold_gate_up], &down = *plan.weights[plan.moving[0]->w_cold_down];
  const std::uint64_t expert = SpareExpert({gate_up.bytes / 4, down.bytes / 4}).bytes();
  EXPECT_EQ(plan::spare_bytes(plan, 1), 32 * expert);
  EXPECT_EQ(plan::spare_host_bytes(plan), 2 * expert);
  EXPECT_EQ(plan::spare_bytes(plan, 0), 0u);
}

TEST(PlanMoving, SpareSlotsAreAsManyAsFit) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  EXPECT_EQ(spare_experts(0), 0u);
  EXPECT_EQ(spare_experts(256), 32u);
  EXPECT_EQ(spare_experts(4 * kMiB), 32u);
  EXPECT_EQ(spare_experts(22 * kMiB), 5u);
  EXPECT_EQ(spare_experts(100 * kMiB), 2u);
  for (std::uint64_t exact = 256; exact < 200 * kMiB; exact += exact / 3) EXPECT_LE(spare_experts(exact) * exact, spare_bound(exact + 255));
}

#define KTC_MOVING "moving[0]: "

class PlanMovingBroken : public testing::TestWithParam<Broken> {};
TEST_P(PlanMovingBroken, SaysWhatIsWrong) {
  PlanT plan = moving_plan();
  GetParam().change(plan);
  EXPECT_EQ(plan::verify_plan(plan).message(), GetParam().message + "; compile the model again");
}

const std::vector<Broken> kBroken = {
    {"missing", [](PlanT& p) { p.moving[0] = nullptr; }, "moving[0]: the item is missing"},
    {"layer", [](PlanT& p) { p.moving[0]->layer = 2; }, KTC_MOVING "layer: found 2, expected below the model's 2"},
    {"twice", [](PlanT& p) { p.moving.push_back(std::make_unique<MovingExpertsT>(*p.moving[0])); },
     "moving[1]: layer: found 1, expected ascending ones"},
    {"no_weight", [](PlanT& p) { p.moving[0]->w_cold_down = 999; },
     KTC_MOVING "w_cold_down: found 999, expected an index in weights of 23 items"},
    {"sides", [](PlanT& p) { std::swap(p.moving[0]->w_cold_gate_up, p.moving[0]->w_hot_gate_up); },
     KTC_MOVING "device of w_cold_gate_up: found \"cuda:0\", expected the cpu"},
    {"both_cold", [](PlanT& p) { p.moving[0]->w_hot_down = p.moving[0]->w_cold_down; },
     KTC_MOVING "device of w_hot_down: found \"cpu\", expected a cuda device"},
    {"shape", [](PlanT& p) { std::swap(p.moving[0]->w_hot_gate_up, p.moving[0]->w_hot_down); },
     KTC_MOVING "w_hot_gate_up: found int8 group 0 [16, 4], expected int8 group 0 [8, 16] as on the cpu"},
    {"few_slots", [](PlanT& p) { p.moving[0]->slots.pop_back(); },
     KTC_MOVING "slots: found 3 of them, expected one for each of 4 experts"},
    {"slot", [](PlanT& p) { p.moving[0]->slots[3] = 1; },
     KTC_MOVING "slots[3]: found 1, expected -1 or one of 2 matrices that no other expert has"},
    {"below", [](PlanT& p) { p.moving[0]->slots[3] = -2; },
     KTC_MOVING "slots[3]: found -2, expected -1 or one of 2 matrices that no other expert has"},
    {"empty_matrix", [](PlanT& p) { p.moving[0]->slots[2] = -1; },
     KTC_MOVING "slots: found 1 hot experts, expected 2, one for each matrix, and some cold ones"},
    {"never", [](PlanT& p) { p.update_every_tokens = 0; },
     "plan: update_every_tokens: found 0, expected at least 1 where experts move"},
    {"nothing", [](PlanT& p) { p.moving.clear(); }, "plan: update_every_tokens: found 256, expected 0 where nothing moves"},
    {"starts_elsewhere", [](PlanT& p) { p.moving[0]->slots = {1, -1, 0, -1}; },
     "entry \"extend[4]\": step 22 \"layers.1.mlp.experts\": slots: found others than those of moving, expected where experts are at first"},
    {"spare", [](PlanT& p) { account_line(p, 1, "spare").bytes -= 1; },
     "account of \"cuda:0\": category \"spare\": found 147455 bytes, expected 147456 bytes, for experts that move"},
};
INSTANTIATE_TEST_SUITE_P(All, PlanMovingBroken, testing::ValuesIn(kBroken), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ktc::test
