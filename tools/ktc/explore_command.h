// `ktc explore`: a sweep over strategies, shares, deferral and formats as a table, JSON and a picture.
#pragma once

#include "runtime/base/status.h"

namespace ktc::tools {

// argv[0] is "explore".
Status run_explore(int argc, char** argv);

}  // namespace ktc::tools
