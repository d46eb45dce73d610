// What `ktc-bench experts` was asked for, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/cpu_features.h"
#include "runtime/base/status.h"
#include "runtime/formats/formats.h"

namespace ktc::bench {

// "int8", "int4/64", "int4/row", "fp8/128", "bf16".
struct WeightFormat {
  Format format = Format::int8;
  std::uint32_t group = 0;  // input features per scale; 0: one per output feature, or none
  bool integer() const { return format == Format::int8 || format == Format::int4; }
};
std::string to_string(const WeightFormat& format);
Expected<WeightFormat> parse_weight_format(const std::string& text);

struct ExpertsOptions {
  std::uint32_t experts = 0, hidden = 0, intermediate = 0, top_k = 0;
  std::vector<std::uint32_t> tokens;   // per active expert
  std::vector<std::string> format_names;
  std::string isa = "best";
  int threads = 0;                     // 0: as many as the executor takes by itself
  std::uint32_t rounds = 9;
  double gib = 0;                      // of weights per format; 0: 4, or less where memory is short
  std::uint32_t x_granule = 64, h_granule = 64;  // int8 activations: input features per scale; 0: the whole row
  std::int64_t tile_rows = -1;         // from how many rows tile kernels serve; 0: never; -1: what the compiler chooses
  std::string json;                    // file; empty: none
  bool step = false;                   // a round per line of standard input instead of `rounds`

  // set by check()
  std::vector<WeightFormat> formats;
  IsaLevel level = IsaLevel::best;
};

// Fills what check() sets; the error names the flag.
Status check(ExpertsOptions& options);

// The number that a plan compiled for a machine with tiles has (placement/tiles.cpp).
std::uint32_t planned_tile_rows(const WeightFormat& format);

}  // namespace ktc::bench
