#include "runtime/weights/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ktc::weights {
namespace {

// A control group without a limit states a number near 2^63 (version 1) or "max" (version 2).
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  const std::optional<std::string> text = read_small_file(path);
  return text ? leading_number(*text) : std::nullopt;
}

// What is left under the limit of one group; nullopt without a limit.
std::optional<std::uint64_t> left_in_group(const std::filesystem::path& folder) {
  std::optional<std::uint64_t> limit = number_in(folder / "memory.max");
  std::optional<std::uint64_t> used = number_in(folder / "memory.current");
  const char* prefix = "";
  if (!limit) {
    limit = number_in(folder / "memory.limit_in_bytes");
    used = number_in(folder / "memory.usage_in_bytes");
    prefix = "total_";
  }
  if (!limit || *limit >= kNoLimit || !used) return std::nullopt;
  std::uint64_t cache = 0;
  if (const auto stat = read_small_file(folder / "memory.stat")) {
    for (const char* name : {"inactive_file", "active_file"})
      cache += std::min(named_number(*stat, std::string(prefix) + name).value_or(0), kNoLimit);
  }
  const std::uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

}  // namespace

std::optional<std::uint64_t> available_memory(const SystemRoots& roots) {
  std::optional<std::uint64_t> available;
  if (const auto meminfo = read_small_file(roots.proc / "meminfo")) {
    const auto kib = named_number(*meminfo, "MemAvailable");
    if (kib && *kib < kNoLimit / 1024) available = *kib * 1024;
  }
  for (const std::filesystem::path& folder : cgroup_folders(roots, "memory")) {
    const auto left = left_in_group(folder);
    if (left) available = std::min(*left, available.value_or(kNoLimit));
  }
  return available;
}

Status check_available(std::uint64_t bytes, std::string_view what, std::string_view remedy, const SystemRoots& roots) {
  const std::optional<std::uint64_t> available = available_memory(roots);
  if (!available || bytes <= *available) return {};
  return make_error(StatusCode::resource_exhausted,
                    {std::string(what), "not enough memory", std::to_string(*available) + " bytes available",
                     std::to_string(bytes) + " bytes", std::string(remedy)});
}

HostBlock::HostBlock(HostBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostBlock::~HostBlock() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Expected<HostBlock> HostBlock::allocate(std::uint64_t bytes, std::string_view what) {
  HostBlock block;
  if (bytes == 0) return block;
  void* address = MAP_FAILED;
  int error = ENOMEM;
  if (bytes <= SIZE_MAX / 2) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    error = errno;
  }
  if (address == MAP_FAILED) {
    return make_error(StatusCode::resource_exhausted,
                      {std::string(what), "the system refuses the memory", std::strerror(error),
                       std::to_string(bytes) + " bytes", "close other programs, or compile for a smaller batch or context"});
  }
  madvise(address, bytes, MADV_HUGEPAGE);  // a hint: fewer page faults and TLB misses; refused on kernels without huge pages
  block.data_ = static_cast<std::byte*>(address);
  block.bytes_ = bytes;
  return block;
}

}  // namespace ktc::weights
