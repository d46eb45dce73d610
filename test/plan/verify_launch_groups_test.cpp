// Steps that a plan says are one launch: what their kernels rest on is checked.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/formats/formats.h"
#include "runtime/formats/launch_groups.h"
#include "test/plan/hybrid_plan.h"
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using namespace planfb;

EntryT& decode(PlanT& plan) {
  return entry(plan, "decode[2]");
}
StepT& of(PlanT& plan, std::string_view name) {
  return step(decode(plan), name);
}
std::size_t index_of(PlanT& plan, std::string_view name) {
  const auto& steps = decode(plan).steps;
  return static_cast<std::size_t>(
      std::find_if(steps.begin(), steps.end(), [&](const auto& s) { return s->name == name; }) - steps.begin());
}
View on(PlanT& plan, std::string_view name, std::uint64_t columns = 0) {
  const std::uint32_t index = buffer_index(decode(plan), name);
  return View(index, 0, columns == 0 ? decode(plan).buffers[index]->columns : columns);
}

TEST(PlanLaunchGroups, AreReadBackAndShown) {
  const PlanT plan = hybrid_plan();
  ASSERT_EQ(plan::verify_plan(plan).message(), "");
  const auto again = plan::parse_plan(plan::serialise_plan(plan), "plan.ktp");
  ASSERT_TRUE(again.ok()) << again.status().message();
  const std::string text = plan::dump(*again);
  for (const char* line : {"\"layers.0.mlp.router\" RouteOp", "graph=\"decode[2].first\" launch_group=0\n",
                           "graph=\"decode[2].first\" launch_group=1\n", "graph=\"decode[2].first\" launch_group=2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  for (const auto& entry : again->entries)
    for (const auto& step : entry->steps) {
      const bool joins =
          entry->kind == EntryKind::decode && (step->op.type == Op::RouteOp || step->op.type == Op::PublishOp ||
                                               step->name == "layers.0.mlp.await" || step->name == "layers.0.mlp.add");
      EXPECT_EQ(step->launch_group != plan::kNone, joins) << entry->name << " " << step->name;
    }
}

TEST(PlanLaunchGroups, NoMarkNeedsNoFeature) {
  PlanT plan = hybrid_plan();
  for (auto& entry : plan.entries)
    for (auto& step : entry->steps) step->launch_group = plan::kNone;
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
  EXPECT_EQ(plan::dump(plan).find("launch_group"), std::string::npos);
}

// layers.1: the sum in front of the router in one launch with it and the record.
void join_sum(PlanT& plan) {
  AddNormOpT op;
  op.w = of(plan, "layers.1.mlp.norm").op.AsNormOp()->w;
  op.eps = of(plan, "layers.1.mlp.norm").op.AsNormOp()->eps;
  of(plan, "layers.1.attention.o").outputs = {on(plan, "q", 16)};  // which nothing reads later
  StepT& add = of(plan, "layers.1.attention.add");
  add.op.Set(op);
  add.inputs[1] = on(plan, "q", 16);
  add.outputs.push_back(on(plan, "h"));
  add.launch_group = of(plan, "layers.1.mlp.router").launch_group;
  decode(plan).steps.erase(decode(plan).steps.begin() +
                           static_cast<std::ptrdiff_t>(index_of(plan, "layers.1.mlp.norm")));
}

// A router's scratch may lie where the sum in front of it reads, but not if both are one launch: blocks still add while
// others write logits.
TEST(PlanLaunchGroups, MembersAreAliveTogether) {
  PlanT plan = hybrid_plan();
  join_sum(plan);
  ASSERT_EQ(plan::verify_plan(plan).message(), "");
  auto scratch = std::make_unique<BufferT>(buffer(decode(plan), "scratch"));
  scratch->name = "scratch of the router";
  scratch->offset = buffer(decode(plan), "q").offset / 256 * 256;
  scratch->bytes = 256;
  // room for it: what else lies there moves behind everything
  const BufferT& q = buffer(decode(plan), "q");
  std::uint64_t end = plan.devices[1]->arena_bytes;
  for (auto& other : decode(plan).buffers) {
    if (other->device != 1 || other->name == "q" || other->offset >= scratch->offset + scratch->bytes ||
        other->offset + other->bytes <= scratch->offset)
      continue;
    other->offset = (end + 255) / 256 * 256;
    end = other->offset + other->bytes;
  }
  for (auto& line : plan.account)
    if (line->category == "arena" && line->device == 1) line->bytes = end;
  plan.devices[1]->arena_bytes = end;
  const std::uint64_t at = scratch->offset;
  of(plan, "layers.1.mlp.router").workspace = static_cast<std::uint32_t>(decode(plan).buffers.size());
  decode(plan).buffers.push_back(std::move(scratch));
  const std::string clash(plan::verify_plan(plan).message());
  EXPECT_NE(clash.find("entry \"decode[2]\": arena at step 18: found \"scratch of the router\" at [" +
                       std::to_string(at) + ", "),
            std::string::npos)
      << clash;
  EXPECT_NE(clash.find("which is live, expected bytes outside [" + std::to_string(q.offset)), std::string::npos)
      << clash;
  of(plan, "layers.1.attention.add").launch_group = plan::kNone;
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
}

class PlanLaunchGroupsBroken : public testing::TestWithParam<Broken> {};
TEST_P(PlanLaunchGroupsBroken, SaysWhatIsWrong) {
  PlanT plan = hybrid_plan();
  GetParam().change(plan);
  EXPECT_EQ(plan::verify_plan(plan).message(), GetParam().message + "; compile the model again");
}

#define KTC_ROUTER "entry \"decode[2]\": step 7 \"layers.0.mlp.router\": launch_group: "
#define KTC_PUBLISH "entry \"decode[2]\": step 8 \"layers.0.mlp.publish\": launch_group: "

const std::vector<Broken> kBroken = {
    {"in_extend", [](PlanT& p) { step(entry(p, "extend[4]"), "layers.0.mlp.router").launch_group = 0; },
     "entry \"extend[4]\": step 7 \"layers.0.mlp.router\": launch_group: found 0, expected none but on a GPU in an "
     "entry of kind decode"},
    {"on_the_cpu", [](PlanT& p) { of(p, "layers.0.mlp.experts").launch_group = 7; },
     "entry \"decode[2]\": step 9 \"layers.0.mlp.experts\": launch_group: found 7, expected none but on a GPU in an "
     "entry of kind decode"},
    {"alone", [](PlanT& p) { of(p, "layers.0.mlp.publish").launch_group = plan::kNone; },
     KTC_ROUTER "found route, expected steps that have one kernel together"},
    {"no_kernel", [](PlanT& p) { of(p, "layers.0.mlp.norm").launch_group = 0; },
     "entry \"decode[2]\": step 6 \"layers.0.mlp.norm\": launch_group: found another step, route, publish, expected "
     "steps that have one kernel together"},
    {"many",
     [](PlanT& p) {
       for (auto& step : decode(p).steps)
         if (step->device == 1) step->launch_group = 0;
     },
     "entry \"decode[2]\": step 0 \"embed\": launch_group: found 28 steps, expected steps that have one kernel "
     "together"},
    {"two_groups",
     [](PlanT& p) { of(p, "layers.1.mlp.router").launch_group = of(p, "layers.1.mlp.publish").launch_group = 0; },
     KTC_ROUTER "found route, publish, route, publish, expected steps that have one kernel together"},
    {"the_other_way_round",
     [](PlanT& p) { std::swap(of(p, "layers.0.mlp.router").launch_group, of(p, "layers.1.mlp.router").launch_group); },
     KTC_PUBLISH "found publish, route, expected steps that have one kernel together"},
    {"a_step_between",
     [](PlanT& p) {
       std::swap(decode(p).steps[index_of(p, "layers.1.mlp.publish")],
                 decode(p).steps[index_of(p, "layers.1.mlp.experts")]);
     },
     "entry \"decode[2]\": step 22 \"layers.1.mlp.publish\": launch_group: found 2 behind step 21 of the same device, "
     "expected steps that follow each other"},
    {"no_graph",
     [](PlanT& p) {
       for (auto& step : decode(p).steps) step->graph = plan::kNone;
       decode(p).graphs.clear();
     },
     KTC_PUBLISH "found 0 across graphs, expected steps of one graph"},
    {"another_x", [](PlanT& p) { of(p, "layers.0.mlp.publish").inputs[0] = on(p, "x"); },
     KTC_PUBLISH
     "found 0, but other operands than what step 7 hands on, expected the operands that their kernel takes"},
    {"twice_a_term", [](PlanT& p) { of(p, "layers.0.mlp.add").inputs.push_back(on(p, "cold")); },
     "entry \"decode[2]\": step 12 \"layers.0.mlp.add\": launch_group: found 1, but other operands than what step 10 "
     "hands on, expected the operands that their kernel takes"},
};
INSTANTIATE_TEST_SUITE_P(All, PlanLaunchGroupsBroken, testing::ValuesIn(kBroken),
                         [](const auto& info) { return std::string(info.param.name); });

// The table: what one step hands on is needed, whatever else the next one reads.
TEST(LaunchGroups, WhatIsHandedOn) {
  const auto same = [](int a, int b) { return a == b; };
  using V = std::vector<int>;
  EXPECT_TRUE(hands_on(Joinable::route, Joinable::publish, V{1}, V{2, 3}, V{1, 2, 3}, same));
  EXPECT_FALSE(hands_on(Joinable::route, Joinable::publish, V{1}, V{2, 3}, V{4, 2, 3}, same)) << "another x";
  EXPECT_FALSE(hands_on(Joinable::route, Joinable::publish, V{1}, V{2, 3}, V{1, 3, 2}, same));
  EXPECT_FALSE(hands_on(Joinable::route, Joinable::publish, V{}, V{2, 3}, V{1, 2, 3}, same))
      << "an operand less than it has";
  EXPECT_TRUE(hands_on(Joinable::await, Joinable::add_norm, V{1}, V{2}, V{5, 2, 7}, same));
  EXPECT_FALSE(hands_on(Joinable::await, Joinable::add_norm, V{1}, V{2}, V{2, 2}, same)) << "twice a term";
  EXPECT_FALSE(hands_on(Joinable::await, Joinable::add_norm, V{1}, V{2}, V{1, 5}, same));
  EXPECT_TRUE(hands_on(Joinable::add_norm, Joinable::route, V{1, 2}, V{1, 3}, V{3}, same));
  EXPECT_FALSE(hands_on(Joinable::add_norm, Joinable::route, V{1, 2}, V{1, 3}, V{1}, same)) << "the sum, not its norm";
  EXPECT_FALSE(hands_on(Joinable::publish, Joinable::await, V{1}, V{2}, V{2}, same)) << "no such pair";
}

// Every sequence is one of pairs that the table knows.
TEST(LaunchGroups, SequencesAreOfKnownPairs) {
  for (const LaunchSequence& row : kLaunchSequences) {
    EXPECT_EQ(find_launch_sequence(row.all()), &row) << row.kernel;
    ASSERT_GE(row.count, 2u);
    for (std::size_t i = 1; i < row.count; ++i)
      EXPECT_TRUE(std::any_of(std::begin(kHandedOn), std::end(kHandedOn), [&](const HandedOn& line) {
        return line.first == row.steps[i - 1] && line.second == row.steps[i];
      })) << row.kernel;
  }
}

}  // namespace
}  // namespace ktc::test
