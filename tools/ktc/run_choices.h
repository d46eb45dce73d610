// What a plan leaves to run time (runtime/plan/choices.h), as settings of the executor.
#pragma once

#include <string_view>

#include "runtime/base/status.h"
#include "runtime/plan/choices.h"
#include "tools/ktc/run_options.h"

namespace ktc::run {

// Sets what an option of a choice means. False: an option or a choice that this program does not know.
bool set_choice(Options& options, std::string_view choice, std::string_view option);

// Options "a, b or c" that this program knows, for help and messages.
std::string known_options(std::string_view choice);

// Checks what the flags ask for against the plan's list, and takes the plan's default where they are silent. Errors:
// one line that names the flag and what the plan permits.
Status apply_choices(const planfb::PlanT& plan, Options& options);

}  // namespace ktc::run
