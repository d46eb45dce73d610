// Plans of version KTP1 that were committed once: readers read them for ever (test/golden/plans/*/HOW.md).
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/plan/plan.h"

namespace ktc::plan {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class PlanGolden : public testing::TestWithParam<const char*> {};

TEST_P(PlanGolden, IsReadAsItWas) {
  const std::filesystem::path folder = std::filesystem::path(KTC_SOURCE_DIR) / "test/golden/plans" / GetParam();
  const std::string bytes = contents(folder / "plan.ktp");
  ASSERT_FALSE(bytes.empty());
  const auto plan = parse_plan(std::as_bytes(std::span(bytes)), "plan.ktp");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(dump(*plan), contents(folder / "plan.txt"));
}

INSTANTIATE_TEST_SUITE_P(All, PlanGolden, testing::Values("v1", "v1-hybrid", "v1-launch-groups", "v1-halves"), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

}  // namespace
}  // namespace ktc::plan
