#include "placement/quality_cost.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ktc::placement {

double format_cost_percent(Format weights, std::uint32_t group) {
  if (weights == Format::int8) return 0.034;
  if (weights == Format::fp8) return 0.34;
  if (weights != Format::int4) return 0;
  return group == 32 ? 1.066 : group == 64 ? 1.316 : group == 128 ? 1.45 : 1.581;
}

double deferral_cost_percent(double late, std::uint32_t top_k) {
  constexpr std::array kCost{0.0, 0.099, 0.248, 0.509, 1.072, 2.255, 4.782, 11.938, 63.330};
  if (late <= 0 || top_k == 0) return 0;
  const double at = std::min(late / top_k, 1.0) * 8;
  const auto below = std::min(static_cast<std::size_t>(at), kCost.size() - 2);
  const double part = at - static_cast<double>(below);
  return kCost[below] * (1 - part) + kCost[below + 1] * part;
}

double expected_cost_percent(const models::ModelDesc& model, const Placement& placement, const Policy& policy, double hit_rate) {
  double cold = 0, layers = 0, hot = 0;
  std::uint32_t top_k = 0;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const models::Module& module = model.modules[i];
    if (const auto* router = std::get_if<models::RouterDesc>(&module.attributes)) top_k = std::max(top_k, router->top_k);
    if (module.cls != models::ModuleClass::RoutedExperts) continue;
    cold += format_cost_percent(placement.modules[i].weights, placement.modules[i].group);
    ++layers;
  }
  if (layers == 0) return 0;
  cold /= layers;
  for (const HotExperts& layer : placement.hot) hot = std::max(hot, format_cost_percent(layer.weights, layer.group));
  double late = std::min(policy.defer.max_per_token, top_k);
  if (policy.defer.scope == DeferScope::cpu) late = std::min(late, top_k * (1 - hit_rate));
  return cold * (1 - hit_rate) + hot * hit_rate + deferral_cost_percent(late, top_k);
}

}  // namespace ktc::placement
