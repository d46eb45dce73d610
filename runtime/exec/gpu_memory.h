// What one GPU of a plan holds: arena, weights, KV cache, rope tables, step block and small tables, allocated at open.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/exec/executor.h"
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
  weights::HostBlock host_block[2];              // pinned: the step block as the host fills it, of two steps
  std::unique_ptr<device::Device> device;        // behind what it pins, before its blocks: freed in between
  device::Block arena, weights, step_block, tables, spare;
  std::vector<device::Block> caches;             // by Plan.caches, empty where the cache is elsewhere
  gpu::KernelSet kernels;                        // of the device
  std::vector<gpu::Weight> weight;               // by Plan.weights, no data where the weight is elsewhere
  std::vector<GpuRope> ropes;                    // by Plan.ropes
  std::map<std::vector<std::int32_t>, const std::int32_t*> slots;  // of experts ops, on the device
  std::map<std::uint32_t, std::int32_t*> moving_slots;  // the same by Plan.weights index of gate_up, of banks whose experts move
  std::unique_ptr<device::Event> before, after;  // of a copy beside the computation

  device::Stream& compute() const { return device->compute(); }
  device::Stream& copies() const { return device->copies(); }
};

// Every GPU of the plan: opened, compared with what it must hold, then its memory. Weights are there and not filled.
Expected<std::vector<Gpu>> open_gpus(const planfb::PlanT& plan, const ExecutorOptions& options);

// Weights to their devices through pinned buffers: from their files, made (random), or from the store (splat).
Status upload_weights(const plan::OpenPlan& plan, const weights::WeightStore& store, std::vector<Gpu>& gpus,
                      const weights::Progress& progress);

// Memory of the host for fast copies. A system that refuses to pin it copies more slowly.
void pin(std::vector<Gpu>& gpus, std::byte* data, std::uint64_t bytes);

// Bytes per page of a cache on a GPU, and the page behind the pool that padding attends.
std::uint64_t gpu_cache_bytes(const planfb::CacheT& cache);

}  // namespace ktc::exec
