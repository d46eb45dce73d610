// Attention of a step's tokens over their sequences' caches, cut into items.
//
// Keys are taken in parts of kAttendPart, counted from key 0, and the parts of a token are joined in ascending order. That is so
// whether one worker takes a token's parts one after the other (prefill, short contexts) or several take one each (decode): so
// results depend neither on the number of workers nor on what else is in the step.
#pragma once

#include <algorithm>
#include <cstring>

#include "runtime/exec/partition.h"
#include "runtime/exec/program.h"

namespace ktc::exec {

constexpr std::size_t kAttendPart = 512;   // keys: at 128 bytes each still a multiple of what the joining costs
constexpr std::size_t kMostRunTokens = 8;  // of a sequence, that share one pass over the keys

constexpr std::size_t attend_parts(std::size_t context) { return blocks(context, kAttendPart); }

// What all items of an op have in common.
struct AttendShape {
  std::size_t groups;  // of heads that share a pass; independent of each other
  std::size_t group;   // heads in each but the last, at most kMostAttendRows
  std::size_t heads, width;
  kernels::AttendFn attend;
  kernels::AttendJoinFn join;
};

// A run of tokens, one worker: `args` is that of its first token, with the strides to the next.
inline void attend_run(const AttendShape& shape, kernels::AttendArgs args, std::size_t tokens, float* scratch) {
  float top[kernels::kMostAttendRows], weight[kernels::kMostAttendRows];
  float part_top[kernels::kMostAttendRows], part_weight[kernels::kMostAttendRows];
  const std::size_t most = kernels::kMostAttendRows / args.heads;
  for (std::size_t done = 0; done < tokens; done += args.rows) {
    if (done != 0) {
      args.q += args.rows * args.q_row_stride;
      args.out += args.rows * args.out_row_stride;
      args.context += args.rows;
    }
    args.rows = std::min(most, tokens - done);
    const std::size_t seen = args.context + args.rows - 1;  // by the last row
    if (seen <= kAttendPart) {
      args.top = args.weight = nullptr;
      shape.attend(args);
      continue;
    }
    kernels::AttendArgs part = args;
    part.most = kAttendPart;
    part.top = top;
    part.weight = weight;
    shape.attend(part);
    part.top = part_top;
    part.weight = part_weight;
    part.out = scratch;
    part.out_stride = shape.width;
    part.out_row_stride = args.heads * shape.width;
    const auto join = [&](std::size_t row, const float* values, std::size_t from, bool divide) {
      const std::size_t h = row * args.heads, p = from * args.heads;
      shape.join({args.heads, shape.width, args.out + row * args.out_row_stride, args.out_stride, top + h, weight + h, values,
                  shape.width, part_top + p, part_weight + p, divide});
    };
    for (std::size_t key = kAttendPart; key < seen; key += kAttendPart) {
      const std::size_t begin = key < args.context ? 0 : key - args.context + 1;  // rows before it do not see so far
      part.q = args.q + begin * args.q_row_stride;
      part.context = args.context + begin;
      part.rows = args.rows - begin;
      part.first = key;
      shape.attend(part);
      for (std::size_t r = begin; r < args.rows; ++r)
        join(r, scratch + (r - begin) * part.out_row_stride, r - begin, false);
    }
    for (std::size_t r = 0; r < args.rows; ++r) join(r, nullptr, 0, true);
  }
}

// Single tokens, every part of the keys an item of its own; `parts` is the sum of the tokens' parts.
template <typename ArgsOf>
void attend_split(const AttendShape& shape, const StepState& state, std::size_t parts, const ArgsOf& args_of) {
  float* values = state.attend_parts;  // [parts, heads, width], then tops and weights [parts, heads]
  float* tops = values + parts * shape.heads * shape.width;
  float* weights = tops + parts * shape.heads;
  const auto parts_of = [&](std::size_t t) { return attend_parts(state.token[t].position + std::size_t{1}); };
  state.workers->parallel_for(parts * shape.groups, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t slot = item / shape.groups, g = item % shape.groups;
      std::size_t t = 0, p = slot;
      for (; p >= parts_of(t); ++t) p -= parts_of(t);
      kernels::AttendArgs args = args_of(t, g);
      const std::size_t at = slot * shape.heads + g * shape.group;
      args.first = p * kAttendPart;
      args.most = kAttendPart;
      args.out = values + at * shape.width;
      args.out_stride = shape.width;
      args.top = tops + at;
      args.weight = weights + at;
      shape.attend(args);
    }
  });
  state.workers->parallel_for(state.tokens * shape.heads, claim_grain(parts / state.tokens * shape.width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t t = item / shape.heads, head = item % shape.heads;
      std::size_t slot = 0;
      for (std::size_t before = 0; before < t; ++before) slot += parts_of(before);
      kernels::AttendArgs args = args_of(t, head / shape.group);
      const std::size_t count = parts_of(t);
      kernels::AttendJoinArgs join = {};
      join.heads = 1;
      join.width = shape.width;
      join.out = args.out + head % shape.group * args.out_stride;
      std::memcpy(join.out, values + (slot * shape.heads + head) * shape.width, shape.width * sizeof(float));
      join.top = tops + slot * shape.heads + head;
      join.weight = weights + slot * shape.heads + head;
      for (std::size_t p = 1; p < count; ++p) {
        const std::size_t at = (slot + p) * shape.heads + head;
        join.part = values + at * shape.width;
        join.part_top = tops + at;
        join.part_weight = weights + at;
        join.divide = p + 1 == count;
        shape.join(join);
      }
      if (count == 1) {
        join.divide = true;
        shape.join(join);
      }
    }
  });
}

// args_of(token, group) gives the pointers of one token and one group of heads, `context` and the row strides included.
template <typename ArgsOf>
void attend_phase(const AttendShape& shape, const StepState& state, const ArgsOf& args_of) {
  const std::size_t items = state.run_count * shape.groups;
  if (state.run_count == state.tokens && items < 2 * static_cast<std::size_t>(state.workers->threads())) {
    std::size_t parts = 0;
    for (std::size_t t = 0; t < state.tokens; ++t) parts += attend_parts(state.token[t].position + std::size_t{1});
    if (state.workers->threads() > 1 && parts > state.tokens && parts * shape.heads * (shape.width + 2) <= state.attend_parts_floats)
      return attend_split(shape, state, parts, args_of);
  }
  // dearest first; in prefill the groups are the outer loop, because neighbouring runs read the same keys
  state.workers->parallel_for(items, 1, [&](std::size_t begin, std::size_t end) {
    float* scratch = state.attend_scratch + static_cast<std::size_t>(state.workers->index()) * state.attend_scratch_each;
    for (std::size_t item = begin; item < end; ++item) {
      const TokenRun& run = state.runs[state.prefill ? item % state.run_count : item / shape.groups];
      const std::size_t g = state.prefill ? item / state.run_count : item % shape.groups;
      attend_run(shape, args_of(run.first, g), run.count, scratch);
    }
  });
}

}  // namespace ktc::exec
