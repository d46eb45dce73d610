// Standard output and standard error of ktc-run.
#pragma once

#include <string_view>

#include "runtime/base/status.h"

namespace ktc::run {

// Writes to standard output at once. Errors: StatusCode::cancelled when the reader is gone (the program then ends
// quietly), io_error with the system's reason otherwise.
Status write_out(std::string_view text);

// One line on standard error.
void note(std::string_view line);

// Prints "ktc-run: MESSAGE" for a failure. Returns the exit status: 0 for ok and a reader that is gone, 2 for bugs of
// ours, else 1.
int report(const Status& status);

}  // namespace ktc::run
