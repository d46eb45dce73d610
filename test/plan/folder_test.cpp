// The folder around plan.ktp, and ktc-plan on it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>

#include "test/plan/small_plan.h"
#include "test/support/plan_builder.h"

namespace ktc::plan {
namespace {

class PlanFolder : public testing::Test {
 protected:
  void SetUp() override { test::write_small_plan(folder()); }
  std::filesystem::path folder() const { return temp_.path() / "small.ktp"; }
  std::string at(const char* file) const { return (folder() / file).string(); }
  std::string message() const { return open_plan(folder()).status().message(); }
  void put(const char* file, std::streamoff offset, char value) const {
    std::fstream stream(folder() / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(offset);
    stream.put(value);
  }
  test::TempFolder temp_;
};

constexpr const char* kCopyAgain = "; copy the plan's folder again, or compile the model again";

TEST_F(PlanFolder, Opens) {
  const auto plan = open_plan(folder());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ((*plan)->folder, folder());
  EXPECT_EQ((*plan)->plan.weights.size(), 19u);
}

TEST_F(PlanFolder, SaysWhatIsMissing) {
  const std::filesystem::path none = temp_.path() / "none.ktp";
  EXPECT_EQ(open_plan(none).status().code(), StatusCode::not_found);
  EXPECT_EQ(open_plan(none).status().message(),
            none.string() + ": no such plan: expected a folder that ktc compile wrote");
  EXPECT_EQ(open_plan(folder() / "plan.ktp").status().message(),
            at("plan.ktp") + ": not a plan's folder: expected a folder that ktc compile wrote");
  std::filesystem::remove(folder() / "tokenizer.json");
  EXPECT_EQ(message(), at("tokenizer.json") + ": cannot open: found No such file or directory" + kCopyAgain);
  std::filesystem::remove(folder() / "all.weights");
  EXPECT_EQ(message(), at("all.weights") + ": cannot open: found No such file or directory" + kCopyAgain);
  std::filesystem::create_directory(folder() / "all.weights");
  EXPECT_EQ(message(), at("all.weights") + ": cannot open: found no regular file, expected a file" + kCopyAgain);
  std::filesystem::remove(folder() / "plan.ktp");
  EXPECT_EQ(
      message(),
      at("plan.ktp") + ": cannot open: found No such file or directory; the compile was not finished: run it again");
}

TEST_F(PlanFolder, SaysWhatHasTheWrongLength) {
  std::filesystem::resize_file(folder() / "tokenizer.json", 5);
  EXPECT_EQ(message(), at("tokenizer.json") + ": length: found 5 bytes, expected 3 bytes" + kCopyAgain);
  std::filesystem::resize_file(folder() / "all.weights", 1000);
  EXPECT_EQ(message(), at("all.weights") + ": length: found 1000 bytes, expected 21824 bytes" + kCopyAgain);
  std::filesystem::resize_file(folder() / "plan.ktp", (1u << 28) + 8);
  EXPECT_EQ(message(),
            at("plan.ktp") + ": too long for a plan: found 268435464 bytes, expected at most 268435456" + kCopyAgain);
  std::filesystem::resize_file(folder() / "plan.ktp", 0);
  std::filesystem::resize_file(folder() / "plan.ktp", 1u << 28);
  EXPECT_EQ(message(), at("plan.ktp") +
                           ": not a plan: identifier: found \"\\x00\\x00\\x00\\x00\", expected \"KTP1\"; name the "
                           "folder that ktc compile wrote");
}

struct Seen {
  std::uint64_t done = 0, total = 0;
  bool ascending = true;
};
void see(void* context, std::uint64_t done, std::uint64_t total) {
  auto& seen = *static_cast<Seen*>(context);
  seen.ascending = seen.ascending && done > seen.done && (seen.total == 0 || seen.total == total);
  seen.done = done;
  seen.total = total;
}

TEST_F(PlanFolder, WeightsMatchTheirDigestsUntilAByteChanges) {
  const auto plan = open_plan(folder());
  ASSERT_TRUE(plan.ok());
  Seen seen;
  EXPECT_EQ(verify_weights(**plan, see, &seen).message(), "");
  EXPECT_TRUE(seen.ascending);
  EXPECT_EQ(seen.done, seen.total);
  std::uint64_t bytes = 3;
  for (const auto& weight : (*plan)->plan.weights)
    if (weight->source == planfb::WeightSource::file) bytes += weight->bytes;
  EXPECT_EQ(seen.total, bytes);

  put("tokenizer.json", 0, '[');
  const std::string text = verify_weights(**plan, nullptr, nullptr).message();
  EXPECT_TRUE(text.starts_with(at("tokenizer.json") + ": contents: digest: found ")) << text;
  put("all.weights", 512 + 63, 1);
  const std::string weight = verify_weights(**plan, nullptr, nullptr).message();
  EXPECT_TRUE(weight.starts_with(at("all.weights") + ": weight \"norm\": digest: found ")) << weight;
  EXPECT_TRUE(weight.ends_with(kCopyAgain));
}

// -------------------------------------------------------------------------------------------------------------
// ktc-plan

struct Ran {
  int code;
  std::string out;
};
Ran run(const std::string& arguments) {
  const std::string command = std::string(KTC_BIN_DIR) + "/ktc-plan " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  Ran ran{-1, {}};
  char block[4096];
  while (const std::size_t count = std::fread(block, 1, sizeof block, pipe)) ran.out.append(block, count);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  return ran;
}

TEST_F(PlanFolder, ToolShowsPlans) {
  const std::string path = folder().string();
  const Ran dumped = run("dump " + path);
  EXPECT_EQ(dumped.code, 0);
  EXPECT_EQ(dumped.out, dump(test::small_plan()));
  EXPECT_EQ(run("sizes " + path).out, sizes(test::small_plan()));
  EXPECT_EQ(run("verify " + path).out, path + ": verified\n");
  EXPECT_EQ(run("verify --weights " + path).out, path + ": verified, weights included\n");
  EXPECT_EQ(run("dump " + path + " " + path).out, path + ":\n" + dumped.out + path + ":\n" + dumped.out);
}

TEST_F(PlanFolder, ToolReportsDifferencesLikeDiff) {
  const std::string path = folder().string(), other = (temp_.path() / "other.ktp").string();
  EXPECT_EQ(run("diff " + path + " " + path).code, 0);
  EXPECT_EQ(run("diff " + path + " " + path).out, "");
  std::filesystem::copy(folder(), other);
  auto changed = test::small_plan();
  changed.target = "other.yaml";
  const auto bytes = serialise_plan(changed);
  std::ofstream(std::filesystem::path(other) / "plan.ktp", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const Ran ran = run("diff " + path + " " + other);
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "@ plan KTP1\n-   target \"test.yaml\"\n+   target \"other.yaml\"\n");
}

TEST_F(PlanFolder, ToolFailsInOneLine) {
  const Ran missing = run("dump nowhere.ktp");
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.out, "ktc-plan: nowhere.ktp: no such plan: expected a folder that ktc compile wrote\n");
  put("all.weights", 512, 1);
  EXPECT_EQ(run("verify " + folder().string()).code, 0);
  const Ran flipped = run("verify --weights " + folder().string());
  EXPECT_EQ(flipped.code, 1);
  EXPECT_TRUE(flipped.out.starts_with("ktc-plan: " + at("all.weights") + ": weight \"norm\": digest: found"))
      << flipped.out;
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("dump").code, 2);
  EXPECT_EQ(run("diff one").code, 2);
  EXPECT_EQ(run("dump --nothing x").code, 2);
  EXPECT_TRUE(run("").out.starts_with("ktc-plan: ")) << run("").out;
  EXPECT_EQ(run("--help").code, 0);
}

}  // namespace
}  // namespace ktc::plan
