// The host-emulated accelerator: order, capture and replay, events, the memory limit, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "runtime/device/device.h"

namespace ktc::device {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Device> emulated(std::uint64_t memory = 1 << 20, EmulatedFaults faults = {}) {
  auto device = open_emulated(memory, faults);
  EXPECT_TRUE(device.ok());
  return std::move(device).value();
}

// A kernel of the test: appends `value` to a list of counters.
struct NoteArgs {
  std::int32_t* list;
  std::int32_t* count;
  std::int32_t value;
};
int note(const NoteArgs& a, void*) {
  a.list[(*a.count)++] = a.value;
  return 0;
}
int fail(const NoteArgs&, void*) { return 7; }

struct Notes {
  explicit Notes(Device& device) : block(*device.allocate(4096, "notes")), count(*device.allocate(4, "count")) {}
  NoteArgs args(std::int32_t value) {
    return {reinterpret_cast<std::int32_t*>(block.data()), reinterpret_cast<std::int32_t*>(count.data()), value};
  }
  std::vector<std::int32_t> read() {
    const auto* list = reinterpret_cast<std::int32_t*>(block.data());
    return {list, list + *reinterpret_cast<std::int32_t*>(count.data())};
  }
  Block block, count;
};

TEST(Emulated, SaysWhatItIs) {
  const auto device = emulated(12345);
  EXPECT_TRUE(device->info().emulated);
  EXPECT_EQ(device->info().memory, 12345u);
  EXPECT_EQ(&device->kernels(), &gpu::reference_kernels());
}

TEST(Emulated, MemoryIsZeroedAlignedAndLimited) {
  const auto device = emulated(1000);
  {
    auto block = device->allocate(600, "weights");
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(block->bytes(), 600u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->data()) % 256, 0u);
    for (std::size_t i = 0; i < 600; ++i) ASSERT_EQ(block->data()[i], std::byte{0});
    EXPECT_EQ(device->allocated(), 600u);
    EXPECT_EQ(*device->free_bytes(), 400u);
    const auto more = device->allocate(401, "cache");
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.status().code(), StatusCode::resource_exhausted);
    EXPECT_THAT(more.status().message(), HasSubstr("cache"));
    EXPECT_THAT(more.status().message(), HasSubstr("401 B"));
    EXPECT_THAT(more.status().message(), HasSubstr("400 B free of 1000 B"));
    EXPECT_TRUE(device->allocate(400, "cache").ok());  // freed at once
    Block moved = std::move(*block);
    EXPECT_EQ(block->data(), nullptr);
    EXPECT_EQ(moved.bytes(), 600u);
  }
  EXPECT_EQ(device->allocated(), 0u);
  EXPECT_FALSE(device->allocate(~std::uint64_t{0}, "all").ok());
}

TEST(Emulated, MappedMemoryIsOneMemoryAndDoesNotCount) {
  const auto device = emulated(100);
  auto mapped = device->allocate_mapped(5000, "records");
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->host(), mapped->device());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapped->host()) % 4096, 0u);
  EXPECT_EQ(device->allocated(), 0u);
  const auto refusing = emulated(100, {.refuse_mapped = true});
  EXPECT_EQ(refusing->allocate_mapped(10, "records").status().code(), StatusCode::unsupported);
}

TEST(Emulated, WorkRunsInOrder) {
  const auto device = emulated();
  Notes notes(*device);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(device->compute().launch(note, notes.args(i)).ok());
  ASSERT_TRUE(device->compute().wait().ok());
  std::vector<std::int32_t> expected(100);
  for (int i = 0; i < 100; ++i) expected[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(notes.read(), expected);
  EXPECT_TRUE(*device->compute().idle());
}

TEST(Emulated, CopiesAndFills) {
  const auto device = emulated();
  Block a = *device->allocate(64, "a"), b = *device->allocate(64, "b");
  std::vector<std::byte> in(64), out(64);
  for (std::size_t i = 0; i < 64; ++i) in[i] = static_cast<std::byte>(i);
  Stream& stream = device->copies();
  ASSERT_TRUE(stream.copy_to_device(a.data(), in.data(), 64).ok());
  ASSERT_TRUE(stream.copy_on_device(b.data(), a.data(), 64).ok());
  ASSERT_TRUE(stream.fill(b.data() + 32, 9, 32).ok());
  ASSERT_TRUE(stream.copy_to_host(out.data(), b.data(), 64).ok());
  ASSERT_TRUE(stream.wait().ok());
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i < 32 ? in[i] : std::byte{9});
}

TEST(Emulated, RefusesMemoryThatIsNotTheDevices) {
  const auto device = emulated();
  Block block = *device->allocate(64, "block");
  std::byte host[128] = {};
  EXPECT_FALSE(device->compute().copy_to_device(host, host, 64).ok());
  EXPECT_FALSE(device->compute().copy_to_device(block.data(), host, 65).ok());
  EXPECT_FALSE(device->compute().copy_to_host(host, block.data() + 60, 5).ok());
  EXPECT_TRUE(device->compute().copy_to_host(host, block.data() + 60, 4).ok());
  EXPECT_FALSE(device->compute().fill(nullptr, 0, 1).ok());
  ASSERT_TRUE(device->compute().wait().ok());
}

TEST(Emulated, GraphsReplayWithTheirArguments) {
  const auto device = emulated();
  Notes notes(*device);
  Stream& stream = device->compute();
  std::atomic<int> calls{0};
  ASSERT_TRUE(stream.begin_capture().ok());
  NoteArgs args = notes.args(1);
  ASSERT_TRUE(stream.launch(note, args).ok());
  args.value = 2;  // a launch copied its arguments
  ASSERT_TRUE(stream.launch(note, args).ok());
  ASSERT_TRUE(stream.host_call([](void* c) { ++*static_cast<std::atomic<int>*>(c); }, &calls).ok());
  auto graph = stream.end_capture();
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(stream.wait().ok());
  EXPECT_TRUE(notes.read().empty());  // nothing ran
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream.launch(**graph).ok());
  graph->reset();
  ASSERT_TRUE(stream.wait().ok());
  EXPECT_EQ(notes.read(), (std::vector<std::int32_t>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(calls, 3);
}

TEST(Emulated, ACaptureRefusesWhatWaits) {
  const auto device = emulated();
  Stream& stream = device->compute();
  EXPECT_FALSE(stream.end_capture().ok());
  ASSERT_TRUE(stream.begin_capture().ok());
  EXPECT_FALSE(stream.wait().ok());
  auto graph = stream.end_capture();
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.status().message(), HasSubstr("wait during a capture"));
  ASSERT_TRUE(stream.begin_capture().ok());
  EXPECT_FALSE(stream.begin_capture().ok());
  EXPECT_FALSE(stream.end_capture().ok());
  ASSERT_TRUE(stream.begin_capture().ok());  // a failed one leaves nothing behind
  EXPECT_TRUE(stream.end_capture().ok());
}

TEST(Emulated, EventsOrderStreams) {
  const auto device = emulated();
  Notes notes(*device);
  auto event = *device->create_event();
  std::atomic<bool> release{false};
  const auto hold = [](void* r) {
    while (!*static_cast<std::atomic<bool>*>(r)) std::this_thread::yield();
  };
  ASSERT_TRUE(device->compute().wait_for(*event).ok());  // never recorded: nothing to wait for
  ASSERT_TRUE(device->compute().wait().ok());
  ASSERT_TRUE(device->copies().host_call(hold, &release).ok());
  ASSERT_TRUE(device->copies().launch(note, notes.args(1)).ok());
  ASSERT_TRUE(device->copies().record(*event).ok());
  ASSERT_TRUE(device->compute().wait_for(*event).ok());
  ASSERT_TRUE(device->compute().launch(note, notes.args(2)).ok());
  event.reset();  // queued work keeps what it needs
  EXPECT_FALSE(*device->compute().idle());
  release = true;
  ASSERT_TRUE(device->compute().wait().ok());
  EXPECT_EQ(notes.read(), (std::vector<std::int32_t>{1, 2}));
}

TEST(Emulated, AFailedKernelLosesTheDevice) {
  const auto device = emulated();
  Notes notes(*device);
  ASSERT_TRUE(device->compute().launch(note, notes.args(1)).ok());
  ASSERT_TRUE(device->compute().launch(fail, notes.args(2)).ok());
  (void)device->compute().launch(note, notes.args(3));
  const Status status = device->compute().wait();
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_EQ(notes.read(), std::vector<std::int32_t>{1});
  EXPECT_EQ(device->copies().wait().code(), StatusCode::unavailable);
  EXPECT_EQ(device->allocate(1, "more").status().code(), StatusCode::unavailable);
}

TEST(Emulated, CanBeLostOnPurpose) {
  const auto device = emulated(1 << 20, {.lose_after = 2});
  Notes notes(*device);
  for (int i = 0; i < 4; ++i) (void)device->compute().launch(note, notes.args(i));
  EXPECT_EQ(device->compute().wait().code(), StatusCode::unavailable);
  EXPECT_EQ(notes.read(), (std::vector<std::int32_t>{0, 1}));
}

// Values between two devices: taken when they are there, written over when they were taken; the host waits for neither.
TEST(Emulated, CopiesBetweenDevicesWaitForEvents) {
  const auto first = emulated(), second = emulated();
  Notes notes(*first), there(*second);
  auto sent = *first->create_event(), taken = *second->create_event();
  std::atomic<bool> release{false};
  const auto hold = [](void* r) {
    while (!*static_cast<std::atomic<bool>*>(r)) std::this_thread::yield();
  };
  ASSERT_TRUE(second->reach(*first).ok());
  ASSERT_TRUE(first->compute().host_call(hold, &release).ok());
  ASSERT_TRUE(first->compute().launch(note, notes.args(5)).ok());
  ASSERT_TRUE(first->compute().record(*sent).ok());
  ASSERT_TRUE(second->compute().wait_for(*sent).ok());
  ASSERT_TRUE(second->compute().copy_from_peer(*first, there.block.data(), notes.block.data(), 4).ok());
  ASSERT_TRUE(second->compute().copy_from_peer(*first, there.count.data(), notes.count.data(), 4).ok());
  ASSERT_TRUE(second->compute().record(*taken).ok());
  ASSERT_TRUE(first->compute().wait_for(*taken).ok());
  ASSERT_TRUE(first->compute().fill(notes.block.data(), 0, 4).ok());
  EXPECT_FALSE(*second->compute().idle());
  release = true;
  ASSERT_TRUE(second->compute().wait().ok());
  ASSERT_TRUE(first->compute().wait().ok());
  EXPECT_EQ(there.read(), std::vector<std::int32_t>{5});
  EXPECT_EQ(notes.read(), std::vector<std::int32_t>{0});
}

TEST(Emulated, CopiesBetweenDevicesAreChecked) {
  const auto first = emulated(), second = emulated();
  Notes notes(*first), there(*second);
  Stream& stream = second->compute();
  EXPECT_FALSE(stream.copy_from_peer(*first, notes.block.data(), notes.block.data(), 4).ok());    // not to this device
  EXPECT_FALSE(stream.copy_from_peer(*first, there.block.data(), there.block.data(), 4).ok());    // not from the other one
  EXPECT_FALSE(stream.copy_from_peer(*first, there.block.data(), notes.block.data(), 4097).ok());
  EXPECT_FALSE(stream.copy_from_peer(*second, there.block.data(), there.block.data(), 4).ok());   // itself
  ASSERT_TRUE(stream.begin_capture().ok());
  EXPECT_FALSE(stream.copy_from_peer(*first, there.block.data(), notes.block.data(), 4).ok());
  EXPECT_FALSE(stream.end_capture().ok());
}

// Who waits for an event that never comes learns of it.
TEST(Emulated, ALostDeviceTakesThoseThatWaitForItAlong) {
  const auto first = emulated(), second = emulated();
  Notes notes(*first);
  auto event = *first->create_event();
  ASSERT_TRUE(first->compute().launch(fail, notes.args(1)).ok());
  (void)first->compute().record(*event);
  ASSERT_TRUE(second->compute().wait_for(*event).ok());
  EXPECT_EQ(first->compute().wait().code(), StatusCode::unavailable);
  const Status status = second->compute().wait();
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::unavailable);  // ok: the event was not recorded any more
}

TEST(Emulated, DestructionDropsWhatIsQueued) {
  std::atomic<int> calls{0};
  {
    const auto device = emulated();
    auto event = *device->create_event();
    const auto slow = [](void* c) {
      ++*static_cast<std::atomic<int>*>(c);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(device->copies().host_call(slow, &calls).ok());
    ASSERT_TRUE(device->copies().record(*event).ok());
    ASSERT_TRUE(device->compute().wait_for(*event).ok());  // blocked until destruction
  }
  EXPECT_LT(calls, 1000);
}

}  // namespace
}  // namespace ktc::device
