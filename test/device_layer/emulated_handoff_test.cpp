// The hand-off on the emulated device: a captured step of several layers, published and awaited while a host thread answers.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"

namespace ktc::device {
namespace {

constexpr std::uint32_t kTokens = 3, kColumns = 70, kTopK = 2, kLayers = 5;

struct Handoff : ::testing::TestWithParam<Format> {
  std::unique_ptr<Device> device = *open_emulated(1 << 20);
  const Format format = GetParam();
  const RecordLayout record = record_layout(kTokens, kTopK, kColumns, format);
  const std::uint64_t result = result_bytes(kTokens, kColumns, format);
  MappedBlock records = *device->allocate_mapped(kLayers * record.bytes, "records");
  MappedBlock results = *device->allocate_mapped(kLayers * result, "results");
  MappedBlock words_block = *device->allocate_mapped(sizeof(gpu::HandoffWords), "words");
  Block x = *device->allocate(kTokens * kColumns * 4, "x"), out = *device->allocate(kTokens * kColumns * 4, "out");
  Block ids = *device->allocate(kTokens * kTopK * 4, "ids"), weights = *device->allocate(kTokens * kTopK * 4, "weights");
  Block slots = *device->allocate(4 * 4, "slots"), pairs = *device->allocate(4, "pairs");
  Block live = *device->allocate(12, "live"), epoch = *device->allocate(4, "epoch");

  gpu::HandoffWords* words() { return reinterpret_cast<gpu::HandoffWords*>(words_block.host()); }
  template <typename T>
  static T* as(Block& block) { return reinterpret_cast<T*>(block.data()); }

  gpu::PublishArgs publish(std::uint32_t layer, bool first) {
    gpu::PublishArgs a = {};
    a.x = {as<float>(first ? x : out), kColumns, kColumns};
    a.ids = {as<std::int32_t>(ids), kTopK, kTopK};
    a.weights = {as<float>(weights), kTopK, kTopK};
    a.slots = as<std::int32_t>(slots);
    a.top_k = kTopK;
    a.record = records.device() + layer * record.bytes;
    a.format = format;
    a.live = as<std::int32_t>(live);
    a.epoch = as<std::uint32_t>(epoch);
    a.pairs = as<std::uint32_t>(pairs);
    a.rows = kTokens;
    return a;
  }
  gpu::AwaitArgs await(std::uint32_t layer, bool skip_empty) {
    return {results.device() + layer * result, format, {as<float>(out), kColumns, kColumns}, words(), layer,
            as<std::int32_t>(live), as<std::uint32_t>(epoch), as<std::uint32_t>(pairs), skip_empty, kTokens};
  }
  std::unique_ptr<Graph> capture(bool skip_empty) {
    EXPECT_TRUE(device->compute().begin_capture().ok());
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      EXPECT_TRUE(device->compute().launch(device->kernels().publish, publish(l, l == 0)).ok());
      EXPECT_TRUE(device->compute().launch(device->kernels().await, await(l, skip_empty)).ok());
    }
    return std::move(device->compute().end_capture()).value();
  }
  // The host's answer to layer l: x + 1.
  void answer(std::uint32_t layer, std::uint32_t step) {
    std::byte* from = records.host() + layer * record.bytes;
    auto* header = reinterpret_cast<gpu::RecordHeader*>(from);
    while (__atomic_load_n(&header->epoch, __ATOMIC_ACQUIRE) != step) std::this_thread::yield();
    for (std::uint32_t t = 0; t < header->tokens; ++t)
      for (std::uint64_t p = 0; p < cell_panels(kColumns); ++p)
        for (std::uint64_t c = 0; c < cells_per_panel(format); ++c) {
          float value[6] = {};
          for (std::uint64_t i = 0; i < cell_values(format); ++i) {
            const std::uint64_t column = p * kCellPanelColumns + c * cell_values(format) + i;
            if (column >= kColumns) continue;
            const std::byte* at = from + record.x + (t * kColumns + column) * element_bytes_of(format);
            if (format == Format::bf16) {
              std::uint16_t bits;
              std::memcpy(&bits, at, 2);
              value[i] = bf16_to_f32(bits) + 1;
            } else {
              std::memcpy(&value[i], at, 4);
              value[i] += 1;
            }
          }
          std::byte data[12] = {};
          for (std::uint64_t i = 0; i < cell_values(format); ++i) {
            const std::uint16_t bits = f32_to_bf16(value[i]);
            if (format == Format::bf16) std::memcpy(data + 2 * i, &bits, 2); else std::memcpy(data + 4 * i, &value[i], 4);
          }
          const std::uint64_t cell = (t * cell_panels(kColumns) + p) * cells_per_panel(format) + c;
          write_cell(results.host() + layer * result + cell * kCellBytes, data, step);
        }
  }
  void set_up(std::uint32_t tokens) {
    as<std::int32_t>(live)[0] = static_cast<std::int32_t>(tokens);
    for (std::uint32_t i = 0; i < kTokens * kColumns; ++i) as<float>(x)[i] = static_cast<float>(i % 50);
    for (std::uint32_t i = 0; i < kTokens * kTopK; ++i) {
      as<std::int32_t>(ids)[i] = static_cast<std::int32_t>(i % 4);
      as<float>(weights)[i] = 0.5f + static_cast<float>(i);
    }
    const std::int32_t of_expert[4] = {0, -1, 1, -1};
    std::memcpy(slots.data(), of_expert, sizeof of_expert);
  }
};

TEST_P(Handoff, StepsAnswerEachOther) {
  set_up(2);  // one token is padding
  const auto graph = capture(false);
  for (std::uint32_t step = 1; step <= 20; ++step) {
    ASSERT_TRUE(device->compute().fill(out.data(), 0xff, out.bytes()).ok());
    ASSERT_TRUE(device->compute().copy_to_device(epoch.data(), reinterpret_cast<std::byte*>(&step), 4).ok());
    ASSERT_TRUE(device->compute().launch(*graph).ok());
    for (std::uint32_t l = 0; l < kLayers; ++l) answer(l, step);
    ASSERT_TRUE(device->compute().wait().ok());
    for (std::uint32_t t = 0; t < kTokens; ++t)
      for (std::uint32_t c = 0; c < kColumns; ++c)
        ASSERT_EQ(as<float>(out)[t * kColumns + c], t < 2 ? static_cast<float>((t * kColumns + c) % 50 + kLayers) : 0.0f);
    const std::byte* last = records.host() + (kLayers - 1) * record.bytes;
    const auto* header = reinterpret_cast<const gpu::RecordHeader*>(last);
    EXPECT_EQ(header->tokens, 2u);
    EXPECT_EQ(header->pairs, 2u);  // ids 0 1 2 3: two have a slot
    EXPECT_EQ(reinterpret_cast<const std::int32_t*>(last + record.ids)[3], 3);
    EXPECT_EQ(reinterpret_cast<const float*>(last + record.weights)[3], 3.5f);
  }
}

TEST_P(Handoff, ALayerWithoutPairsDoesNotWait) {
  set_up(3);
  std::memset(slots.data(), 0xff, slots.bytes());
  const auto graph = capture(true);
  ASSERT_TRUE(device->compute().fill(epoch.data(), 1, 4).ok());
  ASSERT_TRUE(device->compute().launch(*graph).ok());
  ASSERT_TRUE(device->compute().wait().ok());
  for (std::uint32_t i = 0; i < kTokens * kColumns; ++i) ASSERT_EQ(as<float>(out)[i], 0.0f);
}

TEST_P(Handoff, PoisonEndsEveryWait) {
  set_up(3);
  const auto graph = capture(false);
  ASSERT_TRUE(device->compute().fill(epoch.data(), 1, 4).ok());
  ASSERT_TRUE(device->compute().launch(*graph).ok());
  answer(0, 0x01010101);  // the first layer is answered, nobody answers the second
  EXPECT_FALSE(*device->compute().idle());
  __atomic_store_n(&words()->poison, 1, __ATOMIC_RELAXED);
  ASSERT_TRUE(device->compute().wait().ok());
  for (std::uint32_t i = 0; i < kTokens * kColumns; ++i) ASSERT_EQ(as<float>(out)[i], 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Formats, Handoff, ::testing::Values(Format::f32, Format::bf16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace ktc::device
