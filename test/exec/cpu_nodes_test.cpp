// Nodes of made-up machines, and who works where.
#include "runtime/exec/cpu_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/support/fake_system.h"

namespace ktc::exec {
namespace {

using testing::ElementsAre;

class CpuNodes : public testing::Test {
 protected:
  void mask(const std::string& cpus, const std::string& memory) {
    system_.put("proc/self/status", "Name:\tktc-run\nCpus_allowed_list:\t" + cpus + "\nMems_allowed_list:\t" + memory + "\n");
  }
  void node(int number, const std::string& cpus) {
    system_.put("sys/devices/system/node/node" + std::to_string(number) + "/cpulist", cpus + "\n");
  }
  void siblings(int cpu, const std::string& list) {
    system_.put("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/core_cpus_list", list + "\n");
  }
  std::vector<CpuNode> nodes() const { return cpu_nodes(system_.roots()); }
  test::FakeSystem system_;
};

MATCHER_P2(IsNode, memory, cores, "") { return arg.memory == memory && arg.cores == std::vector<std::vector<int>>(cores); }
using Cores = std::vector<std::vector<int>>;

TEST_F(CpuNodes, TwoNodesWithSiblings) {
  for (int cpu = 0; cpu < 8; ++cpu) siblings(cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  node(0, "0-1,4-5");
  node(1, "2-3,6-7");
  system_.put("sys/devices/system/node/possible", "0-1\n");  // a file among the folders
  system_.put("sys/devices/system/node/nodes/cpulist", "0-7\n");
  mask("0-7", "0-1");
  EXPECT_THAT(nodes(), ElementsAre(IsNode(0, Cores{{0, 4}, {1, 5}}), IsNode(1, Cores{{2, 6}, {3, 7}})));
}

TEST_F(CpuNodes, OnlyWhatTheMaskLeaves) {
  node(0, "0-3");
  node(1, "4-7");
  mask("2,5-6", "0-1");
  EXPECT_THAT(nodes(), ElementsAre(IsNode(0, Cores{{2}}), IsNode(1, Cores{{5}, {6}})));
  mask("5-6", "0-1");
  EXPECT_THAT(nodes(), ElementsAre(IsNode(1, Cores{{5}, {6}})));
  mask("2,5", "0");  // a cpuset whose memory is one node's
  EXPECT_THAT(nodes(), ElementsAre(IsNode(0, Cores{{2}}), IsNode(-1, Cores{{5}})));
}

TEST_F(CpuNodes, MemoryAloneAndHolesInNumbering) {
  node(0, "0-1");
  node(1, "");  // memory without CPUs
  node(4, "8-9");
  node(16, "20");
  mask("0-31", "0-16");  // CPUs that are in no node go to the first: 2-7, 10-19, 21-31
  const auto found = nodes();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].memory, 0);
  EXPECT_EQ(found[0].cores.size(), 2u + 6 + 10 + 11);
  EXPECT_THAT(found[1], IsNode(4, Cores{{8}, {9}}));
  EXPECT_THAT(found[2], IsNode(16, Cores{{20}}));
}

TEST_F(CpuNodes, WithoutFilesThereIsOneNode) {
  mask("3-4", "0");
  EXPECT_THAT(nodes(), ElementsAre(IsNode(-1, Cores{{3}, {4}})));
  system_.put("sys/devices/system/node/node0/cpulist", "what\n");
  EXPECT_THAT(nodes(), ElementsAre(IsNode(-1, Cores{{3}, {4}})));
}

TEST_F(CpuNodes, NeighboursAreOneWhereThereAreTooMany) {
  for (int n = 0; n < 40; ++n) node(n, std::to_string(n));
  mask("0-39", "0-39");
  const auto found = nodes();
  ASSERT_EQ(found.size(), weights::kMostNodes);
  std::size_t cores = 0;
  for (const CpuNode& node : found) cores += node.cores.size();
  EXPECT_EQ(cores, 40u);
  EXPECT_THAT(found[0], IsNode(-1, Cores{{0}, {1}, {2}}));
}

TEST(RecutNodes, EqualPartsThatKeepTheirMemory) {
  const std::vector<CpuNode> two = {{0, {{0}, {1}, {2}}}, {1, {{3}, {4}, {5}}}};
  EXPECT_THAT(recut_nodes(two, 1), ElementsAre(IsNode(-1, Cores{{0}, {1}, {2}, {3}, {4}, {5}})));
  EXPECT_THAT(recut_nodes(two, 2), ElementsAre(IsNode(0, two[0].cores), IsNode(1, two[1].cores)));
  EXPECT_THAT(recut_nodes(two, 4),
              ElementsAre(IsNode(0, Cores{{0}}), IsNode(0, Cores{{1}, {2}}), IsNode(1, Cores{{3}}), IsNode(1, Cores{{4}, {5}})));
  const std::vector<CpuNode> one = {{0, {{0}, {1}}}};
  EXPECT_THAT(recut_nodes(one, 2), ElementsAre(IsNode(0, Cores{{0}}), IsNode(0, Cores{{1}})));
  EXPECT_THAT(recut_nodes(one, 3), ElementsAre(IsNode(0, Cores{{0}}), IsNode(0, Cores{{0}}), IsNode(0, Cores{{1}})));
  EXPECT_EQ(recut_nodes(one, 1000).size(), weights::kMostNodes);
  EXPECT_EQ(recut_nodes(one, -5).size(), 1u);
}

TEST(DealWorkers, InProportionToCores) {
  const std::vector<CpuNode> nodes = {{0, {{0, 10}, {1, 11}, {2, 12}, {3, 13}}}, {2, {{4}, {5}}}};
  const auto workers = [&](int threads) {
    std::vector<std::uint32_t> counts;
    for (const WorkerNode& node : deal_workers(nodes, threads)) counts.push_back(node.share.workers);
    return counts;
  };
  EXPECT_THAT(workers(0), ElementsAre(1));
  EXPECT_THAT(workers(1), ElementsAre(1));
  EXPECT_THAT(workers(2), ElementsAre(1, 1));
  EXPECT_THAT(workers(3), ElementsAre(2, 1));
  EXPECT_THAT(workers(6), ElementsAre(4, 2));
  EXPECT_THAT(workers(9), ElementsAre(6, 3));
  const auto all = deal_workers(nodes, 6);
  EXPECT_EQ(all[1].share.memory, 2);
  EXPECT_EQ(all[0].pins, nodes[0].cores);
  EXPECT_EQ(all[1].pins, nodes[1].cores);
  const auto many = deal_workers(nodes, 9);  // more than cores: anywhere on their node
  EXPECT_EQ(many[1].pins, (Cores{{4, 5}, {4, 5}, {4, 5}}));
}

}  // namespace
}  // namespace ktc::exec
