// Reads what `experts.statistics` of a policy names: counts by model layer (runtime/formats/expert_statistics.h has the format).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_desc.h"
#include "placement/strategies.h"
#include "runtime/base/status.h"

namespace ktc::placement {

using CountsByLayer = std::map<std::uint32_t, std::vector<std::uint64_t>>;

// Errors name `file` and what is wrong: no JSON, another key, a layer that is no number, a count that is no integer from 0. Counts
// whose sum over all layers exceeds 64 bits are refused.
Expected<CountsByLayer> parse_expert_statistics(std::string_view text, const std::string& file);
// Errors besides those: the file cannot be read, or has more than 64 MiB.
Expected<CountsByLayer> read_expert_statistics(const std::filesystem::path& path);

// The rows of a model's MoE layers, in its order. Error: a layer without counts, or with another number of experts.
Expected<ExpertCounts> counts_of(const models::ModelDesc& model, const CountsByLayer& layers);

}  // namespace ktc::placement
