// A machine of several NUMA nodes, made of whatever CPUs there are: workers of several arenas, and weights that are cut.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/cpu_nodes.h"
#include "runtime/exec/parallel.h"
#include "runtime/weights/node_weights.h"
#include "runtime/weights/weight_store.h"

namespace ktc::test {

inline std::vector<exec::WorkerNode> simulated_nodes(int threads, int nodes) {
  return exec::deal_workers(exec::recut_nodes(exec::cpu_nodes(), nodes), threads);
}

inline std::unique_ptr<exec::Workers> simulated_workers(int threads, int nodes) {
  auto workers = exec::Workers::create(simulated_nodes(threads, nodes));
  EXPECT_TRUE(workers.ok()) << workers.status().message();
  return std::move(*workers);
}

// Copies of weights in panels as a WeightStore places them on several nodes.
class PlacedPanels {
 public:
  // Null for one node.
  const weights::PanelSplit* place(const std::vector<exec::WorkerNode>& nodes, const PanelLayout& layout, std::size_t batch,
                                   const std::byte* data) {
    if (nodes.size() == 1) return nullptr;
    std::vector<weights::NodeShare> shares;
    for (const exec::WorkerNode& node : nodes) shares.push_back(node.share);
    auto placed = std::make_unique<weights::NodeWeights>(shares);
    const weights::PanelSplit* split = placed->add_panels(layout, batch, {{}, 0, data});
    std::vector<std::string> notes;
    EXPECT_TRUE(placed->reserve(notes).ok());
    EXPECT_TRUE(placed->load({}).ok());
    placed_.push_back(std::move(placed));
    return split;
  }

 private:
  std::vector<std::unique_ptr<weights::NodeWeights>> placed_;
};

}  // namespace ktc::test
