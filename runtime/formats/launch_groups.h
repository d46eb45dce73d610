// Which steps of a GPU are one launch together: a launch less is two microseconds less, and what one step leaves for
// the next need not go through memory. One table for all: kt-join-launches marks the steps of a decode entry that match
// a row, plans are refused whose marks match none, and the executor has a kernel for each row
// (runtime/exec/hybrid_join.cpp). All buffers are written as by the steps one by one, so whoever has no such kernel
// runs them so.
//
// A new joint kernel takes a row of kLaunchSequences, the lines of kHandedOn for pairs that are new, and a maker of its
// arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ktc {

// Steps that occur in the table, by what they do; `other`: all that do not.
enum class Joinable : std::uint8_t { other, await, add_norm, route, publish };
constexpr std::string_view to_string(Joinable step) {
  constexpr std::string_view kNames[] = {"another step", "await", "add_norm", "route", "publish"};
  return kNames[static_cast<std::size_t>(step)];
}

constexpr std::size_t kMostJoined = 4;
struct LaunchSequence {
  std::string_view kernel;  // of runtime/kernels/cuda/gpu_kernels.def
  std::size_t count;        // of steps
  Joinable steps[kMostJoined];
  constexpr std::span<const Joinable> all() const { return {steps, count}; }
};

// Steps that follow each other on their GPU and in one graph. Where several match, the longest is taken.
inline constexpr LaunchSequence kLaunchSequences[] = {
    {"await_norm", 2, {Joinable::await, Joinable::add_norm}},
    {"norm_route", 2, {Joinable::add_norm, Joinable::route}},
    {"route_publish", 2, {Joinable::route, Joinable::publish}},
    {"route_publish", 3, {Joinable::add_norm, Joinable::route, Joinable::publish}},
};

constexpr const LaunchSequence* find_launch_sequence(std::span<const Joinable> steps) {
  for (const LaunchSequence& row : kLaunchSequences) {
    bool equal = row.count == steps.size();
    for (std::size_t i = 0; equal && i < row.count; ++i) equal = row.steps[i] == steps[i];
    if (equal) return &row;
  }
  return nullptr;
}

// What a step must take from the one in front of it for both to be one launch: operand `to` of the second is result or
// operand `from` of the first. Operands and results count as in the plan (plan.fbs) and in the dialect. kAnyTerm:
// exactly one of its operands.
constexpr std::uint8_t kAnyTerm = 255;
struct HandedOn {
  Joinable first, second;
  bool is_result;  // false: both read it
  std::uint8_t from, to;
};
inline constexpr HandedOn kHandedOn[] = {
    {Joinable::await, Joinable::add_norm, true, 0, kAnyTerm},  // the result is a term of the sum
    {Joinable::add_norm, Joinable::route, true, 1, 0},         // the normed sum is routed
    {Joinable::route, Joinable::publish, false, 0, 0},         // x
    {Joinable::route, Joinable::publish, true, 0, 1},          // ids
    {Joinable::route, Joinable::publish, true, 1, 2},          // weights
};

// Whether all lines of the pair hold, and there is one. operands, results: of the first step; taken: operands of the
// second. same(a, b): both are one value.
template <typename Operands, typename Results, typename Same>
bool hands_on(Joinable first, Joinable second, const Operands& operands, const Results& results, const Operands& taken,
              const Same& same) {
  bool found = false;
  for (const HandedOn& line : kHandedOn) {
    if (line.first != first || line.second != second) continue;
    if (line.from >= (line.is_result ? results.size() : operands.size())) return false;
    std::size_t matches = 0;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (line.to != kAnyTerm && line.to != i) continue;
      matches += line.is_result ? same(results[line.from], taken[i]) : same(operands[line.from], taken[i]);
    }
    if (matches != 1) return false;
    found = true;
  }
  return found;
}

}  // namespace ktc
