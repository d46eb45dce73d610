// `ktc probe`: measures this machine and writes a target file.
#pragma once

#include "runtime/base/status.h"

namespace ktc::tools {

// argv[0] is "probe".
Status run_probe(int argc, char** argv);

}  // namespace ktc::tools
