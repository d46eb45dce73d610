#include "test/conformance/panel_fixture.h"

#include <cmath>
#include <cstring>

#include "runtime/kernels/cpu/panel_tiles.h"

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

Activations::Activations(const PanelCase& c, std::size_t m, std::size_t gap, std::mt19937& random)
    : blocks_((c.columns + 63) / 64), integer_(kernels::integer(c.format)) {
  const std::size_t padded = blocks_ * 64, piece = integer_ ? 64 : 128;
  granule_ = c.granule == 0 ? padded : c.granule;
  granules_ = (padded + granule_ - 1) / granule_;
  kb_stride_ = piece + gap;
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> scale(0.001f, 0.1f);
  for (std::size_t r = 0; r < m; ++r) {
    values_.push_back(std::make_unique<Guarded<std::byte>>((blocks_ - 1) * kb_stride_ + piece));
    std::byte* values = values_.back()->data();
    if (integer_) {
      sums_.push_back(std::make_unique<Guarded<std::int32_t>>(blocks_ * 2));
      scales_.push_back(std::make_unique<Guarded<float>>(granules_));
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

Tiles::Tiles(const Activations& x)
    : values_((x.rows().size() + 15) / 16 * 16 * x.blocks() * (x.integer() ? 64 : 128)),
      scales_((x.rows().size() + 15) / 16 * 16 * x.granules()),
      sums_((x.rows().size() + 15) / 16 * 16) {
  const std::size_t piece = x.integer() ? 64 : 128;
  for (std::byte& b : values_) b = static_cast<std::byte>(0x7d);
  for (float& s : scales_) s = std::nanf("");
  for (std::int32_t& s : sums_) s = 123456;
  for (std::size_t r = 0; r < x.rows().size(); ++r) {
    const PanelRow& row = x.rows()[r];
    const std::size_t tile = r / kTileRows, lane = r % kTileRows;
    for (std::size_t kb = 0; kb < x.blocks(); ++kb)
      std::memcpy(values_.data() + ((tile * x.blocks() + kb) * kTileRows + lane) * piece, row.values + kb * x.kb_stride(), piece);
    if (!x.integer()) continue;
    sums_[r] = 0;
    for (std::size_t i = 0; i < 2 * x.blocks(); ++i) sums_[r] += row.sums[i];
    for (std::size_t g = 0; g < x.granules(); ++g) scales_[(tile * x.granules() + g) * kTileRows + lane] = row.scales[g];
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

namespace {

template <typename Fn>
std::vector<KernelOver<Fn>> kernels_over() {
  std::vector<KernelOver<Fn>> found;
  const auto add = [&](std::string_view slot, const char* name, IsaLevel level, Format format, auto function) {
    if constexpr (std::is_same_v<decltype(function), Fn>)
      if (slot.substr(0, 6) == "panel_") found.push_back({name, level, format, function});
  };
#define KTC_PANEL_KERNEL(slot, level, format, function) add(#slot, #function, IsaLevel::level, Format::format, &function);
#include "runtime/kernels/cpu/panel_kernels.def"
  return found;
}

}  // namespace

std::vector<PanelKernel> panel_kernels() {
  return kernels_over<PanelFn>();
}

std::vector<TileKernel> tile_kernels() {
  std::vector<TileKernel> found = kernels_over<TileFn>();
#if defined(__x86_64__)
#define KTC_ADD(suffix, level)                                                                  \
  found.push_back({"panel_int8_many_" #suffix, level, Format::int8, panel_int8_many_##suffix}); \
  found.push_back({"panel_int4_many_" #suffix, level, Format::int4, panel_int4_many_##suffix}); \
  found.push_back({"panel_fp8_many_" #suffix, level, Format::fp8, panel_fp8_many_##suffix});    \
  found.push_back({"panel_bf16_many_" #suffix, level, Format::bf16, panel_bf16_many_##suffix})
  KTC_ADD(amx_1x2, IsaLevel::amx);
  KTC_ADD(amx_1x1, IsaLevel::amx);
  KTC_ADD(amx_2x2, IsaLevel::amx);
  KTC_ADD(emulated, IsaLevel::avx512);
  KTC_ADD(emulated_1x2, IsaLevel::avx512);
  KTC_ADD(emulated_1x1, IsaLevel::avx512);
  KTC_ADD(emulated_2x2, IsaLevel::avx512);
#endif
  return found;
}

PanelFn scalar_panel(Format format) {
  return select_kernels(CpuFeatures{}).panel(format).few;
}

}  // namespace ktc::kernels
