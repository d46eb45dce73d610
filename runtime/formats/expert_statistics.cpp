#include "runtime/formats/expert_statistics.h"

namespace ktc {

std::string to_json(const ExpertStatistics& statistics) {
  std::string text = "{\"tokens\": " + std::to_string(statistics.tokens) + ", \"layers\": {";
  const char* between = "\n";
  for (const auto& [layer, counts] : statistics.layers) {
    text += between;
    text += "\"" + std::to_string(layer) + "\": [";
    for (std::size_t e = 0; e < counts.size(); ++e) text += (e == 0 ? "" : ", ") + std::to_string(counts[e]);
    text += "]";
    between = ",\n";
  }
  return text + "\n}}\n";
}

}  // namespace ktc
