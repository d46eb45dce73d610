// Host memory in blocks: one anonymous mapping each, page-aligned, zero, with huge pages where the system offers them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/weights/system_files.h"

namespace ktc::weights {

// Bytes that can be touched without swapping: MemAvailable, or less where a control group's limit is nearer (page cache of the
// group counts as free, it is given up first). nullopt when the system does not say.
std::optional<std::uint64_t> available_memory(const SystemRoots& roots = {});

// Ok when `bytes` are available. The error says what needs them, what there is and `remedy`.
Status check_available(std::uint64_t bytes, std::string_view what, std::string_view remedy, const SystemRoots& roots = {});

class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  ~HostBlock();

  // `what` names the block in the error. No bytes: an empty block.
  static Expected<HostBlock> allocate(std::uint64_t bytes, std::string_view what);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ktc::weights
