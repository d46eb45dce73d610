// attend of every level against softmax in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "test/conformance/guarded.h"
#include "test/conformance/rows.h"

namespace ktc::kernels {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Shape {
  std::size_t heads, width1, width2, value_width, context, page_tokens;
};
void PrintTo(const Shape& s, std::ostream* out) {
  *out << "heads " << s.heads << " width " << s.width1 << "+" << s.width2 << " value " << s.value_width << " context "
       << s.context << " page " << s.page_tokens;
}

// A paged cache of exactly as many pages as the context needs, in a random order, with NaN wherever no key is.
struct Problem {
  Problem(Format format, Shape shape, std::mt19937& random, float magnitude = 1.0f, bool value_is_k1 = false,
          Edge edge = Edge::back)
      : s(shape),
        element(format == Format::f32 ? 4 : 2),
        page_count((s.context + s.page_tokens - 1) / s.page_tokens),
        page_elements(s.page_tokens * (s.width1 + s.width2 + (value_is_k1 ? 0 : s.value_width))),
        q_stride(s.width1 + s.width2 + random() % 3),
        out_stride(s.value_width + random() % 3),
        cache(format, page_count * page_elements, edge),
        q((s.heads - 1) * q_stride + s.width1 + s.width2, edge),
        out((s.heads - 1) * out_stride + s.value_width, edge),
        pages(page_count, edge) {
    // v stands before k in the page, so an out-of-range key read lands in a guard page or in NaN
    k1_at = value_is_k1 ? 0 : s.page_tokens * s.value_width;
    k2_at = k1_at + s.page_tokens * s.width1;
    v_at = 0;
    for (std::size_t i = 0; i < page_count * page_elements; ++i) cache.set(i, std::nanf(""));
    for (float& v : q) v = std::nanf("");
    for (std::size_t i = 0; i < page_count; ++i) pages[i] = static_cast<std::uint32_t>(i);
    std::shuffle(pages.begin(), pages.end(), random);
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    for (std::size_t h = 0; h < s.heads; ++h)
      for (std::size_t c = 0; c < s.width1 + s.width2; ++c) q[h * q_stride + c] = magnitude * value(random);
    for (std::size_t j = 0; j < s.context; ++j) {
      for (std::size_t c = 0; c < s.value_width; ++c) cache.set(at(j, v_at, s.value_width) + c, value(random));
      for (std::size_t c = 0; c < s.width1; ++c) cache.set(at(j, k1_at, s.width1) + c, value(random));
      for (std::size_t c = 0; c < s.width2; ++c) cache.set(at(j, k2_at, s.width2) + c, value(random));
    }
    scale = 1.0f / std::sqrt(static_cast<float>(s.width1 + s.width2));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = canary(i);
  }
  static float canary(std::size_t i) { return 5000.0f + static_cast<float>(i % 991); }
  std::size_t at(std::size_t j, std::size_t area, std::size_t width) const {
    return pages[j / s.page_tokens] * page_elements + area + j % s.page_tokens * width;
  }
  AttendArgs args() {
    return {.q = q.data(),
            .q_stride = q_stride,
            .heads = s.heads,
            .width1 = s.width1,
            .width2 = s.width2,
            .value_width = s.value_width,
            .cache = cache.data(),
            .pages = pages.data(),
            .page_bytes = page_elements * element,
            .page_tokens = s.page_tokens,
            .k1_offset = k1_at * element,
            .k2_offset = k2_at * element,
            .v_offset = v_at * element,
            .context = s.context,
            .scale = scale,
            .out = out.data(),
            .out_stride = out_stride};
  }
  std::vector<double> expected(std::size_t h) const {
    std::vector<double> score(s.context), sum(s.value_width, 0.0);
    double top = -INFINITY, denominator = 0;
    for (std::size_t j = 0; j < s.context; ++j) {
      double dot = 0;
      const float* query = q.data() + h * q_stride;
      for (std::size_t c = 0; c < s.width1; ++c)
        dot += static_cast<double>(query[c]) * cache.get(at(j, k1_at, s.width1) + c);
      for (std::size_t c = 0; c < s.width2; ++c)
        dot += static_cast<double>(query[s.width1 + c]) * cache.get(at(j, k2_at, s.width2) + c);
      score[j] = scale * dot;
      top = std::max(top, score[j]);
    }
    for (std::size_t j = 0; j < s.context; ++j) {
      const double p = std::exp(score[j] - top);
      denominator += p;
      for (std::size_t c = 0; c < s.value_width; ++c) sum[c] += p * cache.get(at(j, v_at, s.value_width) + c);
    }
    for (double& v : sum) v /= denominator;
    return sum;
  }

  Shape s;
  std::size_t element, page_count, page_elements, q_stride, out_stride, k1_at, k2_at, v_at;
  Elements cache;
  Guarded<float> q, out;
  Guarded<std::uint32_t> pages;
  float scale;
};

// Of the levels that this machine runs.
std::vector<AttendJoinFn> join_kernels() {
  std::vector<AttendJoinFn> found;
  for (const Row<AttendJoinFn>& row : rows<AttendJoinFn>())
    if (isa_level_available(row.level, host_cpu_features())) found.push_back(row.function);
  return found;
}

class Attend : public RowTest<AttendFn> {
 protected:
  void check(Shape shape, float magnitude = 1.0f, bool value_is_k1 = false, Edge edge = Edge::back) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    Problem p(row().format, shape, random, magnitude, value_is_k1, edge);
    row().function(p.args());
    // An error d of a score moves p by a factor e^d, twice (numerator, denominator); values are at most 1. Sums of up
    // to `context` terms follow, of which the weights add up to 1.
    const double width = static_cast<double>(shape.width1 + shape.width2);
    const double score_error = kEps * (width + 2) * magnitude * p.scale + kEps * magnitude * width * p.scale;
    const double bound = 2 * score_error + kEps * (static_cast<double>(shape.context) + 16);
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::vector<double> expected = p.expected(h);
      for (std::size_t c = 0; c < shape.value_width; ++c)
        ASSERT_NEAR(p.out[h * p.out_stride + c], expected[c], bound) << "head " << h << " element " << c;
    }
    for (std::size_t i = 0; i < p.out.size(); ++i)
      if (i % p.out_stride >= shape.value_width) {
        ASSERT_EQ(p.out[i], Problem::canary(i)) << "written outside, at " << i;
      }
  }
};
INSTANTIATE_TEST_SUITE_P(All, Attend, ::testing::ValuesIn(rows<AttendFn>()), row_name<AttendFn>);

TEST_P(Attend, EdgeShapes) {
  for (std::size_t context : {1, 2, 15, 16, 17, 31, 32, 33, 63, 65})
    for (std::size_t width : {1, 7, 8, 16, 17, 33})
      for (std::size_t heads : {1, 2, 3, 4, 5, 7, 13}) {
        check({heads, width, random() % 2 * (width + 2), 1 + random() % 70, context, 1 + random() % 20}, 1.0f, false,
              random() % 2 == 0 ? Edge::front : Edge::back);
        if (HasFatalFailure()) return;
      }
}

TEST_P(Attend, ShapesOfModels) {
  for (std::size_t group : {1, 2, 4, 8, 16})
    for (std::size_t dim : {64, 128, 256}) {
      check({group, dim, 0, dim, 200 + random() % 100, 16});
      if (HasFatalFailure()) return;
    }
  check({128, 512, 64, 512, 77, 16}, 1.0f, true);  // MLA: the values are the first part of the keys
  check({16, 512, 64, 512, 130, 64}, 1.0f, true);
  check({150, 24, 8, 24, 40, 16}, 1.0f, true);  // more heads than one chunk of state
}

TEST_P(Attend, RandomShapes) {
  for (int round = 0; round < 40; ++round) {
    check({1 + random() % 20, 1 + random() % 200, random() % 2 * (random() % 70), 1 + random() % 200,
           1 + random() % 300, 1 + random() % 40});
    if (HasFatalFailure()) return;
  }
}

// Scores up to about +-1000: a softmax that is not stable overflows, and the maximum moves often.
TEST_P(Attend, LargeScores) {
  for (int round = 0; round < 5; ++round) {
    check({3, 64, 0, 32, 150, 16}, 500.0f);
    if (HasFatalFailure()) return;
  }
}

// Rising scores move the maximum at every key; falling ones never.
TEST_P(Attend, RisingAndFallingScores) {
  for (float step : {4.0f, -4.0f}) {
    Problem p(row().format, {1, 1, 0, 3, 100, 16}, random);
    p.q[0] = 1.0f;
    p.scale = 1.0f;
    for (std::size_t j = 0; j < 100; ++j) p.cache.set(p.at(j, p.k1_at, 1), step * static_cast<float>(j));
    row().function(p.args());
    const std::vector<double> expected = p.expected(0);
    for (std::size_t c = 0; c < 3; ++c) ASSERT_NEAR(p.out[c], expected[c], 20 * kEps) << "step " << step;
  }
}

// With two keys of scores 0 and -t and values 0 and 1, the output is e^-t / (1 + e^-t).
TEST_P(Attend, ExpIsAccurate) {
  Problem p(row().format, {1, 1, 0, 1, 2, 2}, random);
  p.scale = 1.0f;
  p.cache.set(p.at(0, p.k1_at, 1), 0.0f);
  p.cache.set(p.at(1, p.k1_at, 1), -1.0f);
  p.cache.set(p.at(0, p.v_at, 1), 0.0f);
  p.cache.set(p.at(1, p.v_at, 1), 1.0f);
  double worst = 0;
  for (float t = 0.0f; t < 87.0f; t += 0.0071f) {
    p.q[0] = t;
    row().function(p.args());
    const double exact = std::exp(-static_cast<double>(t)) / (1 + std::exp(-static_cast<double>(t)));
    worst = std::max(worst, std::abs(p.out[0] - exact) / exact);
  }
  EXPECT_LT(worst, 2.5e-7);
  for (float t : {104.5f, 1e4f, 1e30f}) {
    p.q[0] = t;
    row().function(p.args());
    EXPECT_EQ(p.out[0], 0.0f) << t;
  }
}

TEST_P(Attend, BitsDependOnTheHeadAlone) {
  const Shape shape{13, 72, 24, 100, 173, 16};
  Problem p(row().format, shape, random, 3.0f);
  row().function(p.args());
  const std::vector<float> whole(p.out.begin(), p.out.end());
  for (std::size_t first = 0; first < shape.heads; ++first)
    for (std::size_t heads : {1, 2, 3, 4, 5, 6}) {
      if (first + heads > shape.heads) continue;
      std::fill(p.out.begin(), p.out.end(), std::nanf(""));
      AttendArgs part = p.args();
      part.q += first * part.q_stride;
      part.out += first * part.out_stride;
      part.heads = heads;
      row().function(part);
      for (std::size_t h = first; h < first + heads; ++h)
        for (std::size_t c = 0; c < shape.value_width; ++c)
          ASSERT_EQ(bits_of(p.out[h * p.out_stride + c]), bits_of(whole[h * p.out_stride + c]))
              << "head " << h << " in " << heads << " from " << first;
    }
}

// The paging of a sequence is bookkeeping: its page size and page order must not show in the bits.
TEST_P(Attend, BitsDoNotDependOnThePaging) {
  const Shape shape{4, 40, 0, 40, 101, 16};
  Problem one(row().format, shape, random);
  row().function(one.args());
  for (std::size_t page_tokens : {1, 3, 32, 101, 200}) {
    Shape other_shape = shape;
    other_shape.page_tokens = page_tokens;
    Problem other(row().format, other_shape, random);
    for (std::size_t h = 0; h < shape.heads; ++h)
      for (std::size_t c = 0; c < shape.width1; ++c) other.q[h * other.q_stride + c] = one.q[h * one.q_stride + c];
    for (std::size_t j = 0; j < shape.context; ++j)
      for (std::size_t c = 0; c < 40; ++c) {
        other.cache.set(other.at(j, other.k1_at, 40) + c, one.cache.get(one.at(j, one.k1_at, 40) + c));
        other.cache.set(other.at(j, other.v_at, 40) + c, one.cache.get(one.at(j, one.v_at, 40) + c));
      }
    row().function(other.args());
    for (std::size_t h = 0; h < shape.heads; ++h)
      for (std::size_t c = 0; c < 40; ++c)
        ASSERT_EQ(bits_of(other.out[h * other.out_stride + c]), bits_of(one.out[h * one.out_stride + c]))
            << "page of " << page_tokens;
  }
}

// Tokens at consecutive positions share a pass over the keys; each gets the bits that it gets alone. Keys behind a row's own
// context must not reach it: they are made infinite for the last row to see and the others to ignore.
TEST_P(Attend, RowsThatShareAPassGetTheBitsThatTheyGetAlone) {
  for (const std::size_t context : {1, 60, 64, 65, 127, 300})
    for (const std::size_t heads : {1, 4, 9})
      for (const std::size_t rows : {2, 5, 8}) {
        const Shape shape{heads, 40, 8, 33, context + rows - 1, 16};
        Problem p(row().format, shape, random);
        for (std::size_t c = 0; c < shape.value_width; ++c)
          p.cache.set(p.at(shape.context - 1, p.v_at, shape.value_width) + c, INFINITY);
        std::uniform_real_distribution<float> value(-1.0f, 1.0f);
        const std::size_t q_row = heads * p.q_stride, out_row = heads * p.out_stride;
        std::vector<float> q(rows * q_row), together(rows * out_row, -1.0f), alone(rows * out_row, -1.0f);
        for (float& x : q) x = value(random);
        AttendArgs args = p.args();
        args.q = q.data();
        args.out = together.data();
        args.context = context;
        args.rows = rows;
        args.q_row_stride = q_row;
        args.out_row_stride = out_row;
        row().function(args);
        for (std::size_t r = 0; r < rows; ++r) {
          AttendArgs one = p.args();
          one.q = q.data() + r * q_row;
          one.out = alone.data() + r * out_row;
          one.context = context + r;
          row().function(one);
        }
        for (std::size_t i = 0; i < alone.size(); ++i)
          ASSERT_TRUE(bits_of(together[i]) == bits_of(alone[i]) || (std::isnan(together[i]) && std::isnan(alone[i])))
              << "context " << context << " heads " << heads << " rows " << rows << " at " << i;
        for (std::size_t i = 0; i + out_row < alone.size(); ++i) ASSERT_TRUE(std::isfinite(alone[i])) << "of all rows but the last";
      }
}

// Parts of the keys, joined in order, are the whole softmax; the parts of rows are those of each row alone.
TEST_P(Attend, PartsJoinToTheWhole) {
  for (const AttendJoinFn join : join_kernels())
    for (const std::size_t most : {64, 128}) {
      const Shape shape{5, 48, 16, 70, 300, 16};
      Problem p(row().format, shape, random, 3.0f);
      const auto part = [&](std::size_t first, float* out, float* top, float* weight) {
        AttendArgs args = p.args();
        args.first = first;
        args.most = most;
        args.top = top;
        args.weight = weight;
        args.out = out;
        args.out_stride = shape.value_width;
        row().function(args);
      };
      std::vector<float> out(5 * 70), more(5 * 70), top(5), weight(5), more_top(5), more_weight(5);
      part(0, out.data(), top.data(), weight.data());
      for (std::size_t first = most; first < shape.context; first += most) {
        part(first, more.data(), more_top.data(), more_weight.data());
        join({5, 70, out.data(), 70, top.data(), weight.data(), more.data(), 70, more_top.data(), more_weight.data(),
              first + most >= shape.context});
      }
      for (std::size_t h = 0; h < 5; ++h) {
        const std::vector<double> expected = p.expected(h);
        for (std::size_t c = 0; c < 70; ++c) ASSERT_NEAR(out[h * 70 + c], expected[c], 5e-5) << "head " << h << " element " << c;
      }
    }
}

// Against double precision, tops far apart in both directions; without a part it only divides.
TEST(AttendJoin, WeighsBothSidesByTheirTops) {
  for (const AttendJoinFn join : join_kernels())
    for (const float apart : {-200.0f, -3.0f, 0.0f, 2.5f, 200.0f})
      for (const std::size_t width : {1, 7, 16, 33}) {
        std::vector<float> out(width), part(width);
        for (std::size_t c = 0; c < width; ++c) out[c] = static_cast<float>(c) + 1, part[c] = 2.0f - static_cast<float>(c);
        float top = 1.0f, weight = 3.0f;
        const float part_top = top + apart, part_weight = 5.0f;
        const double most = std::max<double>(1, 1 + static_cast<double>(apart)), a = std::exp(1 - most), b = std::exp(1 + static_cast<double>(apart) - most);
        std::vector<float> joined = out;
        join({1, width, joined.data(), width, &top, &weight, part.data(), width, &part_top, &part_weight, false});
        EXPECT_EQ(top, std::max(1.0f, part_top));
        EXPECT_NEAR(weight, a * 3 + b * 5, 1e-5);
        for (std::size_t c = 0; c < width; ++c) EXPECT_NEAR(joined[c], a * out[c] + b * part[c], 1e-4) << apart << " " << c;
        join({1, width, joined.data(), width, &top, &weight, nullptr, 0, nullptr, nullptr, true});
        for (std::size_t c = 0; c < width; ++c) EXPECT_NEAR(joined[c], (a * out[c] + b * part[c]) / (a * 3 + b * 5), 1e-4);
      }
}

// A million keys from eight pages that repeat: every key counts the same number of times, so the output is that of the
// eight pages alone. Shows that the sums keep their precision.
TEST_P(Attend, AMillionKeys) {
  const std::size_t repeats = 8192, keys = 128;
  Problem p(row().format, {2, 16, 0, 16, keys, 16}, random);
  std::vector<std::uint32_t> pages;
  for (std::size_t i = 0; i < repeats; ++i) pages.insert(pages.end(), p.pages.begin(), p.pages.end());
  AttendArgs args = p.args();
  args.pages = pages.data();
  args.context = repeats * keys;
  row().function(args);
  for (std::size_t h = 0; h < 2; ++h) {
    const std::vector<double> expected = p.expected(h);
    for (std::size_t c = 0; c < 16; ++c) ASSERT_NEAR(p.out[h * p.out_stride + c], expected[c], 1e-3) << "head " << h;
  }
}

}  // namespace
}  // namespace ktc::kernels
