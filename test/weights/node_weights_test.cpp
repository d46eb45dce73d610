// Weights that are split over memory nodes: every byte where a reader of the whole would find it, whatever the split.
#include "runtime/weights/node_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "runtime/weights/numa_memory.h"
#include "runtime/weights/weight_store.h"
#include "test/support/fake_system.h"

namespace ktc::weights {
namespace {

std::vector<NodeShare> shares(const std::vector<std::uint32_t>& workers) {
  std::vector<NodeShare> nodes;
  for (const std::uint32_t count : workers) nodes.push_back({-1, {}, count});
  return nodes;
}

std::vector<std::byte> numbered(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint32_t x = 12345;
  for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
  return bytes;
}

TEST(ShareBegin, CoversEverythingInWholeUnits) {
  for (const std::uint64_t total : {0, 1, 3, 4, 24, 47, 768})
    for (const std::uint64_t unit : {1, 4})
      for (const std::vector<std::uint32_t>& workers : {std::vector<std::uint32_t>{1}, {1, 1}, {2, 1}, {16, 16}, {3, 1, 3}}) {
        const std::uint64_t all = std::accumulate(workers.begin(), workers.end(), std::uint64_t{0});
        std::uint64_t before = 0, last = 0;
        EXPECT_EQ(share_begin(total, 0, all, unit), 0u);
        for (const std::uint32_t count : workers) {
          before += count;
          const std::uint64_t begin = share_begin(total, before, all, unit);
          EXPECT_GE(begin, last);
          EXPECT_LE(begin, total);
          EXPECT_TRUE(begin % unit == 0 || begin == total);
          EXPECT_LE(begin - last, total * count / all + 2 * unit);
          last = begin;
        }
        EXPECT_EQ(last, total);
      }
}

class NodeWeightsTest : public testing::Test {
 protected:
  // A file of a bank in plain panels, one in pairs, and a piece.
  void SetUp() override {
    plain_ = *panel_layout(Format::int8, 0, false, 330, 96);
    paired_ = *panel_layout(Format::int4, 64, true, 2 * 408, 128);
    bytes_ = numbered(kPlainAt + kBatch * plain_.matrix_bytes + paired_.matrix_bytes + kPieceBytes);
    path_ = folder_.path() / "all.weights";
    write(bytes_.size());
  }
  void write(std::size_t count) const {
    std::ofstream(path_, std::ios::binary).write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(count));
  }
  std::size_t paired_at() const { return kPlainAt + kBatch * plain_.matrix_bytes; }
  std::size_t piece_at() const { return paired_at() + paired_.matrix_bytes; }

  static void expect_panels(const PanelSplit& split, const PanelLayout& layout, std::size_t batch, const std::byte* whole) {
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t p = 0; p < layout.panels; ++p)
        ASSERT_EQ(std::memcmp(split.panel(b, p, layout.panel_bytes), whole + b * layout.matrix_bytes + p * layout.panel_bytes,
                              layout.panel_bytes),
                  0)
            << b << ", " << p;
  }

  static constexpr std::size_t kPlainAt = 4096 + 64, kBatch = 3, kPieceBytes = 300001;
  test::TempFolder folder_;
  PanelLayout plain_, paired_;
  std::vector<std::byte> bytes_;
  std::filesystem::path path_;
};

TEST_F(NodeWeightsTest, EveryPanelFromAFileAndFromMemory) {
  for (const std::vector<std::uint32_t>& workers : {std::vector<std::uint32_t>{1, 1}, {3, 1}, {2, 2, 1}, std::vector<std::uint32_t>(16, 1)}) {
    NodeWeights weights(shares(workers));
    const PanelSplit* plain = weights.add_panels(plain_, kBatch, {path_, kPlainAt, nullptr});
    const PanelSplit* paired = weights.add_panels(paired_, 1, {{}, 0, bytes_.data() + paired_at()});
    const std::size_t piece = weights.add_piece(kPieceBytes, {path_, piece_at(), nullptr});
    std::vector<std::string> notes;
    ASSERT_TRUE(weights.reserve(notes).ok());
    EXPECT_TRUE(notes.empty());  // no node has a number here, so nothing is bound
    struct Seen {
      std::uint64_t done = 0, total = 0;
    } seen;
    const Status loaded = weights.load({[](void* context, std::uint64_t done, std::uint64_t total) {
                                          EXPECT_GE(done, static_cast<Seen*>(context)->done);
                                          *static_cast<Seen*>(context) = {done, total};
                                        },
                                        &seen});
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    EXPECT_EQ(seen.done, bytes_.size() - kPlainAt);
    EXPECT_EQ(seen.total, weights.bytes());
    expect_panels(*plain, plain_, kBatch, bytes_.data() + kPlainAt);
    expect_panels(*paired, paired_, 1, bytes_.data() + paired_at());
    EXPECT_EQ(std::memcmp(weights.piece(piece), bytes_.data() + piece_at(), kPieceBytes), 0);
    std::uint64_t in_panels = 0;
    for (std::size_t n = 0; n < workers.size(); ++n) {
      in_panels += weights.bytes_of(n);
      if (workers.size() <= 3) {
        EXPECT_EQ(paired->first[n] % 4, 0u);  // whole granules of h
      }
      EXPECT_EQ(plain->stride[n], (plain->first[n + 1] - plain->first[n]) * plain_.panel_bytes);
    }
    EXPECT_EQ(in_panels, kBatch * plain_.matrix_bytes + paired_.matrix_bytes);  // nothing twice
  }
}

TEST_F(NodeWeightsTest, FilesThatCannotBeReadAreErrors) {
  std::vector<std::string> notes;
  write(piece_at() + 10);
  NodeWeights cut(shares({1, 2}));
  cut.add_piece(kPieceBytes, {path_, piece_at(), nullptr});
  ASSERT_TRUE(cut.reserve(notes).ok());
  EXPECT_EQ(cut.load({}).message(), path_.string() + ": the file shrank while it was read; restore the file, or compile the model again");
  NodeWeights absent(shares({1, 1}));
  absent.add_panels(plain_, kBatch, {folder_.path() / "absent", 0, nullptr});
  ASSERT_TRUE(absent.reserve(notes).ok());
  EXPECT_EQ(absent.load({}).message(), (folder_.path() / "absent").string() +
                                           ": cannot open the weight file: found No such file or directory; restore the file, or "
                                           "compile the model again");
}

// Where the system refuses, a line says so once and weights are read all the same.
TEST_F(NodeWeightsTest, ANodeThatIsNotThereIsANote) {
  std::vector<NodeShare> nodes = shares({1, 1});
  nodes[1].memory = 1000;
  NodeWeights weights(nodes);
  const PanelSplit* plain = weights.add_panels(plain_, kBatch, {path_, kPlainAt, nullptr});
  weights.add_piece(kPieceBytes, {path_, piece_at(), nullptr});
  std::vector<std::string> notes;
  ASSERT_TRUE(weights.reserve(notes).ok());
  ASSERT_GE(notes.size(), 1u);
  EXPECT_EQ(notes[0].rfind("memory node 1000: cannot be chosen for ", 0), 0u) << notes[0];
  ASSERT_TRUE(weights.load({}).ok());
  expect_panels(*plain, plain_, kBatch, bytes_.data() + kPlainAt);
}

TEST(NodeRoom, FreeAndPageCache) {
  test::FakeSystem system;
  EXPECT_EQ(node_room(1, system.roots()), std::nullopt);
  system.put("sys/devices/system/node/node1/meminfo",
             "Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         100 kB\nNode 1 MemUsed:  900 kB\nNode 1 Active(file):  20 kB\n"
             "Node 1 Inactive(file):  3 kB\n");
  EXPECT_EQ(node_room(1, system.roots()), 123u * 1024);
  EXPECT_EQ(node_room(0, system.roots()), std::nullopt);
}

TEST(BindMemory, RefusalsAreErrors) {
  auto block = HostBlock::allocate(8192, "test");
  ASSERT_TRUE(block.ok());
  EXPECT_TRUE(bind_memory(block->data(), 0, 5000, true).ok());
  for (const int node : {-1, 1023, 1024}) {
    const Status refused = bind_memory(block->data(), 8192, node, true);
    ASSERT_FALSE(refused.ok()) << node;
    EXPECT_EQ(refused.code(), StatusCode::unavailable);
  }
  std::memset(block->data(), 1, 8192);  // still ours
}

}  // namespace
}  // namespace ktc::weights
