// Route and Experts.
#include <algorithm>
#include <cstring>

#include "runtime/exec/matmul_phase.h"

namespace ktc::exec {

void run_step(const RouteStep& s, const StepState& state) {
  const std::size_t rows = state.count(s.of_rows);
  const Matrix logits = {s.logits, s.experts, s.experts};
  matmul_phase(*state.workers, rows, s.experts, s.w.columns, s.w.row_bytes,
               [&](std::size_t m, std::size_t m_end, std::size_t n, std::size_t n_end) {
                 s.matmul(product_args(s.x, s.w, logits, m, m_end, n, n_end));
               });
  row_phase(*state.workers, rows, 8 * s.experts, [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      kernels::RouteArgs args = {};
      args.logits = s.logits + r * s.experts;
      args.bias = s.bias;
      args.experts = s.experts;
      args.top_k = s.top_k;
      args.groups = s.groups;
      args.topk_groups = s.topk_groups;
      args.sigmoid = s.sigmoid;
      args.normalise = s.normalise;
      args.scale = s.scale;
      args.ids = s.ids.row(r);
      args.weights = s.weights.row(r);
      kernels::route_token(args);
    }
  });
}

namespace {

// A deferred row's late pairs are the `late` lowest of its candidates: pair k is one when fewer than `late` of them are lower.
// Of equal weights the higher id is lower. Top-k is small, and a count needs neither a sort nor memory.
bool is_late(const PairFilter& filter, const std::int32_t* ids, const float* weights, std::size_t top_k, std::size_t k) {
  std::size_t lower = 0;
  for (std::size_t j = 0; j < top_k; ++j) {
    if (filter.among_all ? !filter.is_expert(ids[j]) : filter.slot(ids[j]) < 0) continue;
    lower += weights[j] < weights[k] || (weights[j] == weights[k] && ids[j] > ids[k]);
  }
  return lower < filter.late;
}

// Calls pair(row, k, matrix) for the pairs that the step computes, row by row.
template <typename Pair>
void for_each_pair(const ExpertsStep& s, std::size_t rows, const Pair& pair) {
  const PairFilter& filter = s.filter;
  const bool split = filter.late != 0 && filter.part != PairFilter::Part::all;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int32_t* ids = s.ids.row(r);
    const float* weights = s.weights.row(r);
    const bool deferred = split && filter.deferred.data != nullptr && *filter.deferred.row(r) != 0;
    if (!deferred && filter.part == PairFilter::Part::late) continue;
    for (std::size_t k = 0; k < s.top_k; ++k) {
      const std::int32_t matrix = filter.slot(ids[k]);
      if (matrix < 0) continue;
      if (deferred && is_late(filter, ids, weights, s.top_k, k) != (filter.part == PairFilter::Part::late)) continue;
      pair(r, k, static_cast<std::size_t>(matrix));
    }
  }
}

}  // namespace

std::size_t sort_pairs(const ExpertsStep& s, std::size_t rows) {
  std::fill_n(s.first, s.experts + 1, 0u);
  for_each_pair(s, rows, [&](std::size_t, std::size_t, std::size_t matrix) { ++s.first[matrix + 1]; });
  if (s.activations != nullptr)
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t k = 0; k < s.top_k; ++k)
        if (const std::int32_t id = s.ids.row(r)[k]; s.filter.slot(id) >= 0) ++s.activations[id];
  // The sum is in a register: through memory every expert would wait for the one before, which takes 2 us for 512.
  std::uint32_t* const first = s.first;
  std::size_t active = 0;
  std::uint32_t pairs = 0;
  for (std::size_t e = 0; e < s.experts; ++e) {
    const std::uint32_t count = first[e + 1];
    if (count != 0) s.active[active++] = static_cast<std::uint32_t>(e);
    first[e + 1] = pairs;  // where e begins: its cursor, which ends where e + 1 begins
    pairs += count;
  }
  for_each_pair(s, rows, [&](std::size_t r, std::size_t k, std::size_t matrix) {
    const std::uint32_t pair = first[matrix + 1]++;
    s.pair_row[pair] = static_cast<std::uint32_t>(r);
    s.pair_weight[pair] = s.weights.row(r)[k];
  });
  return active;
}

void run_step(const ExpertsStep& s, const StepState& state) {
  const std::size_t rows = state.count(s.of_rows), threads = static_cast<std::size_t>(state.workers->threads());
  if (rows == 0) return;
  const std::size_t active = sort_pairs(s, rows);
  const auto pairs_of = [&s](std::uint32_t e) { return std::size_t{s.first[e + 1] - s.first[e]}; };

  // Gate and up: one expert and one block of intermediate columns per item, experts with many rows first.
  if (active != 0) {
    std::uint32_t* busiest = state.busy_experts;
    std::copy_n(s.active, active, busiest);
    if (active < rows * s.top_k)
      std::sort(busiest, busiest + active, [&](std::uint32_t a, std::uint32_t b) {
        return pairs_of(a) != pairs_of(b) ? pairs_of(a) > pairs_of(b) : a < b;
      });
    const std::size_t depth = s.gate_up.columns;
    const std::size_t step = column_block(s.intermediate, 2 * s.gate_up.row_bytes, active, threads);
    const std::size_t column_blocks = blocks(s.intermediate, step);
    const std::size_t pairs_each = blocks(rows * s.top_k, active);
    const std::size_t grain = claim_grain(2 * pairs_each * step * depth);
    state.workers->parallel_for(active * column_blocks, grain, [&](std::size_t begin, std::size_t end) {
      for (std::size_t item = begin; item < end; ++item) {
        const std::uint32_t expert = busiest[item / column_blocks];
        const std::size_t n = item % column_blocks * step, pairs = pairs_of(expert);
        const std::size_t row_step = row_block(pairs, depth * sizeof(float));
        for (std::size_t m = 0; m < pairs; m += row_step) {
          const std::size_t pair = s.first[expert] + m;
          kernels::MatmulArgs args = {};
          args.x = s.x.data;
          args.x_stride = s.x.stride;
          args.x_rows = s.pair_row + pair;
          args.w = s.gate_up.matrix(expert);
          args.w_row_bytes = s.gate_up.row_bytes;
          args.y = s.hidden + pair * s.intermediate;
          args.y_stride = s.intermediate;
          args.m = std::min(pairs, m + row_step) - m;
          args.k = depth;
          args.n_begin = n;
          args.n_end = std::min(s.intermediate, n + step);
          s.gate_up_fn(args, s.intermediate);
        }
      }
    });
  }

  // Down: one block of output columns per item, for all rows. Its owner adds the experts in ascending order, so each sum has
  // one order whatever the neighbours and the workers.
  const std::size_t columns = s.out.columns;
  const std::size_t step = column_block(columns, s.down.row_bytes, 1, threads);
  const std::size_t work = rows * s.top_k * step * s.intermediate;
  const std::size_t items = blocks(columns, step);
  state.workers->parallel_for(items, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    if (end == items && state.near != nullptr) state.near->announce();
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t n = item * step, n_end = std::min(columns, n + step);
      for (std::size_t r = 0; r < rows; ++r) std::memset(s.out.row(r) + n, 0, (n_end - n) * sizeof(float));
      for (std::size_t i = 0; i < active; ++i) {
        const std::uint32_t expert = s.active[i];
        const std::size_t pair = s.first[expert];
        kernels::MatmulArgs args = {};
        args.x = s.hidden + pair * s.intermediate;
        args.x_stride = s.intermediate;
        args.w = s.down.matrix(expert);
        args.w_row_bytes = s.down.row_bytes;
        args.y = s.out.data;
        args.y_stride = s.out.stride;
        args.y_rows = s.pair_row + pair;
        args.scale = s.pair_weight + pair;
        args.m = pairs_of(expert);
        args.k = s.intermediate;
        args.n_begin = n;
        args.n_end = n_end;
        s.matmul(args);
      }
    }
  });
}

}  // namespace ktc::exec
