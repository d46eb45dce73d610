#include "runtime/weights/weight_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "test/support/plan_builder.h"

namespace ktc::weights {
namespace {

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    bank_values_ = numbers(3 * 5 * 7);
    vector_values_ = numbers(33);
    half_values_ = numbers(4 * 40);
    bank_ = builder_.weight("bank", Format::f32, 3, 5, 7, bank_values_);
    vector_ = builder_.weight("vector", Format::f32, 1, 1, 33, vector_values_);
    half_ = builder_.weight("half", Format::bf16, 1, 4, 40, half_values_);
    splat_ = builder_.splat("splat", Format::f32, 2, 3, 9, 0.3f);
    half_splat_ = builder_.splat("half_splat", Format::bf16, 1, 3, 33, 0.3f);
    alias_ = builder_.alias("alias", bank_);
    splat_alias_ = builder_.alias("splat_alias", splat_);
    ASSERT_TRUE(builder_.write(folder_.path()));
    reset();
  }
  static std::vector<float> numbers(std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) * 0.37f - 11.0f;
    return values;
  }
  // The plan as written, without verification, so that tests may break it.
  void reset() {
    plan_ = std::make_shared<plan::OpenPlan>();
    plan_->folder = folder_.path();
    planfb::GetPlan(plan::serialise_plan(builder_.plan()).data())->UnPackTo(&plan_->plan);
  }
  Expected<std::unique_ptr<WeightStore>> open(bool populate = false, Progress progress = {}) const {
    return WeightStore::open(plan_, populate, progress);
  }
  std::string file() const { return (folder_.path() / "all.weights").string(); }

  test::TempFolder folder_;
  test::PlanBuilder builder_{"weights"};
  std::vector<float> bank_values_, vector_values_, half_values_;
  std::uint32_t bank_ = 0, vector_ = 0, half_ = 0, splat_ = 0, half_splat_ = 0, alias_ = 0, splat_alias_ = 0;
  std::shared_ptr<plan::OpenPlan> plan_;
};

TEST_F(Weights, ViewsReadWhatWasWritten) {
  const auto store = open();
  ASSERT_TRUE(store.ok()) << store.status().message();
  const WeightView& bank = (**store)[bank_];
  EXPECT_EQ(bank.batch, 3u);
  EXPECT_EQ(bank.rows, 5u);
  EXPECT_EQ(bank.columns, 7u);
  EXPECT_EQ(bank.row_bytes, 64u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bank.data) % 4096, 0u);
  for (std::size_t b = 0; b < 3; ++b)
    for (std::size_t r = 0; r < 5; ++r)
      EXPECT_EQ(std::memcmp(bank.matrix(b) + r * 64, &bank_values_[(b * 5 + r) * 7], 7 * 4), 0) << b << ", " << r;
  for (std::size_t i = 0; i < 33; ++i) EXPECT_EQ((**store)[vector_].vector()[i], vector_values_[i]);
  const WeightView& half = (**store)[half_];
  EXPECT_EQ(half.format, Format::bf16);
  EXPECT_EQ(half.row_bytes, 128u);
  for (std::size_t r = 0; r < 4; ++r)
    for (std::size_t c = 0; c < 40; ++c) {
      std::uint16_t bits;
      std::memcpy(&bits, half.data + r * 128 + 2 * c, 2);
      ASSERT_EQ(bf16_to_f32(bits), half_values_[r * 40 + c]);
    }
  EXPECT_EQ((*store)->mapped_bytes(), std::filesystem::file_size(file()));
}

TEST_F(Weights, SplatFillsElementsAndLeavesPadding) {
  const auto store = open();
  ASSERT_TRUE(store.ok());
  const WeightView& splat = (**store)[splat_];
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(splat.data) % 4096, 0u);
  for (std::size_t r = 0; r < 6; ++r)
    for (std::size_t c = 0; c < 16; ++c) {
      float value;
      std::memcpy(&value, splat.data + r * 64 + 4 * c, 4);
      ASSERT_EQ(value, c < 9 ? 0.3f : 0.0f);
    }
  const WeightView& half = (**store)[half_splat_];
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < 64; ++c) {
      std::uint16_t bits;
      std::memcpy(&bits, half.data + r * 128 + 2 * c, 2);
      ASSERT_EQ(bits, c < 33 ? f32_to_bf16(0.3f) : 0);
    }
}

TEST_F(Weights, AliasSharesBytes) {
  const auto store = open();
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((**store)[alias_].data, (**store)[bank_].data);
  EXPECT_EQ((**store)[alias_].batch, 3u);
  EXPECT_EQ((**store)[splat_alias_].data, (**store)[splat_].data);
}

// Views of everything, also of aliases and splat weights, read the same from memory on two nodes; what must stay whole does.
TEST_F(Weights, PlacedOnNodes) {
  const auto before = open();
  const auto after = open();
  ASSERT_TRUE(before.ok() && after.ok());
  std::vector<std::string> notes;
  const std::vector<NodeShare> nodes = {{-1, {}, 2}, {-1, {}, 1}};
  const std::byte* const vector = (**after)[vector_].data;
  const auto placed = (*after)->place_on_nodes(nodes, {vector_}, 0, notes);
  ASSERT_TRUE(placed.ok() && *placed);
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ((**after)[vector_].data, vector);
  EXPECT_NE((**after)[alias_].data, (**before)[alias_].data);
  EXPECT_EQ((**after)[alias_].data, (**after)[bank_].data);
  EXPECT_EQ((**after)[splat_alias_].data, (**after)[splat_].data);
  ASSERT_TRUE((*after)->load().ok());
  ASSERT_TRUE((*after)->populate().ok());
  for (const std::uint32_t w : {bank_, vector_, half_, splat_, half_splat_, alias_, splat_alias_}) {
    const WeightView &a = (**before)[w], &b = (**after)[w];
    EXPECT_EQ(std::memcmp(a.data, b.data, a.matrix_bytes * a.batch), 0) << w;
  }
}

TEST_F(Weights, NoRoomOnNodesIsANote) {
  const auto store = open();
  ASSERT_TRUE(store.ok());
  const std::byte* const bank = (**store)[bank_].data;
  std::vector<std::string> notes;
  const auto placed = (*store)->place_on_nodes({{-1, {}, 1}, {-1, {}, 1}}, {}, std::uint64_t{1} << 62, notes);
  ASSERT_TRUE(placed.ok());
  EXPECT_FALSE(*placed);
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_EQ((**store)[bank_].data, bank);
  EXPECT_TRUE((*store)->load().ok());  // nothing to do
}

TEST_F(Weights, PopulateReportsEveryByte) {
  struct Seen {
    std::vector<std::uint64_t> done;
    std::uint64_t total = 0;
  } seen;
  const Progress progress = {[](void* context, std::uint64_t done, std::uint64_t total) {
                               static_cast<Seen*>(context)->done.push_back(done);
                               static_cast<Seen*>(context)->total = total;
                             },
                             &seen};
  ASSERT_TRUE(open(true, progress).ok());
  ASSERT_FALSE(seen.done.empty());
  EXPECT_EQ(seen.done.front(), 0u);
  EXPECT_TRUE(std::is_sorted(seen.done.begin(), seen.done.end()));
  EXPECT_EQ(seen.done.back(), seen.total);
  EXPECT_EQ(seen.total, std::filesystem::file_size(file()));
}

TEST_F(Weights, MissingFile) {
  std::filesystem::remove(file());
  const Status status = open().status();
  EXPECT_EQ(status.code(), StatusCode::not_found);
  EXPECT_EQ(status.message(), file() + ": cannot open the weight file: found No such file or directory; restore the file, or "
                                       "compile the model again");
}

TEST_F(Weights, FileOfAnotherLength) {
  const std::uint64_t bytes = std::filesystem::file_size(file());
  for (const std::uint64_t found : {std::uint64_t{0}, bytes - 1, bytes + 1}) {
    std::filesystem::resize_file(file(), found);
    const Status status = open().status();
    EXPECT_EQ(status.code(), StatusCode::data_corrupt);
    EXPECT_EQ(status.message(), file() + ": wrong length: found " + std::to_string(found) + " bytes, expected " +
                                    std::to_string(bytes) + " bytes; restore the file, or compile the model again");
  }
}

TEST_F(Weights, NotAFile) {
  std::filesystem::remove(file());
  std::filesystem::create_directory(file());
  EXPECT_EQ(open().status().message(), file() + ": not a plain file; restore the file, or compile the model again");
}

// The length was right at open. Reading everything then fails with a message where the system allows it to.
TEST_F(Weights, FileThatShrinksBeforePopulate) {
  auto store = open();
  ASSERT_TRUE(store.ok());
  std::filesystem::resize_file(file(), 0);
  const Status status = (*store)->populate();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(status.message().starts_with(file() + ": ")) << status.message();
  EXPECT_TRUE(status.message().ends_with("; restore the file, or compile the model again")) << status.message();
}

TEST_F(Weights, RangesBehindTheFile) {
  const auto refused = [this](const std::function<void(planfb::WeightT&)>& change) {
    reset();
    change(*plan_->plan.weights[bank_]);
    return open().status().message();
  };
  const std::string bytes = std::to_string(std::filesystem::file_size(file()));
  EXPECT_EQ(refused([](planfb::WeightT& w) { w.offset = UINT64_MAX - 63; }),
            "bank: the weight ends behind its file: found 960 bytes at 18446744073709551552, expected at most " + bytes +
                " bytes; restore the file, or compile the model again");
  EXPECT_EQ(refused([](planfb::WeightT& w) { w.file = 1; }),
            "bank: unknown weight file: found 1, expected less than 1; restore the file, or compile the model again");
  EXPECT_EQ(refused([](planfb::WeightT& w) { w.batch = 4; }),
            "bank: length and shape disagree: found 960 bytes, expected 1280 bytes; restore the file, or compile the model again");
  EXPECT_EQ(refused([](planfb::WeightT& w) { w.batch = w.rows = UINT64_MAX; }),
            "bank: length and shape disagree: found 960 bytes, expected less than 2^64 bytes; restore the file, or compile the "
            "model again");
  EXPECT_EQ(refused([](planfb::WeightT& w) { w.format = 99; }),
            "bank: unknown format or packing: found 99, 0; restore the file, or compile the model again");
}

TEST_F(Weights, AliasesOfNothing) {
  plan_->plan.weights[alias_]->alias_of = splat_alias_;
  EXPECT_EQ(open().status().message(), "alias: alias of a weight that has no bytes: found 6, expected a weight with bytes of its own; "
                                       "restore the file, or compile the model again");
  reset();
  plan_->plan.weights[alias_]->alias_of = vector_;
  EXPECT_EQ(open().status().message(), "alias: alias of a smaller weight: found 192 bytes, expected 960 bytes; restore the file, "
                                       "or compile the model again");
}

TEST_F(Weights, SplatLargerThanMemory) {
  planfb::WeightT& splat = *plan_->plan.weights[splat_];
  splat.batch = std::uint64_t{1} << 50;
  splat.bytes = (std::uint64_t{1} << 50) * 3 * 64;
  const Status status = open().status();
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(status.message().starts_with("splat weights: not enough memory: found ")) << status.message();
}

}  // namespace
}  // namespace ktc::weights
