// How long one product takes by itself, from what it reads and computes: the part of the cost model (cost_model.h has the formulas)
// that also orders the steps of a plan (kt-schedule).
#pragma once

#include <cstdint>

#include "placement/rates.h"
#include "placement/target.h"
#include "runtime/formats/formats.h"

namespace ktc::placement {

struct Product {
  Format weights = Format::bf16, activations = Format::f32;
  std::uint32_t group = 0;     // input features per scale of the weights
  double bytes = 0;            // read
  double operations = 0;
  double rows = 1;             // per matrix: which kernel serves
  bool row_scales = false;     // of int8 activations: one scale per row, not per 64 features
  double values = 0;           // that it writes, of all rows
  double cached = 0;           // share of the bytes that the CPU's last cache holds
  bool experts = false;        // of many small matrices, each with rows of its own
  bool linear = false;         // one matrix for all rows of a step
};

// us, without the fixed time of the kernel. The longer of the two decides what a product is bound by.
struct ProductTime {
  double read = 0, compute = 0;
  double us = 0;
  bool computes() const { return compute > read; }
};

// `cpu`: of the target, for the kernels' thresholds; unused for a GPU's rates.
ProductTime product_time(const DeviceRates& rate, const CpuTarget& cpu, const Product& product);

}  // namespace ktc::placement
