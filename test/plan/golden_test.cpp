// A plan of version KTP1 that was committed once: readers read it for ever (test/golden/plans/v1/HOW.md).
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

TEST(PlanGolden, ThePlanOfVersionOneIsReadAsItWas) {
  const std::filesystem::path folder = std::filesystem::path(KTC_SOURCE_DIR) / "test/golden/plans/v1";
  const std::string bytes = contents(folder / "plan.ktp");
  ASSERT_FALSE(bytes.empty());
  const auto plan = parse_plan(std::as_bytes(std::span(bytes)), "plan.ktp");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(dump(*plan), contents(folder / "plan.txt"));
}

}  // namespace
}  // namespace ktc::plan
