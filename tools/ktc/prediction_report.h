// Predicted times of a plan, for people and as JSON.
#pragma once

#include <string>

#include "llvm/Support/JSON.h"
#include "placement/cost_model.h"

namespace ktc::tools {

// "decode[4]  82.1 tokens/s, 12180 us, bound by CPU bandwidth ..." and a line with the parts, for every step.
std::string prediction_text(const placement::Prediction& prediction);

llvm::json::Object prediction_json(const placement::Prediction& prediction);

}  // namespace ktc::tools
