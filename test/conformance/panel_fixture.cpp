#include "test/conformance/panel_fixture.h"

#include <cmath>
#include <cstring>

namespace ktc::kernels {
namespace {

bool integer(Format format) {
  return format == Format::int8 || format == Format::int4;
}

std::int32_t pick(Codes codes, std::int32_t limit, std::size_t k, std::mt19937& random) {
  switch (codes) {
    case Codes::most: return limit;
    case Codes::least: return -limit;
    case Codes::alternating: return k % 2 == 0 ? limit : -limit;
    case Codes::random: break;
  }
  return static_cast<std::int32_t>(random() % static_cast<unsigned>(2 * limit + 1)) - limit;
}

}  // namespace

void PrintTo(const PanelKernel& kernel, std::ostream* out) {
  *out << kernel.name;
}

std::ostream& operator<<(std::ostream& out, const PanelCase& c) {
  return out << to_string(c.format) << "/" << c.group << " granule " << c.granule << ", " << c.rows << " x " << c.columns
             << (c.paired ? " paired" : "") << " codes " << static_cast<int>(c.weights) << " by "
             << static_cast<int>(c.activations);
}

std::vector<std::uint32_t> groups_of(Format format) {
  if (format == Format::int4) return {0, 32, 64, 128};
  if (format == Format::fp8) return {0, 128};
  return {0};
}
std::vector<std::uint32_t> granules_of(Format format) {
  if (integer(format)) return {0, 64, 128};
  return {0};
}

test::PanelMatrix make_matrix(const PanelCase& c, std::mt19937& random) {
  test::PanelMatrix matrix;
  matrix.layout = panel_layout(c.format, c.group, c.paired, c.rows, c.columns).value();
  matrix.codes.resize(c.rows * c.columns);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < matrix.codes.size(); ++i) {
    std::int32_t& code = matrix.codes[i];
    if (integer(c.format)) {
      code = pick(c.weights, c.format == Format::int8 ? 127 : 7, i % c.columns, random);
    } else if (c.format == Format::fp8) {
      do code = static_cast<std::int32_t>(random() % 256);
      while ((code & 0x7f) == 0x7f);
    } else {
      code = f32_to_bf16(normal(random));
    }
  }
  if (c.format == Format::bf16) return matrix;
  matrix.scales.resize(c.rows * matrix.scale_groups());
  std::uniform_real_distribution<float> scale(0.001f, 0.01f);
  for (float& s : matrix.scales) {
    s = scale(random);
    if (matrix.layout.scale_bytes == 2) s = bf16_to_f32(f32_to_bf16(s));
  }
  return matrix;
}

Activations::Activations(const PanelCase& c, std::size_t m, bool tiles, std::size_t gap, std::mt19937& random)
    : integer_(integer(c.format)) {
  const std::size_t blocks = (c.columns + 63) / 64, padded = blocks * 64, piece = integer_ ? 64 : 128;
  granule_ = c.granule == 0 ? padded : c.granule;
  kb_stride_ = tiles ? piece * kTileRows : piece + gap;
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> scale(0.001f, 0.1f);
  std::byte* tile = nullptr;
  for (std::size_t r = 0; r < m; ++r) {
    std::byte* values;
    if (tiles) {
      if (r % kTileRows == 0) {
        values_.push_back(std::make_unique<Guarded<std::byte>>(blocks * kb_stride_));
        tile = values_.back()->data();
        for (std::byte& b : *values_.back()) b = static_cast<std::byte>(0x7d);
      }
      values = tile + r % kTileRows * piece;
    } else {
      values_.push_back(std::make_unique<Guarded<std::byte>>((blocks - 1) * kb_stride_ + piece));
      values = values_.back()->data();
    }
    if (integer_) {
      sums_.push_back(std::make_unique<Guarded<std::int32_t>>(blocks * 2));
      scales_.push_back(std::make_unique<Guarded<float>>((padded + granule_ - 1) / granule_));
      for (float& s : *scales_.back()) s = scale(random);
    }
    for (std::size_t k = 0; k < padded; ++k) {
      std::byte* at = values + k / 64 * kb_stride_ + k % 64 * piece / 64;
      if (integer_) {
        const std::int32_t code = k < c.columns ? pick(c.activations, 127, k, random) : 0;
        *at = static_cast<std::byte>(code);
        (*sums_.back())[k / 32] += code;
      } else {
        const std::uint16_t bits = k < c.columns ? f32_to_bf16(normal(random)) : 0;
        std::memcpy(at, &bits, 2);
      }
    }
    rows_.push_back({values, integer_ ? scales_.back()->data() : nullptr, integer_ ? sums_.back()->data() : nullptr});
  }
}

double Activations::value(std::size_t row, std::size_t k) const {
  const std::byte* at = rows_[row].values + k / 64 * kb_stride_;
  if (integer_) return static_cast<double>(static_cast<std::int8_t>(at[k % 64])) * rows_[row].scales[k / granule_];
  std::uint16_t bits;
  std::memcpy(&bits, at + k % 64 * 2, 2);
  return bf16_to_f32(bits);
}

void run_panel(PanelFn function, const PanelCase& c, const PanelLayout& layout, const std::byte* panel, const std::byte* next,
               const Activations& x, std::size_t first, std::size_t m, float* out) {
  Guarded<std::byte> scratch(panel_scratch_bytes(layout));
  for (std::byte& b : scratch) b = static_cast<std::byte>(0x5b);
  for (std::size_t i = 0; i < m * 32; ++i) out[i] = std::nanf("");
  PanelArgs args{};
  args.panel = panel;
  args.next = next;
  args.layout = &layout;
  args.rows = x.rows().data() + first;
  args.m = m;
  args.kb_stride = x.kb_stride();
  args.x_granule = c.granule;
  args.out = out;
  args.scratch = scratch.data();
  function(args);
}

void expect_close(const PanelCase& c, const test::PanelMatrix& matrix, std::size_t panel, const Activations& x,
                  std::size_t first, std::size_t m, const float* out) {
  constexpr double kEps = 0x1p-24;
  const PanelLayout& layout = matrix.layout;
  for (std::size_t r = 0; r < m; ++r)
    for (std::size_t i = 0; i < 32; ++i) {
      const std::size_t feature = test::panel_feature(layout, panel, i / 16, i % 16);
      double sum = 0, magnitude = 0;
      if (feature < c.rows)
        for (std::size_t k = 0; k < c.columns; ++k) {
          const double term = matrix.value(feature, k) * x.value(first + r, k);
          sum += term;
          magnitude += std::abs(term);
        }
      // integers: a few roundings per step; floats: one per element of a chain of 16, and one per 32 K
      const double roundings = integer(c.format) ? 3.0 * static_cast<double>(c.columns) / 32 + 8 : 24 + static_cast<double>(c.columns) / 32;
      ASSERT_NEAR(out[r * 32 + i], sum, roundings * kEps * magnitude)
          << c << ", panel " << panel << " row " << first + r << " column " << i;
    }
}

std::vector<PanelKernel> panel_kernels(bool many) {
  std::vector<PanelKernel> found;
  const auto add = [&](const char* slot, const char* name, IsaLevel level, Format format, auto function) {
    if constexpr (std::is_same_v<decltype(function), PanelFn>) {
      const bool is_many = std::string_view(slot).find(".many") != std::string_view::npos;
      if (is_many == many) found.push_back({name, level, format, function});
    }
  };
#define KTC_PANEL_KERNEL(slot, level, format, function) add(#slot, #function, IsaLevel::level, Format::format, &function);
#include "runtime/kernels/cpu/panel_kernels.def"
  return found;
}

PanelFn scalar_panel(Format format) {
  return select_kernels(CpuFeatures{}).panel(format).few;
}

}  // namespace ktc::kernels
