// Turns a plan with weight files into one whose weights are made up when it is opened: to time a model without its checkpoint.
#pragma once

#include <cstdint>

#include "compiler/emit/PlanBuilder.h"

namespace ktc::compiler {

struct RandomOptions {
  std::uint64_t seed = 1;
  std::uint32_t alias_layers = 0;  // 0: every layer has its own bytes
  float router_zipf = 0;           // Weight.zipf of every router; routers are not shared by layers then
  std::uint32_t topics = 0;        // Weight.topics of embedding and head
};

// Every weight gets source random (runtime/weights/random_weights.h) and the weight files go. With alias_layers N, weights that are
// equal but for the number of their layer, in shape, format, packing and device, share bytes: the i-th of them, counted from 0 in
// the order of layers, has the bytes of the (i mod N)-th. The account's weight lines of a device become one line of what is left.
// Errors: topics for an embedding or a head that is not rows of f32 or bf16, more topics than tokens.
Status makeRandom(PlanAndJobs& built, const RandomOptions& options);

}  // namespace ktc::compiler
