#include "runtime/exec/hybrid_join.h"

#include <cstdint>

namespace ktc::exec {
namespace {

constexpr std::size_t kNone = SIZE_MAX;

bool same(const gpu::Matrix& a, const gpu::Matrix& b) { return a.data == b.data && a.stride == b.stride && a.columns == b.columns; }

// The step of the same GPU and graph in front of this one.
std::size_t before(const HybridProgram& program, std::size_t step) {
  const HybridStep& own = program.steps[step];
  for (std::size_t i = step; i-- > 0;) {
    const HybridStep& other = program.steps[i];
    if (other.kind == planfb::StepKind::compute || other.gpu != own.gpu) continue;
    return other.graph == own.graph && own.graph != plan::kNone ? i : kNone;
  }
  return kNone;
}

bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// Whether a router leaves alone what the sum in front of it reads. In a launch of their own they may share memory, for the sum is done
// when the router begins; in one launch, blocks still add while others write logits. kt-plan-memory keeps them apart.
bool leaves_alone(const gpu::RouteArgs& route, const gpu::AddNormArgs& norm, std::uint64_t rows) {
  for (std::uint32_t i = 0; i < norm.count; ++i) {
    const void* in = norm.in[i].data;
    const std::uint64_t bytes = rows * norm.in[i].stride * sizeof(float);
    if (overlap(in, bytes, route.scratch.data, route.scratch.bytes) || overlap(in, bytes, route.ids.data, rows * route.ids.stride * 4) ||
        overlap(in, bytes, route.weights.data, rows * route.weights.stride * sizeof(float)))
      return false;
  }
  return true;
}

template <typename Args, typename SetRows>
Launch launch(int (*fn)(const Args&, void*), const Args& args, const SetRows& set_rows) {
  return [fn, args, set_rows](device::Stream& stream, const Counts& counts) -> Status {
    if (counts.tokens == 0) return {};
    Args now = args;
    set_rows(now, counts.tokens);
    return stream.launch(fn, now);
  };
}

}  // namespace

void StepJoiner::join(HybridProgram& program) const {
  for (const auto& [step, seen] : seen_) {
    const std::size_t first = before(program, step);
    if (first == kNone) continue;
    std::vector<Launch>& launches = program.steps[step].launches;
    if (const auto* norm = at<gpu::AddNormArgs>(step)) {
      const auto* await = at<gpu::AwaitArgs>(first);
      if (await == nullptr || seen.kernels->await_norm == nullptr) continue;
      for (std::uint32_t i = 0; i < norm->count; ++i) {
        if (!same(norm->in[i], await->out)) continue;
        program.steps[first].launches.clear();
        launches = {launch(seen.kernels->await_norm, gpu::AwaitNormArgs{*await, *norm, i}, [](gpu::AwaitNormArgs& a, std::uint32_t rows) {
          a.await.rows = a.norm.rows = rows;
        })};
        break;
      }
    } else if (const auto* publish = at<gpu::PublishArgs>(step)) {
      const auto* route = at<gpu::RouteArgs>(first);
      if (route == nullptr || seen.kernels->route_publish == nullptr || !same(route->x, publish->x) || !same(route->weights, publish->weights) ||
          route->ids.data != publish->ids.data || route->ids.stride != publish->ids.stride)
        continue;
      gpu::RoutePublishArgs args = {{}, *route, *publish};
      program.steps[first].launches.clear();
      const std::size_t second = before(program, first);
      const auto* norm = second == kNone ? nullptr : at<gpu::AddNormArgs>(second);
      // one that has joined an await already has another launch than its own, which must stay
      const bool taken = norm != nullptr && before(program, second) != kNone && at<gpu::AwaitArgs>(before(program, second)) != nullptr;
      if (norm != nullptr && !taken && same(norm->out, route->x) && leaves_alone(*route, *norm, program.bounds.max_tokens)) {
        args.norm = *norm;
        program.steps[second].launches.clear();
      }
      launches = {launch(seen.kernels->route_publish, args, [](gpu::RoutePublishArgs& a, std::uint32_t rows) {
        a.norm.rows = a.route.rows = a.publish.rows = rows;
      })};
    }
  }
}

}  // namespace ktc::exec
