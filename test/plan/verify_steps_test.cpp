// What holds for every step: kind, device, views, workspace, aliasing.
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::PlanT;
using planfb::StepKind;
using planfb::StepT;
using planfb::View;

StepT& step_of(PlanT& plan, std::string_view name) {
  return step(entry(plan, "extend[4]"), name);
}
View view(PlanT& plan, std::string_view name, std::uint64_t column, std::uint64_t columns) {
  return View(buffer_index(entry(plan, "extend[4]"), name), column, columns);
}
void add_gpu(PlanT& plan) {
  auto device = std::make_unique<planfb::DeviceT>();
  device->name = "cuda:0";
  device->kind = planfb::DeviceKind::cuda;
  plan.devices.push_back(std::move(device));
}

KTC_BROKEN_PLANS(
    PlanVerifySteps,
    {
        {"name", [](PlanT& p) { step_of(p, "embed").name = ""; },
         "entry \"extend[4]\": step 0 \"\": name: found nothing, expected a name"},
        {"device", [](PlanT& p) { step_of(p, "embed").device = 1; },
         "entry \"extend[4]\": step 0 \"embed\": device: found 1, expected an index in devices of 1 items"},
        {"kind", [](PlanT& p) { step_of(p, "embed").kind = static_cast<StepKind>(6); },
         "entry \"extend[4]\": step 0 \"embed\": kind: found 6, expected a StepKind"},
        {"launch_on_cpu", [](PlanT& p) { step_of(p, "embed").kind = StepKind::launch; },
         "entry \"extend[4]\": step 0 \"embed\": kind: found launch on \"cpu\", expected compute on a cpu or launch on "
         "a cuda "
         "device"},
        {"publish", [](PlanT& p) { step_of(p, "embed").kind = StepKind::publish; },
         "entry \"extend[4]\": step 0 \"embed\": kind: found publish on \"cpu\", expected compute on a cpu or launch "
         "on a cuda "
         "device"},
        {"compute_on_gpu",
         [](PlanT& p) {
           add_gpu(p);
           step_of(p, "embed").device = 1;
         },
         "entry \"extend[4]\": step 0 \"embed\": kind: found compute on \"cuda:0\", expected compute on a cpu or "
         "launch on a "
         "cuda device"},
        {"activations", [](PlanT& p) { step_of(p, "embed").activations = 2; },
         "entry \"extend[4]\": step 0 \"embed\": activations: found i32, expected one of f32, bf16, int8"},
        {"unknown_activations", [](PlanT& p) { step_of(p, "embed").activations = 77; },
         "entry \"extend[4]\": step 0 \"embed\": activations: found 77, expected one of f32, bf16, int8"},
        {"many_operands", [](PlanT& p) { step_of(p, "embed").inputs.resize(65); },
         "entry \"extend[4]\": step 0 \"embed\": operands: found 65 inputs, 1 outputs, expected at most 64 of each"},
        {"view_buffer", [](PlanT& p) { step_of(p, "embed").inputs[0] = View(16, 0, 1); },
         "entry \"extend[4]\": step 0 \"embed\": inputs[0]: buffer: found 16, expected an index in buffers of 16 "
         "items"},
        {"view_workspace", [](PlanT& p) { step_of(p, "embed").outputs[0] = view(p, "scratch", 0, 1); },
         "entry \"extend[4]\": step 0 \"embed\": outputs[0]: buffer: found \"scratch\", a workspace, expected a buffer "
         "of rows"},
        {"view_device",
         [](PlanT& p) {
           add_gpu(p);
           step_of(p, "embed").device = 1;
           step_of(p, "embed").kind = StepKind::launch;
         },
         "entry \"extend[4]\": step 0 \"embed\": inputs[0]: device of \"ids\": found \"cpu\", expected the step's, "
         "\"cuda:0\""},
        {"view_columns", [](PlanT& p) { step_of(p, "embed").outputs[0] = view(p, "x", 1, 16); },
         "entry \"extend[4]\": step 0 \"embed\": outputs[0]: columns of \"x\": found 16 from 1 on, expected at least "
         "1, inside "
         "its 16"},
        {"view_overflow", [](PlanT& p) { step_of(p, "embed").outputs[0] = view(p, "x", ~0ull, 2); },
         "entry \"extend[4]\": step 0 \"embed\": outputs[0]: columns of \"x\": found 2 from 18446744073709551615 on, "
         "expected "
         "at least 1, inside its 16"},
        {"view_empty", [](PlanT& p) { step_of(p, "embed").outputs[0] = view(p, "x", 3, 0); },
         "entry \"extend[4]\": step 0 \"embed\": outputs[0]: columns of \"x\": found 0 from 3 on, expected at least 1, "
         "inside "
         "its 16"},
        {"workspace_index", [](PlanT& p) { step_of(p, "layers.0.attention").workspace = 16; },
         "entry \"extend[4]\": step 3 \"layers.0.attention\": workspace: found 16, expected an index in buffers of 16 "
         "items"},
        {"workspace_role", [](PlanT& p) { step_of(p, "layers.0.attention").workspace = 4; },
         "entry \"extend[4]\": step 3 \"layers.0.attention\": workspace: found \"x\", expected a buffer of role "
         "workspace on "
         "the step's device"},
        {"linear_in_place",
         [](PlanT& p) { step_of(p, "layers.0.attention.o").outputs[0] = view(p, "attention", 0, 16); },
         "entry \"extend[4]\": step 4 \"layers.0.attention.o\": outputs[0]: found it on inputs[0], expected a range of "
         "its own"},
        {"add_on_second", [](PlanT& p) { step_of(p, "layers.0.attention.add").outputs[0] = view(p, "h", 0, 16); },
         "entry \"extend[4]\": step 5 \"layers.0.attention.add\": outputs[0]: found it on inputs[1], expected a range "
         "of its "
         "own, or exactly inputs[0]"},
        {"norm_beside_itself",
         [](PlanT& p) { step_of(p, "layers.1.attention.kv_norm").outputs[0] = view(p, "kv", 1, 8); },
         "entry \"extend[4]\": step 13 \"layers.1.attention.kv_norm\": outputs[0]: found it on inputs[0], expected a "
         "range of "
         "its own, or exactly inputs[0]"},
        {"outputs_meet", [](PlanT& p) { step_of(p, "layers.0.mlp.router").outputs[1] = view(p, "expert_ids", 1, 1); },
         "entry \"extend[4]\": step 7 \"layers.0.mlp.router\": outputs[1]: found it on outputs[0], expected a range of "
         "its own"},
        {"input_written", [](PlanT& p) { step_of(p, "layers.0.mlp.router").outputs[0] = view(p, "positions", 0, 1); },
         "entry \"extend[4]\": step 7 \"layers.0.mlp.router\": outputs[0]: found \"positions\", an input of the entry, "
         "expected "
         "a buffer that steps may write"},
        {"logits_written_in_sample",
         [](PlanT& p) {
           StepT& sample = step(entry(p, "sample[2]"), "sample");
           std::swap(sample.inputs[0], sample.outputs[0]);
         },
         "entry \"sample[2]\": step 0 \"sample\": outputs[0]: found \"logits\", an input of the entry, expected a "
         "buffer that "
         "steps may write"},
    });

}  // namespace
}  // namespace ktc::test
