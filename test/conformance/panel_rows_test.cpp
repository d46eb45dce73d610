// quantise_row, round_row, swiglu and accumulate of every level.
#include <cmath>
#include <limits>

#include "test/conformance/panel_fixture.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kLengths[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 768, 1000, 1408, 2065};

template <typename Fn>
std::vector<Row<Fn>> panel_rows(std::string_view wanted) {
  std::vector<Row<Fn>> found;
  const auto add = [&](std::string_view slot, const char* name, IsaLevel level, Format format, auto function) {
    if constexpr (std::is_same_v<decltype(function), Fn>)
      if (slot == wanted) found.push_back({name, level, format, Packing::row_major, function});
  };
#define KTC_PANEL_KERNEL(slot, level, format, function) add(#slot, #function, IsaLevel::level, Format::format, &function);
#include "runtime/kernels/cpu/panel_kernels.def"
  return found;
}

struct Quantised {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
};

// As the contract says it, with the roundings of f32 and std::nearbyint.
Quantised quantise(const std::vector<float>& x, std::size_t granule) {
  const std::size_t padded = (x.size() + 63) / 64 * 64, width = granule == 0 ? padded : granule;
  Quantised q{std::vector<std::int8_t>(padded), std::vector<float>((padded + width - 1) / width),
              std::vector<std::int32_t>(padded / 32)};
  for (std::size_t g = 0; g < q.scales.size(); ++g) {
    float amax = 0;
    bool finite = true;
    for (std::size_t k = g * width; k < (g + 1) * width && k < x.size(); ++k) {
      if (!std::isfinite(x[k])) finite = false;
      if (std::fabs(x[k]) > amax) amax = std::fabs(x[k]);
    }
    if (!finite) q.scales[g] = std::numeric_limits<float>::quiet_NaN();
    if (!finite || amax < 0x1p-100f) continue;
    q.scales[g] = amax / 127;
    const float factor = 127 / amax;
    for (std::size_t k = g * width; k < (g + 1) * width && k < x.size(); ++k) {
      const float product = x[k] * factor;
      q.codes[k] = static_cast<std::int8_t>(std::nearbyint(product));
      q.sums[k / 32] += q.codes[k];
    }
  }
  return q;
}

class QuantiseRow : public RowTest<QuantiseRowFn> {
 protected:
  void check(const std::vector<float>& values, std::uint32_t granule, std::size_t gap) {
    const Quantised expected = quantise(values, granule);
    const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
    const std::size_t blocks = expected.codes.size() / 64, stride = 64 + gap;
    Guarded<float> x(values.size(), edge), scales(expected.scales.size(), edge);
    Guarded<std::int8_t> codes((blocks - 1) * stride + 64, edge);
    Guarded<std::int32_t> sums(blocks * 2, edge);
    std::copy(values.begin(), values.end(), x.begin());
    for (std::int8_t& v : codes) v = 99;
    for (std::int32_t& v : sums) v = 12345;
    row().function(x.data(), values.size(), granule, codes.data(), stride, scales.data(), sums.data());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (i % stride >= 64) {
        ASSERT_EQ(codes[i], 99) << "wrote between pieces, at " << i;
      } else {
        const std::size_t k = i / stride * 64 + i % stride;
        ASSERT_EQ(codes[i], expected.codes[k]) << "code " << k << " of " << values.size() << ", granule " << granule;
      }
    }
    for (std::size_t g = 0; g < scales.size(); ++g) {
      if (std::isnan(expected.scales[g])) {
        ASSERT_TRUE(std::isnan(scales[g])) << "scale " << g;
      } else {
        ASSERT_EQ(bits_of(scales[g]), bits_of(expected.scales[g])) << "scale " << g << " granule " << granule;
      }
    }
    for (std::size_t s = 0; s < sums.size(); ++s) ASSERT_EQ(sums[s], expected.sums[s]) << "sum " << s;
  }
};
INSTANTIATE_TEST_SUITE_P(All, QuantiseRow, ::testing::ValuesIn(panel_rows<QuantiseRowFn>("quantise_row")),
                         row_name<QuantiseRowFn>);

TEST_P(QuantiseRow, FollowsTheContract) {
  for (std::uint32_t granule : {0u, 64u, 128u})
    for (std::size_t n : kLengths)
      for (float magnitude : {1.0f, 1e5f, 1e-5f, 1e-29f, 1e38f})
        for (std::size_t gap : {0, 64, 960}) {
          std::normal_distribution<float> value(0, 1);
          std::vector<float> x(n);
          for (float& v : x) v = std::fmin(3.0f, std::fmax(-3.0f, value(random))) * magnitude;
          check(x, granule, gap);
          if (HasFatalFailure()) return;
        }
}

TEST_P(QuantiseRow, Zeros) {
  for (std::uint32_t granule : {0u, 64u, 128u})
    for (std::size_t n : kLengths) {
      check(std::vector<float>(n, 0.0f), granule, 0);
      check(std::vector<float>(n, -0.0f), granule, 0);
      check(std::vector<float>(n, 1e-40f), granule, 0);    // subnormal
      check(std::vector<float>(n, 7.8e-31f), granule, 0);  // below 2^-100
      std::vector<float> one(n, 0.0f);                     // other granules stay zero
      one[n / 2] = 5.0f;
      check(one, granule, 0);
    }
}

TEST_P(QuantiseRow, HalvesGoToEven) {
  std::vector<float> x(64);
  x[0] = 127.0f;  // the factor is 1
  for (std::size_t i = 1; i < 64; ++i) x[i] = static_cast<float>(i) - 32.5f;
  for (std::uint32_t granule : {0u, 64u, 128u}) check(x, granule, 0);
  const Quantised q = quantise(x, 0);
  EXPECT_EQ(q.codes[32], 0) << "-0.5";
  EXPECT_EQ(q.codes[34], 2) << "1.5";
}

TEST_P(QuantiseRow, TiesOfTheLargest) {
  std::vector<float> x(130, 0.25f);
  x[0] = -2.0f;
  x[63] = 2.0f;
  x[64] = 2.0f;
  x[129] = -2.0f;
  for (std::uint32_t granule : {0u, 64u, 128u}) check(x, granule, 0);
}

TEST_P(QuantiseRow, InfinityAndNanSpoilTheirGranule) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN(), __builtin_bit_cast(float, 0xff800001u)})
    for (std::size_t at : {0, 70, 199}) {
      std::vector<float> x(200, 1.5f);
      x[at] = bad;
      for (std::uint32_t granule : {0u, 64u, 128u}) check(x, granule, 0);
    }
}

// Blocks of a gated product to a tile: the codes, scales and sums that quantise_row gives the row.
class QuantiseTile : public RowTest<QuantiseTileFn> {};
INSTANTIATE_TEST_SUITE_P(All, QuantiseTile, ::testing::ValuesIn(panel_rows<QuantiseTileFn>("quantise_tile")),
                         row_name<QuantiseTileFn>);

TEST_P(QuantiseTile, GivesWhatQuantiseRowGives) {
  const QuantiseRowFn one = select_kernels(CpuFeatures{}).quantise_row;
  for (std::uint32_t granule : {0u, 64u, 128u})
    for (std::size_t n : kLengths)
      for (std::size_t rows : {1, 7, 16})
        for (float magnitude : {1.0f, 1e-29f, 1e38f}) {
          const std::size_t blocks = (n + 15) / 16, padded = (n + 63) / 64 * 64;
          const std::size_t width = granule == 0 ? padded : granule, granules = (padded + width - 1) / width;
          const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
          Guarded<float> x(blocks * 256, edge), scales(granules * 16, edge);
          Guarded<std::int8_t> codes(padded * 16, edge);
          Guarded<std::int32_t> sums(16, edge);
          std::normal_distribution<float> value(0, 1);
          for (float& v : x) v = std::fmin(3.0f, std::fmax(-3.0f, value(random))) * magnitude;
          if (random() % 4 == 0) x[0] = std::numeric_limits<float>::quiet_NaN();
          for (std::size_t i = 0; i < blocks * 16; ++i)  // columns of padding hold anything
            for (std::size_t c = 0; c < 16; ++c)
              if (i / 16 * 16 + c >= n) x[i * 16 + c] = std::numeric_limits<float>::infinity();
          row().function(x.data(), rows, n, granule, codes.data(), scales.data(), sums.data());
          for (std::size_t r = 0; r < 16; ++r) {
            std::vector<float> plain(n), scale(granules);
            std::vector<std::int8_t> code(padded);
            std::vector<std::int32_t> sum(padded / 32);
            for (std::size_t k = 0; k < n; ++k) plain[k] = x[(k / 16 * 16 + r) * 16 + k % 16];
            if (r < rows) one(plain.data(), n, granule, code.data(), 64, scale.data(), sum.data());
            std::int32_t total = 0;
            for (const std::int32_t s : sum) total += s;
            ASSERT_EQ(sums[r], total) << "row " << r << " of " << rows << ", " << n << " columns, granule " << granule;
            for (std::size_t g = 0; g < granules; ++g)
              ASSERT_EQ(bits_of(scales[g * 16 + r]), bits_of(scale[g])) << "row " << r << " scale " << g << " of " << n;
            for (std::size_t k = 0; r < rows && k < padded; ++k)
              ASSERT_EQ(codes[(k / 64 * 16 + r) * 64 + k % 64], code[k]) << "row " << r << " code " << k << " of " << n;
          }
        }
}

class RoundTile : public RowTest<RoundTileFn> {};
INSTANTIATE_TEST_SUITE_P(All, RoundTile, ::testing::ValuesIn(panel_rows<RoundTileFn>("round_tile")), row_name<RoundTileFn>);

TEST_P(RoundTile, EveryValueBecomesItsNearest) {
  for (Edge edge : {Edge::front, Edge::back})
    for (std::size_t n : kLengths)
      for (std::size_t rows : {1, 16}) {
        const std::size_t blocks = (n + 15) / 16, padded = (n + 63) / 64 * 64;
        Guarded<float> x(blocks * 256, edge);
        for (float& v : x) v = __builtin_bit_cast(float, static_cast<std::uint32_t>(random()));
        Guarded<std::uint16_t> out(padded * 16, edge);
        row().function(x.data(), rows, n, out.data());
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t k = 0; k < padded; ++k)
            ASSERT_EQ(out[(k / 64 * 16 + r) * 64 + k % 64], k < n ? f32_to_bf16(x[(k / 16 * 16 + r) * 16 + k % 16]) : 0)
                << "row " << r << " element " << k << " of " << n;
      }
}

class RoundRow : public RowTest<RoundRowFn> {};
INSTANTIATE_TEST_SUITE_P(All, RoundRow, ::testing::ValuesIn(panel_rows<RoundRowFn>("round_row")), row_name<RoundRowFn>);

TEST_P(RoundRow, EveryValueBecomesItsNearest) {
  for (Edge edge : {Edge::front, Edge::back})
    for (std::size_t n : kLengths)
      for (std::size_t gap : {0, 128, 1920}) {
        const std::size_t blocks = (n + 63) / 64, stride = 128 + gap;
        Guarded<float> x(n, edge);
        for (float& v : x) v = __builtin_bit_cast(float, static_cast<std::uint32_t>(random()));
        if (n > 2) x[2] = __builtin_bit_cast(float, 0x3f808000u);  // a tie
        Guarded<std::uint16_t> out(((blocks - 1) * stride + 128) / 2, edge);
        for (std::uint16_t& v : out) v = 0x1234;
        row().function(x.data(), n, out.data(), stride);
        for (std::size_t i = 0; i < out.size(); ++i) {
          const std::size_t k = i * 2 / stride * 64 + i * 2 % stride / 2;
          const std::uint16_t expected = i * 2 % stride >= 128 ? 0x1234 : k < n ? f32_to_bf16(x[k]) : 0;
          ASSERT_EQ(out[i], expected) << "element " << i << " of " << n;
        }
      }
}

class Swiglu : public RowTest<SwigluFn> {};
INSTANTIATE_TEST_SUITE_P(All, Swiglu, ::testing::ValuesIn(panel_rows<SwigluFn>("swiglu")), row_name<SwigluFn>);

TEST_P(Swiglu, AgreesWithTheDefinitionAndTheScalarLevel) {
  const SwigluFn scalar = select_kernels(CpuFeatures{}).swiglu;
  for (Edge edge : {Edge::front, Edge::back})
    for (float magnitude : {0.01f, 1.0f, 20.0f, 120.0f, 1e5f})
      for (int repeat = 0; repeat < 200; ++repeat) {
        Guarded<float> in(32, edge), h(16, edge), expected(16);
        std::uniform_real_distribution<float> value(-magnitude, magnitude);
        for (float& v : in) v = value(random);
        if (repeat == 0) in[0] = 0.0f, in[1] = -0.0f, in[2] = magnitude, in[3] = -magnitude;
        row().function(in.data(), h.data());
        scalar(in.data(), expected.data());
        for (std::size_t i = 0; i < 16; ++i) {
          const double g = in[i], exact = g / (1 + std::exp(-g)) * in[16 + i];
          ASSERT_NEAR(h[i], exact, 1e-6 * std::abs(exact) + 1e-35) << in[i];
          ASSERT_EQ(bits_of(h[i]), bits_of(expected[i])) << in[i] << ", " << in[16 + i];
        }
      }
}

TEST_P(Swiglu, Limits) {
  const float inf = std::numeric_limits<float>::infinity();
  Guarded<float> in(32), h(16);
  for (float& v : in) v = 1.0f;
  in[0] = -inf;
  in[1] = inf;
  in[2] = std::numeric_limits<float>::quiet_NaN();
  in[3] = -1e30f;
  row().function(in.data(), h.data());
  EXPECT_EQ(h[0], 0.0f);
  EXPECT_EQ(h[1], inf);
  EXPECT_TRUE(std::isnan(h[2]));
  EXPECT_EQ(h[3], 0.0f);
}

class Accumulate : public RowTest<AccumulateFn> {};
INSTANTIATE_TEST_SUITE_P(All, Accumulate, ::testing::ValuesIn(panel_rows<AccumulateFn>("accumulate")),
                         row_name<AccumulateFn>);

TEST_P(Accumulate, IsAFusedMultiplyAdd) {
  for (Edge edge : {Edge::front, Edge::back})
    for (std::size_t n : kLengths)
      for (bool first : {false, true}) {
        Guarded<float> x(n, edge), y(n, edge);
        std::normal_distribution<float> value;
        for (float& v : x) v = value(random);
        for (float& v : y) v = first ? std::numeric_limits<float>::quiet_NaN() : value(random) * 1e-3f;
        const std::vector<float> before(y.begin(), y.end());
        const float scale = value(random);
        row().function(x.data(), scale, n, first, y.data());
        for (std::size_t i = 0; i < n; ++i) {
          const float product = scale * x[i];
          ASSERT_EQ(bits_of(y[i]), bits_of(first ? product : std::fma(scale, x[i], before[i]))) << "at " << i;
        }
      }
}

}  // namespace
}  // namespace ktc::kernels
