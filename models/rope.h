// Rotary embedding: from the config's spellings, old and new, to frequencies. Formulas: YaRN (Peng et al. 2023), the
// linear and llama3 scalings; DeepSeek's temperature in the softmax scale. Computed in double, stored in float32.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/json_reader.h"
#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::models {

// One record from whichever spelling the config uses.
struct RopeConfig {
  std::string type = "default";          // default, linear, yarn, llama3
  double theta = 0;                      // base, above 1
  double factor = 1;                     // how many times longer the context is, at least 1 (linear, yarn, llama3)
  double original_positions = 0;         // yarn, llama3: positions seen in training
  double beta_fast = 32, beta_slow = 1;  // yarn: rotations at which blending begins and ends
  bool truncate = true;                  // yarn: round the blend's borders to whole dimensions
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  double low_freq_factor = 1, high_freq_factor = 4;                // llama3
};

// Reads the keys that `keys` names from a parsed config.json. `config_file` stands for it in messages.
// Where rope_parameters and the old keys disagree, rope_parameters wins with a warning that names both (as transformers
// 5 does); a base that is nowhere is an error, never a default. Types that `keys` does not list are errors.
Expected<RopeConfig> read_rope_config(const Json& config, const RopeKeys& keys, double max_positions,
                                      const std::string& config_file, std::vector<std::string>* warnings);

// `dim` is even and at least 2.
RopeDesc resolve_rope(const RopeConfig& config, RopeStyle style, std::uint32_t dim, bool temperature_in_softmax);

}  // namespace ktc::models
