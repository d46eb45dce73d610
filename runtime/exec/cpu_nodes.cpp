#include "runtime/exec/cpu_nodes.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>

#include "runtime/exec/cpu_count.h"

namespace ktc::exec {
namespace {

using weights::SystemRoots;

// Numbers N of the folders nodeN, ascending; they may have holes.
std::vector<int> node_numbers(const std::filesystem::path& folder) {
  std::vector<int> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("node")) continue;
    int number = 0;
    const auto [rest, failure] = std::from_chars(name.data() + 4, name.data() + name.size(), number);
    if (failure == std::errc() && rest == name.data() + name.size() && number >= 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Whether this process may allocate there: cpusets restrict memory too.
bool may_use_memory(const SystemRoots& roots, int node) {
  const auto status = weights::read_small_file(roots.proc / "self" / "status");
  const auto allowed = status ? weights::named_text(*status, "Mems_allowed_list") : std::nullopt;
  const auto list = allowed ? parse_cpu_list(*allowed) : std::nullopt;
  return !list || std::find(list->begin(), list->end(), node) != list->end();
}

void add_cores(CpuNode& to, const CpuNode& from) {
  if (!to.cores.empty() && to.memory != from.memory) to.memory = -1;
  if (to.cores.empty()) to.memory = from.memory;
  to.cores.insert(to.cores.end(), from.cores.begin(), from.cores.end());
}

}  // namespace

std::vector<CpuNode> cpu_nodes(const SystemRoots& roots) {
  const std::filesystem::path folder = roots.sys / "devices" / "system" / "node";
  std::vector<CpuNode> nodes;
  std::map<int, std::size_t> node_of;  // CPU
  for (const int number : node_numbers(folder)) {
    const auto text = weights::read_small_file(folder / ("node" + std::to_string(number)) / "cpulist");
    const auto cpus = text ? parse_cpu_list(*text) : std::nullopt;
    if (!cpus) continue;
    for (const int cpu : *cpus) node_of.emplace(cpu, nodes.size());
    nodes.push_back({may_use_memory(roots, number) ? number : -1, {}});
  }
  std::vector<std::vector<int>> strays;
  for (std::vector<int>& core : usable_cores(roots)) {
    const auto node = node_of.find(core.front());
    (node == node_of.end() ? strays : nodes[node->second].cores).push_back(std::move(core));
  }
  std::erase_if(nodes, [](const CpuNode& node) { return node.cores.empty(); });
  if (nodes.empty()) nodes.emplace_back();
  nodes.front().cores.insert(nodes.front().cores.end(), strays.begin(), strays.end());
  if (nodes.size() <= weights::kMostNodes) return nodes;
  std::vector<CpuNode> fewer(weights::kMostNodes);
  for (std::size_t n = 0; n < nodes.size(); ++n) add_cores(fewer[n * fewer.size() / nodes.size()], nodes[n]);
  return fewer;
}

std::vector<CpuNode> recut_nodes(const std::vector<CpuNode>& nodes, int count) {
  std::vector<CpuNode> single;  // a node for each core
  for (const CpuNode& node : nodes)
    for (const std::vector<int>& core : node.cores) single.push_back({node.memory, {core}});
  const auto most = static_cast<std::size_t>(std::clamp<int>(count, 1, static_cast<int>(weights::kMostNodes)));
  std::vector<CpuNode> cut(most);
  for (std::size_t n = 0; n < most; ++n) {
    const std::size_t begin = n * single.size() / most, end = std::max(begin + 1, (n + 1) * single.size() / most);
    for (std::size_t i = begin; i < end; ++i) add_cores(cut[n], single[i]);
  }
  return cut;
}

std::vector<WorkerNode> deal_workers(const std::vector<CpuNode>& nodes, int threads) {
  const std::size_t all = static_cast<std::size_t>(std::max(1, threads)), used = std::min(all, nodes.size());
  std::vector<WorkerNode> dealt(used);
  std::size_t given = 0;
  for (WorkerNode& node : dealt) given += node.share.workers = 1;
  // One by one to whoever has the most cores for each worker it would then have; the first of equals.
  for (; given < all; ++given) {
    std::size_t best = 0;
    for (std::size_t n = 1; n < used; ++n)
      if (nodes[n].cores.size() * (dealt[best].share.workers + 1) > nodes[best].cores.size() * (dealt[n].share.workers + 1)) best = n;
    ++dealt[best].share.workers;
  }
  for (std::size_t n = 0; n < used; ++n) {
    WorkerNode& node = dealt[n];
    node.share.memory = nodes[n].memory;
    for (const std::vector<int>& core : nodes[n].cores) node.share.cpus.insert(node.share.cpus.end(), core.begin(), core.end());
    const bool own = node.share.workers <= nodes[n].cores.size();
    for (std::size_t w = 0; w < node.share.workers; ++w) node.pins.push_back(own ? nodes[n].cores[w] : node.share.cpus);
  }
  return dealt;
}

}  // namespace ktc::exec
