// --perplexity and --logits: what a plan makes of given text or ids.
#pragma once

#include "runtime/base/status.h"
#include "tools/ktc/run_options.h"

namespace ktc::run {

Status run_perplexity(const Options& options);
Status run_logits(const Options& options);

}  // namespace ktc::run
