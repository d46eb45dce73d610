// norm, rope, sum, load and store of every level.
#include <cmath>
#include <limits>
#include <memory>

#include "test/conformance/guarded.h"
#include "test/conformance/rows.h"

namespace ktc::kernels {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr std::size_t kLengths[] = {1,  2,  7,  8,   9,   15,  16,  17,   31,   33,
                                    63, 64, 65, 100, 127, 128, 129, 1021, 4096, 7168};

void fill(Guarded<float>& array, std::mt19937& random, float magnitude = 1.0f) {
  std::uniform_real_distribution<float> value(-magnitude, magnitude);
  for (float& v : array) v = value(random);
}

class RmsNorm : public RowTest<RmsNormFn> {};
INSTANTIATE_TEST_SUITE_P(All, RmsNorm, ::testing::ValuesIn(rows<RmsNormFn>()), row_name<RmsNormFn>);

TEST_P(RmsNorm, AgreesWithTheDefinition) {
  for (Edge edge : {Edge::front, Edge::back})
    for (std::size_t n : kLengths)
      for (float magnitude : {1.0f, 1e-4f, 300.0f}) {
        Guarded<float> x(n, edge), weight(n, edge), out(n, edge);
        fill(x, random, magnitude);
        fill(weight, random);
        const float eps = 1e-6f;
        double squares = 0;
        for (float v : x) squares += static_cast<double>(v) * v;
        const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
        row().function(x.data(), weight.data(), eps, n, out.data());
        for (std::size_t i = 0; i < n; ++i) {
          const double expected = x[i] * factor * weight[i];
          ASSERT_NEAR(out[i], expected, kEps * (static_cast<double>(n) / 8 + 8) * std::abs(expected))
              << n << " at " << i;
        }
        row().function(x.data(), weight.data(), eps, n, x.data());  // in place
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(bits_of(x[i]), bits_of(out[i]));
      }
}

TEST_P(RmsNorm, OfZerosIsZero) {
  Guarded<float> x(37), weight(37), out(37);
  for (float& v : weight) v = 2.0f;
  row().function(x.data(), weight.data(), 1e-6f, 37, out.data());
  for (float v : out) ASSERT_EQ(v, 0.0f);
}

class Rope : public RowTest<RopeFn> {};
INSTANTIATE_TEST_SUITE_P(All, Rope, ::testing::ValuesIn(rows<RopeFn>()), row_name<RopeFn>);

TEST_P(Rope, RotatesPairs) {
  for (bool interleaved : {false, true})
    for (std::size_t dim : {2, 4, 6, 16, 30, 32, 34, 64, 66, 128, 256}) {
      const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
      Guarded<float> x(dim, edge), cosines(dim / 2, edge), sines(dim / 2, edge);
      fill(x, random);
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const double angle = static_cast<double>(random() % 10000) / 100;
        cosines[i] = static_cast<float>(std::cos(angle));
        sines[i] = static_cast<float>(std::sin(angle));
      }
      const std::vector<float> before(x.begin(), x.end());
      row().function(x.data(), cosines.data(), sines.data(), dim, interleaved);
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const std::size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + dim / 2;
        const double c = cosines[i], s = sines[i];
        ASSERT_NEAR(x[a], before[a] * c - before[b] * s, 3 * kEps) << "dim " << dim << " pair " << i;
        ASSERT_NEAR(x[b], before[b] * c + before[a] * s, 3 * kEps) << "dim " << dim << " pair " << i;
      }
    }
}

class Add : public RowTest<AddFn> {};
INSTANTIATE_TEST_SUITE_P(All, Add, ::testing::ValuesIn(rows<AddFn>()), row_name<AddFn>);

// The sum of floats in a given order has one right answer.
TEST_P(Add, AddsFromLeftToRight) {
  for (std::size_t n : kLengths)
    for (std::size_t count : {1, 2, 3, 5}) {
      const Edge edge = random() % 2 == 0 ? Edge::front : Edge::back;
      std::vector<std::unique_ptr<Guarded<float>>> arrays;
      std::vector<const float*> inputs;
      for (std::size_t i = 0; i < count; ++i) {
        arrays.push_back(std::make_unique<Guarded<float>>(n, edge));
        fill(*arrays.back(), random, i == 1 ? 1e4f : 1.0f);
        inputs.push_back(arrays.back()->data());
      }
      Guarded<float> out(n, edge);
      std::vector<float> expected(n);
      for (std::size_t c = 0; c < n; ++c) {
        expected[c] = inputs[0][c];
        for (std::size_t i = 1; i < count; ++i) expected[c] += inputs[i][c];
      }
      row().function(inputs.data(), count, n, out.data());
      for (std::size_t c = 0; c < n; ++c) ASSERT_EQ(bits_of(out[c]), bits_of(expected[c])) << n << " at " << c;
      row().function(inputs.data(), count, n, arrays[0]->data());  // into the first input
      for (std::size_t c = 0; c < n; ++c) ASSERT_EQ(bits_of((*arrays[0])[c]), bits_of(expected[c]));
    }
}

std::vector<float> special_values() {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f,          -0.0f,          1.0f,   inf,     -inf,
                               3.4028235e38f, -3.4028235e38f, 1e-45f, -1e-40f, 1.17549435e-38f};
  // ties to even in both directions, their neighbours, and NaN whose payload lies in the part that is cut off
  for (std::uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x3f808001u, 0xbf808000u, 0x7f7f8000u, 0x7f7f7fffu,
                             0x00008000u, 0x00018000u, 0x7f800001u, 0xff80ffffu, 0x7fc00000u, 0x7fffffffu})
    values.push_back(__builtin_bit_cast(float, bits));
  return values;
}

class Store : public RowTest<StoreFn> {};
INSTANTIATE_TEST_SUITE_P(All, Store, ::testing::ValuesIn(rows<StoreFn>()), row_name<StoreFn>);

TEST_P(Store, EveryValueBecomesItsNearest) {
  for (Edge edge : {Edge::front, Edge::back})
    for (std::size_t n : kLengths) {
      Guarded<float> source(n, edge);
      for (float& v : source) v = __builtin_bit_cast(float, static_cast<std::uint32_t>(random()));  // any bits, NaN too
      const std::vector<float> special = special_values();
      for (std::size_t i = 0; i < n && i < special.size(); ++i) source[(i * 5) % n] = special[i];
      Elements stored(row().format, n, edge);
      row().function(source.data(), n, stored.data());
      for (std::size_t i = 0; i < n; ++i) {
        const float expected = row().f32() ? source[i] : bf16_to_f32(f32_to_bf16(source[i]));
        ASSERT_EQ(bits_of(stored.get(i)), bits_of(expected))
            << std::hex << bits_of(source[i]) << " at " << i << " of " << n;
      }
    }
}

class Load : public RowTest<LoadFn> {};
INSTANTIATE_TEST_SUITE_P(All, Load, ::testing::ValuesIn(rows<LoadFn>()), row_name<LoadFn>);

TEST_P(Load, IsExact) {
  for (Edge edge : {Edge::front, Edge::back})
    for (std::size_t n : kLengths) {
      Elements source(row().format, n, edge);
      for (std::size_t i = 0; i < n; ++i)
        source.set(i, __builtin_bit_cast(float, static_cast<std::uint32_t>(random())));
      Guarded<float> out(n, edge);
      row().function(source.data(), n, out.data());
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(bits_of(out[i]), bits_of(source.get(i))) << "at " << i << " of " << n;
    }
}

TEST(LoadBf16, EveryBitPattern) {
  Guarded<std::uint16_t> source(65536);
  Guarded<float> out(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) source[i] = static_cast<std::uint16_t>(i);
  for (const Row<LoadFn>& row : rows<LoadFn>()) {
    if (row.f32() || !isa_level_available(row.level, host_cpu_features())) continue;
    row.function(reinterpret_cast<const std::byte*>(source.data()), 65536, out.data());
    for (std::uint32_t i = 0; i < 65536; ++i) ASSERT_EQ(bits_of(out[i]), i << 16) << row.name;
  }
}

}  // namespace
}  // namespace ktc::kernels
