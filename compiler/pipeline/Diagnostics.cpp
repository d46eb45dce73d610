#include "compiler/pipeline/Diagnostics.h"

#include <algorithm>

#include "dialects/kt/KtWalk.h"
#include "mlir/IR/Remarks.h"

namespace ktc::compiler {
namespace {

std::string oneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The user's line first: the policy's rule where one decided, then the family's line, or the line of parsed text.
std::string placeOf(mlir::Location location) {
  std::string family = kt::locationText(location), rule = kt::ruleText(location);
  if (rule.empty()) return family;
  return family.empty() ? rule : rule + " (" + family + ")";
}

class RemarkLines : public mlir::remark::detail::MLIRRemarkStreamerBase {
 public:
  explicit RemarkLines(std::vector<std::string>& lines) : lines_(lines) {}
  void streamOptimizationRemark(const mlir::remark::detail::Remark& remark) override {
    std::string text = (remark.getCombinedCategoryName() + ": " + remark.getRemarkName() + ":").str();
    for (const mlir::remark::detail::Remark::Arg& arg : remark.getArgs()) {
      text += " " + (arg.key == "Remark" ? arg.val : arg.key + " " + arg.val);
    }
    std::string place = placeOf(remark.getLocation());
    lines_.push_back(oneLine(place.empty() ? text : place + ": " + text));
  }

 private:
  std::vector<std::string>& lines_;
};

}  // namespace

DiagnosticCollector::DiagnosticCollector(mlir::MLIRContext& context, std::vector<std::string>* remarks)
    : handler_(&context, [this](mlir::Diagnostic& diagnostic) {
        if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error && text_.empty()) {
          place_ = placeOf(diagnostic.getLocation());
          text_ = oneLine(diagnostic.str());
        }
        return mlir::success();
      }) {
  if (remarks == nullptr) return;
  mlir::remark::RemarkCategories every;
  every.passed = every.missed = every.analysis = every.failed = ".*";  // `all` alone enables nothing in MLIR 22
  // fails only without a streamer
  (void)mlir::remark::enableOptimizationRemarks(context, std::make_unique<RemarkLines>(*remarks),
                                                std::make_unique<mlir::remark::RemarkEmittingPolicyAll>(), every);
}

Status DiagnosticCollector::status(StatusCode code, std::string remedy) const {
  return make_error(code,
                    {.place = place_, .what = text_.empty() ? "unknown error" : text_, .remedy = std::move(remedy)});
}

}  // namespace ktc::compiler
