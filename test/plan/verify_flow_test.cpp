// Data flow and live ranges.
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::PlanT;
using planfb::StepT;
using planfb::View;

planfb::EntryT& extend(PlanT& plan) {
  return entry(plan, "extend[4]");
}
StepT& step_of(PlanT& plan, std::string_view name) {
  return step(extend(plan), name);
}
View view(PlanT& plan, std::string_view name, std::uint64_t column, std::uint64_t columns) {
  return View(buffer_index(extend(plan), name), column, columns);
}
void move(PlanT& plan, std::string_view name, std::string_view onto) {
  buffer(extend(plan), name).offset = buffer(extend(plan), onto).offset;
}

KTC_BROKEN_PLANS(
    PlanVerifyFlow,
    {
        {"unwritten", [](PlanT& p) { step_of(p, "layers.0.attention.norm").inputs[0] = view(p, "attention", 0, 16); },
         "entry \"extend[4]\": step 1 \"layers.0.attention.norm\": inputs[0]: found columns of \"attention\" that no "
         "step has "
         "written, expected a value of an earlier step or an input"},
        {"partly_unwritten",
         [](PlanT& p) {
           buffer(extend(p), "qkv").columns = 48;
           buffer(extend(p), "qkv").row_bytes = 192;
           buffer(extend(p), "qkv").offset = p.devices[0]->arena_bytes;
           buffer(extend(p), "qkv").bytes = 768;
           p.devices[0]->arena_bytes += 768;
           p.account.back()->bytes += 768;
           step_of(p, "layers.0.attention").inputs[2] = view(p, "qkv", 28, 8);
         },
         "entry \"extend[4]\": step 3 \"layers.0.attention\": inputs[2]: found columns of \"qkv\" that no step has "
         "written, "
         "expected a value of an earlier step or an input"},
        {"order", [](PlanT& p) { std::swap(extend(p).steps[1], extend(p).steps[2]); },
         "entry \"extend[4]\": step 1 \"layers.0.attention.qkv\": inputs[0]: found columns of \"h\" that no step has "
         "written, "
         "expected a value of an earlier step or an input"},
        {"no_logits", [](PlanT& p) { extend(p).steps.pop_back(); },
         "entry \"extend[4]\": output \"logits\": found columns that no step writes, expected all written"},
        {"cache_twice",
         [](PlanT& p) {
           auto& steps = extend(p).steps;
           steps.insert(steps.begin() + 4, std::make_unique<StepT>(*steps[3]));
         },
         "entry \"extend[4]\": step 4 \"layers.0.attention\": cache_layer: found 0, which an earlier step appends to, "
         "expected "
         "each layer of a cache once in an entry"},
        {"ids_not_routed",
         [](PlanT& p) {
           // a buffer of the right type that a router wrote, of which other columns are taken
           planfb::BufferT& ids = buffer(extend(p), "expert_ids");
           ids.columns = 4;
           StepT& route = step_of(p, "layers.0.mlp.router");
           route.outputs[0] = view(p, "expert_ids", 1, 2);
           StepT& second = step_of(p, "layers.1.mlp.router");
           second.outputs[0] = view(p, "expert_ids", 2, 2);
           step_of(p, "layers.0.mlp.experts").inputs[1] = view(p, "expert_ids", 1, 2);
           step_of(p, "layers.1.mlp.experts").inputs[1] = view(p, "expert_ids", 1, 2);
         },
         "entry \"extend[4]\": step 19 \"layers.1.mlp.experts\": inputs[1]: found \"expert_ids\", not as a router "
         "wrote it, "
         "expected the expert ids of a RouteOp"},
    });

KTC_BROKEN_PLANS(
    PlanVerifyArena,
    {
        {"inputs_meet", [](PlanT& p) { move(p, "positions", "ids"); },
         "entry \"extend[4]\": arena before the first step: found \"positions\" at [0, "
         "16) on \"ids\", which is live, expected "
         "bytes outside [0, 16)"},
        {"values_meet", [](PlanT& p) { move(p, "h", "x"); },
         "entry \"extend[4]\": arena at step 1: found \"h\" at [320, 576) on \"x\", "
         "which is live, expected bytes outside [320, "
         "576)"},
        {"value_on_input", [](PlanT& p) { move(p, "qkv", "positions"); },
         "entry \"extend[4]\": arena at step 2: found \"qkv\" at [64, 576) on \"positions\", which is live, expected "
         "bytes outside [64, 80)"},
        {"scratch_on_value", [](PlanT& p) { move(p, "scratch", "qkv"); },
         "entry \"extend[4]\": arena at step 3: found \"scratch\" at [832, 1472) on \"qkv\", which is live, expected "
         "bytes outside [832, 1344)"},
        {"logits_late", [](PlanT& p) { move(p, "selected", "logits"); },
         "entry \"extend[4]\": arena at step 24: found \"logits\" at [192, 320) on "
         "\"selected\", which is live, expected bytes "
         "outside [192, 320)"},
    });

TEST(PlanVerifyArena, BytesAreUsedAgainWhenTheirValueIsDead) {
  PlanT plan = small_plan();
  move(plan, "q", "qkv");              // first layer's projections are dead in the second
  move(plan, "latent", "expert_ids");  // between the two routers nothing lives here: but expert_ids is written again
  EXPECT_NE(plan::verify_plan(plan).message(), "");
  plan = small_plan();
  move(plan, "q", "qkv");
  move(plan, "selected", "h");
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
}

TEST(PlanVerifyArena, ScratchMayLieWhereNothingLivesInItsSteps) {
  PlanT plan = small_plan();
  move(plan, "logits", "scratch");  // written at the end alone
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
}

}  // namespace
}  // namespace ktc::test
