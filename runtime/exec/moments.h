// Second moments of what products multiply by, feature by feature: what `ktc compile --moments` weighs rounding errors with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ktc::exec {

// By weight name. One weight, one list: a bank's experts share it, and so do projections that were joined.
struct Moments {
  struct Sum {
    std::uint64_t rows = 0;        // left operands seen; of a bank, pairs of a token and an expert
    std::vector<double> squares;   // [input features], sum of x^2 over them
  };
  std::map<std::string, Sum, std::less<>> weights;
};

}  // namespace ktc::exec
