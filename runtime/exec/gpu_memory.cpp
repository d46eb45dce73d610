#include "runtime/exec/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "runtime/base/units.h"
#include "runtime/exec/emulated_kernels.h"
#include "runtime/exec/moving_slots.h"
#include "runtime/exec/kv_layout.h"
#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/step_block.h"

namespace ktc::exec {
namespace {

using planfb::WeightSource;

constexpr std::uint64_t kEmulatedSpare = 1 << 20;  // an emulated device has what the plan needs and this

// Offsets of things that lie one behind the other.
class Layout {
 public:
  std::uint64_t add(std::uint64_t bytes) {
    const std::uint64_t at = end_;
    end_ += align256(bytes);
    return at;
  }
  std::uint64_t bytes() const { return end_; }

 private:
  std::uint64_t end_ = 0;
};

const planfb::WeightT& storage_of(const planfb::PlanT& plan, const planfb::WeightT& weight) {
  return weight.source == WeightSource::alias ? *plan.weights[weight.alias_of] : weight;
}

std::uint32_t most_tokens(const planfb::PlanT& plan) {
  std::uint32_t most = 0;
  for (const auto& entry : plan.entries) most = std::max(most, entry->max_tokens);
  return most;
}

// What a device will hold, in bytes.
struct Needs {
  std::uint64_t arena = 0, weights = 0, cache = 0, block = 0, tables = 0, stream = 0, spare = 0;
  std::uint64_t total() const { return arena + weights + cache + block + tables + stream + spare; }
};

struct TablePlan {
  struct Rope {
    std::uint64_t inv_freq, cos, sin;
  };
  std::vector<Rope> ropes;
  std::map<std::vector<std::int32_t>, std::uint64_t> slots;
  std::map<std::uint32_t, std::uint64_t> moving;
  std::map<const planfb::ExpertsOpT*, std::uint64_t> shared;
  std::uint64_t bytes = 0;
};

TablePlan plan_tables(const planfb::PlanT& plan, std::uint32_t device) {
  TablePlan tables;
  Layout layout;
  const std::uint32_t tokens = most_tokens(plan);
  for (const auto& rope : plan.ropes) {
    const GpuRopeTable size = gpu_rope_table(tokens, 2 * rope->inv_freq.size());
    const std::uint64_t inv_freq = layout.add(rope->inv_freq.size() * sizeof(float)), cos = layout.add(size.cos);
    tables.ropes.push_back({inv_freq, cos, layout.add(size.sin)});
  }
  for (const auto& entry : plan.entries) {
    for (const auto& step : entry->steps) {
      const std::vector<std::int32_t>* slots = nullptr;
      if (const auto* op = step->op.AsExpertsOp(); op != nullptr && step->device == device) slots = &op->slots;
      if (const auto* op = step->op.AsPublishOp(); op != nullptr && step->device == device) slots = &op->slots;
      if (slots != nullptr && !slots->empty() && !tables.slots.contains(*slots))
        tables.slots.emplace(*slots, layout.add(slots->size() * sizeof(std::int32_t)));
      if (const auto* op = step->op.AsExpertsOp(); op != nullptr && op->share != nullptr && step->device == device)
        tables.shared.emplace(op, layout.add(plan.model->experts * sizeof(std::int32_t)));
    }
  }
  // one of its own for each bank: equal ones do not stay equal
  for (const auto& [weight, slots] : moving_slots(plan)) tables.moving.emplace(weight, layout.add(slots.size() * sizeof(std::int32_t)));
  tables.bytes = layout.bytes();
  return tables;
}

Needs needs_of(const planfb::PlanT& plan, std::uint32_t device) {
  Needs needs;
  needs.arena = align256(plan.devices[device]->arena_bytes);
  for (const auto& weight : plan.weights)
    if (weight->device == device && weight->source != WeightSource::alias) needs.weights += align256(weight->bytes);
  for (const auto& cache : plan.caches)
    if (cache->device == device) needs.cache += align256(gpu_cache_bytes(*cache));
  needs.block = sample_areas(plan, device).block + align256(plan::step_block_bytes(plan));
  needs.tables = plan_tables(plan, device).bytes;
  needs.spare = align256(plan::spare_bytes(plan, device));
  needs.stream = align256(plan::stream_areas(plan, device).total());
  return needs;
}

// "cuda:3" -> 3.
Expected<int> ordinal_of(const std::string& name) {
  int ordinal = 0;
  const std::size_t colon = name.find(':');
  const char* first = name.data() + (colon == name.npos ? name.size() : colon + 1);
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), ordinal);
  if (error == std::errc() && end == name.data() + name.size() && ordinal >= 0) return ordinal;
  return make_error(StatusCode::unsupported, {.place = "device " + name, .what = "unknown name", .expected = "cuda:NUMBER"});
}

Status check_memory(const planfb::PlanT& plan, std::uint32_t index, const Needs& needs, device::Device& device) {
  std::uint64_t account = 0;
  for (const auto& line : plan.account)
    if (line->device == index) account += line->bytes;
  const std::uint64_t needed = std::max(account, needs.total());
  KTC_ASSIGN_OR_RETURN(const std::uint64_t free, device.free_bytes());
  if (needed <= free) return {};
  return make_error(
      StatusCode::resource_exhausted,
      {.place = "device " + plan.devices[index]->name,
       .what = fmt::format("not enough memory for the plan: weights {}, KV cache {}, arena {}", format_bytes(needs.weights),
                           format_bytes(needs.cache), format_bytes(needs.arena)),
       .found = fmt::format("{} free of {} on {}", format_bytes(free), format_bytes(device.info().memory), device.info().name),
       .expected = format_bytes(needed),
       .remedy = "end what else uses the device, or compile with fewer experts on it, a smaller kv_cache.tokens or fewer "
                 "kv_cache.sequences"});
}

// The kernels that a plan's steps need are resolved with the steps; an empty set is a build that has none at all.
Expected<std::unique_ptr<device::Device>> open_device(const planfb::PlanT& plan, std::uint32_t index, const Needs& needs,
                                                      const ExecutorOptions& options) {
  const planfb::DeviceT& named = *plan.devices[index];
  const std::uint64_t memory = options.emulated_memory != 0 ? options.emulated_memory : needs.total() + kEmulatedSpare;
  if (options.open_device) return options.open_device(named, memory);
  if (options.emulate_gpu) return device::open_emulated(memory);
  KTC_ASSIGN_OR_RETURN(const int ordinal, ordinal_of(named.name));
  return device::open_cuda(ordinal);
}

gpu::Weight weight_at(const planfb::WeightT& weight, std::byte* data) {
  gpu::Weight w;
  w.data = data;
  w.format = static_cast<Format>(weight.format);
  w.packing = static_cast<Packing>(weight.packing);
  w.group = weight.group;
  w.batch = static_cast<std::uint32_t>(weight.batch);
  w.rows = static_cast<std::uint32_t>(weight.rows);
  w.columns = static_cast<std::uint32_t>(weight.columns);
  w.matrix_bytes = weight.batch == 0 ? 0 : weight.bytes / weight.batch;
  if (w.packing == Packing::row_major)
    w.row_bytes = packed_row_bytes(w.format, w.packing, weight.columns);
  else if (const auto layout = gpu_rows_layout(w.format, w.group, weight.rows, weight.columns))
    w.row_bytes = layout->row_bytes;
  return w;
}

Status allocate_weights(const planfb::PlanT& plan, Gpu& gpu) {
  Layout layout;
  std::vector<std::uint64_t> at(plan.weights.size(), 0);
  for (std::size_t i = 0; i < plan.weights.size(); ++i)
    if (plan.weights[i]->device == gpu.index && plan.weights[i]->source != WeightSource::alias)
      at[i] = layout.add(plan.weights[i]->bytes);
  if (layout.bytes() != 0) {
    KTC_ASSIGN_OR_RETURN(gpu.weights, gpu.device->allocate(layout.bytes(), "weights"));
  }
  gpu.weight.resize(plan.weights.size());
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const planfb::WeightT& weight = *plan.weights[i];
    if (weight.device != gpu.index) continue;
    const std::size_t storage = weight.source == WeightSource::alias ? weight.alias_of : i;
    if (plan.weights[storage]->device != gpu.index)
      return make_error(StatusCode::unsupported, {.place = "weight " + weight.name,
                                                  .what = "its bytes are on another device",
                                                  .found = plan.devices[plan.weights[storage]->device]->name,
                                                  .expected = plan.devices[gpu.index]->name,
                                                  .remedy = "compile the model again"});
    gpu.weight[i] = weight_at(storage_of(plan, weight), gpu.weights.data() + at[storage]);
  }
  return {};
}

Status allocate_tables(const planfb::PlanT& plan, Gpu& gpu) {
  const TablePlan tables = plan_tables(plan, gpu.index);
  if (tables.bytes == 0) return {};
  KTC_ASSIGN_OR_RETURN(gpu.tables, gpu.device->allocate(tables.bytes, "tables"));
  std::byte* base = gpu.tables.data();
  device::Stream& stream = gpu.compute();
  for (std::size_t r = 0; r < plan.ropes.size(); ++r) {
    const std::vector<float>& inv_freq = plan.ropes[r]->inv_freq;
    KTC_RETURN_IF_ERROR(stream.copy_to_device(base + tables.ropes[r].inv_freq, reinterpret_cast<const std::byte*>(inv_freq.data()),
                                              inv_freq.size() * sizeof(float)));
    gpu.ropes.push_back({reinterpret_cast<const float*>(base + tables.ropes[r].inv_freq), static_cast<std::uint32_t>(inv_freq.size()),
                         reinterpret_cast<float*>(base + tables.ropes[r].cos), reinterpret_cast<float*>(base + tables.ropes[r].sin)});
  }
  for (const auto& [slots, at] : tables.slots) {
    KTC_RETURN_IF_ERROR(stream.copy_to_device(base + at, reinterpret_cast<const std::byte*>(slots.data()),
                                              slots.size() * sizeof(std::int32_t)));
    gpu.slots.emplace(slots, reinterpret_cast<const std::int32_t*>(base + at));
  }
  const MovingSlots moving = moving_slots(plan);
  for (const auto& [weight, at] : tables.moving) {
    const std::vector<std::int32_t>& slots = moving.at(weight);
    KTC_RETURN_IF_ERROR(stream.copy_to_device(base + at, reinterpret_cast<const std::byte*>(slots.data()),
                                              slots.size() * sizeof(std::int32_t)));
    gpu.moving_slots.emplace(weight, reinterpret_cast<std::int32_t*>(base + at));
  }
  for (const auto& [op, at] : tables.shared) gpu.shared_slots.emplace(op, reinterpret_cast<std::int32_t*>(base + at));
  return stream.wait();
}

Status allocate(const planfb::PlanT& plan, const Needs& needs, Gpu& gpu) {
  if (needs.arena != 0) {
    KTC_ASSIGN_OR_RETURN(gpu.arena, gpu.device->allocate(needs.arena, "arena"));
  }
  KTC_RETURN_IF_ERROR(allocate_weights(plan, gpu));
  if (needs.spare != 0) {
    KTC_ASSIGN_OR_RETURN(gpu.spare, gpu.device->allocate(needs.spare, "experts that arrive"));
  }
  for (const auto& cache : plan.caches) {
    gpu.caches.emplace_back();
    if (cache->device != gpu.index) continue;
    KTC_ASSIGN_OR_RETURN(gpu.caches.back(), gpu.device->allocate(align256(gpu_cache_bytes(*cache)), "KV cache " + cache->name));
  }
  KTC_ASSIGN_OR_RETURN(gpu.step_block, gpu.device->allocate(needs.block, "step block"));
  KTC_RETURN_IF_ERROR(allocate_tables(plan, gpu));
  for (weights::HostBlock& block : gpu.host_block) {
    KTC_ASSIGN_OR_RETURN(block, weights::HostBlock::allocate(needs.block, "step block"));
    (void)gpu.device->register_host(block.data(), needs.block);
  }
  KTC_ASSIGN_OR_RETURN(gpu.before, gpu.device->create_event());
  KTC_ASSIGN_OR_RETURN(gpu.after, gpu.device->create_event());
  KTC_ASSIGN_OR_RETURN(gpu.sent, gpu.device->create_event());
  KTC_ASSIGN_OR_RETURN(gpu.taken, gpu.device->create_event());
  return {};
}

}  // namespace

void report_products(const std::vector<Gpu>& gpus, const ExecutorOptions& options) {
  for (const Gpu& gpu : gpus) {
    if (gpu.large == nullptr) continue;
    const Status& refused = gpu.large->refused();
    std::string line;
    if (gpu.large->count() != 0) {
      const auto version = gpu::large_products_version();
      line = "products of many rows by " + (version.ok() ? *version : "cuBLASLt");
    }
    if (!refused.ok()) line += (line.empty() ? "" : "; ") + std::string("by ktc's own kernels: ") + refused.message();
    if (!line.empty() && options.note != nullptr) options.note(options.note_context, line);
  }
}

std::uint64_t gpu_cache_bytes(const planfb::CacheT& cache) {
  return kv_page_bytes(cache) * (std::uint64_t{cache.pages} + 1) * cache.layers;
}

void pin(std::vector<Gpu>& gpus, std::byte* data, std::uint64_t bytes) {
  for (Gpu& gpu : gpus) (void)gpu.device->register_host(data, bytes);
}

Expected<std::vector<Gpu>> open_gpus(const planfb::PlanT& plan, const ExecutorOptions& options) {
  std::vector<Gpu> gpus;
  std::vector<Needs> needs;
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d) {
    if (plan.devices[d]->kind != planfb::DeviceKind::cuda) continue;
    needs.push_back(needs_of(plan, d));
    Gpu gpu;
    gpu.index = d;
    gpu.sample = sample_areas(plan, d);
    auto device = open_device(plan, d, needs.back(), options);
    if (!device.ok()) return device.status().with_context("device " + plan.devices[d]->name);
    gpu.device = std::move(device).value();
    gpu.kernels = gpu.device->info().emulated ? emulated_kernels() : gpu.device->kernels();
    if (const auto ordinal = ordinal_of(plan.devices[d]->name); ordinal.ok() && !gpu.device->info().emulated && options.products == ProductsKind::library)
      gpu.large = std::make_unique<LargeProducts>(*ordinal, most_tokens(plan));
    KTC_RETURN_IF_ERROR(check_memory(plan, d, needs.back(), *gpu.device));
    gpus.push_back(std::move(gpu));
  }
  for (Gpu& gpu : gpus)
    for (Gpu& other : gpus)
      if (&gpu != &other) KTC_RETURN_IF_ERROR(gpu.device->reach(*other.device));
  // nothing is allocated before every device was found large enough
  for (std::size_t g = 0; g < gpus.size(); ++g)
    KTC_RETURN_IF_ERROR(allocate(plan, needs[g], gpus[g]).with_context("device " + plan.devices[gpus[g].index]->name));
  return gpus;
}

}  // namespace ktc::exec
