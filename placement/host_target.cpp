// This machine as Linux describes it. Every file may be missing (containers hide some, other kernels lack some).
#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "placement/target.h"

namespace ktc::placement {
namespace {

namespace fs = std::filesystem;

// The first bytes of a small file; empty when it cannot be read.
std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::string text(1 << 16, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

// The leading number of a text and what follows it.
std::optional<std::uint64_t> leading_number(std::string_view text, std::string_view* rest = nullptr) {
  text = trim(text);
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) return std::nullopt;
  if (rest) *rest = trim(text.substr(static_cast<std::size_t>(end - text.data())));
  return value;
}

std::optional<std::uint64_t> read_number(const fs::path& path) {
  return leading_number(slurp(path));
}

// "32768K" in bytes.
std::uint64_t read_cache_size(const fs::path& path) {
  const std::string text = slurp(path);
  std::string_view unit;
  const auto value = leading_number(text, &unit);
  if (!value || *value > (std::uint64_t{1} << 40)) return 0;
  return unit.starts_with('K') ? *value << 10 : unit.starts_with('M') ? *value << 20 : *value;
}

// "0-3,8,10-11"
std::vector<std::uint32_t> parse_cpu_list(std::string_view text) {
  constexpr std::uint64_t kMost = 8192;  // what Linux is built for at most
  std::vector<std::uint32_t> cpus;
  text = trim(text);
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    std::string_view rest;
    const auto first = leading_number(item, &rest);
    if (!first) continue;
    const auto last = rest.starts_with('-') ? leading_number(rest.substr(1)) : first;
    for (std::uint64_t cpu = *first; last && cpu <= *last && cpu < kMost && cpus.size() < kMost; ++cpu)
      cpus.push_back(static_cast<std::uint32_t>(cpu));
  }
  return cpus;
}

// The value of "key : value" or "key: value" in a file of such lines.
std::string field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && trim(std::string_view(line).substr(0, colon)) == key)
      return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return {};
}

// The smallest limit of the process's cgroup and its parents, version 2 or 1; nullopt: none.
std::optional<std::uint64_t> cgroup_limit(const fs::path& root) {
  std::optional<std::uint64_t> least;
  auto take = [&least](const fs::path& file) {
    // version 1 spells "no limit" as a number near 2^63
    const auto value = read_number(file);
    if (value && *value > 0 && *value < (std::uint64_t{1} << 60)) least = std::min(least.value_or(*value), *value);
  };
  std::string group;
  std::istringstream lines(slurp(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("0::/")) group = line.substr(4);
  const fs::path top = root / "sys/fs/cgroup";
  if (group.find("..") == std::string::npos) {
    fs::path at = top;
    for (const fs::path& part : fs::path(group)) take((at /= part) / "memory.max");
  }
  take(top / "memory.max");
  take(top / "memory/memory.limit_in_bytes");
  return least;
}

// Memory without CPUs (expanders, a GPU's) is a node too, but nobody works there. At least 1.
std::uint32_t nodes_with_cpus(const fs::path& folder) {
  std::uint32_t nodes = 0;
  for (const std::uint32_t node : parse_cpu_list(slurp(folder / "online")))
    nodes += parse_cpu_list(slurp(folder / ("node" + std::to_string(node)) / "cpulist")).empty() ? 0 : 1;
  return std::max(nodes, 1u);
}

}  // namespace

Target host_target(const fs::path& root, const CpuFeatures& features) {
  Target target;
  const fs::path cpus_dir = root / "sys/devices/system/cpu";

  std::set<std::pair<std::uint64_t, std::uint64_t>> cores;  // (socket, core)
  std::set<std::uint64_t> sockets;
  std::set<std::string> l3_seen;
  for (std::uint32_t cpu : parse_cpu_list(slurp(cpus_dir / "online"))) {
    const fs::path dir = cpus_dir / ("cpu" + std::to_string(cpu));
    const std::uint64_t socket = read_number(dir / "topology/physical_package_id").value_or(0);
    sockets.insert(socket);
    cores.insert({socket, read_number(dir / "topology/core_id").value_or(cpu)});
    for (int index = 0; index < 8; ++index) {
      const fs::path cache = dir / "cache" / ("index" + std::to_string(index));
      const auto level = read_number(cache / "level");
      if (!level) break;  // they are numbered without gaps
      if (level == 2 && target.cpu.l2_bytes == 0) target.cpu.l2_bytes = read_cache_size(cache / "size");
      if (level != 3) continue;
      const std::string shared(trim(slurp(cache / "shared_cpu_list")));
      if (l3_seen.insert(shared.empty() ? "socket " + std::to_string(socket) : shared).second)
        target.cpu.l3_bytes += read_cache_size(cache / "size");
    }
  }
  target.cpu.cores = std::max<std::uint32_t>(static_cast<std::uint32_t>(cores.size()), 1);
  target.cpu.sockets = std::max<std::uint32_t>(static_cast<std::uint32_t>(sockets.size()), 1);
  if (cores.empty()) target.cpu.cores = std::max(std::thread::hardware_concurrency(), 1u);
  target.cpu.nodes = nodes_with_cpus(root / "sys/devices/system/node");

  if (const auto kib = leading_number(field(slurp(root / "proc/meminfo"), "MemTotal"));
      kib && *kib < (UINT64_MAX >> 10))
    target.cpu.memory = *kib << 10;
  if (const auto limit = cgroup_limit(root))
    target.cpu.memory = target.cpu.memory == 0 ? *limit : std::min(target.cpu.memory, *limit);

#define KTC_CPU_FEATURE(name) \
  if (features.name) target.cpu.isa.emplace_back(#name);
#include "runtime/base/cpu_features.def"

  const std::string model = field(slurp(root / "proc/cpuinfo"), "model name");
  target.name = model.empty() ? "this machine" : "this machine (" + model + ")";
  return target;
}

Target host_target() {
  return host_target("/", host_cpu_features());
}

}  // namespace ktc::placement
