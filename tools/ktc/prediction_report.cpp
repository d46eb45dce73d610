#include "tools/ktc/prediction_report.h"

#include <fmt/format.h>

namespace ktc::tools {
namespace {

struct Part {
  const char* name;
  double us;
};

std::vector<Part> parts_of(const placement::StepParts& parts) {
  return {{"CPU experts", parts.cpu_experts}, {"CPU other", parts.cpu_other}, {"GPU attention", parts.gpu_attention},
          {"GPU dense", parts.gpu_dense},     {"hot experts", parts.gpu_hot}, {"head", parts.head},
          {"hand-off", parts.handoff},        {"PCIe", parts.pcie},           {"fixed kernel times", parts.kernels}};
}

}  // namespace

std::string prediction_text(const placement::Prediction& prediction) {
  std::string text = fmt::format("\npredicted (decode at {} tokens of context)\n", prediction.context);
  for (const placement::StepCost& step : prediction.steps) {
    const double bound = step.critical[static_cast<std::size_t>(step.bound)];
    text += fmt::format("  {:<14}{:>10.1f} tokens/s {:>12.0f} us, bound by {} ({:.0f} %)", step.entry, step.tokens_per_second,
                        step.us, to_string(step.bound), step.us > 0 ? 100 * bound / step.us : 0);
    if (step.cold_experts > 0 || step.hit_rate > 0)
      text += fmt::format("; {:.1f} cold experts a layer, {:.1f} % of pairs hit hot ones", step.cold_experts, 100 * step.hit_rate);
    text += "\n";
    std::string line;
    for (const Part& part : parts_of(step.parts))
      if (part.us >= 0.5) line += fmt::format("{}{} {:.0f}", line.empty() ? "" : ", ", part.name, part.us);
    text += fmt::format("  {:<14}us of parts, which overlap: {}\n", "", line);
  }
  for (const std::string& note : prediction.notes) text += "note      " + note + "\n";
  return text;
}

llvm::json::Object prediction_json(const placement::Prediction& prediction) {
  llvm::json::Array steps, notes;
  // six digits: what lies below is no prediction, and equal files on every machine are worth more
  const auto rounded = [](double value) { return std::stod(fmt::format("{:.6g}", value)); };
  for (const placement::StepCost& step : prediction.steps) {
    llvm::json::Object parts, critical;
    for (const Part& part : parts_of(step.parts)) parts[part.name] = rounded(part.us);
    for (std::size_t i = 0; i < placement::kBounds; ++i)
      critical[llvm::StringRef(to_string(static_cast<placement::Bound>(i)))] = rounded(step.critical[i]);
    steps.push_back(llvm::json::Object{{"entry", step.entry},
                                       {"tokens_per_second", rounded(step.tokens_per_second)},
                                       {"microseconds", rounded(step.us)},
                                       {"bound", std::string(to_string(step.bound))},
                                       {"cold_experts", rounded(step.cold_experts)},
                                       {"hit_rate", rounded(step.hit_rate)},
                                       {"parts", std::move(parts)},
                                       {"critical", std::move(critical)}});
  }
  for (const std::string& note : prediction.notes) notes.push_back(note);
  return llvm::json::Object{{"context", static_cast<std::int64_t>(prediction.context)}, {"steps", std::move(steps)}, {"notes", std::move(notes)}};
}

}  // namespace ktc::tools
