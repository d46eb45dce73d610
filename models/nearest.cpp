#include "models/nearest.h"

#include <algorithm>
#include <cstddef>

namespace ktc {
namespace {

// Optimal string alignment distance; stops early with a value above `limit` when no row can end at or below it.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t n = b.size();
  std::vector<std::size_t> before(n + 1), previous(n + 1), current(n + 1);
  for (std::size_t j = 0; j <= n; ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    std::size_t smallest = i;
    for (std::size_t j = 1; j <= n; ++j) {
      const std::size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
      smallest = std::min(smallest, current[j]);
    }
    if (smallest > limit) return limit + 1;
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[n];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 256;  // keeps hostile names cheap
  if (name.size() > kLongest) return {};
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    std::size_t limit = std::max(name.size(), candidate.size()) / 3;
    if (best) limit = std::min(limit, best_distance - 1);
    const std::size_t gap =
        name.size() > candidate.size() ? name.size() - candidate.size() : candidate.size() - name.size();
    if (gap > limit) continue;
    const std::size_t distance = edit_distance(name, candidate, limit);
    if (distance > limit) continue;
    best = &candidate;
    best_distance = distance;
    if (distance == 0) break;
  }
  return best ? *best : std::string();
}

}  // namespace ktc
