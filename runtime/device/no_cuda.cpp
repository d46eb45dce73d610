// open_cuda of a build without CUDA.
#include <fmt/format.h>

#include "runtime/device/device.h"

namespace ktc::device {

Expected<std::unique_ptr<Device>> open_cuda(int ordinal) {
  return make_error(StatusCode::unsupported, {.place = fmt::format("cuda:{}", ordinal),
                                              .what = "this build has no CUDA kernels",
                                              .remedy = "configure with -DKTC_CUDA=ON, or run with --emulate-gpu"});
}

}  // namespace ktc::device
