// Panels, activations and the list of panel kernels for the conformance suites.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/conformance/guarded.h"
#include "test/conformance/rows.h"
#include "test/support/panel_pack.h"

namespace ktc::kernels {

// A kernel over panels: a row of panel_kernels.def, or of panel_tiles.h.
template <typename Fn>
struct KernelOver {
  std::string name;
  IsaLevel level;
  Format format;
  Fn function;
};
using PanelKernel = KernelOver<PanelFn>;
using TileKernel = KernelOver<TileFn>;
std::vector<PanelKernel> panel_kernels();  // the rows of panel_kernels.def
std::vector<TileKernel> tile_kernels();    // the same, all shapes of tiles, and those on emulated tiles

template <typename Fn>
void PrintTo(const KernelOver<Fn>& kernel, std::ostream* out) {
  *out << kernel.name;
}

template <typename Fn>
std::string panel_kernel_name(const ::testing::TestParamInfo<KernelOver<Fn>>& info) {
  return info.param.name;
}

enum class Codes { random, most, least, alternating };  // extremes, so that saturation would show

struct PanelCase {
  Format format;
  std::uint32_t group = 0, granule = 0;
  std::size_t rows = 32, columns = 64;
  bool paired = false;
  Codes weights = Codes::random, activations = Codes::random;
};
std::ostream& operator<<(std::ostream& out, const PanelCase& c);

test::PanelMatrix make_matrix(const PanelCase& c, std::mt19937& random);

// `m` rows of activations, each in guarded memory of its own, pieces `gap` bytes further apart than they need.
class Activations {
 public:
  Activations(const PanelCase& c, std::size_t m, std::size_t gap, std::mt19937& random);
  const std::vector<PanelRow>& rows() const { return rows_; }
  std::size_t kb_stride() const { return kb_stride_; }
  std::size_t blocks() const { return blocks_; }
  std::size_t granules() const { return granules_; }
  bool integer() const { return integer_; }
  double value(std::size_t row, std::size_t column) const;  // dequantised

 private:
  std::size_t blocks_, granules_;
  bool integer_;
  std::size_t granule_, kb_stride_;
  std::vector<std::unique_ptr<Guarded<std::byte>>> values_;
  std::vector<std::unique_ptr<Guarded<float>>> scales_;
  std::vector<std::unique_ptr<Guarded<std::int32_t>>> sums_;
  std::vector<PanelRow> rows_;
};

// The same rows as tile kernels read them. Other rows of the last tile hold garbage.
class Tiles {
 public:
  explicit Tiles(const Activations& x);
  PanelTiles view() const { return {values_.data(), scales_.data(), sums_.data()}; }
  std::size_t value_bytes() const { return values_.size(); }

 private:
  Guarded<std::byte> values_;
  Guarded<float> scales_;
  Guarded<std::int32_t> sums_;
};

// out [m][32] in guarded memory, filled with garbage before.
using PanelOut = Guarded<float>;
void run_panel(PanelFn function, const PanelCase& c, const PanelLayout& layout, const std::byte* panel, const std::byte* next,
               const Activations& x, std::size_t first, std::size_t m, float* out);

// Checks `out` of rows [first, first + m) against double precision.
void expect_close(const PanelCase& c, const test::PanelMatrix& matrix, std::size_t panel, const Activations& x,
                  std::size_t first, std::size_t m, const float* out);

// The scalar kernel of a format.
PanelFn scalar_panel(Format format);

std::vector<std::uint32_t> groups_of(Format format);
std::vector<std::uint32_t> granules_of(Format format);

}  // namespace ktc::kernels
