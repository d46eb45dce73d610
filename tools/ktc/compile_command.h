// `ktc compile`: from files to a plan folder, IR text or a dry run.
#pragma once

#include "runtime/base/status.h"
#include "tools/ktc/compile_options.h"

namespace ktc::tools {

Status run_compile(const CompileCommand& command);

}  // namespace ktc::tools
