// Cuts a text for perplexity.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace ktc::run {

struct Windows {
  struct Range {
    std::size_t first, count;
  };
  std::vector<std::int32_t> ids;
  std::vector<Range> ranges;
  std::span<const std::int32_t> window(std::size_t w) const {
    return std::span(ids).subspan(ranges[w].first, ranges[w].count);
  }
};

// Windows of `predictions` + 1 ids, each beginning with the last id of the one before, which conditions: every id but
// the first is predicted exactly once. ids: at least 2; predictions: at least 1.
inline Windows cut_windows(std::vector<std::int32_t> ids, std::size_t predictions) {
  Windows windows;
  for (std::size_t first = 0; first + 1 < ids.size(); first += predictions) {
    windows.ranges.push_back({first, std::min(predictions + 1, ids.size() - first)});
  }
  windows.ids = std::move(ids);
  return windows;
}

}  // namespace ktc::run
