// How an op is cut into work items. Pure functions of shapes and the number of workers; results never depend on a cut.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ktc::exec {

constexpr std::size_t kLine = 16;                          // floats in a cache line: no two workers share one
constexpr std::size_t kBlockBytes = std::size_t{256} << 10;  // of weights, or of activations, that one item keeps in L2
constexpr std::size_t kItemsPerWorker = 4;                 // dynamic claiming evens out what a static cut does not
constexpr std::size_t kMinimumWork = std::size_t{16} << 10;  // multiply-adds worth one claim: a hand-over costs some 2 us

constexpr std::size_t blocks(std::size_t total, std::size_t block) { return (total + block - 1) / block; }
constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return blocks(value, unit) * unit; }

// Columns of one item when each of `outer` parts (experts, row blocks, heads) has `columns` of them and a column of weights is
// `column_bytes` long: small enough for the cache and for `workers` to share evenly, whole cache lines of the output.
constexpr std::size_t column_block(std::size_t columns, std::size_t column_bytes, std::size_t outer, std::size_t workers) {
  const std::size_t cache = std::max(kLine, kBlockBytes / std::max<std::size_t>(1, column_bytes) / kLine * kLine);
  const std::size_t items = kItemsPerWorker * workers;
  const std::size_t fair = workers == 1 ? columns : blocks(columns * std::max<std::size_t>(1, outer), items);
  return std::min(std::max<std::size_t>(1, columns), std::min(cache, round_up(std::max<std::size_t>(1, fair), kLine)));
}

// Rows of one item when a row of activations is `row_bytes` long.
constexpr std::size_t row_block(std::size_t rows, std::size_t row_bytes) {
  const std::size_t cache = std::clamp(kBlockBytes / std::max<std::size_t>(1, row_bytes), std::size_t{16}, std::size_t{256});
  return std::max<std::size_t>(1, std::min(rows, cache));
}

// Items per claim, for items of `work` multiply-adds (or, for memory-bound ones, elements).
constexpr std::size_t claim_grain(std::size_t work) {
  return std::max<std::size_t>(1, kMinimumWork / std::max<std::size_t>(1, work));
}

}  // namespace ktc::exec
