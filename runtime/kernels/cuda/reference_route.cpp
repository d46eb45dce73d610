// Reference: the router, with the formulas and the order of runtime/kernels/cpu/route.cpp.
#include <cmath>

#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"

namespace ktc::gpu {

using namespace reference;

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// a beats b: the larger choice, of equal ones the lower id. NaN counts as minus infinity before this is called.
struct Choice {
  const RouteArgs& a;
  const float* logits;
  float top = kMinusInfinity, sum = 0;  // of the softmax

  explicit Choice(const RouteArgs& args, const float* row) : a(args), logits(row) {
    if (a.sigmoid) return;
    for (std::size_t e = 0; e < a.experts; ++e)
      if (logits[e] > top) top = logits[e];
    for (std::size_t e = 0; e < a.experts; ++e) sum += exp_plain(logits[e] - top);
  }
  float score(std::size_t e) const { return a.sigmoid ? sigmoid_plain(logits[e]) : exp_plain(logits[e] - top) / sum; }
  float of(std::size_t e) const {
    const float value = a.bias != nullptr ? score(e) + a.bias[e] : score(e);
    return value == value ? value : kMinusInfinity;
  }
  float group_score(std::size_t g) const {
    const std::size_t size = a.experts / a.groups;
    float first = kMinusInfinity, second = kMinusInfinity;
    for (std::size_t i = 0; i < size; ++i) {
      const float value = of(g * size + i);
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    return a.sigmoid && size > 1 ? first + second : first;
  }
};

}  // namespace

int route_reference(const RouteArgs& a, void*) {
  if (a.scratch.bytes / 4 / (a.rows == 0 ? 1 : a.rows) < a.experts) return 1;
  float* logits = reinterpret_cast<float*>(a.scratch.data);
  product(a.w, a.w.data, a.rows, Format::f32, [&](std::size_t r) { return row_of(a.x, r); },
          [&](std::size_t r, std::size_t e, float sum) { logits[r * a.experts + e] = sum; });
  for (std::size_t r = 0; r < a.rows; ++r) {
    float* row = logits + r * a.experts;
    const Choice choice(a, row);
    const bool limited = a.groups > 1 && a.topk_groups < a.groups;
    const auto kept = [&](std::size_t e) {
      if (!limited) return true;
      const std::size_t g = e / (a.experts / a.groups);
      const float own = choice.group_score(g);
      std::size_t better = 0;
      for (std::size_t h = 0; h < a.groups; ++h) {
        const float other = choice.group_score(h);
        better += other > own || (other == own && h < g);
      }
      return better < a.topk_groups;
    };
    std::int32_t* ids = row_of(a.ids, r);
    float* weights = row_of(a.weights, r);
    float sum = 1e-20f;
    // insertion into the list of the best, as on the CPU; `values` lie in `weights` until the end
    std::size_t filled = 0;
    bool keep = true;
    for (std::size_t e = 0; e < a.experts; ++e) {
      if (!limited || e % (a.experts / a.groups) == 0) keep = kept(e);
      const float value = keep ? choice.of(e) : kMinusInfinity;
      std::size_t at = filled;
      while (at > 0 && value > weights[at - 1]) --at;
      if (at == a.top_k) continue;
      if (filled < a.top_k) ++filled;
      for (std::size_t i = filled - 1; i > at; --i) {
        ids[i] = ids[i - 1];
        weights[i] = weights[i - 1];
      }
      ids[at] = static_cast<std::int32_t>(e);
      weights[at] = value;
    }
    for (std::size_t k = 0; k < a.top_k; ++k) sum += weights[k] = choice.score(static_cast<std::size_t>(ids[k]));
    for (std::size_t k = 0; k < a.top_k; ++k) {
      if (a.normalise) weights[k] /= sum;
      weights[k] *= a.scale;
    }
  }
  return 0;
}

}  // namespace ktc::gpu
