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
struct PanelKernel {
  std::string name;
  IsaLevel level;
  Format format;
  PanelFn function;
};
std::vector<PanelKernel> panel_kernels(bool many);  // the rows of panel_kernels.def

void PrintTo(const PanelKernel& kernel, std::ostream* out);

inline std::string panel_kernel_name(const ::testing::TestParamInfo<PanelKernel>& info) {
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

// `m` rows of activations. Few: each row in guarded memory of its own, pieces `gap` bytes further apart than they need. Tiles:
// rows from m on of the last tile hold garbage.
class Activations {
 public:
  Activations(const PanelCase& c, std::size_t m, bool tiles, std::size_t gap, std::mt19937& random);
  const std::vector<PanelRow>& rows() const { return rows_; }
  std::size_t kb_stride() const { return kb_stride_; }
  double value(std::size_t row, std::size_t column) const;  // dequantised

 private:
  bool integer_;
  std::size_t granule_, kb_stride_;
  std::vector<std::unique_ptr<Guarded<std::byte>>> values_;
  std::vector<std::unique_ptr<Guarded<float>>> scales_;
  std::vector<std::unique_ptr<Guarded<std::int32_t>>> sums_;
  std::vector<PanelRow> rows_;
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
