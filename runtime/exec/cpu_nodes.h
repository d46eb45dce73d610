// The NUMA nodes of this machine as far as this process may use them, and which workers belong to which.
#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/weights/node_split.h"
#include "runtime/weights/system_files.h"

namespace ktc::exec {

// Cores that share memory.
struct CpuNode {
  int memory = -1;                      // number of the memory node; -1: not known, not ours to use, or several
  std::vector<std::vector<int>> cores;  // at least one; the CPUs of each
};

// usable_cores() by node, ascending by the number of the node: a core lies where its first CPU does. Nodes without usable CPUs
// are left out, whether they have none (memory alone) or this process may not use them; a core that no node lists is put to the
// first node. Without sys/devices/system/node: one node, memory -1. More than weights::kMostNodes: neighbours count as one.
std::vector<CpuNode> cpu_nodes(const weights::SystemRoots& roots = {});

// All cores of these nodes, in order, cut into `count` nodes of about equal numbers of cores; with fewer cores than nodes some
// cores are in several. A node whose cores have one memory keeps it. What a test does on a machine of one node.
std::vector<CpuNode> recut_nodes(const std::vector<CpuNode>& nodes, int count);

struct WorkerNode {
  weights::NodeShare share;
  std::vector<std::vector<int>> pins;  // [share.workers]: the CPUs of each worker
};

// `threads` workers over the nodes, as many on each as it has cores in proportion, at least one; with fewer threads than nodes
// the last nodes get none and are left out. A worker has a core of its own where the node has enough, otherwise all of the node.
std::vector<WorkerNode> deal_workers(const std::vector<CpuNode>& nodes, int threads);

}  // namespace ktc::exec
