// Routing of one token: softmax and sigmoid routers with optional bias and group limit (reference formulas:
// deepseek_v2, deepseek_v3, minimax_m2, softmax_topk). Scalar, because E is a few hundred, and one code for every ISA
// level, so that the choice of experts does not depend on the machine.
#include "runtime/kernels/cpu/kernels.h"
#include "runtime/kernels/cpu/scalar_math.h"

namespace ktc::kernels {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// A NaN would make the order of selection undefined.
float ordered(float score) {
  return score == score ? score : kMinusInfinity;
}

void softmax(const float* logits, std::size_t count, float* out) {
  float top = kMinusInfinity;
  for (std::size_t e = 0; e < count; ++e)
    if (logits[e] > top) top = logits[e];
  float sum = 0.0f;
  for (std::size_t e = 0; e < count; ++e) sum += out[e] = exp_scalar(logits[e] - top);
  for (std::size_t e = 0; e < count; ++e) out[e] /= sum;
}

// deepseek_v3 adds the two best experts of a group, deepseek_v2 (softmax) takes the best.
float group_score(const float* choice, std::size_t size, bool add_second) {
  float first = kMinusInfinity, second = kMinusInfinity;
  for (std::size_t i = 0; i < size; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return add_second && size > 1 ? first + second : first;
}

// Gives every expert outside the `keep` best groups a score that loses against any other.
void limit_groups(float* choice, std::size_t experts, std::size_t groups, std::size_t keep, bool add_second) {
  const std::size_t size = experts / groups;
  float scores[kMaxExperts];
  for (std::size_t g = 0; g < groups; ++g) scores[g] = group_score(choice + g * size, size, add_second);
  for (std::size_t g = 0; g < groups; ++g) {
    std::size_t better = 0;
    for (std::size_t h = 0; h < groups; ++h) better += scores[h] > scores[g] || (scores[h] == scores[g] && h < g);
    if (better < keep) continue;
    for (std::size_t i = 0; i < size; ++i) choice[g * size + i] = kMinusInfinity;
  }
}

// ids of the top_k largest scores, descending, ties by the lower id.
void select(const float* choice, std::size_t experts, std::size_t top_k, std::int32_t* ids) {
  std::size_t filled = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    std::size_t at = filled;
    while (at > 0 && choice[e] > choice[ids[at - 1]]) --at;
    if (at == top_k) continue;
    if (filled < top_k) ++filled;
    for (std::size_t i = filled - 1; i > at; --i) ids[i] = ids[i - 1];
    ids[at] = static_cast<std::int32_t>(e);
  }
}

}  // namespace

void route_token(const RouteArgs& args) {
  float score[kMaxExperts], choice[kMaxExperts];
  if (args.sigmoid) {
    for (std::size_t e = 0; e < args.experts; ++e) score[e] = sigmoid_scalar(args.logits[e]);
  } else {
    softmax(args.logits, args.experts, score);
  }
  for (std::size_t e = 0; e < args.experts; ++e)
    choice[e] = ordered(args.bias != nullptr ? score[e] + args.bias[e] : score[e]);
  if (args.groups > 1 && args.topk_groups < args.groups)
    limit_groups(choice, args.experts, args.groups, args.topk_groups, args.sigmoid);
  select(choice, args.experts, args.top_k, args.ids);

  float sum = 1e-20f;  // of the formula: no division by zero when every sigmoid underflows
  for (std::size_t i = 0; i < args.top_k; ++i) sum += args.weights[i] = score[args.ids[i]];
  for (std::size_t i = 0; i < args.top_k; ++i) {
    if (args.normalise) args.weights[i] /= sum;
    args.weights[i] *= args.scale;
  }
}

}  // namespace ktc::kernels
