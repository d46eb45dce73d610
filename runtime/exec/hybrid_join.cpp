#include "runtime/exec/hybrid_join.h"

#include <optional>
#include <span>

#include "runtime/formats/launch_groups.h"

namespace ktc::exec {
namespace {

using Members = std::span<const StepJoiner::Args* const>;

Joinable kind_of(const StepJoiner::Args& args) {
  constexpr Joinable kKinds[] = {Joinable::await, Joinable::add_norm, Joinable::route,
                                 Joinable::publish};  // as StepJoiner::Args
  static_assert(std::size(kKinds) == std::variant_size_v<StepJoiner::Args>);
  return kKinds[args.index()];
}

template <typename Args, typename SetRows>
std::optional<Launch> launch(int (*fn)(const Args&, void*), const Args& args, const SetRows& set_rows) {
  if (fn == nullptr) return std::nullopt;
  return [fn, args, set_rows](device::Stream& stream, const Counts& counts) -> Status {
    if (counts.tokens == 0) return {};
    Args now = args;
    set_rows(now, counts.tokens);
    return stream.launch(fn, now);
  };
}

// await, add_norm
std::optional<Launch> await_norm(const gpu::KernelSet& kernels, Members members) {
  gpu::AwaitNormArgs args = {std::get<gpu::AwaitArgs>(*members[0]), std::get<gpu::AddNormArgs>(*members[1]), 0};
  while (args.term < args.norm.count && args.norm.in[args.term].data != args.await.out.data) ++args.term;
  if (args.term == args.norm.count) return std::nullopt;
  return launch(kernels.await_norm, args,
                [](gpu::AwaitNormArgs& a, std::uint32_t rows) { a.await.rows = a.norm.rows = rows; });
}

// add_norm, route
std::optional<Launch> norm_route(const gpu::KernelSet& kernels, Members members) {
  const gpu::NormRouteArgs args = {std::get<gpu::AddNormArgs>(*members[0]), std::get<gpu::RouteArgs>(*members[1])};
  return launch(kernels.norm_route, args, [](gpu::NormRouteArgs& a, std::uint32_t rows) { a.norm.rows = a.route.rows = rows; });
}

// [add_norm,] route, publish
std::optional<Launch> route_publish(const gpu::KernelSet& kernels, Members members) {
  gpu::RoutePublishArgs args = {};
  if (members.size() == 3) args.norm = std::get<gpu::AddNormArgs>(*members[0]);
  args.route = std::get<gpu::RouteArgs>(*members[members.size() - 2]);
  args.publish = std::get<gpu::PublishArgs>(*members.back());
  return launch(kernels.route_publish, args, [](gpu::RoutePublishArgs& a, std::uint32_t rows) {
    a.norm.rows = a.route.rows = a.publish.rows = rows;
  });
}

// By the name of the kernel.
constexpr struct {
  std::string_view kernel;
  std::optional<Launch> (*make)(const gpu::KernelSet& kernels, Members members);
} kMakers[] = {{"await_norm", await_norm}, {"norm_route", norm_route}, {"route_publish", route_publish}};

std::optional<Launch> make(const LaunchSequence& row, const gpu::KernelSet& kernels, Members members) {
  for (const auto& maker : kMakers)
    if (maker.kernel == row.kernel) return maker.make(kernels, members);
  return std::nullopt;
}

}  // namespace

void StepJoiner::join(HybridProgram& program) const {
  for (const auto& [group, steps] : groups_) {
    std::vector<const Args*> members;
    std::vector<Joinable> kinds;
    for (const std::size_t step : steps) {
      const auto seen = seen_.find(step);
      if (seen == seen_.end()) break;
      members.push_back(&seen->second.args);
      kinds.push_back(kind_of(seen->second.args));
    }
    const LaunchSequence* row = members.size() == steps.size() ? find_launch_sequence(kinds) : nullptr;
    if (row == nullptr) continue;
    std::optional<Launch> joined = make(*row, *seen_.at(steps.front()).kernels, members);
    if (!joined) continue;
    for (const std::size_t step : steps) program.steps[step].launches.clear();
    program.steps[steps.back()].launches.push_back(std::move(*joined));
  }
}

}  // namespace ktc::exec
