// ktc-bench experts: a run of an instant, for what its JSON says, and the check that guards its numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/ktc/bench_compare.h"

namespace ktc::bench {
namespace {

struct Outcome {
  int code = -1;
  std::string text;  // both streams
};

Outcome run(const std::string& arguments) {
  const std::string command = std::string(KTC_BIN_DIR) + "/ktc-bench experts " + arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) != 0;) outcome.text.append(buffer, n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

const std::string kShape = "--experts 8 --hidden 320 --intermediate 96 --top-k 2 --threads 2 --rounds 1 --gib 0.002 ";

TEST(BenchExperts, StepsARoundPerLine) {
  const auto lines = std::filesystem::path(testing::TempDir()) / "bench_experts_lines";
  std::ofstream(lines) << "\n\n";
  const Outcome outcome = run(kShape + "--tokens 1,2 --format int8 --step < " + lines.string());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_EQ(outcome.text.find("{\"ready\": true"), 0u) << outcome.text;
  for (const char* line : {"\"tokens_per_expert\": 1, \"round\": 0, ", "\"tokens_per_expert\": 2, \"round\": 1, ",
                           "{\"round\": 1, \"done\": true}", " 2 rounds;"})
    EXPECT_NE(outcome.text.find(line), std::string::npos) << line << outcome.text;
  const Outcome none = run(kShape + "--tokens 1 --format int8 --step < /dev/null");
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.text.find("no round was asked for"), std::string::npos) << none.text;
}

TEST(BenchExperts, ReportsEveryCase) {
  const auto file = std::filesystem::path(testing::TempDir()) / "bench_experts.json";
  const Outcome outcome = run(kShape + "--tokens 1,17 --format int8,int4/32,bf16 --json " + file.string());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("of read bandwidth"), std::string::npos) << outcome.text;
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["shape"]["hidden"], 320);
  EXPECT_EQ(json["machine"]["threads"], 2);
  EXPECT_GT(json["ceilings"]["read_bytes_per_second"]["median"], 0.0);
  EXPECT_GT(json["ceilings"]["int8_operations_per_second"]["median"], 0.0);
  EXPECT_GT(json["ceilings"]["bf16_operations_per_second"]["median"], 0.0);
  ASSERT_EQ(json["cases"].size(), 6u);
  const char* formats[] = {"int8/row", "int4/32", "bf16"};
  // 6 paired panels of K 320 and 10 panels of K 96, padded to 128 with its scales; heads included
  const double expert_bytes[] = {6 * (128 + 5 * 2048) + 10 * (128 + 2 * 2048.0), 6 * (10 * 64 + 5 * 1024) + 10 * (4 * 64 + 2 * 1024.0),
                                 6 * 5 * 4096 + 10 * 2 * 4096.0};
  for (std::size_t i = 0; i < 6; ++i) {
    const auto& c = json["cases"][i];
    const bool many = i % 2 == 1;
    EXPECT_EQ(c["format"], formats[i / 2]);
    EXPECT_EQ(c["tokens_per_expert"], many ? 17 : 1);
    EXPECT_EQ(c["active_experts"], many ? 8 : 2);
    EXPECT_EQ(c["tokens"], many ? 17 * 4 : 1);
    EXPECT_EQ(c["active_bytes"], expert_bytes[i / 2] * (many ? 8 : 2)) << formats[i / 2];
    EXPECT_EQ(c["operations"], 6.0 * 320 * 96 * (many ? 17 * 8 : 2));
    const double seconds = c["microseconds"]["median"].get<double>() * 1e-6, bytes = c["active_bytes"];
    ASSERT_GT(seconds, 0);
    EXPECT_NEAR(c["bytes_per_second"]["median"].get<double>() * seconds / bytes, 1, 1e-9);
    // one round: its own fractions are the medians
    EXPECT_NEAR(c["fraction_of_read"]["median"].get<double>() * c["read_bytes_per_second"]["median"].get<double>(),
                c["bytes_per_second"]["median"].get<double>(), 1e-6 * c["bytes_per_second"]["median"].get<double>());
    const std::string nearer = c["nearer"];
    EXPECT_EQ(c["fraction_of_nearer"], c["fraction_of_" + nearer]);
    EXPECT_GE(c["fraction_of_nearer"]["median"], c["fraction_of_read"]["median"]);
    EXPECT_GE(c["fraction_of_nearer"]["median"], c["fraction_of_compute"]["median"]);
  }
}

TEST(BenchExperts, SaysWhatIsWrong) {
  const std::string rest = "--tokens 1 ";
  EXPECT_EQ(run(kShape + rest + "--format int4").text,
            "ktc-bench: --format: found 'int4', expected int8, int4/row, int4/32, int4/64, int4/128, fp8/row, fp8/128 or bf16\n");
  EXPECT_EQ(run(kShape + rest + "--format int8/64").code, 2);
  EXPECT_EQ(run(kShape + "--tokens 0 --format int8").text, "ktc-bench: --tokens: found 0, expected 1 to 16384\n");
  const Outcome isa = run(kShape + rest + "--format int8 --isa mmx");
  EXPECT_EQ(isa.code, 2);
  EXPECT_EQ(isa.text.rfind("ktc-bench: --isa: found 'mmx', expected one of scalar, ", 0), 0u) << isa.text;
  EXPECT_EQ(run("--experts 4 --hidden 64 --intermediate 64 --top-k 5 --tokens 1 --format int8").text,
            "ktc-bench: --top-k: found 5, expected 1 to 4\n");
  EXPECT_EQ(run(kShape + rest + "--format int8 --json /nowhere/at/all.json").code, 1);
}

TEST(BenchCompare, RefusesTheSlightestDifferenceOfIntegers) {
  const std::vector<float> expected = {1.0f, -2.0f, 0.5f};
  EXPECT_TRUE(compare("int8", expected, expected, 0).ok());
  std::vector<float> found = expected;
  found[1] = std::nextafter(-2.0f, 0.0f);
  EXPECT_EQ(compare("int8", expected, found, 0).message(),
            "int8: column 1 differs from the scalar kernels' result: found -1.99999988, expected -2; report this with the command and "
            "the processor's name");
  EXPECT_TRUE(compare("bf16", expected, found, 1e-3).ok());
  found[1] = -2.01f;
  EXPECT_FALSE(compare("bf16", expected, found, 1e-3).ok());
  found[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(compare("bf16", expected, found, 1e-3).ok());
  EXPECT_FALSE(compare("int8", std::vector<float>(3), std::vector<float>(3), 0).ok());
  EXPECT_FALSE(compare("int8", found, found, 0).ok());
}

}  // namespace
}  // namespace ktc::bench
