// What the benchmarks of devices do with an error: say it and end.
#pragma once

#include <cerrno>  // program_invocation_short_name
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/base/status.h"

namespace ktc {

inline void fail(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, status.message().c_str());
  std::exit(1);
}
template <typename T>
T take(Expected<T> value) {
  fail(value.status());
  return std::move(*value);
}

}  // namespace ktc
