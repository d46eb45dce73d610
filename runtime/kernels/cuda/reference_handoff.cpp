// Reference: the real protocol of the hand-off between a thread that plays the GPU and the host.
#include <thread>

#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"

namespace ktc::gpu {

using namespace reference;

int publish_reference(const PublishArgs& a, void*) {
  const std::uint32_t live = static_cast<std::uint32_t>(a.live[0]), columns = a.x.columns;
  const RecordLayout layout = record_layout(a.rows, a.top_k, columns, a.format);
  std::uint32_t pairs = 0;
  for (std::size_t t = 0; t < live; ++t) {
    auto* ids = reinterpret_cast<std::int32_t*>(a.record + layout.ids) + t * a.top_k;
    auto* weights = reinterpret_cast<float*>(a.record + layout.weights) + t * a.top_k;
    std::memcpy(ids, row_of(a.ids, t), a.top_k * sizeof(std::int32_t));
    std::memcpy(weights, row_of(a.weights, t), a.top_k * sizeof(float));
    for (std::size_t k = 0; k < a.top_k; ++k) pairs += pair_slot(a.slots, ids[k], 0x7fffffffu) >= 0;
    std::byte* x = a.record + layout.x + t * columns * element_bytes_of(a.format);
    for (std::size_t c = 0; c < columns; ++c) store(x, a.format, c, row_of(a.x, t)[c]);
  }
  if (a.pairs != nullptr) *a.pairs = pairs;
  auto* header = reinterpret_cast<RecordHeader*>(a.record);
  header->tokens = live;
  header->pairs = pairs;
  __atomic_store_n(&header->epoch, *a.epoch, __ATOMIC_RELEASE);
  return 0;
}

int await_reference(const AwaitArgs& a, void*) {
  const std::uint32_t live = static_cast<std::uint32_t>(a.live[0]), columns = a.out.columns, epoch = *a.epoch;
  const bool nothing = a.skip_empty && a.pairs != nullptr && *a.pairs == 0;
  const std::size_t values = cell_values(a.format), per_panel = cells_per_panel(a.format), panels = cell_panels(columns);
  bool poisoned = false;
  const auto poison = [&] { return __atomic_load_n(&a.words->poison, __ATOMIC_RELAXED) != 0; };
  // first the word that says that the result is near, where the host uses it
  while (live != 0 && !nothing && !poisoned) {
    const std::uint32_t near = __atomic_load_n(&a.words->near_epoch, __ATOMIC_ACQUIRE);
    if (near == 0 || (near == epoch && __atomic_load_n(&a.words->near_layer, __ATOMIC_RELAXED) >= a.layer)) break;
    std::this_thread::yield();
    poisoned = poison();
  }
  for (std::size_t t = 0; t < a.rows; ++t) {
    float* out = row_of(a.out, t);
    if (t >= live || nothing || poisoned) {
      std::memset(out, 0, columns * sizeof(float));
      continue;
    }
    for (std::size_t cell = 0; cell < panels * per_panel; ++cell) {
      const std::size_t first = cell / per_panel * kCellPanelColumns + cell % per_panel * values;
      const std::size_t panel_end = (cell / per_panel + 1) * kCellPanelColumns, end = panel_end < columns ? panel_end : columns;
      if (first >= end) continue;  // behind the last column: nobody need write it
      std::byte data[12];
      const std::byte* from = a.cells + (t * panels * per_panel + cell) * kCellBytes;
      while (!poisoned && !read_cell(from, epoch, data)) {
        std::this_thread::yield();
        poisoned = poison();
      }
      if (poisoned) break;
      for (std::size_t i = 0; i < values && first + i < end; ++i) out[first + i] = load(data, a.format, i);
    }
    if (poisoned) std::memset(row_of(a.out, t), 0, columns * sizeof(float));
  }
  if (poisoned)  // rows that had arrived are zeros too: a result is whole or nothing
    for (std::size_t t = 0; t < a.rows; ++t) std::memset(row_of(a.out, t), 0, columns * sizeof(float));
  return 0;
}

int route_publish_reference(const RoutePublishArgs& a, void* stream) {
  int failed = a.norm.count == 0 ? 0 : add_norm_reference(a.norm, stream);
  if (failed == 0) failed = route_reference(a.route, stream);
  return failed != 0 ? failed : publish_reference(a.publish, stream);
}

int norm_route_reference(const NormRouteArgs& a, void* stream) {
  const int failed = add_norm_reference(a.norm, stream);
  return failed != 0 ? failed : route_reference(a.route, stream);
}

int await_norm_reference(const AwaitNormArgs& a, void* stream) {
  const int failed = await_reference(a.await, stream);
  return failed != 0 ? failed : add_norm_reference(a.norm, stream);
}

}  // namespace ktc::gpu
