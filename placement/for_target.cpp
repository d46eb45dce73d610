#include "placement/for_target.h"

#include <fmt/format.h>

#include <algorithm>

namespace ktc::placement {

Policy for_target(Policy policy, const Target& target) {
  if (!policy.best_effort) return policy;
  const auto missing = [&](const std::string& device) { return device != "cpu" && !target.has_device(device); };
  const auto replace = [&](const Position& position, std::string what, std::string requested, std::string granted, std::string why) {
    policy.replaced.push_back({to_string(position), std::move(what), std::move(requested), std::move(granted), std::move(why)});
  };
  const std::string only = fmt::format("target '{}' has {}", target.name, target.list_devices());

  for (Rule& rule : policy.rules) {
    if (!missing(rule.place.device)) continue;
    replace(rule.place.device_position, "device", rule.place.device, "cpu", only);
    rule.place.device = "cpu";
  }
  ExpertsPolicy& experts = policy.experts;
  for (std::size_t i = experts.gpu_devices.size(); i-- > 0;) {
    if (!missing(experts.gpu_devices[i])) continue;
    if (experts.gpu_devices.size() > 1)  // the others take its experts
      replace(experts.gpu_device_positions[i], "device of hot experts", experts.gpu_devices[i], "none", only);
    else if (!experts.on_gpu.none())
      replace(experts.on_gpu_position, "hot experts", to_string(experts.on_gpu), "none", only);
    experts.gpu_devices.erase(experts.gpu_devices.begin() + static_cast<std::ptrdiff_t>(i));
    experts.gpu_device_positions.erase(experts.gpu_device_positions.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (experts.gpu_devices.empty()) experts.on_gpu = {}, experts.update_every_tokens = 0;
  std::erase_if(policy.limits, [&](const auto& limit) { return missing(limit.first); });

  const bool gpu = !experts.gpu_devices.empty() || std::any_of(policy.rules.begin(), policy.rules.end(),
                                                               [](const Rule& rule) { return rule.place.device != "cpu"; });
  if (gpu || policy.replaced.empty()) return policy;
  if (policy.batch.stream_chunk > 0)
    replace(policy.batch.position, "stream_chunk", std::to_string(policy.batch.stream_chunk), "none", "no GPU to stream experts to");
  policy.batch.stream_chunk = 0;
  if (policy.defer.max_per_token > 0)
    replace(policy.defer.position, "late experts of a token", std::to_string(policy.defer.max_per_token), "none",
            "no GPU whose work they could run beside");
  policy.defer.max_per_token = 0;
  return policy;
}

}  // namespace ktc::placement
