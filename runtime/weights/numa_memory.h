// Where memory lies on a machine of several memory nodes. Numbers are the system's (sys/devices/system/node/nodeN).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/weights/system_files.h"

namespace ktc::weights {

// Bytes of a node that are free or hold page cache; nullopt when the system does not say.
std::optional<std::uint64_t> node_room(int node, const SystemRoots& roots = {});

// Pages of [begin, begin + bytes) that are touched from now on come from the node: from it alone when `strict` (the system then
// gives up page cache there, and ends the process where that is not enough), otherwise from elsewhere where it is full. `begin`
// is page-aligned. Errors: the system refuses (no such node, a container's filter); nothing changes then.
Status bind_memory(const std::byte* begin, std::size_t bytes, int node, bool strict);

// The calling thread runs on these CPUs alone from now on, if the system lets it. No CPUs: nothing happens.
void stay_on(const std::vector<int>& cpus);

}  // namespace ktc::weights
