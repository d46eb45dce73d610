// verify_plan: meaning. Each part is in a file of its own; the first failure is the one reported.
#include "runtime/plan/plan.h"

namespace ktc::plan {
namespace {

constexpr const char* kCompileAgain = "compile the model again";

// A plan that was read has none of these; one that was built in memory may.
template <typename T>
Status check_present(const std::vector<std::unique_ptr<T>>& items, const char* name) {
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i] == nullptr)
      return make_error(StatusCode::data_corrupt, {std::string(name) + "[" + std::to_string(i) + "]",
                                                   "the item is missing", "", "", kCompileAgain});
  return {};
}

}  // namespace

Status verify_plan(const planfb::PlanT& plan) {
  if (plan.model == nullptr)
    return make_error(StatusCode::data_corrupt, {"model", "the item is missing", "", "", kCompileAgain});
  KTC_RETURN_IF_ERROR(check_present(plan.devices, "devices"));
  KTC_RETURN_IF_ERROR(check_present(plan.account, "account"));
  KTC_RETURN_IF_ERROR(check_present(plan.weight_files, "weight_files"));
  KTC_RETURN_IF_ERROR(check_present(plan.weights, "weights"));
  KTC_RETURN_IF_ERROR(check_present(plan.ropes, "ropes"));
  KTC_RETURN_IF_ERROR(check_present(plan.caches, "caches"));
  KTC_RETURN_IF_ERROR(check_present(plan.entries, "entries"));
  KTC_RETURN_IF_ERROR(check_present(plan.text_files, "text_files"));
  return {};
}

}  // namespace ktc::plan
