// --bench: prefill and decode speed of one sequence of random ids.
#pragma once

#include "runtime/base/status.h"
#include "tools/ktc/run_options.h"

namespace ktc::run {

Status run_bench(const Options& options);

}  // namespace ktc::run
