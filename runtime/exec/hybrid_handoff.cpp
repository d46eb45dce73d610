#include "runtime/exec/hybrid_handoff.h"

#include <algorithm>
#include <cstring>

#include "runtime/exec/matmul_phase.h"

namespace ktc::exec {

// ------------------------------------------------------------------------------------------------------------- watchdog

Watchdog::Watchdog(std::chrono::milliseconds patience, void (*wedged)(void*), void* context)
    : patience_(patience), wedged_(wedged), context_(context), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::begin(int times) {
  progress();
  {
    const std::lock_guard lock(mutex_);
    active_ = true;
    times_ = times;
  }
  changed_.notify_all();
}

void Watchdog::end() {
  const std::lock_guard lock(mutex_);
  active_ = false;
}

void Watchdog::poison() {
  stalled_.store(true, std::memory_order_relaxed);
  for (gpu::HandoffWords* words : words_) __atomic_store_n(&words->poison, 1u, __ATOMIC_RELEASE);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  using Clock = std::chrono::steady_clock;
  bool told = false;
  while (!stop_) {
    changed_.wait(lock, [this] { return stop_ || active_; });
    std::uint64_t seen = progress_.load(std::memory_order_relaxed);
    Clock::time_point since = Clock::now();
    while (!stop_ && active_) {
      changed_.wait_for(lock, patience_ / 8, [this] { return stop_ || !active_; });
      const std::uint64_t now = progress_.load(std::memory_order_relaxed);
      if (now != seen) {
        seen = now;
        since = Clock::now();
        continue;
      }
      const auto waited = Clock::now() - since;
      if (waited >= times_ * patience_ && !stalled_.load(std::memory_order_relaxed)) poison();
      if (waited >= 2 * times_ * patience_ && !told && active_) {
        told = true;
        if (wedged_ != nullptr) {
          lock.unlock();
          wedged_(context_);
          lock.lock();
        }
      }
    }
  }
}

// --------------------------------------------------------------------------------------------------------------- memory

namespace {

Status allocate_pairs(device::Device& device, std::vector<RecordArea>& records, device::Block& block) {
  if (records.empty()) return {};
  KTC_ASSIGN_OR_RETURN(block, device.allocate(align64(records.size() * sizeof(std::uint32_t)), "pairs of the hand-off"));
  for (std::size_t i = 0; i < records.size(); ++i) records[i].pairs = reinterpret_cast<std::uint32_t*>(block.data()) + i;
  return {};
}

}  // namespace

Expected<Handoff> Handoff::open_doorbell(device::Device& device, std::vector<RecordArea> records) {
  Handoff handoff;
  KTC_ASSIGN_OR_RETURN(handoff.words_, device.allocate_mapped(4096, "words of the hand-off"));
  std::uint64_t bytes = 0;
  for (RecordArea& area : records) {
    area.layout = record_layout(area.tokens, area.top_k, area.columns, area.format);
    bytes += area.layout.bytes + result_bytes(area.tokens, area.columns, area.cell_format);
  }
  if (bytes != 0) {
    KTC_ASSIGN_OR_RETURN(handoff.area_, device.allocate_mapped(bytes, "records of the hand-off"));
  }
  std::uint64_t at = 0;
  for (RecordArea& area : records) {
    area.host = handoff.area_.host() + at;
    area.device = handoff.area_.device() + at;
    at += area.layout.bytes;
    area.host_cells = handoff.area_.host() + at;
    area.device_cells = handoff.area_.device() + at;
    at += result_bytes(area.tokens, area.columns, area.cell_format);
  }
  KTC_RETURN_IF_ERROR(allocate_pairs(device, records, handoff.pairs_));
  handoff.records_ = std::move(records);
  return handoff;
}

Expected<Handoff> Handoff::open_hostnode(device::Device& device, std::vector<RecordArea> records, const Watchdog& watchdog) {
  Handoff handoff;
  std::uint64_t bytes = 0;
  for (const RecordArea& area : records) bytes += align64(area.staged_bytes);
  KTC_ASSIGN_OR_RETURN(handoff.staged_, weights::HostBlock::allocate(bytes, "records of the hand-off"));
  if (bytes != 0) (void)device.register_host(handoff.staged_.data(), bytes);
  std::uint64_t at = 0;
  for (RecordArea& area : records) {
    area.node = std::make_unique<RecordArea::Node>();
    area.node->watchdog = &watchdog;
    area.node->staged = handoff.staged_.data() + at;
    at += align64(area.staged_bytes);
  }
  handoff.records_ = std::move(records);
  return handoff;
}

RecordArea* Handoff::find(std::uint32_t entry, std::uint32_t number) {
  for (RecordArea& area : records_)
    if (area.entry == entry && area.number == number) return &area;
  return nullptr;
}

// ----------------------------------------------------------------------------------------------------------- host nodes

void node_published(void* context) {
  static_cast<RecordArea::Node*>(context)->published.fetch_add(1, std::memory_order_release);
}

// On a thread of the driver: it sleeps rather than takes a core from the workers.
void node_await(void* context) {
  auto& node = *static_cast<RecordArea::Node*>(context);
  const std::uint32_t wanted = ++node.awaited;
  for (int looks = 0; node.answered.load(std::memory_order_acquire) != wanted && !node.watchdog->stalled(); ++looks)
    if (looks > 64) std::this_thread::yield();
}

// --------------------------------------------------------------------------------------------------------------- values

namespace {

void widen(const std::byte* from, Format format, std::size_t count, float* to) {
  if (format == Format::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = bf16_to_f32(bits);
  }
}

// As a record or cells would have it.
void rounded(const float* from, Format format, std::size_t count, float* to) {
  if (format == Format::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) to[i] = bf16_to_f32(f32_to_bf16(from[i]));
}

}  // namespace

void unpack_record(const RecordStep& to, std::uint32_t live, Workers& workers) {
  const RecordArea& area = *to.area;
  const RecordLayout& layout = area.layout;
  row_phase(workers, live, area.columns, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::int32_t* ids = nullptr;
      const float* weights = nullptr;
      if (area.node == nullptr) {
        widen(area.host + layout.x + t * area.columns * element_bytes_of(area.format), area.format, area.columns, to.x.row(t));
        ids = reinterpret_cast<const std::int32_t*>(area.host + layout.ids) + t * area.top_k;
        weights = reinterpret_cast<const float*>(area.host + layout.weights) + t * area.top_k;
      } else {
        rounded(to.staged_x.row(t), area.format, area.columns, to.x.row(t));
        ids = to.staged_ids.row(t);
        weights = to.staged_weights.row(t);
      }
      std::memcpy(to.ids.row(t), ids, area.top_k * sizeof(std::int32_t));
      std::memcpy(to.weights.row(t), weights, area.top_k * sizeof(float));
    }
  });
}

void write_result(const RecordArea& area, std::uint32_t epoch, std::uint32_t live, const AwaitStep& await, Workers& workers) {
  if (area.node != nullptr) {
    row_phase(workers, live, area.columns, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) rounded(await.result.row(t), area.cell_format, area.columns, await.staged.row(t));
    });
    area.node->answered.fetch_add(1, std::memory_order_release);
    return;
  }
  const ResultCells cells = area.cells(epoch);
  const std::size_t panels = static_cast<std::size_t>(cell_panels(area.columns));
  row_phase(workers, live * panels, 4 * kCellPanelColumns, [&](std::size_t begin, std::size_t end) {
    for (std::size_t item = begin; item < end; ++item)
      cells.write(item / panels, item % panels, await.result.row(item / panels) + item % panels * kCellPanelColumns);
  });
}

}  // namespace ktc::exec
