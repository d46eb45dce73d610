// The closed list of what a plan leaves to run time. None of it changes a format; docs/plan-format.md says what each
// option is.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "runtime/plan/plan.h"

namespace ktc::plan {

// Names of choices, and of the options that this reader knows.
inline constexpr std::string_view kHandoffChoice = "handoff";    // automatic, doorbell, hostnode
inline constexpr std::string_view kIsaChoice = "isa";            // best, or a level of runtime/base/cpu_features.h
inline constexpr std::string_view kProductsChoice = "products";  // own, library
inline constexpr std::string_view kSamplingChoice = "sampling";  // device, host
inline constexpr std::string_view kUpdateChoice = "update";      // auto, on, off

// What this plan permits, ascending by name: all there is of what its steps have a use for, the default first. Of a
// verified plan, or one that is about to be.
std::vector<std::unique_ptr<planfb::ChoiceT>> permitted_choices(const planfb::PlanT& plan);

// The plan's choice of this name. Null: none.
const planfb::ChoiceT* find_choice(const planfb::PlanT& plan, std::string_view name);

// Whether the plan permits `option`. flag: for the message, "--handoff". A plan from before the list permits
// everything.
Status check_choice(const planfb::PlanT& plan, std::string_view name, std::string_view option, std::string_view flag);

}  // namespace ktc::plan
