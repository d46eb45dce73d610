#include "runtime/base/cpu_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace ktc {
namespace {

TEST(CpuFeatures, NamesAreThoseOfTheTable) {
  EXPECT_TRUE(is_cpu_feature("avx512_vnni"));
  EXPECT_TRUE(is_cpu_feature("amx_bf16"));
  EXPECT_FALSE(is_cpu_feature("avx9"));
  EXPECT_FALSE(is_cpu_feature(""));
  EXPECT_FALSE(is_cpu_feature("AVX2"));
}

TEST(CpuFeatures, ListsInTableOrder) {
  CpuFeatures f;
  EXPECT_EQ(list_cpu_features(f), "");
  f.avx512f = true;
  EXPECT_EQ(list_cpu_features(f), "avx512f");
  f.avx2 = f.amx_int8 = true;
  EXPECT_EQ(list_cpu_features(f), "avx2, avx512f, amx_int8");
}

// The operating system's list is made by other code from the same CPUID leaves. AMX is ours by request, so it may be
// less.
TEST(CpuFeatures, AgreeWithTheOperatingSystem) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::set<std::string> flags;
  while (flags.empty() && std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const CpuFeatures& f = host_cpu_features();
  EXPECT_EQ(f.avx2, flags.count("avx2") == 1);
  EXPECT_EQ(f.fma, flags.count("fma") == 1);
  EXPECT_EQ(f.f16c, flags.count("f16c") == 1);
  EXPECT_EQ(f.avx512f, flags.count("avx512f") == 1);
  EXPECT_EQ(f.avx512bw, flags.count("avx512bw") == 1);
  EXPECT_EQ(f.avx512vl, flags.count("avx512vl") == 1);
  EXPECT_EQ(f.avx512dq, flags.count("avx512dq") == 1);
  EXPECT_EQ(f.avx512_vnni, flags.count("avx512_vnni") == 1);
  EXPECT_EQ(f.avx512_bf16, flags.count("avx512_bf16") == 1);
  EXPECT_LE(f.amx_tile, flags.count("amx_tile") == 1);
}

TEST(CpuFeatures, AreOneObjectForAllThreads) {
  const CpuFeatures* seen[4] = {};
  std::thread threads[4];
  for (int i = 0; i < 4; ++i) threads[i] = std::thread([&seen, i] { seen[i] = &host_cpu_features(); });
  for (std::thread& t : threads) t.join();
  for (const CpuFeatures* f : seen) EXPECT_EQ(f, &host_cpu_features());
}

TEST(IsaLevel, NamesRoundTrip) {
  for (IsaLevel level : {IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::avx512_vnni, IsaLevel::amx,
                         IsaLevel::best})
    EXPECT_EQ(parse_isa_level(to_string(level)), level);
  for (const char* name : {"", "avx", "AVX2", "avx2 ", "invalid", "sse4"}) EXPECT_FALSE(parse_isa_level(name)) << name;
  EXPECT_EQ(to_string(static_cast<IsaLevel>(77)), "invalid");
}

TEST(IsaLevel, NeedsAllOfItsFeatures) {
  CpuFeatures f;
  EXPECT_TRUE(isa_level_available(IsaLevel::scalar, f));
  EXPECT_TRUE(isa_level_available(IsaLevel::best, f));
  EXPECT_FALSE(isa_level_available(IsaLevel::avx2, f));
  f.avx2 = f.fma = f.f16c = true;
  EXPECT_TRUE(isa_level_available(IsaLevel::avx2, f));
  EXPECT_FALSE(isa_level_available(IsaLevel::avx512, f));
  f.avx512f = f.avx512bw = f.avx512vl = f.avx512dq = true;
  EXPECT_TRUE(isa_level_available(IsaLevel::avx512, f));
  for (bool CpuFeatures::*feature : {&CpuFeatures::avx2, &CpuFeatures::fma, &CpuFeatures::avx512f,
                                     &CpuFeatures::avx512bw, &CpuFeatures::avx512vl, &CpuFeatures::avx512dq}) {
    CpuFeatures less = f;
    less.*feature = false;
    EXPECT_FALSE(isa_level_available(IsaLevel::avx512, less));
  }
  EXPECT_FALSE(isa_level_available(IsaLevel::avx512_vnni, f));
  f.avx512_vnni = true;
  EXPECT_TRUE(isa_level_available(IsaLevel::avx512_vnni, f));
  f.avx512_bf16 = f.amx_tile = f.amx_int8 = f.amx_bf16 = true;
  EXPECT_TRUE(isa_level_available(IsaLevel::amx, f));
  for (bool CpuFeatures::*feature : {&CpuFeatures::avx512bw, &CpuFeatures::avx512_vnni, &CpuFeatures::avx512_bf16,
                                     &CpuFeatures::amx_tile, &CpuFeatures::amx_int8, &CpuFeatures::amx_bf16}) {
    CpuFeatures less = f;
    less.*feature = false;
    EXPECT_FALSE(isa_level_available(IsaLevel::amx, less));
  }
  f.f16c = false;
  EXPECT_FALSE(isa_level_available(IsaLevel::avx2, f));
}

TEST(IsaLevel, HigherIsFaster) {
  EXPECT_LT(IsaLevel::scalar, IsaLevel::avx2);
  EXPECT_LT(IsaLevel::avx2, IsaLevel::avx512);
  EXPECT_LT(IsaLevel::avx512, IsaLevel::avx512_vnni);
  EXPECT_LT(IsaLevel::avx512_vnni, IsaLevel::amx);
  EXPECT_LT(IsaLevel::amx, IsaLevel::best);
}

}  // namespace
}  // namespace ktc
