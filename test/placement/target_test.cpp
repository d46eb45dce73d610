#include "placement/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ktc::placement {
namespace {

using testing::ElementsAre;

constexpr char kCpu[] = "version: 1\nname: box\ncpu: {cores: 4, memory: 8GiB}\n";

TEST(TargetTest, ReadsTheWholeSchema) {
  const auto target = parse_target(R"(version: 1
name: two sockets and a card
cpu:
  sockets: 2
  cores: 64
  memory: 382GiB
  read_gb_per_s: 440.5
  isa: [avx2, amx_int8]
  l2: 2MiB
  l3: 120MiB
gpus:
  - {device: cuda:0, name: NVIDIA RTX 4090, sm: 89, memory: 24GiB, context: 300MiB, read_gb_per_s: 1008, pcie_gb_per_s: 25}
  - {device: cuda:1, name: small, sm: 75, memory: 8GiB}
)",
                                   "t.yaml");
  ASSERT_TRUE(target.ok()) << target.status().message();
  EXPECT_EQ(target->name, "two sockets and a card");
  EXPECT_EQ(target->cpu.sockets, 2u);
  EXPECT_EQ(target->cpu.nodes, 2u);  // not stated
  EXPECT_EQ(target->cpu.cores, 64u);
  EXPECT_EQ(target->cpu.memory, std::uint64_t{382} << 30);
  EXPECT_DOUBLE_EQ(target->cpu.read_gb_per_s, 440.5);
  EXPECT_THAT(target->cpu.isa, ElementsAre("avx2", "amx_int8"));
  EXPECT_EQ(target->cpu.l2_bytes, std::uint64_t{2} << 20);
  EXPECT_EQ(target->cpu.l3_bytes, std::uint64_t{120} << 20);
  ASSERT_EQ(target->gpus.size(), 2u);
  EXPECT_EQ(target->gpus[0].name, "NVIDIA RTX 4090");
  EXPECT_EQ(target->gpus[0].sm, 89u);
  EXPECT_DOUBLE_EQ(target->gpus[0].read_gb_per_s, 1008);
  EXPECT_DOUBLE_EQ(target->gpus[0].pcie_gb_per_s, 25);
  EXPECT_EQ(target->gpus[1].read_gb_per_s, 0);
  EXPECT_EQ(target->gpus[0].context, std::uint64_t{300} << 20);
  EXPECT_EQ(target->gpus[1].context, std::uint64_t{500} << 20) << "unless the file says";
  EXPECT_TRUE(target->has_device("cpu"));
  EXPECT_TRUE(target->has_device("cuda:1"));
  EXPECT_FALSE(target->has_device("cuda:2"));
  EXPECT_EQ(target->list_devices(), "cpu, cuda:0, cuda:1");
  EXPECT_EQ(target->memory_of("cuda:1"), std::uint64_t{8} << 30);
  EXPECT_EQ(target->memory_of("cpu"), std::uint64_t{382} << 30);
  EXPECT_EQ(target->memory_of("cuda:7"), 0u);
}

TEST(TargetTest, WhatIsUnknownIsLeftOut) {
  const auto target = parse_target(kCpu, "t.yaml");
  ASSERT_TRUE(target.ok()) << target.status().message();
  EXPECT_EQ(target->cpu.sockets, 1u);
  EXPECT_EQ(target->cpu.read_gb_per_s, 0);
  EXPECT_TRUE(target->cpu.isa.empty());
  EXPECT_TRUE(target->gpus.empty());
}

struct Case {
  const char* what;
  std::string text;
  std::string message;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.what;
}

class TargetDiagnostics : public testing::TestWithParam<Case> {};

TEST_P(TargetDiagnostics, IsWordedForTheUser) {
  const auto target = parse_target(GetParam().text, "folder/t.yaml");
  ASSERT_FALSE(target.ok()) << "accepted:\n" << GetParam().text;
  EXPECT_EQ(target.status().message(), GetParam().message);
}

std::string cpu(const std::string& text) {
  return "version: 1\nname: box\ncpu: {" + text + "}\n";
}
std::string gpu(const std::string& text) {
  return std::string(kCpu) + "gpus:\n  - {" + text + "}\n";
}

const Case kCases[] = {
    {"Empty", "",
     "t.yaml: empty target: found nothing, expected version, name and cpu; start from one of the shipped targets "
     "(docs/policy.md)"},
    {"NoVersion", "name: box", "t.yaml:1:1: key 'version' is missing"},
    {"OtherVersion", "version: 3\nname: box",
     "t.yaml:1:10: version: found '3', expected 1; this ktc reads version 1 only"},
    {"NoName", "version: 1\ncpu: {cores: 4, memory: 8GiB}", "t.yaml:1:1: key 'name' is missing"},
    {"NoCpu", "version: 1\nname: box", "t.yaml:1:1: key 'cpu' is missing"},
    {"UnknownKey", std::string(kCpu) + "gpu: []",
     "t.yaml:4:1: unknown key: found 'gpu', expected one of version, name, cpu, gpus; did you mean 'cpu'?"},
    {"NoCores", cpu("memory: 8GiB"), "t.yaml:3:6: key 'cores' is missing in cpu"},
    {"NoMemory", cpu("cores: 4"), "t.yaml:3:6: key 'memory' is missing in cpu"},
    {"CoresZero", cpu("cores: 0, memory: 8GiB"),
     "t.yaml:3:14: cpu.cores: found '0', expected an integer from 1 to 65536"},
    {"FewerCoresThanSockets", cpu("sockets: 4, cores: 2, memory: 8GiB"),
     "t.yaml:3:26: cpu.cores: physical cores over all sockets: found '2', expected at least one for each of 4 sockets"},
    {"MemoryZero", cpu("cores: 4, memory: 0GiB"), "t.yaml:3:25: cpu.memory: found '0GiB', expected more than 0B"},
    {"MemoryUnit", cpu("cores: 4, memory: 8"),
     "t.yaml:3:25: cpu.memory: found '8', expected a size with its unit, such as 24GiB or 512MiB; units are B, KiB, "
     "MiB, GiB and TiB"},
    {"RateZero", cpu("cores: 4, memory: 8GiB, read_gb_per_s: 0"),
     "t.yaml:3:46: cpu.read_gb_per_s: found '0', expected a rate above 0 in GB/s (10^9 bytes); remove the key if it is "
     "unknown"},
    {"RateText", cpu("cores: 4, memory: 8GiB, read_gb_per_s: fast"),
     "t.yaml:3:46: cpu.read_gb_per_s: found 'fast', expected a number"},
    {"IsaUnknown", cpu("cores: 4, memory: 8GiB, isa: [avx1024]"),
     "t.yaml:3:37: cpu.isa[0]: found 'avx1024', expected one of avx2, fma, f16c, avx512f, avx512bw, avx512vl, "
     "avx512dq, avx512_vnni, avx512_bf16, amx_tile, amx_int8, amx_bf16"},
    {"IsaTwice", cpu("cores: 4, memory: 8GiB, isa: [avx2, avx2]"),
     "t.yaml:3:43: cpu.isa[1]: named twice: found 'avx2', expected each feature once"},
    {"GpuDevice", gpu("device: gpu0, name: x, sm: 80, memory: 8GiB"),
     "t.yaml:5:14: gpus[0].device: found 'gpu0', expected a GPU: cuda:0, cuda:1, ..."},
    {"GpuIsCpu", gpu("device: cpu, name: x, sm: 80, memory: 8GiB"),
     "t.yaml:5:14: gpus[0].device: found 'cpu', expected a GPU: cuda:0, cuda:1, ..."},
    {"GpuTwice",
     gpu("device: cuda:0, name: x, sm: 80, memory: 8GiB}\n  - {device: cuda:0, name: x, sm: 80, memory: 8GiB"),
     "t.yaml:6:14: gpus[1].device: device named twice: found 'cuda:0', expected each GPU once"},
    {"GpuNoMemory", gpu("device: cuda:0, name: x, sm: 80"), "t.yaml:5:5: key 'memory' is missing in gpus[0]"},
    {"GpuNoSm", gpu("device: cuda:0, name: x, memory: 8GiB"), "t.yaml:5:5: key 'sm' is missing in gpus[0]"},
    {"GpuSm", gpu("device: cuda:0, name: x, sm: 8.9, memory: 8GiB"),
     "t.yaml:5:35: gpus[0].sm: found '8.9', expected an integer from 70 to 999"},
};

INSTANTIATE_TEST_SUITE_P(All, TargetDiagnostics, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.what); });

TEST(TargetTest, EveryShippedTargetParses) {
  int with_gpu = 0, without = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KTC_SOURCE_DIR "/placement/targets")) {
    SCOPED_TRACE(entry.path().filename().string());
    ASSERT_EQ(entry.path().extension(), ".yaml");
    const auto target = read_target(entry.path());
    ASSERT_TRUE(target.ok()) << target.status().message();
    EXPECT_FALSE(target->cpu.isa.empty());
    EXPECT_GT(target->cpu.read_gb_per_s, 0);
    EXPECT_GT(target->cpu.l2_bytes, 0u);
    EXPECT_GT(target->cpu.l3_bytes, 0u);
    ++(target->gpus.empty() ? without : with_gpu);
  }
  EXPECT_GE(without, 1);
  EXPECT_GE(with_gpu, 2);
}

TEST(TargetTest, AMissingFileIsNamed) {
  const auto target = read_target("no/such/t.yaml");
  ASSERT_FALSE(target.ok());
  EXPECT_EQ(target.status().message(),
            "no/such/t.yaml: target file: found no such file, expected a YAML file; check the path");
}

}  // namespace
}  // namespace ktc::placement
