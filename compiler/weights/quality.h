// What quantising did to one weight.
#pragma once

#include <cmath>
#include <cstdint>

namespace ktc::compiler {

// Errors are relative: ||w - wq|| / ||w||, 0 for a weight of zeros. All zero for weights that were not quantised.
struct JobQuality {
  double squared_error = 0;  // over the whole stack
  double squared_norm = 0;
  double worst_error = 0;  // the largest error of one matrix of the stack
  std::uint64_t worst_matrix = 0;
  double error() const { return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0; }
};

struct JobRecord {
  std::uint64_t digest = 0;  // XXH3-64 of the packed bytes
  JobQuality quality;
};

}  // namespace ktc::compiler
