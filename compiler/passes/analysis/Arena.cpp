#include "compiler/passes/analysis/Arena.h"

#include <algorithm>
#include <numeric>

namespace ktc::compiler {
namespace {

uint64_t alignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

std::vector<uint64_t> assignOffsets(std::vector<LiveRange>& ranges, uint32_t arenas) {
  std::vector<std::size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {  // a total order: the index decides last
    if (ranges[a].pinned != ranges[b].pinned) return ranges[a].pinned;
    if (ranges[a].bytes != ranges[b].bytes) return ranges[a].bytes > ranges[b].bytes;
    return a < b;
  });
  std::vector<uint64_t> sizes(arenas, 0);
  std::vector<const LiveRange*> placed;  // by offset
  for (std::size_t index : order) {
    LiveRange& range = ranges[index];
    uint64_t offset = 0;
    for (const LiveRange* other : placed) {
      if (!range.meets(*other)) continue;
      if (offset + range.bytes <= other->offset) break;  // the gap in front of it is large enough
      offset = std::max(offset, alignUp(other->offset + other->bytes, range.alignment));
    }
    range.offset = offset;
    auto at = std::upper_bound(placed.begin(), placed.end(), &range,
                               [](const LiveRange* a, const LiveRange* b) { return a->offset < b->offset; });
    placed.insert(at, &range);
    sizes[range.arena] = std::max(sizes[range.arena], alignUp(offset + range.bytes, range.alignment));
  }
  return sizes;
}

}  // namespace ktc::compiler
