// What one GPU of a plan holds: arena, weights, KV cache, rope tables, step block and small tables, allocated at open.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/sample_areas.h"
#include "runtime/exec/large_products.h"
#include "runtime/kernels/cuda/gpu_kernels.h"
#include "runtime/weights/host_memory.h"

namespace ktc::exec {

struct GpuRope {
  const float* inv_freq = nullptr;
  std::uint32_t half = 0;
  float* cos = nullptr;
  float* sin = nullptr;
};

struct Gpu {
  std::uint32_t index = 0;                       // in Plan.devices
  weights::HostBlock host_block[2];              // pinned: what is sent before a step (SampleAreas::feed on), of two steps
  std::unique_ptr<device::Device> device;        // behind what it pins, before its blocks: freed in between
  device::Block arena, weights, step_block, tables, spare;
  std::vector<device::Block> caches;             // by Plan.caches, empty where the cache is elsewhere
  gpu::KernelSet kernels;                        // of the device
  std::unique_ptr<LargeProducts> large;          // null: no library was asked for
  std::vector<gpu::Weight> weight;               // by Plan.weights, no data where the weight is elsewhere
  std::vector<GpuRope> ropes;                    // by Plan.ropes
  std::map<std::vector<std::int32_t>, const std::int32_t*> slots;  // of experts ops, on the device
  std::map<std::uint32_t, std::int32_t*> moving_slots;  // the same by Plan.weights index of gate_up, of banks whose experts move
  std::map<const planfb::ExpertsOpT*, std::int32_t*> shared_slots;  // of ops that the CPU shares: written in every step
  SampleAreas sample;                            // in front of the step block
  std::unique_ptr<device::Event> before, after;  // of a copy beside the computation
  std::unique_ptr<device::Event> sent, taken;    // of copies from this GPU to another; to this GPU from another

  std::byte* block() const { return step_block.data() + sample.block; }
  std::int32_t* next_ids() const { return reinterpret_cast<std::int32_t*>(step_block.data() + sample.next_ids); }
  const std::int32_t* feed() const { return reinterpret_cast<const std::int32_t*>(step_block.data() + sample.feed); }
  const SampleRow* sample_rows() const { return reinterpret_cast<const SampleRow*>(step_block.data() + sample.parameters); }
  device::Stream& compute() const { return device->compute(); }
  device::Stream& copies() const { return device->copies(); }
  device::Stream& values() const { return device->values(); }
};

// Every GPU of the plan: opened, compared with what it must hold, then its memory. Weights are there and not filled.
Expected<std::vector<Gpu>> open_gpus(const planfb::PlanT& plan, const ExecutorOptions& options);

// Weights to their devices through pinned buffers: from their files, made (random), or from the store (splat).
Status upload_weights(const plan::OpenPlan& plan, const weights::WeightStore& store, std::vector<Gpu>& gpus,
                      const weights::Progress& progress);

// Tells who computes products of many rows (options.note), once all entries were resolved; nothing where no library was asked for.
void report_products(const std::vector<Gpu>& gpus, const ExecutorOptions& options);

// Memory of the host for fast copies. A system that refuses to pin it copies more slowly.
void pin(std::vector<Gpu>& gpus, std::byte* data, std::uint64_t bytes);

// Bytes per page of a cache on a GPU, and the page behind the pool that padding attends.
std::uint64_t gpu_cache_bytes(const planfb::CacheT& cache);

}  // namespace ktc::exec
