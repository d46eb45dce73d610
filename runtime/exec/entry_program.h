// A decode or extend entry as the executor runs it: its steps in order and where its inputs and outputs lie.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "runtime/exec/panel_steps.h"
#include "runtime/exec/program.h"

namespace ktc::exec {

using Step = std::variant<EmbedStep, NormStep, LinearStep, GqaStep, MlaStep, RouteStep, ExpertsStep, MlpStep, AddStep,
                          AddNormStep, SelectRowsStep, PanelLinearStep, PanelMlpStep, PanelExpertsStep>;

// A decode or extend entry.
struct Program {
  std::uint32_t entry = 0;  // index in Plan.entries
  bool decode = false;
  std::uint32_t max_tokens = 0, max_rows = 0, max_sequences = 0;
  std::vector<Step> steps;
  std::vector<std::string> names;  // of the steps, for observers
  std::vector<Ids> ids, positions, output_rows, deferred;  // inputs; most entries have one of each at most
  Matrix logits;
};

}  // namespace ktc::exec
