#include "runtime/exec/cpu_count.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

namespace ktc::exec {
namespace {

using weights::leading_number;
using weights::read_small_file;
using weights::SystemRoots;

constexpr std::uint64_t kMostCpus = 65536;

// A name that equal threads of one core share; numbering may have holes, and offline CPUs have no folder.
std::string core_name(const SystemRoots& roots, int cpu) {
  const std::filesystem::path topology =
      roots.sys / "devices" / "system" / "cpu" / ("cpu" + std::to_string(cpu)) / "topology";
  for (const char* file : {"core_cpus_list", "thread_siblings_list"}) {  // the second is the older name
    const auto text = read_small_file(topology / file);
    const auto siblings = text ? parse_cpu_list(*text) : std::nullopt;
    if (siblings && std::find(siblings->begin(), siblings->end(), cpu) != siblings->end())
      return "first " + std::to_string(siblings->front());
  }
  const auto package = read_small_file(topology / "physical_package_id");
  const auto core = read_small_file(topology / "core_id");
  if (package && core && leading_number(*package) && leading_number(*core))
    return "package " + std::to_string(*leading_number(*package)) + " core " + std::to_string(*leading_number(*core));
  return "cpu " + std::to_string(cpu);
}

// Whole cores; nullopt without a limit. Version 2: "150000 100000" or "max 100000"; version 1: two files, quota -1 is none.
std::optional<std::uint64_t> quota(const std::filesystem::path& folder) {
  std::optional<std::uint64_t> time, period;
  if (const auto both = read_small_file(folder / "cpu.max")) {
    const std::size_t blank = both->find(' ');
    if (blank == std::string::npos) return std::nullopt;
    time = leading_number(*both);
    period = leading_number(std::string_view(*both).substr(blank));
  } else {
    const auto quota_text = read_small_file(folder / "cpu.cfs_quota_us");
    const auto period_text = read_small_file(folder / "cpu.cfs_period_us");
    if (!quota_text || !period_text) return std::nullopt;
    time = leading_number(*quota_text);
    period = leading_number(*period_text);
  }
  if (!time || !period || *period == 0) return std::nullopt;
  return *time / *period;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t dash = part.find('-');
    const auto first = leading_number(part);
    const auto last = dash == std::string_view::npos ? first : leading_number(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= kMostCpus) return std::nullopt;
    for (std::uint64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
    if (cpus.size() > kMostCpus) return std::nullopt;
  }
  if (cpus.empty()) return std::nullopt;
  return cpus;
}

std::vector<std::vector<int>> usable_cores(const SystemRoots& roots) {
  std::vector<std::vector<int>> cores;
  if (const auto status = read_small_file(roots.proc / "self" / "status")) {
    if (auto cpus = parse_cpu_list(weights::named_text(*status, "Cpus_allowed_list").value_or(""))) {
      std::sort(cpus->begin(), cpus->end());
      std::map<std::string, std::size_t> known;
      for (const int cpu : *cpus) {
        const auto [core, fresh] = known.try_emplace(core_name(roots, cpu), cores.size());
        if (fresh) cores.emplace_back();
        cores[core->second].push_back(cpu);
      }
      return cores;
    }
  }
  for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu)
    cores.push_back({static_cast<int>(cpu)});
  return cores;
}

std::optional<int> cpu_quota(const SystemRoots& roots) {
  std::optional<int> least;
  for (const std::filesystem::path& folder : weights::cgroup_folders(roots, "cpu")) {
    const auto limit = quota(folder);
    if (!limit) continue;
    const int cpus = static_cast<int>(std::min<std::uint64_t>(*limit, kMostCpus));
    least = std::min(least.value_or(cpus), cpus);
  }
  return least;
}

int default_thread_count(const SystemRoots& roots) {
  const int cores = static_cast<int>(usable_cores(roots).size());
  return std::max(1, std::min(cores, cpu_quota(roots).value_or(cores)));
}

}  // namespace ktc::exec
