// Small text files of the kernel (/proc, /sys) and the control groups of this process.
//
// Roots are parameters, so that machines of any shape are tested with a folder of fake files. Whatever is missing or malformed
// reads as "not stated": a container may hide any of these files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ktc::weights {

struct SystemRoots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
};

// The first 64 KiB of a file; nullopt when it cannot be read.
std::optional<std::string> read_small_file(const std::filesystem::path& path);

// The number that `text` starts with after blanks; nullopt when there is none or it does not fit.
std::optional<std::uint64_t> leading_number(std::string_view text);

// What follows "NAME" or "NAME:" and blanks on the line of that name (meminfo, memory.stat, status); nullopt without such a line.
std::optional<std::string_view> named_text(std::string_view text, std::string_view name);
// The number there.
std::optional<std::uint64_t> named_number(std::string_view text, std::string_view name);

// Folders that may hold limits on `controller` ("cpu", "memory") for this process: its own group first, then every group around
// it, in version 2 and version 1 hierarchies. A limit holds when any of them states it. Folders that do not exist are left out.
std::vector<std::filesystem::path> cgroup_folders(const SystemRoots& roots, std::string_view controller);

}  // namespace ktc::weights
