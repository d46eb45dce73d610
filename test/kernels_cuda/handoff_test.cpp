// The hand-off on both kinds of device: captured steps of several layers, published and awaited while a host thread answers.
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"
#include "test/kernels_cuda/gpu_fixture.h"

namespace ktc::gpu {
namespace {

using device::MappedBlock;

constexpr std::uint32_t kTokens = 3, kTopK = 2, kLayers = 5;

class Handoff : public SetTest {
 protected:
  void prepare(Format f, std::uint32_t width) {
    format = f;
    columns = width;
    record = record_layout(kTokens, kTopK, columns, format);
    result = result_bytes(kTokens, columns, format);
    const auto map = [&](std::uint64_t count) {
      auto block = device_->allocate_mapped(count, "hand-off");
      EXPECT_TRUE(block.ok()) << block.status().message();
      return std::move(*block);
    };
    records = map(kLayers * record.bytes);
    results = map(kLayers * result);
    words_block = map(sizeof(HandoffWords));
    std::vector<float> values;
    std::vector<std::int32_t> chosen;
    std::vector<float> weight;
    for (std::uint32_t i = 0; i < kTokens * columns; ++i) values.push_back(static_cast<float>(i % 50));
    for (std::uint32_t i = 0; i < kTokens * kTopK; ++i) {
      chosen.push_back(static_cast<std::int32_t>(i % 4));
      weight.push_back(0.5f + static_cast<float>(i));
    }
    x = matrix(values, columns);
    out = output(kTokens, columns, 5);
    ids_ = ids(chosen, kTopK);
    weights = matrix(weight, kTopK);
    pairs = put(std::vector<std::uint32_t>{77});
    epoch = put(std::vector<std::uint32_t>{0});
  }
  HandoffWords* words() { return reinterpret_cast<HandoffWords*>(words_block.host()); }

  std::unique_ptr<device::Graph> capture(std::int32_t tokens, const std::vector<std::int32_t>& of_expert, bool skip_empty) {
    const std::int32_t* live = put(std::vector<std::int32_t>{tokens, 0, 0});
    const std::int32_t* slots = put(of_expert);
    device::Stream& stream = device_->compute();
    EXPECT_TRUE(stream.begin_capture().ok());
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      const PublishArgs publish = {l == 0 ? x : out, ids_, weights, slots, kTopK, records.device() + l * record.bytes, format, live, epoch, pairs, kTokens};
      const AwaitArgs await = {results.device() + l * result, format, out, reinterpret_cast<HandoffWords*>(words_block.device()), l, live, epoch,
                               pairs, skip_empty, kTokens};
      EXPECT_TRUE(stream.launch(kernels().publish, publish).ok());
      EXPECT_TRUE(stream.launch(kernels().await, await).ok());
    }
    auto graph = stream.end_capture();
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    return std::move(*graph);
  }
  void start(const device::Graph& graph, std::uint32_t step) {
    ASSERT_TRUE(device_->compute().copy_to_device(reinterpret_cast<std::byte*>(epoch), reinterpret_cast<const std::byte*>(&step), 4).ok());
    ASSERT_TRUE(device_->compute().wait().ok());  // `step` is ours
    ASSERT_TRUE(device_->compute().launch(graph).ok());
  }
  bool wait_for_record(std::uint32_t layer, std::uint32_t step) {
    auto* header = reinterpret_cast<RecordHeader*>(records.host() + layer * record.bytes);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (__atomic_load_n(&header->epoch, __ATOMIC_ACQUIRE) != step) {
      if (std::chrono::steady_clock::now() > limit) {
        ADD_FAILURE() << "no record of layer " << layer << " in 10 seconds";
        __atomic_store_n(&words()->poison, 1, __ATOMIC_RELAXED);
        return false;
      }
      std::this_thread::yield();
    }
    return true;
  }
  // The host's answer to layer l: x + 1.
  bool answer(std::uint32_t layer, std::uint32_t step) {
    if (!wait_for_record(layer, step)) return false;
    const std::byte* from = records.host() + layer * record.bytes;
    const std::uint32_t tokens = reinterpret_cast<const RecordHeader*>(from)->tokens;
    const std::uint64_t values = cell_values(format), per_panel = cells_per_panel(format), panels = cell_panels(columns);
    for (std::uint64_t cell = 0; cell < tokens * panels * per_panel; ++cell) {
      std::byte data[12] = {};
      for (std::uint64_t i = 0; i < values; ++i) {
        const std::uint64_t column = cell / per_panel % panels * kCellPanelColumns + cell % per_panel * values + i;
        if (column >= columns || cell % per_panel * values + i >= kCellPanelColumns) continue;
        const std::byte* at = from + record.x + (cell / per_panel / panels * columns + column) * element_bytes_of(format);
        if (format == Format::bf16) {
          std::uint16_t bits;
          std::memcpy(&bits, at, 2);
          bits = f32_to_bf16(bf16_to_f32(bits) + 1);
          std::memcpy(data + 2 * i, &bits, 2);
        } else {
          float value;
          std::memcpy(&value, at, 4);
          value += 1;
          std::memcpy(data + 4 * i, &value, 4);
        }
      }
      write_cell(results.host() + layer * result + cell * kCellBytes, data, step);
    }
    return true;
  }
  void say_near(std::uint32_t layer, std::uint32_t step) {
    __atomic_store_n(&words()->near_layer, layer, __ATOMIC_RELAXED);
    __atomic_store_n(&words()->near_epoch, step, __ATOMIC_RELEASE);
  }

  Format format = Format::f32;
  std::uint32_t columns = 0;
  RecordLayout record = {};
  std::uint64_t result = 0;
  MappedBlock records, results, words_block;
  Matrix x, out, weights;
  Ids ids_;
  std::uint32_t *pairs = nullptr, *epoch = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Sets, Handoff, both_sets(), set_name);

TEST_P(Handoff, StepsAnswerEachOther) {
  for (const Format f : {Format::f32, Format::bf16})
    for (const std::uint32_t width : {1u, 32u, 70u, 2048u, 7168u})
      for (const bool near : {false, true}) {
        SCOPED_TRACE(std::string(to_string(f)) + ", " + std::to_string(width) + " columns" + (near ? ", near word" : ""));
        prepare(f, width);
        const auto graph = capture(2, {0, -1, 1, -1}, false);  // one token is padding
        ASSERT_FALSE(HasFailure());
        for (std::uint32_t step = 1; step <= 20; ++step) {
          start(*graph, step);
          for (std::uint32_t l = 0; l < kLayers; ++l) {
            if (near && wait_for_record(l, step)) say_near(l, step);  // may be early, must not be missing
            ASSERT_TRUE(answer(l, step));
          }
          ASSERT_TRUE(device_->compute().wait().ok());
          const auto got = get(out, kTokens);
          for (std::uint32_t i = 0; i < kTokens * columns; ++i)
            ASSERT_EQ(got[i], i < 2 * columns ? static_cast<float>(i % 50 + kLayers) : 0.0f) << "step " << step << ", " << i;
          const std::byte* last = records.host() + (kLayers - 1) * record.bytes;
          const auto* header = reinterpret_cast<const RecordHeader*>(last);
          ASSERT_EQ(header->tokens, 2u);
          ASSERT_EQ(header->pairs, 2u);  // ids 0 1 2 3: two have a slot
          ASSERT_EQ(get(pairs, 1)[0], 2u);
          ASSERT_EQ(reinterpret_cast<const std::int32_t*>(last + record.ids)[3], 3);
          ASSERT_EQ(reinterpret_cast<const float*>(last + record.weights)[3], 3.5f);
        }
      }
}

// What ops that have one launch together leave behind, against the ops one after the other.
struct Left {
  std::vector<float> sum, normed, weights, result;
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> pairs;
};
void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0f, std::fabs(b[i]))) << what << " " << i;
}

TEST_P(Handoff, NormRouterAndPublishTogether) {
  constexpr std::uint32_t kExperts = 37;
  for (const Format f : {Format::f32, Format::bf16})
    for (const std::uint32_t width : {64u, 70u, 2048u, 7168u})
      for (const std::uint32_t terms : {0u, 2u, 3u}) {
        SCOPED_TRACE(std::string(to_string(f)) + ", " + std::to_string(width) + " columns, " + std::to_string(terms) + " terms");
        prepare(f, width);
        PackedWeight packed = random_weight(random, f, 0, 1, kExperts, width);
        packed.weight.data = bytes(packed.data.data(), packed.data.size());
        std::vector<std::vector<float>> in;
        for (std::uint32_t i = 0; i < 3; ++i) in.push_back(floats(kTokens * width));
        const auto scale = floats(width, 2);
        std::vector<std::int32_t> slots(kExperts, -1);
        for (std::uint32_t e = 0; e < kExperts; e += 2) slots[e] = static_cast<std::int32_t>(e / 2);
        const std::int32_t* live = put(std::vector<std::int32_t>{2, 0, 0});
        const std::uint32_t step = 9 + terms;
        enum class How { one_by_one, norm_and_route, all };
        const auto once = [&](How how) {
          Left left;
          RoutePublishArgs a = {};
          a.norm.count = terms;
          for (std::uint32_t i = 0; i < terms; ++i) a.norm.in[i] = matrix(in[i], width, 4);
          a.norm.sum = a.norm.in[0];
          a.norm.w = put(scale);
          a.norm.eps = 1e-6f;
          a.norm.out = terms == 0 ? matrix(in[0], width, 4) : output(kTokens, width, 4);
          const Ids chosen = ids(std::vector<std::int32_t>(kTokens * kTopK, -9), kTopK);
          const Matrix of = output(kTokens, kTopK, 1);
          a.route = {a.norm.out, packed.weight, nullptr, chosen, of, kTokens, kExperts, kTopK, 1, 1, false, true, 1.0f,
                     scratch(gpu_route_workspace(kTokens, kExperts).total())};
          a.publish = {a.norm.out, chosen, of, put(slots), kTopK, records.device(), format, live, put(std::vector<std::uint32_t>{step}), pairs, kTokens};
          a.norm.rows = kTokens;
          std::memset(records.host(), 0, record.bytes);
          if (how == How::all) {
            run(kernels().route_publish, a);
          } else {
            if (how == How::norm_and_route) run(kernels().norm_route, NormRouteArgs{a.norm, a.route});
            if (how == How::one_by_one && terms != 0) run(kernels().add_norm, a.norm);
            if (how == How::one_by_one) run(kernels().route, a.route);
            run(kernels().publish, a.publish);
          }
          if (terms != 0) left.sum = get(a.norm.sum, kTokens);
          left.normed = get(a.norm.out, kTokens);
          left.weights = get(of, kTokens);
          left.ids = get(chosen.data, kTokens * kTopK);
          left.pairs = get(pairs, 1);
          return left;
        };
        const Left expected = once(How::one_by_one);
        std::vector<std::byte> first(records.host(), records.host() + record.bytes);
        const Left two = once(terms == 0 ? How::one_by_one : How::norm_and_route), got = once(How::all);
        if (HasFatalFailure()) return;
        EXPECT_EQ(two.sum, got.sum);
        EXPECT_EQ(two.normed, got.normed);
        EXPECT_EQ(two.weights, got.weights);
        EXPECT_EQ(two.ids, got.ids);
        EXPECT_EQ(got.sum, expected.sum);
        expect_near(got.normed, expected.normed, 1e-5, "norm");
        expect_near(got.weights, expected.weights, 1e-4, "weight");
        ASSERT_EQ(got.ids, expected.ids);
        ASSERT_EQ(got.pairs, expected.pairs);
        const std::byte* second = records.host();
        ASSERT_EQ(reinterpret_cast<const RecordHeader*>(second)->epoch, step);
        ASSERT_EQ(std::memcmp(first.data(), second, 16), 0);  // the header
        ASSERT_EQ(std::memcmp(first.data() + record.ids, second + record.ids, 2 * kTopK * 4), 0);
        const auto value = [&](const std::byte* from, std::size_t i) {
          float v;
          std::uint16_t bits;
          if (f == Format::f32) return std::memcpy(&v, from + record.x + 4 * i, 4), v;
          return std::memcpy(&bits, from + record.x + 2 * i, 2), bf16_to_f32(bits);
        };
        for (std::size_t i = 0; i < kTokens * width; ++i)  // the third token is padding: zeros
          ASSERT_NEAR(value(second, i), value(first.data(), i), (f == Format::f32 ? 1e-5 : 0.01) * std::fabs(value(first.data(), i))) << i;
      }
}

TEST_P(Handoff, AwaitAndNormTogether) {
  for (const Format f : {Format::f32, Format::bf16})
    for (const std::uint32_t width : {1u, 70u, 76u, 2048u, 7168u})
      for (const std::uint32_t term : {0u, 1u, 2u}) {
        SCOPED_TRACE(std::string(to_string(f)) + ", " + std::to_string(width) + " columns, term " + std::to_string(term));
        prepare(f, width);
        const std::int32_t* live = put(std::vector<std::int32_t>{2, 0, 0});
        const std::uint32_t step = 3 + term;
        const std::uint64_t each = cell_values(f), per_panel = cells_per_panel(f), panels = cell_panels(width);
        const auto from_host = floats(2 * panels * per_panel * each);
        for (std::uint64_t c = 0; c < 2 * panels * per_panel; ++c) {
          std::byte data[12] = {};
          for (std::uint64_t i = 0; i < each; ++i) {
            const std::uint16_t bits = f32_to_bf16(from_host[c * each + i]);
            if (f == Format::bf16) std::memcpy(data + 2 * i, &bits, 2); else std::memcpy(data + 4 * i, &from_host[c * each + i], 4);
          }
          write_cell(results.host() + c * kCellBytes, data, step);
        }
        std::vector<std::vector<float>> in;
        for (std::uint32_t i = 0; i < 3; ++i) in.push_back(floats(kTokens * width));
        const auto scale = floats(width, 2), fetched = floats(5000);
        const auto once = [&](bool together) {
          AwaitNormArgs a = {};
          const std::uint64_t gap = width == 1 ? 3 : 4;  // rows of whole vectors, but for one
          const Matrix result = output(kTokens, width, gap);
          a.await = {results.device(), f, result, reinterpret_cast<HandoffWords*>(words_block.device()), 0, live,
                     put(std::vector<std::uint32_t>{step}), pairs, false, kTokens};
          a.await.fetch[1] = {reinterpret_cast<const std::byte*>(put(fetched)), 5000 * 4};
          a.norm.count = term == 2 ? 3 : 2;
          for (std::uint32_t i = 0; i < a.norm.count; ++i) a.norm.in[i] = i == term ? result : matrix(in[i], width, gap);
          a.norm.sum = a.norm.in[0];
          a.norm.w = put(scale);
          a.norm.eps = 1e-6f;
          a.norm.out = output(kTokens, width, gap);
          a.norm.rows = kTokens;
          a.term = term;
          if (together) {
            run(kernels().await_norm, a);
          } else {
            run(kernels().await, a.await);
            run(kernels().add_norm, a.norm);
          }
          Left left;
          if (term != 0) left.result = get(result, kTokens);  // else the sum took its place
          left.sum = get(a.norm.sum, kTokens);
          left.normed = get(a.norm.out, kTokens);
          return left;
        };
        const Left expected = once(false), got = once(true);
        if (HasFatalFailure()) return;
        EXPECT_EQ(got.result, expected.result);
        EXPECT_EQ(got.sum, expected.sum);
        expect_near(got.normed, expected.normed, 1e-5, "norm");
      }
}

TEST_P(Handoff, ALayerWithoutPairsDoesNotWait) {
  prepare(Format::bf16, 70);
  const auto graph = capture(3, {-1, -1, -1, -1}, true);
  start(*graph, 1);
  ASSERT_TRUE(device_->compute().wait().ok());
  for (const float value : get(out, kTokens)) ASSERT_EQ(value, 0.0f);
  EXPECT_EQ(get(pairs, 1)[0], 0u);
}

TEST_P(Handoff, PoisonEndsEveryWait) {
  for (const bool near : {false, true}) {
    prepare(Format::f32, 2048);
    const auto graph = capture(3, {0, 1, 2, 3}, false);
    if (near) say_near(0, 1000);  // of another step: the GPU waits for the word
    start(*graph, 1);
    if (!near) {
      ASSERT_TRUE(answer(0, 1));  // the first layer is answered, nobody answers the second
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    auto idle = device_->compute().idle();
    ASSERT_TRUE(idle.ok());
    EXPECT_FALSE(*idle);
    __atomic_store_n(&words()->poison, 1, __ATOMIC_RELAXED);
    ASSERT_TRUE(device_->compute().wait().ok());
    for (const float value : get(out, kTokens)) ASSERT_EQ(value, 0.0f);
  }
}

}  // namespace
}  // namespace ktc::gpu
