// Every truncation and flipped byte of the small plan: refused while the digest is the old one; with a digest that
// fits, a plan or an error, within bounded time and memory. Run under AddressSanitizer by the asan preset.
#include <gtest/gtest.h>

#include <chrono>

#include "test/plan/hybrid_plan.h"
#include "test/plan/small_plan.h"

namespace ktc::plan {
namespace {

void renew_digest(std::vector<std::byte>& bytes) {
  const std::uint64_t digest = digest64(std::span(bytes).first(bytes.size() - 16));
  for (int i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(digest >> (8 * i));
}

// An accepted plan is safe to print and to write.
void use(const planfb::PlanT& plan) {
  EXPECT_FALSE(dump(plan).empty());
  EXPECT_FALSE(sizes(plan).empty());
  EXPECT_TRUE(parse_plan(serialise_plan(plan), "again").ok());
}

void expect_one_line(const Status& status) {
  EXPECT_FALSE(status.message().empty());
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_NE(status.code(), StatusCode::internal);
  EXPECT_LT(status.message().size(), 2000u);
}

constexpr std::uint8_t kFlips[] = {0x01, 0x80, 0xff};

TEST(PlanHostile, EveryTruncationIsAnError) {
  const auto& bytes = test::small_plan_bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    const auto plan = parse_plan(cut, "plan.ktp");
    ASSERT_FALSE(plan.ok()) << length;
    expect_one_line(plan.status());
  }
}

TEST(PlanHostile, EveryTruncationWithAFooterThatFitsIsHandled) {
  const auto& bytes = test::small_plan_bytes();
  for (std::size_t length = 8; length + 16 < bytes.size(); length += 8) {
    std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    cut.insert(cut.end(), bytes.end() - 16, bytes.end());
    renew_digest(cut);
    const auto plan = parse_plan(cut, "plan.ktp");
    if (plan.ok())
      use(*plan);
    else
      expect_one_line(plan.status());
  }
}

TEST(PlanHostile, EveryFlippedByteIsAnErrorUnderTheOldDigest) {
  auto bytes = test::small_plan_bytes();
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (const std::uint8_t flip : kFlips) {
      bytes[at] ^= std::byte{flip};
      const auto plan = parse_plan(bytes, "plan.ktp");
      ASSERT_FALSE(plan.ok()) << at;
      expect_one_line(plan.status());
      bytes[at] ^= std::byte{flip};
    }
}

void flip_every_byte(const std::vector<std::byte>& original) {
  std::size_t accepted = 0, refused = 0;
  std::chrono::duration<double> slowest{0};
  for (std::size_t at = 0; at + 16 < original.size(); ++at)
    for (const std::uint8_t flip : kFlips) {
      auto bytes = original;
      bytes[at] ^= std::byte{flip};
      renew_digest(bytes);
      const auto start = std::chrono::steady_clock::now();
      const auto plan = parse_plan(bytes, "plan.ktp");
      slowest = std::max<std::chrono::duration<double>>(slowest, std::chrono::steady_clock::now() - start);
      if (plan.ok()) {
        ++accepted;
        if (accepted % 7 == 0) use(*plan);
      } else {
        ++refused;
        expect_one_line(plan.status());
      }
    }
  EXPECT_GT(accepted, 0u);  // names, digests, epsilons
  EXPECT_GT(refused, accepted);
  EXPECT_LT(slowest.count(), 1.0);
}

TEST(PlanHostile, EveryFlippedByteIsHandledUnderADigestThatFits) {
  flip_every_byte(test::small_plan_bytes());
}

TEST(PlanHostile, EveryFlippedByteOfAPlanOfTwoDevicesIsHandled) {
  flip_every_byte(serialise_plan(test::hybrid_plan()));
}

}  // namespace
}  // namespace ktc::plan
