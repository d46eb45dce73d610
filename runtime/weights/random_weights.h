// Weights of source random: bytes in the packing of each weight, made from its seed and name, so that a plan can be timed without a
// checkpoint at the speed and with the routing of real weights.
//
// Matrices: elements are uniform around 0 with variance 1 / columns, whatever the format: products of a normalised row have
// variance 1. Codes of int8, int4 and fp8 are uniform over what they can hold, and scales make up the variance. Norm weights are
// uniform in [0.9, 1.1], biases in [-0.02, 0.02]. Padding is what the packings say (runtime/formats/panel.h, gpu_rows.h).
//
// Deterministic: equal seed, name, shape, format and packing give equal bytes, whatever the number of threads and the machine.
// Threading: const calls from any thread; fill() starts threads of its own for large weights and joins them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

namespace ktc::weights {

class RandomWeights {
 public:
  // The plan is verified and outlives the object.
  explicit RandomWeights(const planfb::PlanT& plan);

  // Fills the bytes of plan.weights[index], of whatever device; `out` has exactly its size and any alignment. threads 0: all that
  // this process may use. Errors: a weight of another source, or another size.
  Status fill(std::uint32_t index, std::span<std::byte> out, int threads = 0) const;

 private:
  const planfb::PlanT& plan_;
  std::vector<bool> bias_;  // by weight: added to something, rather than multiplied with it
};

}  // namespace ktc::weights
