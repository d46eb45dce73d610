// Plans of a GPU and a CPU: steps between devices, hand-offs, graphs, experts in parts, their account.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/formats/formats.h"
#include "runtime/formats/gpu_stream.h"
#include "runtime/formats/gpu_workspace.h"
#include "test/plan/hybrid_plan.h"
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using namespace planfb;

TEST(PlanHybrid, VerifiesAndIsReadBack) {
  const PlanT plan = hybrid_plan();
  ASSERT_EQ(plan::verify_plan(plan).message(), "");
  const auto again = plan::parse_plan(plan::serialise_plan(plan), "plan.ktp");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(plan::dump(*again), plan::dump(plan));
  EXPECT_EQ(plan::serialise_plan(*again), plan::serialise_plan(plan));
  EXPECT_EQ(plan.required_features, 1u);
}

TEST(PlanHybrid, IsShown) {
  const PlanT plan = hybrid_plan();
  const std::string text = plan::dump(plan);
  for (const char* line :
       {"  defer_prefill true\n", "  graph \"decode[2].first\" on \"cuda:0\"\n",
        "weight \"layers.1.hot.gate_up\" int8/row gpu_rows [2, 8, 16] on \"cuda:0\" random=7 bytes=2560\n",
        "step publish on \"cuda:0\" \"layers.1.mlp.publish\" PublishOp record=1 format=bf16 slots=[1:0, 3:1] activations=f32 "
        "(\"h\", \"expert_ids\", \"expert_weights\") -> (\"cpu.x\", \"cpu.expert_ids\", \"cpu.expert_weights\") "
        "graph=\"decode[2].first\" launch_group=2\n",
        "AwaitOp record=0 format=f32 skip_empty=true", "slots=[0:0, 2:1]", "part=late late=1 late_among_all=true",
        "AddNormOp w=\"norm\" eps=1e-06", "step copy on \"cuda:0\" \"layers.0.mlp.late.to_gpu\" CopyOp"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  EXPECT_NE(plan::sizes(plan).find("  2 of them are random and in no file\n"), std::string::npos);
  EXPECT_NE(plan::diff(small_plan(), plan).find("+ device \"cuda:0\" cuda"), std::string::npos);
}

TEST(PlanHybrid, PlansOfACpuNeedNoFeature) {
  PlanT plan = small_plan();
  EXPECT_EQ(plan::features_of(plan), 0u);
  step(entry(plan, "extend[4]"), "layers.0.mlp.experts").op.AsExpertsOp()->slots = {0, 1, 2, 3};
  EXPECT_EQ(plan::features_of(plan), 1u);
}

// Plans from before devices chose tokens have no scratch for it; what there is must be enough.
TEST(PlanHybrid, ScratchOfASampleStepIsNoneOrEnough) {
  PlanT plan = hybrid_plan();
  EntryT& sample = entry(plan, "sample[2]");
  std::uint64_t& arena = plan.devices[1]->arena_bytes;
  auto space = std::make_unique<BufferT>();
  space->name = "scratch";
  space->device = 1;
  space->role = BufferRole::workspace;
  space->symbol = Symbol::workspace;
  space->offset = (arena + 255) / 256 * 256;
  space->bytes = gpu_sample_workspace(2);
  for (auto& line : plan.account)
    if (line->category == "arena" && line->device == 1) line->bytes = space->offset + space->bytes;
  arena = space->offset + space->bytes;
  sample.buffers.push_back(std::move(space));
  sample.steps[0]->workspace = static_cast<std::uint32_t>(sample.buffers.size() - 1);
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
  sample.buffers.back()->bytes -= 256;
  const std::string message(plan::verify_plan(plan).message());
  EXPECT_NE(message.find("SampleOp: workspace: found 5376 bytes, expected at least 5632 bytes"), std::string::npos) << message;
}

EntryT& decode(PlanT& plan) { return entry(plan, "decode[2]"); }
StepT& of(PlanT& plan, std::string_view name) { return step(decode(plan), name); }
std::size_t index_of(EntryT& entry, std::string_view name) {
  return static_cast<std::size_t>(std::find_if(entry.steps.begin(), entry.steps.end(), [&](const auto& s) { return s->name == name; }) -
                                  entry.steps.begin());
}
View on(PlanT& plan, std::string_view name) {
  const std::uint32_t index = buffer_index(decode(plan), name);
  return View(index, 0, decode(plan).buffers[index]->columns);
}
AccountLineT& line(PlanT& plan, std::string_view category, std::uint32_t device) {
  for (auto& one : plan.account)
    if (one->category == category && one->device == device) return *one;
  ADD_FAILURE() << "no line " << category;
  return *plan.account[0];
}
void swap_steps(EntryT& entry, std::string_view a, std::string_view b) {
  std::swap(entry.steps[index_of(entry, a)], entry.steps[index_of(entry, b)]);
}

// The hot experts' step with the cold bank, which passes through so many at once.
void stream(PlanT& plan, std::uint32_t group) {
  ExpertsOpT& op = *of(plan, "layers.1.mlp.experts").op.AsExpertsOp();
  op.w_gate_up = weight_index(plan, "layers.1.cold.gate_up");
  op.w_down = weight_index(plan, "layers.1.cold.down");
  op.stream = true;
  op.stream_group = group;
}
GpuStreamAreas areas_of_one() {
  GpuStreamAreas areas;
  areas.add(*gpu_stream(Format::int8, 0, Packing::panel, 2, 16, 4, 1));
  return areas;
}

#define KTC_PUBLISH "entry \"decode[2]\": step 8 \"layers.0.mlp.publish\": "
#define KTC_IN_TIME "entry \"decode[2]\": step 9 \"layers.0.mlp.experts\": "
#define KTC_AWAIT "entry \"decode[2]\": step 10 \"layers.0.mlp.await\": "
#define KTC_LATE "entry \"decode[2]\": step 11 \"layers.0.mlp.experts.late\": "
#define KTC_HOT "entry \"decode[2]\": step 22 \"layers.1.mlp.experts\": "
#define KTC_COLD "entry \"decode[2]\": step 23 \"layers.1.mlp.experts.cold\": "

class PlanHybridBroken : public testing::TestWithParam<Broken> {};
TEST_P(PlanHybridBroken, SaysWhatIsWrong) {
  PlanT plan = hybrid_plan();
  GetParam().change(plan);
  EXPECT_EQ(plan::verify_plan(plan).message(), GetParam().message + "; compile the model again");
}

const std::vector<Broken> kBroken = {
    {"features", [](PlanT& p) { p.required_features = 0; }, "plan: required_features: found bits 0x0, expected 0x1 among them"},
    {"gpu_first",
     [](PlanT& p) {
       std::swap(p.devices[0], p.devices[1]);
     },
     "devices[0] \"cuda:0\": name: found \"cuda:0\", expected \"cpu\", which comes first"},
    {"gpu_rows_on_cpu", [](PlanT& p) { weight(p, "layers.1.hot.gate_up").device = 0; },
     "weights[19] \"layers.1.hot.gate_up\": packing: found gpu_rows, expected one that \"cpu\" reads"},
    {"panels_on_gpu", [](PlanT& p) { weight(p, "layers.1.cold.down").device = 1; },
     "weights[22] \"layers.1.cold.down\": packing: found panel, expected one that \"cuda:0\" reads"},
    {"publish_kind", [](PlanT& p) { of(p, "layers.0.mlp.publish").kind = StepKind::launch; },
     KTC_PUBLISH "kind: found launch of PublishOp, expected publish"},
    {"graph_kind", [](PlanT& p) { of(p, "layers.0.mlp.publish").kind = StepKind::graph; },
     KTC_PUBLISH "kind: found graph on \"cuda:0\", expected compute on a cpu or launch on a cuda device"},
    {"launch_of_copy", [](PlanT& p) { of(p, "embed").kind = StepKind::copy; },
     "entry \"decode[2]\": step 0 \"embed\": kind: found copy of EmbedOp, expected launch"},
    {"publish_in_extend",
     [](PlanT& p) {
       StepT& copy = step(entry(p, "extend[4]"), "layers.0.mlp.to_cpu");
       copy.kind = StepKind::publish;
       copy.op.Set(PublishOpT());
     },
     "entry \"extend[4]\": step 8 \"layers.0.mlp.to_cpu\": kind: found publish in an entry of kind extend, expected a hand-off in "
     "decode entries alone: copy"},
    {"int8_activations", [](PlanT& p) { of(p, "embed").activations = static_cast<std::uint8_t>(Format::int8); },
     "entry \"decode[2]\": step 0 \"embed\": activations: found int8, expected f32 or bf16 on a cuda device"},
    {"reads_the_other_device", [](PlanT& p) { of(p, "layers.1.mlp.add").inputs[0] = on(p, "cpu.late"); },
     "entry \"decode[2]\": step 27 \"layers.1.mlp.add\": inputs[0]: device of \"cpu.late\": found \"cpu\", expected the step's, "
     "\"cuda:0\""},
    {"publish_to_gpu", [](PlanT& p) { of(p, "layers.0.mlp.publish").outputs[0] = on(p, "cold"); },
     KTC_PUBLISH "outputs[0]: device of \"cold\": found \"cuda:0\", expected a cpu"},
    {"await_from_gpu", [](PlanT& p) { of(p, "layers.0.mlp.await").inputs[0] = on(p, "x"); },
     KTC_AWAIT "inputs[0]: device of \"x\": found \"cuda:0\", expected a cpu"},
    {"copy_to_itself", [](PlanT& p) { of(p, "layers.0.mlp.late.to_gpu").inputs[0] = on(p, "x"); },
     "entry \"decode[2]\": step 26 \"layers.0.mlp.late.to_gpu\": outputs[0]: device of \"late\": found \"cuda:0\", expected another "
     "than the inputs', \"cuda:0\", one of them the step's, \"cuda:0\""},
    {"copy_mixed",
     [](PlanT& p) {
       StepT& copy = step(entry(p, "extend[4]"), "layers.0.mlp.to_cpu");
       copy.inputs[1] = copy.outputs[1];
     },
     "entry \"extend[4]\": step 8 \"layers.0.mlp.to_cpu\": inputs[1]: device of \"cpu.expert_ids\": found \"cpu\", expected that "
     "of the first, \"cuda:0\""},
    {"copy_of_nothing",
     [](PlanT& p) {
       of(p, "layers.0.mlp.late.to_gpu").inputs.clear();
       of(p, "layers.0.mlp.late.to_gpu").outputs.clear();
     },
     "entry \"decode[2]\": step 26 \"layers.0.mlp.late.to_gpu\": CopyOp: operands: found no inputs, expected at least 1"},
    {"copy_type", [](PlanT& p) { of(p, "layers.0.mlp.late.to_gpu").outputs[0] = View(buffer_index(decode(p), "late"), 0, 8); },
     "entry \"decode[2]\": step 26 \"layers.0.mlp.late.to_gpu\": CopyOp: outputs[0]: found f32 [tokens, 8], expected f32 [tokens, "
     "16]"},
    {"record_format", [](PlanT& p) { of(p, "layers.0.mlp.publish").op.AsPublishOp()->format = 3; },
     KTC_PUBLISH "PublishOp: format: found int8, expected f32 or bf16"},
    {"publish_slots", [](PlanT& p) { of(p, "layers.0.mlp.publish").op.AsPublishOp()->slots = {1}; },
     KTC_PUBLISH "PublishOp: slots: found 1 of them, expected one for each of the model's 4 experts"},
    {"published_twice", [](PlanT& p) { of(p, "layers.1.mlp.publish").op.AsPublishOp()->record = 0; },
     "entry \"decode[2]\": step 21 \"layers.1.mlp.publish\": record: found 0 again, expected one publish step for a record"},
    {"awaited_twice", [](PlanT& p) { of(p, "layers.1.mlp.await").op.AsAwaitOp()->record = 0; },
     "entry \"decode[2]\": step 24 \"layers.1.mlp.await\": record: found 0, which was awaited, expected one await step behind the "
     "publish step of its record"},
    {"awaited_too_early", [](PlanT& p) { of(p, "layers.0.mlp.await").op.AsAwaitOp()->record = 1; },
     KTC_AWAIT "record: found 1, which no earlier step publishes, expected one await step behind the publish step of its record"},
    {"records_from_zero",
     [](PlanT& p) {
       of(p, "layers.1.mlp.publish").op.AsPublishOp()->record = 2;
       of(p, "layers.1.mlp.await").op.AsAwaitOp()->record = 2;
     },
     "entry \"decode[2]\": step 21 \"layers.1.mlp.publish\": record: found 2, expected 1: they count from 0"},
    {"never_awaited",
     [](PlanT& p) {
       auto& steps = decode(p).steps;
       steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(index_of(decode(p), "layers.1.mlp.await")));
     },
     "entry \"decode[2]\": step 21 \"layers.1.mlp.publish\": record: found 1, which no step awaits, expected one await step"},
    {"other_slots", [](PlanT& p) { of(p, "layers.1.mlp.publish").op.AsPublishOp()->slots = {0, -1, 1, -1}; },
     KTC_COLD "slots: found others than its publish step's, expected equal ones: what is published is counted by them"},
    {"computed_before_published", [](PlanT& p) { swap_steps(decode(p), "layers.0.mlp.publish", "layers.0.mlp.experts"); },
     "entry \"decode[2]\": step 8 \"layers.0.mlp.experts\": inputs[0]: found columns of \"cpu.x\" that no step has written, "
     "expected a value of an earlier step or an input"},
    {"awaited_before_computed", [](PlanT& p) { swap_steps(decode(p), "layers.0.mlp.experts", "layers.0.mlp.await"); },
     "entry \"decode[2]\": step 9 \"layers.0.mlp.await\": inputs[0]: found columns of \"cpu.in_time\" that no step has written, "
     "expected a value of an earlier step or an input"},
    {"slots_size", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->slots.pop_back(); },
     KTC_HOT "ExpertsOp: slots: found 3 of them, expected one for each of the model's 4 experts"},
    {"slots_range", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->slots[2] = 2; },
     KTC_HOT "ExpertsOp: slots[2]: found 2, expected -1 or below the bank's 2"},
    {"slots_negative", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->slots[2] = -2; },
     KTC_HOT "ExpertsOp: slots[2]: found -2, expected -1 or below the bank's 2"},
    {"slots_twice", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->slots[2] = 0; },
     KTC_HOT "ExpertsOp: slots[2]: found 0, which another expert has, expected every matrix for one expert"},
    {"slots_none", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->slots = {-1, -1, -1, -1}; },
     KTC_HOT "ExpertsOp: slots: found no expert, expected at least 1"},
    {"subset_without_slots", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->slots.clear(); },
     KTC_HOT "ExpertsOp: shape of w_gate_up \"layers.1.hot.gate_up\": found [2, 8, 16], expected [4, 8, 16]"},
    {"late_without_part", [](PlanT& p) { of(p, "layers.0.mlp.experts").op.AsExpertsOp()->part = ExpertsPart::all; },
     KTC_IN_TIME "ExpertsOp: late: found 1 with part all, expected 0 with part all, and there alone"},
    {"part", [](PlanT& p) { of(p, "layers.0.mlp.experts").op.AsExpertsOp()->part = static_cast<ExpertsPart>(3); },
     KTC_IN_TIME "ExpertsOp: part: found 3, expected all, in_time or late"},
    {"late_of_two", [](PlanT& p) { of(p, "layers.0.mlp.experts").op.AsExpertsOp()->late = 3; },
     KTC_IN_TIME "ExpertsOp: late: found 3, expected at most 2, of a token"},
    {"late_unlike", [](PlanT& p) { of(p, "layers.0.mlp.experts").op.AsExpertsOp()->late = 2; },
     KTC_IN_TIME "part: found in_time alone, expected one more step of its bank, ids, weights, slots and device with part late"},
    {"two_in_time", [](PlanT& p) { of(p, "layers.0.mlp.experts.late").op.AsExpertsOp()->part = ExpertsPart::in_time; },
     KTC_IN_TIME "part: found in_time alone, expected one more step of its bank, ids, weights, slots and device with part late"},
    {"deferred", [](PlanT& p) { of(p, "layers.0.mlp.experts.late").inputs[3] = View(buffer_index(decode(p), "cpu.expert_ids"), 0, 1); },
     KTC_LATE "ExpertsOp: inputs[3]: found \"cpu.expert_ids\" of role value, expected the buffer of role deferred"},
    {"stream_on_cpu", [](PlanT& p) { of(p, "layers.1.mlp.experts.cold").op.AsExpertsOp()->stream = true; },
     KTC_COLD "ExpertsOp: stream: found true on a cpu, expected a bank that is streamed to a cuda device"},
    {"bank_of_the_cpu",
     [](PlanT& p) {
       ExpertsOpT& op = *of(p, "layers.1.mlp.experts").op.AsExpertsOp();
       op.w_gate_up = weight_index(p, "layers.1.cold.gate_up");
       op.w_down = weight_index(p, "layers.1.cold.down");
     },
     KTC_HOT "ExpertsOp: device of w_gate_up \"layers.1.cold.gate_up\": found \"cpu\", expected the step's, \"cuda:0\""},
    {"stream_without_group", [](PlanT& p) { stream(p, 0); }, KTC_HOT "ExpertsOp: stream_group: found 0, expected at least 1"},
    {"group_without_stream", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->stream_group = 1; },
     KTC_HOT "ExpertsOp: stream_group: found 1, expected 0 without stream"},
    {"stream_of_a_larger_group", [](PlanT& p) { stream(p, 3); },
     KTC_HOT "ExpertsOp: stream_group: found 3, expected at most the bank's 2, of less than 2^59 bytes"},
    {"stream_account", [](PlanT& p) { stream(p, 1); },
     "account of \"cuda:0\": category \"stream\": found 0 bytes, expected " + std::to_string(areas_of_one().total()) +
         " bytes, the largest of its steps"},
    {"granule_on_gpu", [](PlanT& p) { of(p, "layers.1.mlp.experts").op.AsExpertsOp()->x_granule = 64; },
     KTC_HOT "ExpertsOp: x_granule: found 64, expected 0 on a cuda device"},
    {"gpu_workspace", [](PlanT& p) { of(p, "layers.1.mlp.experts").workspace = plan::kNone; },
     KTC_HOT "ExpertsOp: workspace: found none, expected at least " +
         std::to_string(gpu_experts_workspace(Format::bf16, 2, 2, 16, 4, 4).total()) + " bytes"},
    {"cpu_workspace", [](PlanT& p) { buffer(decode(p), "cpu.scratch").bytes = 64; },
     KTC_IN_TIME "ExpertsOp: workspace: found 64 bytes, expected at least 256 bytes"},
    {"gpu_scratch_alignment", [](PlanT& p) { buffer(decode(p), "scratch").offset += 64; },
     "entry \"decode[2]\": buffers[15] \"scratch\": offset: found 529472, expected a multiple of 256"},
    {"many_summands",
     [](PlanT& p) {
       StepT& add = of(p, "layers.1.mlp.add");
       while (add.inputs.size() < 9) add.inputs.push_back(on(p, "late"));
     },
     "entry \"decode[2]\": step 27 \"layers.1.mlp.add\": AddOp: operands: found 9 inputs, expected at most 8 on a cuda device"},
    {"norm_on_its_sum", [](PlanT& p) { of(p, "layers.0.mlp.add").outputs[1] = on(p, "x"); },
     "entry \"decode[2]\": step 12 \"layers.0.mlp.add\": outputs[1]: found it on inputs[0], expected a range of its own, or exactly "
     "inputs[0]"},
    {"graph_index", [](PlanT& p) { of(p, "embed").graph = 9; },
     "entry \"decode[2]\": step 0 \"embed\": graph: found 9, expected an index in graphs of 2 items"},
    {"graph_name", [](PlanT& p) { decode(p).graphs[1]->name = ""; },
     "entry \"decode[2]\": graphs[1] \"\": name: found nothing, expected a name"},
    {"graph_device", [](PlanT& p) { decode(p).graphs[1]->device = 0; },
     "entry \"decode[2]\": graphs[1] \"decode[2].second\": device: found \"cpu\", expected a cuda device"},
    {"graph_of_cpu", [](PlanT& p) { of(p, "layers.0.mlp.experts").graph = 0; },
     KTC_IN_TIME "graph: found \"decode[2].first\" of another device, expected one of the step's device"},
    {"graph_of_copy", [](PlanT& p) { of(p, "layers.0.mlp.late.to_gpu").graph = 0; },
     "entry \"decode[2]\": step 26 \"layers.0.mlp.late.to_gpu\": graph: found \"decode[2].first\", expected none for a copy"},
    {"graph_torn", [](PlanT& p) { of(p, "layers.1.mlp.add").graph = 0; },
     "entry \"decode[2]\": step 27 \"layers.1.mlp.add\": graph: found \"decode[2].first\" again, behind other steps of the device, "
     "expected the steps of a graph one behind the other"},
    {"graph_empty",
     [](PlanT& p) {
       for (auto& step : decode(p).steps)
         if (step->graph == 1) step->graph = plan::kNone;
     },
     "entry \"decode[2]\": graphs[1] \"decode[2].second\": steps: found none, expected at least 1"},
    {"inputs_twice", [](PlanT& p) { buffer(decode(p), "positions").role = BufferRole::ids; },
     "entry \"decode[2]\": buffers of role ids: found 2 on \"cuda:0\", expected 1 on a device"},
    {"step_block", [](PlanT& p) { line(p, "step-block", 1).bytes -= 64; },
     "account of \"cuda:0\": category \"step-block\": found 640 bytes, expected 704 bytes, the largest of the entries"},
    {"step_block_of_cpu", [](PlanT& p) { line(p, "step-block", 1).device = 0; },
     "account of \"cpu\": category \"step-block\": found 704 bytes, expected 0 bytes on a cpu"},
    {"records", [](PlanT& p) { line(p, "records", 0).bytes += 1; }, "account of \"cpu\": category \"records\": found 2177 bytes, expected 2176 bytes, the sum of its hand-offs"},
    {"dummy_page", [](PlanT& p) { line(p, "kv-cache", 1).bytes -= 256; }, "account of \"cuda:0\": category \"kv-cache\": found 2208 bytes, expected 2464 bytes, the sum of its caches"},
};
INSTANTIATE_TEST_SUITE_P(All, PlanHybridBroken, testing::ValuesIn(kBroken),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ktc::test
