// What Executor::open refuses. Plans are changed in memory after verification, to reach what a newer compiler might emit.
#include <functional>
#include <fstream>

#include "runtime/device/device.h"
#include "runtime/kernels/cpu/kernels.h"
#include "test/exec/executor_fixture.h"

namespace ktc::test {
namespace {

class ExecutorOpen : public testing::Test {
 protected:
  Status open_changed(const std::function<void(planfb::PlanT&)>& change, const exec::ExecutorOptions& options = {}) {
    auto changed = std::make_shared<plan::OpenPlan>();
    changed->folder = tiny_.plan->folder;
    changed->plan = *plan::parse_plan(plan::serialise_plan(tiny_.plan->plan), "copy");
    change(changed->plan);
    return exec::Executor::open(changed, options).status();
  }
  static planfb::StepT& step(planfb::PlanT& plan, const std::string& name) {
    for (const auto& step : plan.entries[0]->steps)
      if (step->name == name) return *step;
    ADD_FAILURE() << "no step " << name;
    return *plan.entries[0]->steps[0];
  }
  const OnDisk tiny_{TinyOptions{}};
};

constexpr const char* kOtherPolicy = "; compile the model for this version of ktc and a policy without other devices";

TEST_F(ExecutorOpen, UnchangedPlanOpens) { EXPECT_TRUE(open_changed([](planfb::PlanT&) {}).ok()); }

TEST_F(ExecutorOpen, SaysWhichDeviceDoesNotOpen) {
  const auto add = [](const char* name, planfb::DeviceKind kind) {
    return [name, kind](planfb::PlanT& plan) {
      auto device = std::make_unique<planfb::DeviceT>();
      device->name = name;
      device->kind = kind;
      plan.devices.push_back(std::move(device));
    };
  };
  exec::ExecutorOptions options;
  options.open_device = [](const planfb::DeviceT&, std::uint64_t) -> Expected<std::unique_ptr<device::Device>> {
    return make_error(StatusCode::unsupported, {.place = "driver", .what = "not here"});
  };
  EXPECT_EQ(open_changed(add("cuda:0", planfb::DeviceKind::cuda), options).message(), "device cuda:0: driver: not here");
  EXPECT_EQ(open_changed(add("cpu:1", planfb::DeviceKind::cpu)).message(),
            "devices: more than one CPU: found 2, expected 1; compile the model for the CPU alone");
}

TEST_F(ExecutorOpen, RefusesStepsByName) {
  const Status kind = open_changed([](planfb::PlanT& plan) {
    step(plan, "layers.1.experts").kind = planfb::StepKind::publish;
    step(plan, "layers.1.experts").location = "family.yaml:12";
  });
  EXPECT_EQ(kind.code(), StatusCode::unsupported);
  EXPECT_EQ(kind.message(), std::string("step layers.1.experts (family.yaml:12): a step kind that the CPU does not run: found "
                                        "publish, expected compute") + kOtherPolicy);
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) { step(plan, "layers.0.o").activations = 1; }).message(),
            std::string("step layers.0.o: activations that the kernels of weight layers.0.o do not take: found bf16, expected f32") + kOtherPolicy);
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) { step(plan, "embed").op.Set(planfb::SampleOpT()); }).message(),
            std::string("step embed: an op that this executor does not run: found SampleOp") + kOtherPolicy);
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) {
              step(plan, "layers.0.attention").op.AsGqaOp()->head_dim = 2048;
            }).message(),
            std::string("step layers.0.attention: heads too wide: found 2048, expected at most 1024") + kOtherPolicy);
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) {
              auto& inputs = step(plan, "layers.0.add_mlp").inputs;
              inputs.resize(9, inputs[0]);
            }).message(),
            std::string("step layers.0.add_mlp: a sum of too many terms: found 9, expected at most 8") + kOtherPolicy);
}

TEST_F(ExecutorOpen, RefusesUnknownFormats) {
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) { plan.weights[0]->format = 2; }).message(),
            "weight embed: no CPU kernel reads it: found i32 row_major, expected f32 or bf16 in row_major; int8, int4, fp8 or bf16 in "
            "panels; compile the model again with a policy of these formats");
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) { plan.weights[0]->packing = 77; }).message(),
            "weight embed: no CPU kernel reads it: found f32 invalid, expected f32 or bf16 in row_major; int8, int4, fp8 or bf16 in "
            "panels; compile the model again with a policy of these formats");
}

TEST_F(ExecutorOpen, RefusesWhatDoesNotFitBeforeTouchingIt) {
  const Status arena = open_changed([](planfb::PlanT& plan) { plan.devices[0]->arena_bytes = std::uint64_t{1} << 60; });
  EXPECT_EQ(arena.code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(arena.message().starts_with("arena of 1152921504606846976 bytes and KV cache of ")) << arena.message();
  EXPECT_NE(arena.message().find(" bytes available, expected 11529215046"), std::string::npos) << arena.message();
  EXPECT_TRUE(arena.message().ends_with("; compile with a smaller kv_cache.tokens, kv_cache.sequences or batch.chunk, or free "
                                        "some memory"))
      << arena.message();
  const Status cache = open_changed([](planfb::PlanT& plan) {
    plan.caches[0]->pages = UINT32_MAX;
    plan.caches[0]->layers = UINT32_MAX;
  });
  EXPECT_EQ(cache.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(cache.message(), "cache kv: too large: found more than 2^64 bytes; compile with a smaller kv_cache.tokens or "
                             "kv_cache.sequences");
}

TEST_F(ExecutorOpen, RefusesAnIsaLevelThatIsNotHere) {
  exec::ExecutorOptions options;
  options.isa = static_cast<IsaLevel>(200);
  const Status status = open_changed([](planfb::PlanT&) {}, options);
  EXPECT_EQ(status.code(), StatusCode::incompatible);
  EXPECT_NE(status.message().find("ISA level: this machine does not run it: found "), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("expected one of scalar"), std::string::npos) << status.message();
}

TEST_F(ExecutorOpen, RefusesAPlanWithNothingToRun) {
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) { plan.entries.clear(); }).message(),
            "entries: the plan has nothing to run: found no entry of kind extend or decode, expected at least one; compile the "
            "model again");
  EXPECT_EQ(open_changed([](planfb::PlanT& plan) { plan.caches.clear(); }).message(),
            "caches: the plan has no KV cache: expected at least one; compile the model again");
}

TEST_F(ExecutorOpen, RefusesAWeightFileThatChanged) {
  const OnDisk tiny{TinyOptions{}};
  const auto path = tiny.plan->folder / "all.weights";
  const auto bytes = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, bytes - 1);
  const Status status = exec::Executor::open(tiny.plan, {}).status();
  EXPECT_EQ(status.code(), StatusCode::data_corrupt);
  EXPECT_EQ(status.message(), path.string() + ": wrong length: found " + std::to_string(bytes - 1) + " bytes, expected " +
                                  std::to_string(bytes) + " bytes; restore the file, or compile the model again");
}

TEST_F(ExecutorOpen, PopulatesWithProgress) {
  struct Seen {
    std::uint64_t done = 0, total = 0;
  } seen;
  exec::ExecutorOptions options;
  options.populate = true;
  options.progress = {[](void* context, std::uint64_t done, std::uint64_t total) { *static_cast<Seen*>(context) = {done, total}; },
                      &seen};
  ASSERT_NE(tiny_.open(options), nullptr);
  EXPECT_EQ(seen.total, std::filesystem::file_size(tiny_.plan->folder / "all.weights"));
  EXPECT_EQ(seen.done, seen.total);
}

}  // namespace
}  // namespace ktc::test
