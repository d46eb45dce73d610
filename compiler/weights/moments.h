// Second moments of activations, as `ktc-run --record-moments` writes them: one float32 tensor [input features] per weight.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compiler/weights/recipe.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

class Moments {
 public:
  // Errors: unreadable, another dtype or shape, a value that is negative or not finite, nothing in it, more than 1 GiB.
  static Expected<Moments> read(const std::filesystem::path& file);

  // Sets `importance` of a job that is rounded to integers and whose weight was recorded; others are left alone. A copy of a
  // weight in another format ("lm_head-int8") has the moments of the original. Error: another number of input features.
  Status apply(WeightJob& job) const;

 private:
  std::string file_;
  std::map<std::string, std::vector<float>, std::less<>> weights_;
};

}  // namespace ktc::compiler
