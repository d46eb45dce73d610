// What `ktc-bench experts` was asked for, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/cpu_features.h"
#include "runtime/base/status.h"
#include "runtime/exec/tile_cut.h"
#include "runtime/formats/formats.h"
#include "runtime/kernels/cpu/panel_tiles.h"

namespace ktc::bench {

// "int8", "int4/64", "int4/row", "fp8/128", "bf16".
struct WeightFormat {
  Format format = Format::int8;
  std::uint32_t group = 0;  // input features per scale; 0: one per output feature, or none
  bool integer() const { return format == Format::int8 || format == Format::int4; }
};
std::string to_string(const WeightFormat& format);
Expected<WeightFormat> parse_weight_format(const std::string& text);

// How tile kernels are cut and shaped: "default", or words with commas between them, of
//   2x1 1x2 1x1 2x2   the shape of tiles; probe: what a start-up probe chooses (so does no word of this kind)
//   inner=N           64 K that a panel's weights keep in the first cache; 0: no cut
//   outer=N           KiB of activations that a call keeps in the second cache
//   rows=N up=N down=N   rows of a call, panels of a call of gate and up, and of down
//   sums=N            KiB of output panels that a worker adds to for many experts
//   nofetch           activations of the next call are not asked for
struct TileVariant {
  std::string name = "default";
  exec::TileTuning tuning;
  std::optional<kernels::TileShape> shape;  // nullopt: probe
};
Expected<TileVariant> parse_tile_variant(const std::string& text);

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
  std::vector<std::string> variant_names;  // of tile kernels; empty: default
  std::string json;                    // file; empty: none
  bool step = false;                   // a round per line of standard input instead of `rounds`

  // set by check()
  std::vector<WeightFormat> formats;
  std::vector<TileVariant> variants;
  IsaLevel level = IsaLevel::best;
};

// Fills what check() sets; the error names the flag.
Status check(ExpertsOptions& options);

}  // namespace ktc::bench
