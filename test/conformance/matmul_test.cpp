// matmul and gate_up of every level against sums in double precision, and the promises about bits.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "test/conformance/guarded.h"
#include "test/conformance/rows.h"

namespace ktc::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = std::numeric_limits<float>::epsilon();

// What the y array holds before a call, by position: a write to a wrong place is seen.
float canary(std::size_t i) {
  return 1000.0f + static_cast<float>(i % 977);
}

struct Options {
  bool x_rows = false, y_rows = false, bias = false, scale = false;
  Edge edge = Edge::back;
};

// One product with its operands. Gaps between rows of x hold NaN, so reading one shows in the result.
struct Problem {
  Problem(Format format, std::size_t m, std::size_t k, std::size_t n, Options options, std::mt19937& random)
      : m(m),
        k(k),
        n(n),
        options(options),
        x_stride(k + random() % 5),
        y_stride(n + random() % 5),
        row_bytes(packed_row_bytes(format, Packing::row_major, k)),
        x((stored_rows() - 1) * x_stride + k, options.edge),
        w(format, n * row_bytes / (format == Format::f32 ? 4 : 2), options.edge),
        bias(n, options.edge),
        y((stored_rows() - 1) * y_stride + n, options.edge),
        scale(m, options.edge),
        x_rows(m, options.edge),
        y_rows(m, options.edge) {
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    for (float& v : x) v = kNan;
    for (std::size_t i = 0; i < m; ++i) {
      x_rows[i] = static_cast<std::uint32_t>(options.x_rows ? stored_rows() - 1 - 2 * i : i);
      y_rows[i] = static_cast<std::uint32_t>(options.y_rows ? (i * 7 + 3) % m * 2 : i);
      if (options.y_rows && m % 7 == 0) y_rows[i] = static_cast<std::uint32_t>(2 * i);
      scale[i] = value(random);
      for (std::size_t c = 0; c < k; ++c) x[x_row(i) * x_stride + c] = value(random);
    }
    const std::size_t columns = row_bytes / w.width();
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t c = 0; c < columns; ++c) w.set(r * columns + c, c < k ? value(random) : 0.0f);
    for (float& v : bias) v = value(random);
    reset();
  }
  std::size_t stored_rows() const { return options.x_rows || options.y_rows ? 2 * m : m; }
  std::size_t x_row(std::size_t i) const { return x_rows[i]; }
  void reset() {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = canary(i);
  }
  MatmulArgs args() {
    return {.x = x.data(),
            .x_stride = x_stride,
            .x_rows = options.x_rows ? x_rows.data() : nullptr,
            .w = w.data(),
            .w_row_bytes = row_bytes,
            .bias = options.bias ? bias.data() : nullptr,
            .y = y.data(),
            .y_stride = y_stride,
            .y_rows = options.y_rows ? y_rows.data() : nullptr,
            .scale = options.scale ? scale.data() : nullptr,
            .m = m,
            .k = k,
            .n_begin = 0,
            .n_end = n};
  }
  double dot(std::size_t i, std::size_t column) const {
    double sum = 0;
    for (std::size_t c = 0; c < k; ++c)
      sum += static_cast<double>(x[x_row(i) * x_stride + c]) * w.get(column * row_bytes / w.width() + c);
    return sum;
  }

  std::size_t m, k, n;
  Options options;
  std::size_t x_stride, y_stride, row_bytes;
  Guarded<float> x;
  Elements w;
  Guarded<float> bias, y, scale;
  Guarded<std::uint32_t> x_rows, y_rows;
};

// Compares columns [begin, end) with the definition and everything else with the canaries.
void check_matmul(Problem& p, std::size_t begin, std::size_t end) {
  std::vector<double> expected(p.y.size());
  std::vector<bool> written(p.y.size(), false);
  for (std::size_t i = 0; i < p.y.size(); ++i) expected[i] = canary(i);
  for (std::size_t i = 0; i < p.m; ++i) {
    for (std::size_t c = begin; c < end; ++c) {
      const std::size_t at = p.y_rows[i] * p.y_stride + c;
      const double sum = p.dot(i, c) + (p.options.bias ? p.bias[c] : 0.0f);
      expected[at] = p.options.scale ? expected[at] + p.scale[i] * sum : sum;
      written[at] = true;
    }
  }
  for (std::size_t i = 0; i < p.y.size(); ++i) {
    if (!written[i]) {
      ASSERT_EQ(p.y[i], canary(i)) << "written outside, at " << i;
      continue;
    }
    // |x|, |w|, |bias| and |scale| are at most 1; with scale, the canary is rounded once more
    const double bound = kEps * (static_cast<double>(p.k) + 3 + (p.options.scale ? canary(i) : 0));
    ASSERT_NEAR(p.y[i], expected[i], bound) << "row " << i / p.y_stride << " column " << i % p.y_stride;
  }
}

class Matmul : public RowTest<MatmulFn> {
 protected:
  void check(std::size_t m, std::size_t k, std::size_t n, Options options) {
    SCOPED_TRACE(::testing::Message() << "m " << m << " k " << k << " n " << n << " x_rows " << options.x_rows
                                      << " y_rows " << options.y_rows << " bias " << options.bias << " scale "
                                      << options.scale);
    Problem p(row().format, m, k, n, options, random);
    row().function(p.args());
    check_matmul(p, 0, n);
    if (HasFatalFailure()) return;
    p.reset();
    MatmulArgs args = p.args();
    args.n_begin = random() % (n + 1);
    args.n_end = args.n_begin + random() % (n - args.n_begin + 1);
    row().function(args);
    check_matmul(p, args.n_begin, args.n_end);
  }
  Options any_options() {
    return {.x_rows = random() % 2 == 0,
            .y_rows = random() % 2 == 0,
            .bias = random() % 2 == 0,
            .scale = random() % 2 == 0,
            .edge = random() % 2 == 0 ? Edge::front : Edge::back};
  }
};
INSTANTIATE_TEST_SUITE_P(All, Matmul, ::testing::ValuesIn(rows<MatmulFn>()), row_name<MatmulFn>);

TEST_P(Matmul, EdgeShapes) {
  for (std::size_t k : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 251})
    for (std::size_t m : {1, 2, 3, 4, 5, 7})
      for (std::size_t n : {1, 3, 4, 5, 8, 9, 17}) {
        check(m, k, n, {.edge = random() % 2 == 0 ? Edge::front : Edge::back});
        if (HasFatalFailure()) return;
      }
}

TEST_P(Matmul, EveryModeOfRowsBiasAndScale) {
  for (unsigned mode = 0; mode < 16; ++mode)
    for (std::size_t m : {1, 2, 5, 12, 13}) {
      check(m, 53, 19,
            {.x_rows = (mode & 1) != 0, .y_rows = (mode & 2) != 0, .bias = (mode & 4) != 0, .scale = (mode & 8) != 0});
      if (HasFatalFailure()) return;
    }
}

TEST_P(Matmul, RandomShapes) {
  for (int round = 0; round < 60; ++round) {
    check(1 + random() % 40, 1 + random() % 600, 1 + random() % 70, any_options());
    if (HasFatalFailure()) return;
  }
}

// Rows of x are worked on in chunks that fit a cache; these shapes have several.
TEST_P(Matmul, MoreRowsThanOneChunk) {
  check(37, 20011, 6, {.bias = true});
  if (HasFatalFailure()) return;
  check(601, 511, 5, {.x_rows = true, .scale = true});
}

TEST_P(Matmul, NothingToDo) {
  Problem p(row().format, 3, 20, 9, {}, random);
  MatmulArgs args = p.args();
  args.m = 0;
  row().function(args);
  args = p.args();
  args.n_begin = args.n_end = 4;
  row().function(args);
  args.n_begin = args.n_end = 9;
  row().function(args);
  for (std::size_t i = 0; i < p.y.size(); ++i) ASSERT_EQ(p.y[i], canary(i));
}

// The promise of the header: a row's bits depend on neither m, nor the range of columns, nor the neighbours.
TEST_P(Matmul, BitsDependOnTheRowAlone) {
  for (auto [m, k] : {std::pair{23, 517}, {64, 96}, {9, 2048}, {130, 4099}}) {
    const std::size_t n = 29;
    Problem p(row().format, m, k, n, {.bias = true}, random);
    row().function(p.args());
    const std::vector<float> whole(p.y.begin(), p.y.end());
    const auto expect_same = [&](const MatmulArgs& args, const char* how) {
      p.reset();
      row().function(args);
      for (std::size_t i = 0; i < args.m; ++i)
        for (std::size_t c = args.n_begin; c < args.n_end; ++c) {
          const std::size_t from = (args.x_rows != nullptr ? args.x_rows[i] : i) * p.y_stride + c;
          const std::size_t at = (args.y_rows != nullptr ? args.y_rows[i] : i) * p.y_stride + c;
          ASSERT_EQ(bits_of(p.y[at]), bits_of(whole[from]))
              << how << " m " << args.m << " row " << i << " column " << c;
        }
    };
    for (std::uint32_t i = 0; i < p.m; ++i) {
      MatmulArgs alone = p.args();
      alone.m = 1;
      alone.x_rows = alone.y_rows = &i;
      expect_same(alone, "alone");
      if (HasFatalFailure()) return;
    }
    for (std::size_t part = 1; part <= p.m && part <= 17; ++part) {
      MatmulArgs fewer = p.args();
      fewer.m = part;
      expect_same(fewer, "first rows");
      if (HasFatalFailure()) return;
    }
    for (std::size_t begin = 0; begin < n; begin += 3) {
      MatmulArgs cut = p.args();
      cut.n_begin = begin;
      cut.n_end = std::min<std::size_t>(n, begin + 1 + random() % 12);
      expect_same(cut, "cut");
      if (HasFatalFailure()) return;
    }
    for (std::size_t i = 0; i < p.m; ++i) p.x_rows[i] = p.y_rows[i] = static_cast<std::uint32_t>(p.m - 1 - i);
    MatmulArgs reversed = p.args();
    reversed.x_rows = p.x_rows.data();
    reversed.y_rows = p.y_rows.data();
    expect_same(reversed, "reversed");
    if (HasFatalFailure()) return;
    // what stands in the other rows must not matter, not even NaN
    for (std::size_t i = 1; i < p.m; ++i) p.x[i * p.x_stride] = kNan;
    MatmulArgs beside = p.args();
    p.reset();
    row().function(beside);
    for (std::size_t c = 0; c < n; ++c) ASSERT_EQ(bits_of(p.y[c]), bits_of(whole[c])) << "beside NaN";
  }
}

// Several tokens may add to one row of y (their experts' outputs); the order is that of m.
TEST_P(Matmul, RowsThatShareARowOfYAddInOrder) {
  const std::size_t m = 14;
  Problem p(row().format, m, 40, 11, {.scale = true}, random);
  for (std::size_t i = 0; i < m; ++i) p.y_rows[i] = 2;
  MatmulArgs args = p.args();
  args.y_rows = p.y_rows.data();
  row().function(args);
  const std::vector<float> together(p.y.begin(), p.y.end());
  p.reset();
  for (std::uint32_t i = 0; i < m; ++i) {
    MatmulArgs one = args;
    one.m = 1;
    one.x_rows = &i;
    one.scale = p.scale.data() + i;
    row().function(one);
  }
  for (std::size_t i = 0; i < p.y.size(); ++i) ASSERT_EQ(bits_of(p.y[i]), bits_of(together[i])) << i;
}

class GateUp : public RowTest<GateUpFn> {
 protected:
  void check(std::size_t m, std::size_t k, std::size_t intermediate, Options options) {
    SCOPED_TRACE(::testing::Message() << "m " << m << " k " << k << " intermediate " << intermediate);
    Problem p(row().format, m, k, 2 * intermediate, options, random);
    MatmulArgs args = p.args();
    args.n_begin = random() % (intermediate + 1) * (random() % 2);
    args.n_end = random() % 2 == 0 ? intermediate : args.n_begin + random() % (intermediate - args.n_begin + 1);
    row().function(args, intermediate);
    std::vector<bool> written(p.y.size(), false);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t c = args.n_begin; c < args.n_end; ++c) {
        const double gate = p.dot(i, c), up = p.dot(i, intermediate + c);
        const double expected = gate / (1 + std::exp(-gate)) * up;
        const double bound = kEps * (k + 3.0) * (std::abs(gate) + 1.1 * std::abs(up) + 1);  // |silu'| < 1.1
        const std::size_t at = p.y_rows[i] * p.y_stride + c;
        ASSERT_NEAR(p.y[at], expected, bound) << "row " << i << " column " << c;
        written[at] = true;
      }
    }
    for (std::size_t i = 0; i < p.y.size(); ++i)
      if (!written[i]) {
        ASSERT_EQ(p.y[i], canary(i)) << "written outside, at " << i;
      }
  }
};
INSTANTIATE_TEST_SUITE_P(All, GateUp, ::testing::ValuesIn(rows<GateUpFn>()), row_name<GateUpFn>);

TEST_P(GateUp, EdgeAndRandomShapes) {
  for (std::size_t k : {1, 15, 16, 17, 31, 33, 64, 97})
    for (std::size_t m : {1, 2, 3, 4, 6, 7, 13})
      for (std::size_t n : {1, 2, 3, 4, 5, 7, 11}) {
        check(m, k, n,
              {.x_rows = random() % 2 == 0,
               .y_rows = random() % 2 == 0,
               .edge = random() % 2 == 0 ? Edge::front : Edge::back});
        if (HasFatalFailure()) return;
      }
  for (int round = 0; round < 30; ++round) {
    check(1 + random() % 40, 1 + random() % 300, 1 + random() % 40, {.x_rows = random() % 2 == 0});
    if (HasFatalFailure()) return;
  }
}

TEST_P(GateUp, BitsDependOnTheRowAlone) {
  const std::size_t m = 31, intermediate = 21;
  Problem p(row().format, m, 333, 2 * intermediate, {}, random);
  MatmulArgs args = p.args();
  args.n_end = intermediate;
  row().function(args, intermediate);
  const std::vector<float> whole(p.y.begin(), p.y.end());
  for (std::uint32_t i = 0; i < m; ++i) {
    for (std::size_t rows : {1, 2, 3, 5}) {
      if (i + rows > m) continue;
      p.reset();
      MatmulArgs part = args;
      part.x += i * p.x_stride;
      part.y += i * p.y_stride;
      part.m = rows;
      part.n_begin = random() % intermediate;
      part.n_end = part.n_begin + 1 + random() % (intermediate - part.n_begin);
      row().function(part, intermediate);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = part.n_begin; c < part.n_end; ++c) {
          const std::size_t at = (i + r) * p.y_stride + c;
          ASSERT_EQ(bits_of(p.y[at]), bits_of(whole[at])) << "row " << i + r << " of " << rows << " column " << c;
        }
    }
  }
}

// x = (v, 1), gate row (1, 0), up row (0, 1): h = silu(v) exactly as the kernel computes it.
TEST_P(GateUp, SiluIsAccurateEverywhere) {
  Guarded<float> x(2), h(1);
  Elements w(row().format, 2 * packed_row_bytes(row().format, Packing::row_major, 2) / (row().f32() ? 4 : 2));
  const std::size_t row_bytes = packed_row_bytes(row().format, Packing::row_major, 2), columns = row_bytes / w.width();
  for (std::size_t i = 0; i < 2 * columns; ++i) w.set(i, 0.0f);
  w.set(0, 1.0f);
  w.set(columns + 1, 1.0f);
  const auto silu = [&](float v) {
    x[0] = v;
    x[1] = 1.0f;
    MatmulArgs args{};
    args.x = x.data();
    args.x_stride = 2;
    args.w = w.data();
    args.w_row_bytes = row_bytes;
    args.y = h.data();
    args.y_stride = 1;
    args.m = 1;
    args.k = 2;
    args.n_end = 1;
    row().function(args, 1);
    return h[0];
  };
  std::vector<float> values = {0.0f,   -0.0f,  1e-30f, -1e-30f, 1e5f,    -1e5f, 88.7f,
                               -88.7f, -87.4f, -90.0f, -103.0f, -104.5f, 3e38f, -3e38f};
  for (float v = -110.0f; v < 110.0f; v += 0.00371f) values.push_back(v);
  double worst = 0;
  for (float v : values) {
    const double exact = static_cast<double>(v) / (1 + std::exp(-static_cast<double>(v)));
    const float got = silu(v);
    ASSERT_TRUE(std::isfinite(got)) << v;
    // below 2^-120 results lose bits to gradual underflow; there the error is absolute
    const double error = std::abs(got - exact);
    if (std::abs(exact) > 0x1p-119) {
      worst = std::max(worst, error / std::abs(exact));
    } else {
      ASSERT_LE(error, 0x1p-141) << v;
    }
  }
  EXPECT_LT(worst, 2.5e-7);  // exp, a sum, a quotient and a product
  w.set(0, 4.0f);            // the gate overflows
  EXPECT_EQ(silu(-3e38f), 0.0f);
  EXPECT_EQ(silu(3e38f), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace ktc::kernels
