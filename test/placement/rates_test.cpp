// The rates in target files, and what is assumed without them.
#include "placement/rates.h"
#include "placement/target_text.h"

#include <gtest/gtest.h>

namespace ktc::placement {
namespace {

std::string text(const std::string& cpu, const std::string& gpu = {}) {
  return "version: 1\nname: box\ncpu: {cores: 4, memory: 8GiB" + cpu + "}\n" +
         (gpu.empty() ? "" : "gpus:\n  - {device: cuda:0, name: x, sm: 80, memory: 8GiB" + gpu + "}\n");
}

TEST(RatesTest, EveryKeyIsRead) {
  const auto target =
      parse_target(text(", read_gb_per_s: 50, cache_gb_per_s: 200, isa: [amx_tile, amx_int8], vnni_tops: 1.5, amx_int8_tops: 12, "
                        "read_efficiency: 0.9, matrix_efficiency: {int8: 0.4, int4: 0.3}, many_rows_efficiency: 0.3, linear_efficiency: {int8: 0.2}, attention_tflops: 0.5, "
                        "value_ns: 2, kernel_us: 0.8, product_us: 6, step_us: 9",
                        ", read_gb_per_s: 1000, pcie_gb_per_s: 25, bf16_tflops: 100, attention_tflops: 60, read_efficiency: {bf16: 0.7, "
                        "int4: 1}, matrix_efficiency: 0.5, attention_efficiency: 0.4, kernel_us: 2.5, column_ns: 0.5, prefill_kernel_us: 6, "
                        "prefill_column_ns: 12, step_us: 15, handoff_us: 4, handoff_gb_per_s: 3"),
                   "t.yaml");
  ASSERT_TRUE(target.ok()) << target.status().message();
  EXPECT_EQ(target->cpu.vnni_tops, 1.5);
  EXPECT_EQ(target->cpu.amx_int8_tops, 12);
  EXPECT_EQ(target->cpu.read_efficiency.size(), 5u);
  EXPECT_EQ(target->cpu.read_efficiency.at(Format::fp8), 0.9);
  EXPECT_EQ(target->cpu.matrix_efficiency, (Efficiency{{Format::int8, 0.4}, {Format::int4, 0.3}}));
  EXPECT_EQ(target->cpu.kernel_us, 0.8);
  EXPECT_EQ(target->gpus[0].bf16_tflops, 100);
  EXPECT_EQ(target->gpus[0].read_efficiency, (Efficiency{{Format::bf16, 0.7}, {Format::int4, 1}}));
  EXPECT_EQ(target->gpus[0].kernel_us, 2.5);
  EXPECT_EQ(target->gpus[0].handoff_us, 4);
  EXPECT_EQ(target->cpu.many_rows_efficiency.at(Format::int8), 0.3);
  EXPECT_EQ(target->gpus[0].attention_efficiency, 0.4);

  const Rates rates = rates_of(*target);
  ASSERT_EQ(rates.devices.size(), 2u);
  EXPECT_EQ(rates.of("cpu").read, 50e3);  // bytes in a microsecond
  EXPECT_EQ(rates.of("cpu").tile, 12e6);
  EXPECT_EQ(rates.of("cuda:0").read, 1e6);
  EXPECT_EQ(rates.of("cuda:0").handoff_us, 4);
  EXPECT_EQ(rates.of("cuda:0").reads.at(Format::int4), 1);
  EXPECT_EQ(rates.of("cpu").cache, 200e3);
  EXPECT_EQ(rates.of("cpu").attention, 0.5e6);
  EXPECT_NEAR(rates.of("cpu").value_us, 2e-3 / 4, 1e-12);  // four cores
  EXPECT_EQ(rates.of("cpu").step_us, 9);
  EXPECT_EQ(rates.of("cpu").product_us, 6);
  EXPECT_EQ(rates.of("cpu").linear, (Efficiency{{Format::int8, 0.2}}));
  EXPECT_EQ(rates.of("cuda:0").attention, 60e6);
  EXPECT_NEAR(rates.of("cuda:0").prefill_column_us, 12e-3, 1e-12);
  EXPECT_EQ(rates.of("cuda:0").handoff, 3e3);
  EXPECT_EQ(rates.of("cuda:0").matrices.at(Format::bf16), 0.5);
  // what the maps leave out
  ASSERT_EQ(rates.notes.size(), 2u);
  EXPECT_EQ(rates.notes[0],
            "the target states no matrix_efficiency of cpu: predictions assume some; ktc probe measures them");
  EXPECT_EQ(rates.notes[1],
            "the target states no read_efficiency of cuda:0: predictions assume some; ktc probe measures them");
}

TEST(RatesTest, AssumptionsGrowWithTheMachine) {
  const auto small = parse_target(text(""), "t.yaml"), large = parse_target(text(", isa: [avx2, avx512_vnni, amx_tile, amx_int8]"), "t.yaml");
  const Rates a = rates_of(*small), b = rates_of(*large);
  EXPECT_EQ(a.of("cpu").read, 40e3);
  EXPECT_LT(a.of("cpu").vector, b.of("cpu").vector);
  EXPECT_EQ(a.of("cpu").tile, 0);
  EXPECT_GT(b.of("cpu").tile, 0);
  EXPECT_EQ(a.notes.size(), 1u);
  EXPECT_EQ(a.of("no such device").device, "cpu");
}

TEST(RatesTest, ShippedTargetsAssumeNothing) {
  for (const auto& entry : std::filesystem::directory_iterator(KTC_SOURCE_DIR "/placement/targets")) {
    const auto target = read_target(entry.path());
    ASSERT_TRUE(target.ok()) << target.status().message();
    for (const std::string& note : rates_of(*target).notes) ADD_FAILURE() << entry.path().filename() << ": " << note;
  }
}

TEST(RatesTest, WrittenTargetsReadBack) {
  for (const auto& entry : std::filesystem::directory_iterator(KTC_SOURCE_DIR "/placement/targets")) {
    const auto target = read_target(entry.path());
    ASSERT_TRUE(target.ok());
    const std::string written = target_text(*target, "two\nlines");
    EXPECT_EQ(written.substr(0, 14), "# two\n# lines\n");
    const auto back = parse_target(written, "back.yaml");
    ASSERT_TRUE(back.ok()) << back.status().message() << "\n" << written;
    EXPECT_EQ(target_text(*back, "two\nlines"), written);
    EXPECT_EQ(back->cpu.isa, target->cpu.isa);
    EXPECT_EQ(back->cpu.memory, target->cpu.memory);
    EXPECT_EQ(back->cpu.read_efficiency, target->cpu.read_efficiency);
    ASSERT_EQ(back->gpus.size(), target->gpus.size());
    for (std::size_t g = 0; g < back->gpus.size(); ++g) {
      EXPECT_EQ(back->gpus[g].memory, target->gpus[g].memory);
      EXPECT_EQ(back->gpus[g].handoff_us, target->gpus[g].handoff_us);
      EXPECT_EQ(back->gpus[g].read_efficiency, target->gpus[g].read_efficiency);
    }
  }
  Target odd;
  odd.name = "a \"name\": with # and \\ and\nlines";
  odd.cpu.memory = 12345;
  EXPECT_EQ(parse_target(target_text(odd), "t.yaml")->name, "a \"name\": with # and \\ and lines");
}

TEST(RatesTest, ErrorsAreWordedForTheUser) {
  auto message = [](const std::string& yaml) {
    const auto target = parse_target(yaml, "t.yaml");
    return target.ok() ? "accepted" : target.status().message();
  };
  EXPECT_EQ(message(text(", vnni_tops: 0")),
            "t.yaml:3:42: cpu.vnni_tops: found '0', expected more than 0 10^12 operations a second; remove the key if it is unknown");
  EXPECT_EQ(message(text(", kernel_us: -1")),
            "t.yaml:3:42: cpu.kernel_us: found '-1', expected more than 0 microseconds; remove the key if it is unknown");
  EXPECT_EQ(message(text(", read_efficiency: 1.5")),
            "t.yaml:3:48: cpu.read_efficiency: found '1.5', expected a fraction above 0 and at most 1");
  EXPECT_EQ(message(text(", matrix_efficiency: {int8: 0}")),
            "t.yaml:3:57: cpu.matrix_efficiency.int8: found '0', expected a fraction above 0 and at most 1");
  EXPECT_EQ(message(text(", read_efficiency: {int16: 0.5}")),
            "t.yaml:3:49: unknown key in cpu.read_efficiency: found 'int16', expected one of f32, bf16, fp8, int8, int4");
  EXPECT_EQ(message(text("", ", handoff_us: fast")), "t.yaml:5:65: gpus[0].handoff_us: found 'fast', expected a number");
}

}  // namespace
}  // namespace ktc::placement
