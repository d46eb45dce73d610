#include "runtime/weights/system_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace ktc::weights {
namespace {

constexpr std::size_t kMaxFileBytes = 64 * 1024;

std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

// "cpu,cpuacct" names "cpu".
bool lists(std::string_view controllers, std::string_view controller) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == controller) return true;
    controllers.remove_prefix(comma == std::string_view::npos ? controllers.size() : comma + 1);
  }
  return false;
}

// `mount`/`group`, then each folder around it up to `mount`. The group is as the kernel prints it: it may lie outside of what
// this process sees ("/../x" in a namespace, the host's name in a container); `mount` itself is then what applies.
void add_folders(const std::filesystem::path& mount, std::string_view group, std::vector<std::filesystem::path>& out) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(mount, ignored)) return;
  if (group.find("..") == std::string_view::npos) {
    while (!group.empty() && group != "/") {
      const std::filesystem::path folder = mount / std::filesystem::path(group.substr(group.front() == '/' ? 1 : 0));
      if (std::filesystem::is_directory(folder, ignored)) out.push_back(folder);
      const std::size_t slash = group.rfind('/');
      group = slash == std::string_view::npos ? std::string_view() : group.substr(0, slash);
    }
  }
  out.push_back(mount);
}

}  // namespace

std::optional<std::string> read_small_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return std::nullopt;
  text.remove_prefix(first);
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::string_view> named_text(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = next_line(text);
    if (line.substr(0, name.size()) != name) continue;
    line.remove_prefix(name.size());
    if (!line.empty() && line.front() == ':') line.remove_prefix(1);
    if (line.empty() || (line.front() != ' ' && line.front() != '\t')) continue;  // a longer name, or no value
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    return line;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> named_number(std::string_view text, std::string_view name) {
  const std::optional<std::string_view> value = named_text(text, name);
  return value ? leading_number(*value) : std::nullopt;
}

std::vector<std::filesystem::path> cgroup_folders(const SystemRoots& roots, std::string_view controller) {
  std::vector<std::filesystem::path> folders;
  const std::filesystem::path base = roots.sys / "fs" / "cgroup";
  const std::optional<std::string> groups = read_small_file(roots.proc / "self" / "cgroup");
  if (!groups) return folders;
  std::string_view text = *groups;
  while (!text.empty()) {
    // "0::/user.slice" (version 2) or "4:memory:/name" (version 1)
    const std::string_view line = next_line(text);
    const std::size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    if (controllers.empty()) {
      add_folders(base, group, folders);
      add_folders(base / "unified", group, folders);
    } else if (lists(controllers, controller)) {
      add_folders(base / std::string(controllers), group, folders);
      if (controllers != controller) add_folders(base / std::string(controller), group, folders);
    }
  }
  return folders;
}

}  // namespace ktc::weights
