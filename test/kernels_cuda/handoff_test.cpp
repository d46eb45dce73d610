// The hand-off on both kinds of device: captured steps of several layers, published and awaited while a host thread answers.
#include <atomic>
#include <chrono>
#include <thread>

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
