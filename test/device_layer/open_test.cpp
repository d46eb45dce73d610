// Opening a GPU where there may be none: one line that says what to do, never a crash.
#include <gtest/gtest.h>

#include "runtime/device/device.h"

namespace ktc::device {
namespace {

TEST(OpenCuda, WorksOrSaysWhy) {
  auto device = open_cuda(0);
  if (device.ok()) {
    EXPECT_FALSE((*device)->info().emulated);
    EXPECT_GT((*device)->info().memory, 0u);
    return;
  }
  EXPECT_NE(device.status().code(), StatusCode::internal);
  EXPECT_EQ(device.status().message().find('\n'), std::string::npos);
  EXPECT_NE(device.status().message().find("cuda:0"), std::string::npos) << device.status().message();
}

TEST(OpenCuda, RefusesADeviceThatIsNotThere) {
  for (const int ordinal : {-1, 4096}) {
    const auto device = open_cuda(ordinal);
    ASSERT_FALSE(device.ok());
    EXPECT_NE(device.status().code(), StatusCode::internal) << device.status().message();
  }
}

}  // namespace
}  // namespace ktc::device
