#include <cstdio>

#include "test/conformance/rows.h"

namespace ktc::kernels {

unsigned seed() {
  static const unsigned chosen = [] {
    const int flag = GTEST_FLAG_GET(random_seed);
    const unsigned value = flag != 0 ? static_cast<unsigned>(flag) : 1 + std::random_device{}() % 99999;
    std::printf("random shapes: repeat with --gtest_random_seed=%u\n", value);
    return value;
  }();
  return chosen;
}

}  // namespace ktc::kernels
