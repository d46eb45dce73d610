// Rounding to codes and scales, and panels: against brute force, plain rounding and the layout's own description.
#include "compiler/weights/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "compiler/weights/pack_panel.h"
#include "test/compiler/decode_panel.h"

namespace ktc::compiler {
namespace {

std::vector<float> normal_row(std::size_t n, unsigned seed, float outlier = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> row(n);
  for (float& w : row) w = normal(random);
  if (outlier != 0) row[n / 3] = outlier;
  return row;
}

struct Rounded {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  RowQuality quality;
};
Rounded rounded(const std::vector<float>& row, const QuantiseSpec& spec, const std::vector<float>& importance = {}) {
  Rounded out{std::vector<std::int8_t>(row.size()), std::vector<float>(scales_of(spec, row.size())), {}};
  out.quality = quantise_row(row, importance, spec, out.codes.data(), out.scales.data());
  return out;
}

double weighted_error(const std::vector<float>& row, const Rounded& r, std::size_t group,
                      const std::vector<float>& importance = {}) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double d = double(row[i]) - double(r.codes[i]) * double(r.scales[group == 0 ? 0 : i / group]);
    sum += d * d * (importance.empty() ? 1.0 : double(importance[i]));
  }
  return sum;
}

// The least error of one group over every scale of `scales`, every code chosen by comparing all of them.
double brute_force(std::span<const float> w, const std::vector<float>& scales, int most) {
  double best = std::numeric_limits<double>::infinity();
  for (const float scale : scales) {
    double sum = 0;
    for (const float x : w) {
      double least = std::numeric_limits<double>::infinity();
      for (int code = -most; code <= most; ++code) {
        const double d = double(x) - double(code) * double(scale);
        least = std::min(least, d * d);
      }
      sum += least;
    }
    best = std::min(best, sum);
  }
  return best;
}

TEST(Quantise, CodesAreTheNearestOnesForTheirScale) {
  for (const QuantiseSpec spec : {QuantiseSpec{Format::int8, 0, true}, QuantiseSpec{Format::int4, 0, true},
                                  QuantiseSpec{Format::int4, 32, true}, QuantiseSpec{Format::int4, 64, false}}) {
    const std::vector<float> row = normal_row(150, 3, 0.3f);
    const Rounded r = rounded(row, spec);
    const int most = spec.format == Format::int8 ? kMostCodeInt8 : kMostCodeInt4;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float scale = r.scales[spec.group == 0 ? 0 : i / spec.group];
      EXPECT_LE(std::abs(int(r.codes[i])), most);
      const double found = std::abs(double(row[i]) - double(r.codes[i]) * double(scale));
      for (int code = -most; code <= most; ++code)
        EXPECT_LE(found, std::abs(double(row[i]) - code * double(scale)) + double(scale) * 1e-5) << i;
    }
  }
}

// Every bf16 from a sixteenth of amax / 7 to amax / 5 (the largest weight may round to 6, too), against the search's
// grid and least squares.
TEST(Quantise, TheSearchComesCloseToEveryScaleThatBf16Has) {
  double ours = 0, best = 0, plain = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const std::vector<float> row = normal_row(32, seed, seed % 4 == 0 ? 0.11f : 0.0f);
    float largest = 0;
    for (const float w : row) largest = std::max(largest, std::abs(w));
    std::vector<float> scales;
    for (std::uint32_t bits = f32_to_bf16(largest / 7 / 16); bits <= f32_to_bf16(largest / 5); ++bits)
      scales.push_back(bf16_to_f32(static_cast<std::uint16_t>(bits)));
    const double least = brute_force(row, scales, kMostCodeInt4);
    const double found = weighted_error(row, rounded(row, {Format::int4, 32, true}), 32);
    EXPECT_GE(found, least * (1 - 1e-6));
    EXPECT_LE(found, least * 1.15) << "seed " << seed;
    ours += found;
    best += least;
    plain += weighted_error(row, rounded(row, {Format::int4, 32, false}), 32);
  }
  EXPECT_LE(ours, best * 1.02) << "within 2 % of the optimum on the whole";
  EXPECT_LE(ours, plain * 0.93) << "and clearly better than plain rounding";
}

TEST(Quantise, IsNeverWorseThanPlainRounding) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const std::vector<float> row = normal_row(20 + seed, seed, seed % 3 == 0 ? 0.5f : 0.0f);
    std::vector<float> importance;
    if (seed % 2 == 1) {
      importance.resize(row.size());
      for (std::size_t i = 0; i < row.size(); ++i) importance[i] = 0.1f + static_cast<float>(i * 7 % 13);
    }
    for (QuantiseSpec spec : {QuantiseSpec{Format::int8, 0, true}, QuantiseSpec{Format::int4, 0, true},
                              QuantiseSpec{Format::int4, 32, true}, QuantiseSpec{Format::int4, 128, true}}) {
      const double searched = weighted_error(row, rounded(row, spec, importance), spec.group, importance);
      spec.clip_search = false;
      const double plain = weighted_error(row, rounded(row, spec, importance), spec.group, importance);
      EXPECT_LE(searched, plain * (1 + 1e-6)) << "seed " << seed << " group " << spec.group;
    }
  }
}

TEST(Quantise, ImportanceMovesTheErrorToWhatMattersLess) {
  const std::vector<float> row = normal_row(64, 5, 0.2f);
  std::vector<float> importance(64, 1.0f);
  importance[64 / 3] = 0.0f;  // the outlier does not matter at all
  const Rounded with = rounded(row, {Format::int4, 64, true}, importance),
                without = rounded(row, {Format::int4, 64, true});
  EXPECT_LT(weighted_error(row, with, 64, importance), 0.7 * weighted_error(row, without, 64, importance));
  EXPECT_LT(with.scales[0], without.scales[0]);
}

TEST(Quantise, PlainRoundingIsAmaxAndNearestEven) {
  const Rounded r = rounded({127.0f, -64.0f, 2.5f, 3.5f, -0.5f, 0.0f}, {Format::int8, 0, false});
  EXPECT_EQ(r.scales[0], 1.0f);
  EXPECT_EQ(r.codes, (std::vector<std::int8_t>{127, -64, 2, 4, 0, 0}));
  EXPECT_DOUBLE_EQ(r.quality.squared_error, 0.25 * 3);
}

// Against the list of all E4M3 numbers: nearest, and the even code at a tie.
TEST(Quantise, Fp8CodesAreTheNearestE4m3Numbers) {
  std::vector<float> numbers;
  for (int code = 0; code < 127; ++code)
    numbers.push_back(std::ldexp(static_cast<float>(code >> 3 ? 8 + (code & 7) : code & 7), std::max(code >> 3, 1) - 10));
  std::vector<float> row = {448.0f};  // the scale is 1
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i)
    for (const float t : {0.0f, 0.25f, 0.5f, 0.75f}) row.push_back((i % 2 ? -1 : 1) * (numbers[i] + t * (numbers[i + 1] - numbers[i])));
  const Rounded r = rounded(row, {Format::fp8, 0, true});
  EXPECT_EQ(r.scales[0], 1.0f);
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::size_t best = 0;
    for (std::size_t c = 1; c < numbers.size(); ++c) {
      const float now = std::abs(numbers[c] - std::abs(row[i])), before = std::abs(numbers[best] - std::abs(row[i]));
      if (now < before || (now == before && c % 2 == 0)) best = c;
    }
    EXPECT_EQ(static_cast<std::uint8_t>(r.codes[i]), best | (std::signbit(row[i]) ? 0x80 : 0)) << row[i];
  }
  const Rounded groups = rounded(normal_row(300, 3), {Format::fp8, 128, true});
  EXPECT_EQ(groups.scales.size(), 3u);
  EXPECT_LT(groups.quality.squared_error, 0.0009 * groups.quality.squared_norm) << "2^-4 / sqrt(3) at the most, about 0.026";
  const Rounded broken = rounded({1.0f, NAN}, {Format::fp8, 0, true});
  EXPECT_FALSE(broken.quality.finite);
}

TEST(Quantise, ScalesOfInt4GroupsAreBf16AndCodesBelongToThem) {
  const std::vector<float> row = normal_row(96, 11);
  const Rounded r = rounded(row, {Format::int4, 32, true});
  for (const float scale : r.scales) EXPECT_EQ(scale, bf16_to_f32(f32_to_bf16(scale)));
  const Rounded whole = rounded(row, {Format::int4, 0, false});
  float largest = 0;
  for (const float w : row) largest = std::max(largest, std::abs(w));
  EXPECT_EQ(whole.scales[0], largest / 7);
}

TEST(Quantise, ZerosTinyAndHugeWeights) {
  const Rounded zeros = rounded(std::vector<float>(70, 0.0f), {Format::int4, 64, true});
  EXPECT_EQ(zeros.scales, (std::vector<float>{0.0f, 0.0f}));
  EXPECT_EQ(zeros.codes, std::vector<std::int8_t>(70, 0));
  const Rounded tiny = rounded({1e-40f, -1e-41f}, {Format::int8, 0, true});
  EXPECT_EQ(tiny.scales[0], 0.0f);
  EXPECT_EQ(tiny.codes[0], 0);
  const Rounded huge = rounded({3e38f, -1e38f}, {Format::int8, 0, true});
  EXPECT_NEAR(huge.codes[0] * huge.scales[0] / 3e38f, 1.0f, 0.01f);
  const Rounded nan = rounded({1.0f, std::numeric_limits<float>::quiet_NaN()}, {Format::int8, 0, true});
  EXPECT_FALSE(nan.quality.finite);
  const Rounded infinite = rounded({1.0f, std::numeric_limits<float>::infinity()}, {Format::int4, 32, true});
  EXPECT_FALSE(infinite.quality.finite);
}

TEST(PackPanel, EveryElementStandsWhereTheLayoutSaysAndPaddingIsZero) {
  for (const Format format : {Format::int8, Format::int4})
    for (const std::uint32_t group : {0u, 32u, 64u, 128u})
      for (const bool paired : {false, true})
        for (const auto& [rows, columns] :
             {std::pair<std::uint64_t, std::uint64_t>{34, 100}, {2, 1}, {64, 128}, {46, 193}}) {
          const auto layout = panel_layout(format, group, paired, rows, columns);
          if (!layout) continue;
          std::vector<std::byte> matrix(layout->matrix_bytes, std::byte{0x5a});
          clear_panels(*layout, matrix);
          const int most = format == Format::int8 ? 127 : 7;
          const std::size_t scales = group == 0 ? 1 : (columns + group - 1) / group;
          auto code = [&](std::uint64_t r, std::uint64_t k) {
            return static_cast<int>((r * 31 + k * 7) % (2 * most + 1)) - most;
          };
          auto scale = [&](std::uint64_t r, std::size_t g) { return static_cast<float>(1 + r + 100 * g); };
          for (std::uint64_t r = 0; r < rows; ++r) {
            std::vector<std::int8_t> codes(columns);
            std::vector<float> row_scales(scales);
            for (std::uint64_t k = 0; k < columns; ++k) codes[k] = static_cast<std::int8_t>(code(r, k));
            for (std::size_t g = 0; g < scales; ++g) row_scales[g] = scale(r, g);
            pack_panel_codes(*layout, r, codes.data(), row_scales.data(), matrix);
          }
          std::vector<bool> real(layout->panels * 32);
          for (std::uint64_t r = 0; r < rows; ++r) {
            const auto place = layout->place_of(r);
            real[place.panel * 32 + place.block * 16 + place.lane] = true;
            for (std::uint64_t k = 0; k < layout->k_blocks * 64; ++k) {
              const DecodedElement e = decode_panel(*layout, matrix, r, k);
              EXPECT_EQ(e.code, k < columns ? code(r, k) : 0);
              const std::size_t g = group == 0 ? 0 : k / group;
              const float expected = g < scales ? scale(r, g) : 0.0f;
              EXPECT_EQ(e.scale, layout->scale_bytes == 2 ? bf16_to_f32(f32_to_bf16(expected)) : expected);
            }
          }
          for (std::uint64_t f = 0; f < real.size(); ++f)
            for (std::uint64_t k = 0; !real[f] && k < layout->k_blocks * 64; ++k) {
              const DecodedElement e = decode_place(*layout, matrix, f / 32, f % 32 / 16, f % 16, k);
              EXPECT_EQ(e.code, 0);
              EXPECT_EQ(e.scale, 0.0f);
            }
        }
}

TEST(PackPanel, Bf16AndFp8KeepTheirBits) {
  const auto bf16 = *panel_layout(Format::bf16, 0, true, 36, 70);
  std::vector<std::byte> matrix(bf16.matrix_bytes, std::byte{0xff});
  clear_panels(bf16, matrix);
  for (std::uint64_t r = 0; r < 36; ++r) {
    std::vector<std::uint16_t> row(70);
    for (std::uint64_t k = 0; k < 70; ++k) row[k] = f32_to_bf16(static_cast<float>(r * 100 + k));
    pack_panel_bf16(bf16, r, row.data(), matrix);
  }
  for (std::uint64_t r = 0; r < 36; ++r)
    for (std::uint64_t k = 0; k < 128; ++k)
      EXPECT_EQ(decode_panel(bf16, matrix, r, k).value,
                k < 70 ? bf16_to_f32(f32_to_bf16(static_cast<float>(r * 100 + k))) : 0.0f);

  const auto fp8 = *panel_layout(Format::fp8, 128, false, 33, 130);
  matrix.assign(fp8.matrix_bytes, std::byte{0xff});
  clear_panels(fp8, matrix);
  std::vector<std::uint8_t> codes(130);
  for (std::size_t k = 0; k < 130; ++k) codes[k] = static_cast<std::uint8_t>(k + 1);
  const float scales[] = {0.25f, 3.0f};
  pack_panel_fp8(fp8, 32, codes.data(), scales, matrix);
  const std::byte* panel = matrix.data() + fp8.panel_bytes;
  for (std::size_t k = 0; k < 130; ++k)
    EXPECT_EQ(std::to_integer<int>(panel[fp8.block_offset(k / 64, 0) + k % 64 / 4 * 64 + k % 4]),
              static_cast<int>(k) + 1);
  float second;
  std::memcpy(&second, panel + fp8.scale_offset(1, 0), 4);
  EXPECT_EQ(second, 3.0f);
}

}  // namespace
}  // namespace ktc::compiler
