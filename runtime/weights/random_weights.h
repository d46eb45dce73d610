// Weights of source random: bytes in the packing of each weight, made from its seed and name, so that a plan can be timed without a
// checkpoint at the speed and with the routing of real weights.
//
// Matrices: elements are uniform around 0 with variance 1 / columns, whatever the format: products of a normalised row have
// variance 1. Codes of int8, int4 and fp8 are uniform over what they can hold, and scales make up the variance. Norm weights are
// uniform in [0.9, 1.1], biases in [-0.02, 0.02]. Padding is what the packings say (runtime/formats/panel.h, gpu_rows.h).
//
// Ways to be less even, for rows of f32 or bf16 (fields of planfb::Weight):
// * zipf, of a router's matrix: the rows of experts are scaled so that the expert of rank r, in an order that differs by layer, is
//   among the chosen of about min(c r^-zipf, 0.45) of all tokens, where the shares add up to top_k. The logit of a row scaled by s is
//   normal with deviation s for a normalised input, and the chosen are those beyond some t, so s = t / z(share), z the normal
//   quantile of the upper tail. t differs by token, so shares are near the law, not on it. Groups of experts bend it.
// * topics, of an embedding and a head: equal ranges of ids; seven tenths of the variance of a row is its topic's, the same in both matrices.
//   A router sees the topic in every layer, its experts' popularity differs by topic, and greedy or drawn tokens stay in theirs.
// Both need an embedding that outweighs what layers of made-up weights add, `deviation`: attention takes means, so that without it the
// rows of all tokens grow alike from layer to layer and choose the same experts.
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
  std::vector<bool> bias_;            // by weight: added to something, rather than multiplied with it
  std::vector<std::uint32_t> top_k_;  // by weight: of the router whose matrix it is; 0: none
};

// Matrices of such weights without a plan, for benchmarks: packed_bytes(format, packing, batch, rows, columns, group) bytes. Errors: a shape
// without a layout.
Expected<std::vector<std::byte>> random_matrices(Format format, Packing packing, std::uint32_t group, std::uint32_t batch, std::uint32_t rows,
                                                 std::uint32_t columns, std::uint64_t seed);

}  // namespace ktc::weights
