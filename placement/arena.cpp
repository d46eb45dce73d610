// The bound of activations and scratch (memory.h).
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "placement/device_formats.h"
#include "placement/memory.h"
#include "placement/saturating.h"
#include "placement/tiles.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/halves.h"
#include "runtime/formats/workspace.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::Module;

// One activation buffer: f32 rows at a stride of 64 bytes. bf16 activations need less.
std::uint64_t buffer(std::uint64_t rows, std::uint64_t columns) {
  if (columns > (std::uint64_t{1} << 40)) return UINT64_MAX;
  return times(rows, align64(columns * 4));
}

// Buffers and workspace of one module at n tokens, none sharing an address: inputs are counted by whoever makes them.
struct ModuleBuffers {
  std::uint64_t n, hidden;
  bool panels = false;
  Format activations = Format::int8;       // of products
  std::span<const std::uint64_t> sizes{};  // on a GPU: tokens of every entry, whose scratch need not grow with them; empty: a CPU
  std::uint32_t tile_rows = 0;             // of panels: what a target with tiles has

  // The largest scratch of a module's products, which run one after the other.
  std::uint64_t linear(std::initializer_list<std::uint64_t> columns) const {
    std::uint64_t most = 0;
    for (const std::uint64_t width : columns) most = std::max(most, width);
    if (on_gpu()) return wide(most) ? UINT64_MAX : gpu_linear_workspace(activations, n, most).total();
    if (!panels) return 0;
    return wide(most) ? UINT64_MAX : panel_linear_workspace(activations, n, most, kGranule, tile_rows).total();
  }

  std::uint64_t operator()(const models::EmbeddingDesc&) const { return buffer(n, hidden); }
  std::uint64_t operator()(const models::NormDesc&) const { return buffer(n, hidden); }
  std::uint64_t operator()(const models::GqaDesc& d) const {
    const std::uint64_t q = times(d.heads, d.head_dim), kv = times(d.kv_heads, d.head_dim);
    std::uint64_t bytes = buffer(n, plus(q, times(2, kv)));  // q, k, v
    bytes = plus(bytes, buffer(n, q));                       // attention's output
    bytes = plus(bytes, times(2, buffer(n, hidden)));        // after o, and the sum with the residual
    bytes = plus(bytes, linear({hidden, q}));
    if (wide(times(q, kGpuMostSplits))) return UINT64_MAX;
    if (!on_gpu()) return plus(bytes, gqa_workspace(n, d.heads, d.head_dim).total());
    return plus(bytes, largest([&](std::uint64_t t) { return gpu_gqa_workspace(t, d.heads, d.kv_heads, d.head_dim).total(); }));
  }
  std::uint64_t operator()(const models::MlaDesc& d) const {
    const std::uint64_t latent = plus(d.kv_rank, d.rope_dim);
    std::uint64_t bytes = times(2, buffer(n, d.q_rank));                           // q_a and its norm
    bytes = plus(bytes, buffer(n, times(d.heads, plus(d.nope_dim, d.rope_dim))));  // q
    bytes = plus(bytes, times(2, buffer(n, latent)));                              // kv_a and its norm
    bytes = plus(bytes, buffer(n, times(d.heads, d.v_dim)));                       // attention's output
    bytes = plus(bytes, times(2, buffer(n, hidden)));  // after o, and the sum with the residual
    bytes = plus(bytes, linear({hidden, d.q_rank, times(d.heads, d.v_dim)}));
    const bool huge = wide(times(d.heads, latent)) || wide(times(d.heads, d.kv_rank));
    if (huge || wide(times(d.heads, d.kv_rank, kGpuMostSplits))) return UINT64_MAX;
    if (!on_gpu()) return plus(bytes, mla_workspace(n, d.heads, d.kv_rank, d.rope_dim).total());
    return plus(bytes, largest([&](std::uint64_t t) { return gpu_mla_workspace(t, d.heads, d.kv_rank, d.rope_dim).total(); }));
  }
  std::uint64_t operator()(const models::RouterDesc& d) const {
    const std::uint64_t bytes = plus(buffer(n, d.top_k), buffer(n, d.top_k));  // ids and weights
    top_k = d.top_k;
    return plus(bytes, on_gpu() ? gpu_route_workspace(n, d.experts).total() : route_workspace(n, d.experts).total());
  }
  std::uint64_t operator()(const models::ExpertsDesc& d) const {
    const std::uint64_t bytes = times(2, buffer(n, hidden));  // output, and the sum with the residual
    if (wide(times(top_k, d.intermediate)) || wide(times(top_k, hidden))) return UINT64_MAX;
    if (on_gpu())
      return plus(bytes, largest([&](std::uint64_t t) {
        return gpu_experts_workspace(activations, t, top_k, hidden, d.intermediate, d.experts).total();
      }));
    if (panels)
      return plus(bytes, panel_experts_workspace(activations, n, top_k, hidden, d.intermediate, d.experts, kGranule,
                                                 kGranule, tile_rows)
                             .total());
    return plus(bytes, experts_workspace(n, top_k, d.intermediate, d.experts).total());
  }
  std::uint64_t operator()(const models::MlpDesc& d) const {
    const std::uint64_t bytes = times(2, buffer(n, hidden));
    if (wide(hidden)) return UINT64_MAX;
    if (on_gpu()) return plus(bytes, gpu_mlp_workspace(activations, n, hidden, d.intermediate).total());
    if (!panels) return plus(bytes, mlp_workspace(n, d.intermediate).total());
    return plus(bytes, panel_mlp_workspace(activations, n, hidden, d.intermediate, kGranule, kGranule, tile_rows).total());
  }
  std::uint64_t operator()(const models::HeadDesc&) const { return 0; }  // counted with its rows

  bool on_gpu() const { return !sizes.empty(); }
  template <typename F>
  std::uint64_t largest(F bytes) const {
    std::uint64_t most = 0;
    for (const std::uint64_t tokens : sizes) most = std::max(most, bytes(tokens));
    return most;
  }
  static bool wide(std::uint64_t columns) { return columns > (std::uint64_t{1} << 36); }  // n < 2^24: no product wraps
  mutable std::uint64_t top_k = 0;  // of the layer's router, which comes first
};

}  // namespace

std::uint64_t extend_rows(std::uint64_t tokens, std::uint64_t sequences, std::uint64_t vocab) {
  constexpr std::uint64_t kLogitsBytes = std::uint64_t{64} << 20;
  const std::uint64_t least = std::min(sequences, tokens);
  return std::clamp(kLogitsBytes / std::max<std::uint64_t>(times(vocab, 4), 1), least, tokens);
}

namespace {

// Devices but one: what a layer's values may come from or go to.
std::uint64_t other_devices(const ModelDesc& model, const std::vector<ModulePlacement>& modules, const std::vector<HotExperts>& hot) {
  std::set<std::string_view> devices;
  for (std::size_t i = 0; i < model.modules.size(); ++i) devices.insert(modules[i].device);
  for (const HotExperts& one : hot) devices.insert(one.device);
  return devices.empty() ? 0 : devices.size() - 1;
}

// What a layer has besides where its modules are on several devices or its experts are late: a copy of x, ids and weights, or of
// the result; late results of this layer and the one before, and their sum; the flags of deferred tokens. Areas on a GPU start on
// 256 bytes: as much for each of a few dozen values covers that.
std::uint64_t transferred(const ModelDesc& model, std::uint64_t n, const std::map<int, std::uint64_t>& top_k, std::uint64_t others, bool late) {
  std::uint64_t most = 1;
  for (const auto& [layer, k] : top_k) most = std::max(most, k);
  return plus(plus(times(late ? 5 : 2, others, buffer(n, model.hidden)), times(2, buffer(n, most))), plus(align64(n * 4), 64 * 256));
}

}  // namespace

std::uint64_t arena_bound(const ModelDesc& model, const std::vector<ModulePlacement>& modules, const std::vector<HotExperts>& hot,
                          const Policy& policy, std::string_view device) {
  const BatchPolicy& batch = policy.batch;
  const std::uint64_t n = std::max({batch.chunk, batch.stream_chunk, batch.decode.back()});
  const bool gpu = device != "cpu";
  std::vector<std::uint64_t> sizes;
  if (gpu) sizes.assign(batch.decode.begin(), batch.decode.end());
  if (gpu)
    for (const std::uint64_t n : {batch.chunk, batch.stream_chunk}) sizes.insert(sizes.end(), {n, first_half_bound(n), second_half_bound(n)});
  std::map<int, std::uint64_t> layers;
  std::map<int, std::uint64_t> top_k;
  for (const Module& module : model.modules)
    if (const auto* router = std::get_if<models::RouterDesc>(&module.attributes)) top_k[module.layer] = router->top_k;
  bool any = false;
  std::uint64_t outside = 0;
  std::string_view router = "cpu";  // where the last one is
  const std::uint64_t streamed[] = {batch.stream_chunk};
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const Module& module = model.modules[i];
    if (std::holds_alternative<models::RouterDesc>(module.attributes)) router = modules[i].device;
    if (gpu && batch.stream_chunk != 0 && modules[i].device == "cpu" && router == device &&
        std::holds_alternative<models::ExpertsDesc>(module.attributes)) {
      const Format activations = modules[i].activations == Format::f32 ? Format::f32 : Format::bf16;
      ModuleBuffers buffers{n, model.hidden, false, activations, streamed};
      buffers.top_k = top_k[module.layer];
      layers[module.layer] = plus(layers[module.layer], std::visit(buffers, module.attributes));
    }
    if (modules[i].device != device) continue;
    any = true;
    const std::uint32_t tiles = ktc::tile_rows(modules[i].weights, modules[i].group);
    ModuleBuffers buffers{n, model.hidden, has_panels(modules[i].weights, modules[i].activations), modules[i].activations, sizes, tiles};
    buffers.top_k = top_k[module.layer];
    const std::uint64_t bytes = std::visit(buffers, module.attributes);
    std::uint64_t& sum = module.layer < 0 ? outside : layers[module.layer];
    sum = plus(sum, bytes);
    if (module.cls == models::ModuleClass::Head) {
      // selected rows, their norm, logits, next ids
      const std::uint64_t rows =
          std::max<std::uint64_t>(extend_rows(n, policy.kv_cache.sequences, model.vocab), batch.decode.back());
      outside = plus(outside, plus(times(2, buffer(rows, model.hidden)), buffer(rows, model.vocab)));
      outside = plus(outside, align64(rows * 4));
      outside = plus(outside, ModuleBuffers{rows, model.hidden, buffers.panels, buffers.activations, sizes, tiles}.linear({model.hidden}));
    }
  }
  for (const HotExperts& one : hot) {
    if (one.device != device) continue;
    any = true;
    const Module& module = model.modules[one.module];
    ModuleBuffers buffers{n, model.hidden, false, one.activations, sizes};
    buffers.top_k = top_k[module.layer];
    layers[module.layer] = plus(layers[module.layer], std::visit(buffers, module.attributes));
  }
  if (!any) return 0;
  std::uint64_t largest = 0;
  for (const auto& [layer, bytes] : layers) largest = std::max(largest, bytes);
  const std::uint64_t inputs = 3 * align64(n * 4);  // ids, positions, output rows
  const std::uint64_t bytes = plus(plus(largest, outside), plus(times(2, buffer(n, model.hidden)), inputs));
  const bool late = policy.defer.max_per_token > 0;
  const std::uint64_t others = other_devices(model, modules, hot);
  return late || others > 0 ? plus(bytes, transferred(model, n, top_k, std::max<std::uint64_t>(others, 1), late)) : bytes;
}

}  // namespace ktc::placement
