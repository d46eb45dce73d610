// The host's side of the hand-off between a GPU and the CPU (runtime/formats/handoff.h): records read, results written, and
// nobody waited for in vain. docs/handoff.md has the protocol.
//
// Two ways for the same values: a doorbell (kernels write records to mapped memory, the CPU polls; the CPU writes cells, kernels
// poll), and host nodes (copies and host calls in the stream), where mapped memory is refused or the user asks for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/hybrid_program.h"
#include "runtime/exec/result_cells.h"
#include "runtime/formats/handoff.h"
#include "runtime/kernels/cuda/gpu_kernels.h"
#include "runtime/weights/host_memory.h"

namespace ktc::exec {

// Sees that a step goes on. While one is watched, progress() must be called now and then; when it is not for the given time,
// `stalled` is set and every poison word, so that each wait ends, on the device and here. When the thread that runs the step does
// not come back for that time again, `wedged` is called once, from the watchdog's thread: nothing in this process can help then.
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds patience, void (*wedged)(void*), void* context);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch_words(gpu::HandoffWords* words) { words_.push_back(words); }  // before the first step
  void begin(int times = 1);  // times the usual patience, for this step
  void end();
  void progress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  bool stalled() const { return stalled_.load(std::memory_order_relaxed); }
  void poison();  // as if it had stalled, at once
  std::chrono::milliseconds patience() const { return patience_; }

 private:
  void run();
  const std::chrono::milliseconds patience_;
  void (*const wedged_)(void*);
  void* const context_;
  std::vector<gpu::HandoffWords*> words_;
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<bool> stalled_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool active_ = false, stop_ = false;  // guarded by mutex_
  int times_ = 1;                       // likewise
  std::thread thread_;                  // last
};

// One publish and its await.
struct RecordArea {
  std::uint32_t entry = 0, number = 0;  // index in Plan.entries, number in the entry
  std::uint64_t staged_bytes = 0;       // for host nodes
  std::uint32_t tokens = 0, top_k = 0, columns = 0;
  Format format = Format::f32;         // of x
  Format cell_format = Format::f32;
  RecordLayout layout = {};
  std::byte* host = nullptr;           // the record; null with host nodes
  std::byte* device = nullptr;
  std::byte* host_cells = nullptr;
  const std::byte* device_cells = nullptr;
  std::uint32_t* pairs = nullptr;      // on the device

  // With host nodes: what the stream's host calls and the CPU tell each other.
  struct Node {
    std::atomic<std::uint32_t> published{0};  // counts replays of the publish
    std::atomic<std::uint32_t> answered{0};   // results written, ever
    std::uint32_t awaited = 0;                // of the stream's thread
    const Watchdog* watchdog = nullptr;
    std::byte* staged = nullptr;              // staged_bytes, pinned
  };
  std::unique_ptr<Node> node;
  const gpu::RecordHeader& header() const { return *reinterpret_cast<const gpu::RecordHeader*>(host); }
  ResultCells cells(std::uint32_t epoch) const { return {host_cells, cell_format, epoch, columns}; }  // doorbell only
};

// Memory of one GPU's hand-off.
class Handoff {
 public:
  // Areas for `records`, of which all but the pointers are set, in mapped memory. Errors: the system refuses mapped memory.
  static Expected<Handoff> open_doorbell(device::Device& device, std::vector<RecordArea> records);
  // The same for host nodes, in pinned memory.
  static Expected<Handoff> open_hostnode(device::Device& device, std::vector<RecordArea> records, const Watchdog& watchdog);

  // Of an entry, by index in Plan.entries; null: none of this GPU. Its address does not change.
  RecordArea* find(std::uint32_t entry, std::uint32_t number);
  bool doorbell() const { return words_.bytes() != 0; }
  // Says that the result of record `number` is about to be written: whoever waits for it on the device reads its cells from then on.
  // Doorbell only, and then for every record: once one was announced, devices wait for it.
  ResultNear near(std::uint32_t epoch, std::uint32_t number) { return {&words()->near_epoch, &words()->near_layer, epoch, number}; }
  gpu::HandoffWords* words() { return reinterpret_cast<gpu::HandoffWords*>(words_.host()); }         // doorbell
  gpu::HandoffWords* device_words() { return reinterpret_cast<gpu::HandoffWords*>(words_.device()); }  // doorbell

 private:
  std::vector<RecordArea> records_;
  device::MappedBlock words_, area_;
  weights::HostBlock staged_;
  device::Block pairs_;
};

// Host calls of the stream; the context is a RecordArea::Node.
void node_published(void* node);
void node_await(void* node);

// Record to the CPU's buffers, `live` rows; from where copies put it when there is no record.
void unpack_record(const RecordStep& record, std::uint32_t live, Workers& workers);
// The CPU's result to cells, or to where a copy takes it from, `live` rows. Both ways round it alike.
void write_result(const RecordArea& area, std::uint32_t epoch, std::uint32_t live, const AwaitStep& await, Workers& workers);

}  // namespace ktc::exec
