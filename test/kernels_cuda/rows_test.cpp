// rope_table, embed, norms, add, select_rows.
#include "test/kernels_cuda/gpu_fixture.h"

namespace ktc::gpu {
namespace {

class Rows : public SetTest {};
INSTANTIATE_TEST_SUITE_P(Sets, Rows, both_sets(), set_name);

TEST_P(Rows, RopeTable) {
  const std::vector<std::int32_t> positions = {0, 1, 77, 131071};
  std::vector<float> inv_freq(13);
  for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / 13));
  float* cos = put(std::vector<float>(4 * 13));
  float* sin = put(std::vector<float>(4 * 13));
  run(kernels().rope_table, RopeTableArgs{put(inv_freq), 1.25, 13, put(positions), 4, cos, sin});
  const auto c = get(cos, 4 * 13), s = get(sin, 4 * 13);
  for (std::size_t t = 0; t < 4; ++t)
    for (std::size_t i = 0; i < 13; ++i) {
      const double angle = positions[t] * double{inv_freq[i]};
      EXPECT_NEAR(c[t * 13 + i], 1.25 * std::cos(angle), 2e-7);
      EXPECT_NEAR(s[t * 13 + i], 1.25 * std::sin(angle), 2e-7);
    }
}

TEST_P(Rows, EmbedReadsEveryFormat) {
  const struct { Format format; std::uint32_t group; } formats[] = {{Format::f32, 0}, {Format::bf16, 0}, {Format::int8, 0},
                                                                    {Format::int4, 0}, {Format::int4, 32}, {Format::fp8, 128}};
  for (const auto& f : formats)
    for (const std::uint32_t columns : {1u, 100u, 2048u}) {
      SCOPED_TRACE(std::string(to_string(f.format)) + " " + std::to_string(columns));
      PackedWeight packed = random_weight(random, f.format, f.group, 1, 20, columns);
      packed.weight.data = bytes(packed.data.data(), packed.data.size());
      const std::vector<std::int32_t> chosen = {19, 0, 7};
      const Matrix out = output(3, columns, 3);
      run(kernels().embed, EmbedArgs{ids(chosen, 1), packed.weight, out, 3});
      const auto values = get(out, 3);
      for (std::size_t r = 0; r < 3; ++r)
        for (std::size_t c = 0; c < columns; ++c) {
          const double expected = packed.values[static_cast<std::size_t>(chosen[r]) * columns + c];
          ASSERT_NEAR(values[r * columns + c], expected, 1e-7 + std::fabs(expected) * 1e-7);
        }
    }
}

void expect_norm(const std::vector<float>& x, const std::vector<float>& w, float eps, std::uint32_t columns, const std::vector<float>& got) {
  for (std::size_t r = 0; r < x.size() / columns; ++r) {
    double squares = 0;
    for (std::size_t c = 0; c < columns; ++c) squares += double{x[r * columns + c]} * x[r * columns + c];
    const double factor = 1 / std::sqrt(squares / columns + eps);
    for (std::size_t c = 0; c < columns; ++c) {
      const double expected = x[r * columns + c] * factor * w[c];
      ASSERT_NEAR(got[r * columns + c], expected, 1e-6 + std::fabs(expected) * 2e-6) << "row " << r << ", column " << c;
    }
  }
}

TEST_P(Rows, RmsNorm) {
  for (const std::uint32_t columns : {1u, 33u, 128u, 2048u, 7168u, 20000u})
    for (const std::uint64_t gap : {0u, 4u, 7u}) {
      SCOPED_TRACE(std::to_string(columns) + " gap " + std::to_string(gap));
      const auto x = floats(3 * columns, 4), w = floats(columns);
      const Matrix out = output(3, columns, gap);
      run(kernels().rms_norm, NormArgs{matrix(x, columns, gap), put(w), 1e-6f, out, 3});
      expect_norm(x, w, 1e-6f, columns, get(out, 3));
    }
}

TEST_P(Rows, AddAndAddNorm) {
  for (const std::uint32_t columns : {5u, 256u, 7168u})
    for (const std::uint32_t count : {1u, 2u, 8u})
      for (const std::uint64_t gap : {0u, 3u}) {
        SCOPED_TRACE(std::to_string(columns) + " columns, " + std::to_string(count) + " inputs");
        AddArgs add = {};
        AddNormArgs add_norm = {};
        std::vector<float> sum(2 * columns);
        for (std::uint32_t i = 0; i < count; ++i) {
          const auto x = floats(2 * columns);
          for (std::size_t c = 0; c < sum.size(); ++c) sum[c] = i == 0 ? x[c] : sum[c] + x[c];
          add.in[i] = add_norm.in[i] = matrix(x, columns, gap);
        }
        const auto w = floats(columns);
        add.count = add_norm.count = count;
        add.out = output(2, columns, gap);
        add.rows = add_norm.rows = 2;
        run(kernels().add, add);
        EXPECT_EQ(get(add.out, 2), sum);  // left to right: equal to the bit
        add_norm.sum = add_norm.in[count - 1];  // may be one of the inputs
        add_norm.w = put(w);
        add_norm.eps = 1e-5f;
        add_norm.out = output(2, columns, gap);
        run(kernels().add_norm, add_norm);
        EXPECT_EQ(get(add_norm.sum, 2), sum);
        expect_norm(sum, w, 1e-5f, columns, get(add_norm.out, 2));
      }
}

TEST_P(Rows, SelectRows) {
  const auto x = floats(10 * 70);
  const Matrix out = output(3, 70, 1);
  run(kernels().select_rows, SelectRowsArgs{matrix(x, 70, 2), ids({9, 0, 4}, 1), out, 3});
  const auto got = get(out, 3);
  for (std::size_t c = 0; c < 70; ++c) {
    EXPECT_EQ(got[c], x[9 * 70 + c]);
    EXPECT_EQ(got[70 + c], x[c]);
    EXPECT_EQ(got[140 + c], x[4 * 70 + c]);
  }
}

TEST_P(Rows, EmbedTakesIdsThatWereChosen) {
  const PackedWeight packed = random_weight(random, Format::f32, 0, 1, 12, 20);
  Weight w = packed.weight;
  w.data = bytes(packed.data.data(), packed.data.size());
  const Matrix out = output(4, 20, 1);
  run(kernels().embed, EmbedArgs{ids({1, 2, 3, 4}, 1), w, out, 4, put(std::vector<std::int32_t>{-1, 2, 0, 1}),
                                 put(std::vector<std::int32_t>{11, -5, 9})});
  const auto got = get(out, 4);
  const std::int32_t expected[4] = {1, 9, 11, -1};  // -5: a row that had no choice
  for (std::size_t r = 0; r < 4; ++r)
    for (std::size_t c = 0; c < 20; ++c)
      EXPECT_EQ(got[r * 20 + c], expected[r] < 0 ? 0.0f : static_cast<float>(packed.values[static_cast<std::size_t>(expected[r]) * 20 + c]));
}

}  // namespace
}  // namespace ktc::gpu
