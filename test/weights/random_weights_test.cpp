// Made-up weights: variance, padding, determinism, the part of each packing that has a meaning of its own; and opening them.
#include "runtime/weights/random_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/panel.h"
#include "runtime/weights/weight_store.h"
#include "test/support/plan_builder.h"

namespace ktc::weights {
namespace {

using planfb::WeightSource;

struct Case {
  Format format;
  Packing packing;
  std::uint16_t group;
};
constexpr Case kCases[] = {
    {Format::f32, Packing::row_major, 0},    {Format::bf16, Packing::row_major, 0},   {Format::bf16, Packing::panel, 0},
    {Format::int8, Packing::panel, 0},       {Format::int8, Packing::panel_paired, 0}, {Format::int4, Packing::panel, 0},
    {Format::int4, Packing::panel_paired, 32}, {Format::int4, Packing::panel, 128},   {Format::fp8, Packing::panel, 128},
    {Format::fp8, Packing::panel, 0},        {Format::int8, Packing::gpu_rows, 0},     {Format::int4, Packing::gpu_rows, 64},
    {Format::int4, Packing::gpu_rows, 0},    {Format::fp8, Packing::gpu_rows, 128},
};

planfb::PlanT plan_of(const Case& c, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns, std::uint64_t seed,
                      const std::string& name = "w") {
  planfb::PlanT plan;
  auto w = std::make_unique<planfb::WeightT>();
  w->name = name;
  w->source = WeightSource::random;
  w->format = static_cast<std::uint8_t>(c.format);
  w->packing = static_cast<std::uint8_t>(c.packing);
  w->group = c.group;
  w->batch = batch, w->rows = rows, w->columns = columns;
  w->bytes = packed_bytes(c.format, c.packing, batch, rows, columns, c.group).value_or(0);
  w->seed = seed;
  plan.weights.push_back(std::move(w));
  return plan;
}
std::vector<std::byte> filled(const planfb::PlanT& plan, int threads = 1) {
  std::vector<std::byte> bytes(plan.weights[0]->bytes, std::byte{0xcd});
  const Status status = RandomWeights(plan).fill(0, bytes, threads);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

float load_f32(const std::byte* at) {
  float value;
  std::memcpy(&value, at, 4);
  return value;
}
float load_bf16(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  return bf16_to_f32(bits);
}
double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}
struct Element {
  double code, scale;
};

// From the headers of the packings alone; k and row may be padding.
Element element(const planfb::WeightT& w, const std::vector<std::byte>& bytes, std::uint64_t b, std::uint64_t row, std::uint64_t k) {
  const auto format = static_cast<Format>(w.format);
  const auto packing = static_cast<Packing>(w.packing);
  if (packing == Packing::row_major) {
    const std::byte* at = bytes.data() + (b * w.rows + row) * packed_row_bytes(format, packing, w.columns);
    return {format == Format::f32 ? load_f32(at + 4 * k) : load_bf16(at + 2 * k), 1};
  }
  if (packing == Packing::gpu_rows) {
    const auto layout = *gpu_rows_layout(format, w.group, w.rows, w.columns);
    const std::byte* matrix = bytes.data() + b * layout.matrix_bytes;
    const std::byte* codes = matrix + row * layout.row_bytes;
    const std::uint64_t scale = row * layout.groups + (w.group == 0 ? 0 : std::min(k, w.columns - 1) / w.group);
    const std::byte* at = matrix + layout.scales_offset + scale * layout.scale_bytes;
    const double factor = layout.scale_bytes == 4 ? load_f32(at) : load_bf16(at);
    if (format == Format::int4) return {static_cast<double>((std::to_integer<int>(codes[k / 2]) >> (k % 2 * 4) & 15) - 8), factor};
    if (format == Format::int8) return {static_cast<double>(static_cast<std::int8_t>(codes[k])), factor};
    return {e4m3(std::to_integer<int>(codes[k])), factor};
  }
  const auto layout = *panel_layout(format, w.group, packing == Packing::panel_paired, w.rows, w.columns);
  const auto place = layout.place_of(row);
  const std::byte* panel = bytes.data() + b * layout.matrix_bytes + place.panel * layout.panel_bytes;
  const std::byte* block = panel + layout.block_offset(k / 64, place.block);
  const std::uint64_t inner = k % 64;
  if (format == Format::bf16) return {load_bf16(block + inner / 32 * 1024 + inner % 32 / 2 * 64 + place.lane * 4 + inner % 2 * 2), 1};
  const std::byte* at = panel + layout.scale_offset(w.group == 0 ? 0 : k / w.group, place.block) + place.lane * layout.scale_bytes;
  const double factor = layout.scale_bytes == 4 ? load_f32(at) : load_bf16(at);
  if (format == Format::int4) {
    const int both = std::to_integer<int>(block[inner % 32 / 4 * 64 + place.lane * 4 + k % 4]);
    return {static_cast<double>((inner < 32 ? both & 15 : both >> 4) - 8), factor};
  }
  const int code = std::to_integer<int>(block[inner / 4 * 64 + place.lane * 4 + k % 4]);
  return format == Format::int8 ? Element{static_cast<double>(code - 128), factor} : Element{e4m3(code), factor};
}

TEST(RandomWeightsTest, VarianceIsOneOverColumnsInEveryFormat) {
  for (const Case& c : kCases) {
    const planfb::PlanT plan = plan_of(c, 2, 96, 300, 5);
    const std::vector<std::byte> bytes = filled(plan);
    double sum = 0, squares = 0;
    for (std::uint64_t b = 0; b < 2; ++b)
      for (std::uint64_t r = 0; r < 96; ++r)
        for (std::uint64_t k = 0; k < 300; ++k) {
          const Element e = element(*plan.weights[0], bytes, b, r, k);
          ASSERT_TRUE(std::isfinite(e.code) && std::isfinite(e.scale)) << to_string(c.format);
          if (c.format == Format::int8) ASSERT_GE(e.code, -127);
          if (c.format == Format::int4) ASSERT_GE(e.code, -7);
          sum += e.code * e.scale;
          squares += e.code * e.scale * e.code * e.scale;
        }
    const double n = 2 * 96 * 300;
    EXPECT_NEAR(squares / n * 300, 1, 0.03) << to_string(c.format) << " in " << to_string(c.packing) << "/" << c.group;
    EXPECT_NEAR(sum / n * std::sqrt(300), 0, 0.02) << to_string(c.format) << " in " << to_string(c.packing);
  }
}

TEST(RandomWeightsTest, PaddingDecodesToZero) {
  for (const Case& c : kCases) {
    for (const std::uint64_t columns : {1u, 63u, 65u, 129u, 200u}) {
      const std::uint64_t rows = c.packing == Packing::panel_paired ? 34 : 17;
      const planfb::PlanT plan = plan_of(c, 1, rows, columns, 9);
      const planfb::WeightT& w = *plan.weights[0];
      const std::vector<std::byte> bytes = filled(plan);
      const std::uint64_t padded = c.packing == Packing::gpu_rows ? (columns + 127) / 128 * 128 : (columns + 63) / 64 * 64;
      if (c.packing == Packing::row_major) {
        const std::uint64_t row_bytes = packed_row_bytes(c.format, c.packing, columns), used = columns * static_cast<std::uint64_t>(format_bits(c.format)) / 8;
        for (std::uint64_t r = 0; r < rows; ++r)
          for (std::uint64_t i = used; i < row_bytes; ++i) ASSERT_EQ(bytes[r * row_bytes + i], std::byte{0});
        continue;
      }
      for (std::uint64_t r = 0; r < rows; ++r)
        for (std::uint64_t k = columns; k < padded; ++k)
          ASSERT_EQ(element(w, bytes, 0, r, k).code, 0) << to_string(c.format) << " in " << to_string(c.packing) << ", " << columns;
      if (c.packing == Packing::gpu_rows || c.format == Format::bf16) continue;
      // features behind the last: the lanes of the last panel that no row has
      const auto layout = *panel_layout(c.format, c.group, c.packing == Packing::panel_paired, rows, columns);
      PanelLayout wide = layout;
      wide.rows = c.packing == Packing::panel_paired ? layout.panels * 32 : layout.panels * 32;
      planfb::WeightT all = w;
      all.rows = wide.rows;
      std::uint64_t zero_scales = 0;
      for (std::uint64_t r = 0; r < all.rows; ++r) zero_scales += element(all, bytes, 0, r, 0).scale == 0;
      EXPECT_EQ(zero_scales, all.rows - rows) << to_string(c.format) << " in " << to_string(c.packing);
    }
  }
}

TEST(RandomWeightsTest, BytesDependOnSeedAndNameAndNotOnThreads) {
  for (const Case& c : kCases) {
    const planfb::PlanT plan = plan_of(c, 3, 512, 1500, 5);
    const std::vector<std::byte> one = filled(plan, 1);
    ASSERT_GT(one.size(), 1u << 20);
    EXPECT_EQ(one, filled(plan, 3)) << to_string(c.format);
    EXPECT_NE(one, filled(plan_of(c, 3, 512, 1500, 6))) << "another seed";
    EXPECT_NE(one, filled(plan_of(c, 3, 512, 1500, 5, "v"))) << "another name";
    const std::uint64_t matrix = one.size() / 3;
    EXPECT_NE(std::memcmp(one.data(), one.data() + matrix, matrix), 0) << "matrices differ";
  }
}

TEST(RandomWeightsTest, VectorsAreNormsOrBiases) {
  planfb::PlanT plan = plan_of({Format::f32, Packing::row_major, 0}, 1, 1, 1000, 5, "norm");
  plan.weights.push_back(std::move(plan_of({Format::f32, Packing::row_major, 0}, 1, 1, 1000, 5, "bias").weights[0]));
  auto entry = std::make_unique<planfb::EntryT>();
  auto step = std::make_unique<planfb::StepT>();
  planfb::RouteOpT route;
  route.w_bias = 1;
  step->op.Set(route);
  entry->steps.push_back(std::move(step));
  plan.entries.push_back(std::move(entry));
  const RandomWeights random(plan);
  std::vector<std::byte> norm(plan.weights[0]->bytes), bias(plan.weights[1]->bytes);
  ASSERT_TRUE(random.fill(0, norm).ok() && random.fill(1, bias).ok());
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_NEAR(load_f32(norm.data() + 4 * i), 1, 0.1001);
    EXPECT_NEAR(load_f32(bias.data() + 4 * i), 0, 0.0201);
  }
}

// Adds a step with `op` to the only entry.
template <class Op>
void add_step(planfb::PlanT& plan, const Op& op) {
  if (plan.entries.empty()) plan.entries.push_back(std::make_unique<planfb::EntryT>());
  auto step = std::make_unique<planfb::StepT>();
  step->op.Set(Op(op));
  plan.entries[0]->steps.push_back(std::move(step));
}
std::vector<float> values_of(const planfb::PlanT& plan, std::uint32_t index) {
  const planfb::WeightT& w = *plan.weights[index];
  std::vector<std::byte> bytes(w.bytes);
  EXPECT_TRUE(RandomWeights(plan).fill(index, bytes).ok());
  std::vector<float> values;
  for (std::uint64_t r = 0; r < w.rows; ++r)
    for (std::uint64_t k = 0; k < w.columns; ++k) values.push_back(static_cast<float>(element(w, bytes, 0, r, k).code));
  return values;
}

// Chosen experts of random normalised inputs, in how many of `tokens` each is; most first.
std::vector<double> shares_of(const std::vector<float>& router, std::uint64_t experts, std::uint64_t columns, std::size_t top_k, int tokens) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<double> count(experts, 0);
  std::vector<float> x(columns);
  for (int t = 0; t < tokens; ++t) {
    for (float& one : x) one = normal(random);
    std::vector<std::pair<float, std::size_t>> logits;
    for (std::size_t e = 0; e < experts; ++e)
      logits.push_back({-std::inner_product(x.begin(), x.end(), router.begin() + static_cast<std::ptrdiff_t>(e * columns), 0.0f), e});
    std::partial_sort(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(top_k), logits.end());
    for (std::size_t i = 0; i < top_k; ++i) count[logits[i].second] += 1.0 / tokens;
  }
  std::sort(count.rbegin(), count.rend());
  return count;
}

TEST(RandomWeightsTest, RoutersChooseByZipfsLaw) {
  constexpr std::uint64_t kExperts = 128, kColumns = 64, kTopK = 8;
  planfb::PlanT plan = plan_of({Format::f32, Packing::row_major, 0}, 1, kExperts, kColumns, 5);
  planfb::RouteOpT route;
  route.w = 0, route.top_k = kTopK, route.experts = kExperts;
  add_step(plan, route);
  const std::vector<double> even = shares_of(values_of(plan, 0), kExperts, kColumns, kTopK, 4000);
  EXPECT_LT(even[0], 0.13) << "6 % on average, not far from it";
  for (const float exponent : {0.4f, 0.7f}) {
    plan.weights[0]->zipf = exponent;
    const std::vector<double> shares = shares_of(values_of(plan, 0), kExperts, kColumns, kTopK, 4000);
    double sum = 0;
    for (std::uint64_t r = 1; r <= kExperts; ++r) sum += std::pow(static_cast<double>(r), -exponent);
    for (const std::uint64_t r : {std::uint64_t{4}, std::uint64_t{16}, std::uint64_t{64}}) {
      const double law = kTopK * std::pow(static_cast<double>(r), -exponent) / sum;
      EXPECT_NEAR(shares[r - 1] / law, 1, 0.3) << "rank " << r << ", exponent " << exponent;
    }
  }
}

TEST(RandomWeightsTest, TokensOfATopicResembleOneAnother) {
  constexpr std::uint64_t kRows = 60, kColumns = 1500;
  planfb::PlanT plan = plan_of({Format::bf16, Packing::row_major, 0}, 1, kRows, kColumns, 5, "embed");
  plan.weights.push_back(std::move(plan_of({Format::f32, Packing::row_major, 0}, 1, kRows, kColumns, 5, "head").weights[0]));
  plan.weights[0]->topics = plan.weights[1]->topics = 3;
  plan.weights[0]->deviation = 4;
  const std::vector<float> e = values_of(plan, 0), h = values_of(plan, 1);
  const auto cosine = [&](const std::vector<float>& a, std::uint64_t i, const std::vector<float>& b, std::uint64_t j) {
    double ab = 0, aa = 0, bb = 0;
    for (std::uint64_t k = 0; k < kColumns; ++k) {
      const double x = a[i * kColumns + k], y = b[j * kColumns + k];
      ab += x * y, aa += x * x, bb += y * y;
    }
    return ab / std::sqrt(aa * bb);
  };
  for (std::uint64_t i = 0; i < kRows; ++i)
    for (std::uint64_t j = 0; j < kRows; ++j) {
      const double wanted = i / 20 == j / 20 ? 0.7 : 0;
      if (i != j) EXPECT_NEAR(cosine(e, i, e, j), wanted, 0.12) << i << ", " << j;
      EXPECT_NEAR(cosine(e, i, h, j), wanted, 0.12) << i << ", " << j;
    }
  double squares = 0;
  for (const float value : e) squares += value * value;
  EXPECT_NEAR(squares / static_cast<double>(e.size()), 16, 1);
}

TEST(RandomWeightsTest, WrongUsesAreErrors) {
  planfb::PlanT plan = plan_of({Format::f32, Packing::row_major, 0}, 1, 4, 64, 5);
  std::vector<std::byte> bytes(plan.weights[0]->bytes - 1);
  EXPECT_FALSE(RandomWeights(plan).fill(0, bytes).ok());
  plan.weights[0]->source = WeightSource::splat;
  bytes.resize(plan.weights[0]->bytes);
  EXPECT_FALSE(RandomWeights(plan).fill(0, bytes).ok());
}

TEST(RandomWeightsTest, TheStoreMakesThoseOfTheCpu) {
  const test::TempFolder folder;
  auto open = std::make_shared<plan::OpenPlan>();
  open->folder = folder.path();
  open->plan = plan_of({Format::int8, Packing::panel, 0}, 4, 64, 64, 5);
  for (const char* name : {"cpu", "cuda:0"}) {
    auto device = std::make_unique<planfb::DeviceT>();
    device->name = name;
    device->kind = name[1] == 'p' ? planfb::DeviceKind::cpu : planfb::DeviceKind::cuda;
    open->plan.devices.push_back(std::move(device));
  }
  open->plan.weights.push_back(std::move(plan_of({Format::int8, Packing::gpu_rows, 0}, 1, 64, 64, 5, "gpu").weights[0]));
  open->plan.weights[1]->device = 1;
  auto alias = std::make_unique<planfb::WeightT>(*open->plan.weights[0]);
  alias->name = "alias";
  alias->source = WeightSource::alias;
  alias->alias_of = 0;
  open->plan.weights.push_back(std::move(alias));
  std::uint64_t last = 0;
  const Progress progress = {[](void* context, std::uint64_t done, std::uint64_t) { *static_cast<std::uint64_t*>(context) = done; }, &last};
  const auto store = WeightStore::open(open, false, progress);
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_EQ(last, open->plan.weights[0]->bytes);
  const auto expected = filled(open->plan);
  EXPECT_EQ(std::memcmp((**store)[0].data, expected.data(), expected.size()), 0);
  EXPECT_EQ((**store)[1].data, nullptr) << "made by whoever uploads it";
  EXPECT_EQ((**store)[2].data, (**store)[0].data);
}

TEST(RandomWeights, MatricesNeedNoPlan) {
  const auto codes = random_matrices(Format::int4, Packing::gpu_rows, 64, 2, 8, 128, 5), others = random_matrices(Format::int4, Packing::gpu_rows, 64, 2, 8, 128, 6);
  ASSERT_TRUE(codes.ok() && others.ok());
  EXPECT_EQ(codes->size(), *packed_bytes(Format::int4, Packing::gpu_rows, 2, 8, 128, 64));
  EXPECT_NE(*codes, *others);
  const auto values = random_matrices(Format::bf16, Packing::row_major, 0, 1, 64, 192, 5);
  ASSERT_TRUE(values.ok());
  double squares = 0;
  for (std::size_t i = 0; i < values->size(); i += 2) {
    std::uint16_t half;
    std::memcpy(&half, values->data() + i, 2);
    const float value = std::bit_cast<float>(std::uint32_t{half} << 16);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(squares / 64, 1, 0.05) << "a row's squares add up to one";
  EXPECT_FALSE(random_matrices(Format::int4, Packing::gpu_rows, 63, 1, 8, 128, 5).ok());
}

}  // namespace
}  // namespace ktc::weights
