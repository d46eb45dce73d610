// What a plan leaves to run time: what it permits, how that is shown, checked and asked for.
#include "runtime/plan/choices.h"

#include <gtest/gtest.h>

#include <map>

#include "test/plan/hybrid_plan.h"
#include "test/plan/small_plan.h"

namespace ktc::test {
namespace {

using namespace planfb;
using Options = std::map<std::string, std::vector<std::string>>;

Options options_of(const std::vector<std::unique_ptr<ChoiceT>>& choices) {
  Options options;
  for (const auto& choice : choices) options[choice->name] = choice->options;
  return options;
}
const std::vector<std::string> kLevels = {"best", "scalar", "avx2", "avx512", "avx512_vnni", "amx"};

PlanT with_choices(PlanT plan) {
  plan.choices = plan::permitted_choices(plan);
  return plan;
}
ChoiceT& choice(PlanT& plan, std::string_view name) {
  for (auto& one : plan.choices)
    if (one->name == name) return *one;
  ADD_FAILURE() << "no choice " << name;
  return *plan.choices[0];
}

TEST(PlanChoices, AreWhatStepsHaveAUseFor) {
  EXPECT_EQ(options_of(plan::permitted_choices(small_plan())), (Options{{"isa", kLevels}, {"sampling", {"host"}}}));
  PlanT plan = hybrid_plan();
  const Options gpu = {{"handoff", {"automatic", "doorbell", "hostnode"}},
                       {"isa", kLevels},
                       {"products", {"own", "library"}},
                       {"sampling", {"host"}}};
  EXPECT_EQ(options_of(plan::permitted_choices(plan)), gpu);
  Options more = gpu;
  more["sampling"] = {"device", "host"};
  step(entry(plan, "sample[2]"), "sample").workspace = 0;
  EXPECT_EQ(options_of(plan::permitted_choices(plan)), more);
  more["update"] = {"auto", "on", "off"};
  plan.moving.push_back(std::make_unique<MovingExpertsT>());
  EXPECT_EQ(options_of(plan::permitted_choices(plan)), more);
  more.erase("products");
  for (auto& entry : plan.entries)
    for (auto& step : entry->steps)
      if (entry->kind != EntryKind::decode) step->activations = static_cast<std::uint8_t>(Format::f32);
  EXPECT_EQ(options_of(plan::permitted_choices(plan)), more)
      << "the library multiplies bf16 in entries for prompts alone";
  more.erase("handoff");
  for (auto& entry : plan.entries)
    std::erase_if(entry->steps, [](const auto& step) { return step->kind == StepKind::publish; });
  EXPECT_EQ(options_of(plan::permitted_choices(plan)), more);
}

TEST(PlanChoices, AreReadBackAndShown) {
  const PlanT plan = with_choices(hybrid_plan());
  ASSERT_EQ(plan::verify_plan(plan).message(), "");
  const auto again = plan::parse_plan(plan::serialise_plan(plan), "plan.ktp");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(options_of(again->choices), options_of(plan.choices));
  EXPECT_NE(plan::dump(*again).find("choice \"handoff\" automatic, doorbell, hostnode\nchoice \"isa\" best, scalar, "
                                    "avx2, avx512, avx512_vnni, amx\n"
                                    "choice \"products\" own, library\nchoice \"sampling\" host\nmodel "),
            std::string::npos)
      << plan::dump(*again);
  EXPECT_EQ(plan::dump(hybrid_plan()).find("choice"), std::string::npos);
}

TEST(PlanChoices, AskingForOne) {
  const PlanT plan = with_choices(hybrid_plan());
  EXPECT_EQ(plan::check_choice(plan, plan::kHandoffChoice, "hostnode", "--handoff").message(), "");
  EXPECT_EQ(plan::check_choice(plan, plan::kSamplingChoice, "device", "--where").message(),
            "--where: found device, expected what the plan permits: host");
  EXPECT_EQ(plan::check_choice(plan, plan::kUpdateChoice, "on", "--update").message(),
            "--update: the plan leaves nothing to choose there: found on; leave the flag out; ktc-plan dump lists the "
            "plan's choices");
  EXPECT_EQ(plan::check_choice(hybrid_plan(), plan::kUpdateChoice, "on", "--update").message(), "")
      << "a plan from before the list";
  EXPECT_EQ(plan::find_choice(plan, "update"), nullptr);
  EXPECT_EQ(plan::find_choice(plan, "isa")->options.front(), "best");
}

// A later ktc may know more.
TEST(PlanChoices, UnknownOnesAreNoError) {
  PlanT plan = with_choices(small_plan());
  choice(plan, "isa").options = {"apx", "best"};
  choice(plan, "sampling").name = "tempo";
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
}

class PlanChoicesBroken : public testing::TestWithParam<Broken> {};
TEST_P(PlanChoicesBroken, SaysWhatIsWrong) {
  PlanT plan = with_choices(hybrid_plan());
  GetParam().change(plan);
  EXPECT_EQ(plan::verify_plan(plan).message(), GetParam().message + "; compile the model again");
}

#define KTC_PLAIN ", expected 1 to 32 of a-z, 0-9, _ and -"
const std::vector<Broken> kBroken = {
    {"missing", [](PlanT& p) { p.choices[1] = nullptr; }, "choices[1]: the item is missing"},
    {"no_name", [](PlanT& p) { choice(p, "isa").name.clear(); }, "choices[1] \"\": name: found \"\"" KTC_PLAIN},
    {"two_lines", [](PlanT& p) { choice(p, "isa").options[2] = "a\nb"; },
     "choices[1] \"isa\": options: found \"a b\"" KTC_PLAIN},
    {"long_option", [](PlanT& p) { choice(p, "isa").options[0] = std::string(33, 'x'); },
     "choices[1] \"isa\": options: found \"" + std::string(33, 'x') + "\"" KTC_PLAIN},
    {"no_order", [](PlanT& p) { std::swap(p.choices[0], p.choices[1]); },
     "choices[1] \"handoff\": name: found \"handoff\" behind \"isa\", expected ascending names"},
    {"twice", [](PlanT& p) { choice(p, "products").name = "isa"; },
     "choices[2] \"isa\": name: found \"isa\" behind \"isa\", expected ascending names"},
    {"no_options", [](PlanT& p) { choice(p, "sampling").options.clear(); },
     "choices[3] \"sampling\": options: found 0, expected 1 to 32"},
    {"many_options", [](PlanT& p) { choice(p, "sampling").options.resize(33, "x"); },
     "choices[3] \"sampling\": options: found 33, expected 1 to 32"},
    {"equal_options", [](PlanT& p) { choice(p, "isa").options[3] = "best"; },
     "choices[1] \"isa\": options: found \"best\" twice, expected every option once"},
    {"many",
     [](PlanT& p) {
       while (p.choices.size() < 33) p.choices.push_back(std::make_unique<ChoiceT>());
     },
     "choices: found 33, expected at most 32"},
};
INSTANTIATE_TEST_SUITE_P(All, PlanChoicesBroken, testing::ValuesIn(kBroken),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ktc::test
