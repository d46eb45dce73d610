#include "placement/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "placement/device_formats.h"
#include "placement/slot_use.h"
#include "placement/tiles.h"
#include "runtime/base/units.h"
#include "runtime/formats/workspace.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::Module;

// Shapes come from files: sums and products stop at the largest number instead of wrapping.
std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
template <typename... Rest>
std::uint64_t times(std::uint64_t a, std::uint64_t b, Rest... rest) {
  return times(times(a, b), rest...);
}
std::uint64_t pages_per_sequence(const KvCachePolicy& kv) {
  return (std::uint64_t{kv.tokens} + kv.page - 1) / kv.page;
}

// One activation buffer: f32 rows at a stride of 64 bytes. bf16 activations need less.
std::uint64_t buffer(std::uint64_t rows, std::uint64_t columns) {
  if (columns > (std::uint64_t{1} << 40)) return UINT64_MAX;
  return times(rows, align64(columns * 4));
}

// Bytes of the packed weights of one slot. W_UK and W_UV have the elements of kv_b, but rows of nope and latent
// elements.
Expected<std::uint64_t> slot_bytes(const ModelDesc& model, const Module& module, const SlotUse& use,
                                   const WeightChoice& weights) {
  const models::WeightSlot& slot = model.slots[use.slot];
  const bool panels = has_scales(weights.format) && use.role == SlotRole::matrix;
  const Format format = use.role == SlotRole::vector                                ? Format::f32
                        : use.role == SlotRole::kv_b && has_scales(weights.format) ? weights.unrounded
                                                                                   : weights.format;
  std::optional<std::uint64_t> bytes;
  if (use.role == SlotRole::kv_b) {
    const auto& mla = std::get<models::MlaDesc>(module.attributes);
    const auto uk = packed_bytes(format, Packing::row_major, mla.heads, mla.kv_rank, mla.nope_dim);
    const auto uv = packed_bytes(format, Packing::row_major, mla.heads, mla.v_dim, mla.kv_rank);
    if (uk && uv && *uk <= UINT64_MAX - *uv) bytes = *uk + *uv;
  } else {
    // paired panels have the size of plain ones
    bytes = packed_bytes(format, panels ? Packing::panel : Packing::row_major, slot.batch, slot.rows, slot.columns,
                         panels ? weights.group : 0);
  }
  if (!bytes)
    return make_error(StatusCode::invalid_argument,
                      {slot.name, "weight too large", fmt::format("[{}, {}, {}]", slot.batch, slot.rows, slot.columns),
                       "a size below 2^64 bytes", "check config.json"});
  return *bytes;
}

// Buffers and workspace of one module at n tokens, none sharing an address: inputs are counted by whoever makes them.
struct ModuleBuffers {
  std::uint64_t n, hidden;
  bool panels = false;
  Format activations = Format::int8;  // of products with panels

  // The largest scratch of a module's products, which run one after the other.
  std::uint64_t linear(std::initializer_list<std::uint64_t> columns) const {
    std::uint64_t most = 0;
    for (const std::uint64_t width : columns) most = std::max(most, width);
    if (!panels) return 0;
    return wide(most) ? UINT64_MAX : panel_linear_workspace(activations, n, most, kGranule, kFewestTileRows).total();
  }

  std::uint64_t operator()(const models::EmbeddingDesc&) const { return buffer(n, hidden); }
  std::uint64_t operator()(const models::NormDesc&) const { return buffer(n, hidden); }
  std::uint64_t operator()(const models::GqaDesc& d) const {
    const std::uint64_t q = times(d.heads, d.head_dim), kv = times(d.kv_heads, d.head_dim);
    std::uint64_t bytes = buffer(n, plus(q, times(2, kv)));  // q, k, v
    bytes = plus(bytes, buffer(n, q));                       // attention's output
    bytes = plus(bytes, times(2, buffer(n, hidden)));        // after o, and the sum with the residual
    bytes = plus(bytes, linear({hidden, q}));
    return plus(bytes, wide(q) ? UINT64_MAX : gqa_workspace(n, d.heads, d.head_dim).total());
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
    return plus(bytes, huge ? UINT64_MAX : mla_workspace(n, d.heads, d.kv_rank, d.rope_dim).total());
  }
  std::uint64_t operator()(const models::RouterDesc& d) const {
    const std::uint64_t bytes = plus(buffer(n, d.top_k), buffer(n, d.top_k));  // ids and weights
    top_k = d.top_k;
    return plus(bytes, route_workspace(n, d.experts).total());
  }
  std::uint64_t operator()(const models::ExpertsDesc& d) const {
    const std::uint64_t bytes = times(2, buffer(n, hidden));  // output, and the sum with the residual
    if (wide(times(top_k, d.intermediate)) || wide(times(top_k, hidden))) return UINT64_MAX;
    if (panels)
      return plus(bytes, panel_experts_workspace(activations, n, top_k, hidden, d.intermediate, d.experts, kGranule,
                                                 kGranule, kFewestTileRows)
                             .total());
    return plus(bytes, experts_workspace(n, top_k, d.intermediate, d.experts).total());
  }
  std::uint64_t operator()(const models::MlpDesc& d) const {
    const std::uint64_t bytes = times(2, buffer(n, hidden));
    if (!panels) return plus(bytes, mlp_workspace(n, d.intermediate).total());
    if (wide(hidden)) return UINT64_MAX;
    return plus(bytes, panel_mlp_workspace(activations, n, hidden, d.intermediate, kGranule, kGranule, kFewestTileRows).total());
  }
  std::uint64_t operator()(const models::HeadDesc&) const { return 0; }  // counted with its rows

  static bool wide(std::uint64_t columns) { return columns > (std::uint64_t{1} << 36); }  // n < 2^24: no product wraps
  mutable std::uint64_t top_k = 0;  // of the layer's router, which comes first
};

std::uint64_t page_bytes_of(const Module& module, const KvCachePolicy& kv) {
  std::uint64_t elements = 0;
  if (const auto* gqa = std::get_if<models::GqaDesc>(&module.attributes))
    elements = times(2, gqa->kv_heads, gqa->head_dim);
  else if (const auto* mla = std::get_if<models::MlaDesc>(&module.attributes))
    elements = plus(mla->kv_rank, mla->rope_dim);
  return times(elements, kv.page, static_cast<std::uint64_t>(format_bits(kv.dtype) / 8));
}

// At least 1: a divisor.
std::uint64_t experts_of(const Module& module) {
  return std::max<std::uint64_t>(std::get<models::ExpertsDesc>(module.attributes).experts, 1);
}

// Bytes of one hot expert of a layer; the largest number when that overflows, which no budget admits.
std::uint64_t hot_expert_bytes(const ModelDesc& model, const HotExperts& layer) {
  const Module& module = model.modules[layer.module];
  const auto bank = weight_bytes(model, module, {layer.weights});
  return bank.ok() ? *bank / experts_of(module) : UINT64_MAX;
}

std::uint64_t largest_hot_expert(const ModelDesc& model, const std::vector<HotExperts>& hot, std::string_view device) {
  std::uint64_t largest = 0;
  for (const HotExperts& layer : hot)
    if (layer.device == device) largest = std::max(largest, hot_expert_bytes(model, layer));
  return largest;
}

std::vector<std::string> devices_of(const Target& target) {
  std::vector<std::string> devices{"cpu"};
  for (const GpuTarget& gpu : target.gpus) devices.push_back(gpu.device);
  return devices;
}

// "9MiB": as a policy spells it, without rounding.
std::string exact_size(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes % 1024 == 0 && bytes > 0) bytes /= 1024, ++unit;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

}  // namespace

Expected<std::uint64_t> weight_bytes(const ModelDesc& model, const Module& module, const WeightChoice& weights) {
  std::uint64_t total = 0;
  for (const SlotUse& use : slots_of(module)) {
    KTC_ASSIGN_OR_RETURN(std::uint64_t bytes, slot_bytes(model, module, use, weights));
    total = plus(total, bytes);
  }
  return total;
}

std::uint64_t page_bytes(const ModelDesc& model, const std::vector<ModulePlacement>& modules, const KvCachePolicy& kv,
                         std::string_view device) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < model.modules.size(); ++i)
    if (modules[i].device == device) total = plus(total, page_bytes_of(model.modules[i], kv));
  return total;
}

std::uint64_t extend_rows(std::uint64_t tokens, std::uint64_t sequences, std::uint64_t vocab) {
  constexpr std::uint64_t kLogitsBytes = std::uint64_t{64} << 20;
  const std::uint64_t least = std::min(sequences, tokens);
  return std::clamp(kLogitsBytes / std::max<std::uint64_t>(times(vocab, 4), 1), least, tokens);
}

std::uint64_t arena_bound(const ModelDesc& model, const std::vector<ModulePlacement>& modules, const Policy& policy,
                          std::string_view device) {
  const BatchPolicy& batch = policy.batch;
  const std::uint64_t n = std::max({batch.chunk, batch.stream_chunk, batch.decode.back()});
  std::map<int, std::uint64_t> layers;
  std::map<int, std::uint64_t> top_k;
  for (const Module& module : model.modules)
    if (const auto* router = std::get_if<models::RouterDesc>(&module.attributes)) top_k[module.layer] = router->top_k;
  bool any = false;
  std::uint64_t outside = 0;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    if (modules[i].device != device) continue;
    any = true;
    const Module& module = model.modules[i];
    ModuleBuffers buffers{n, model.hidden, has_scales(modules[i].weights), modules[i].activations};
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
      outside = plus(outside, ModuleBuffers{rows, model.hidden, buffers.panels, buffers.activations}.linear({model.hidden}));
    }
  }
  if (!any) return 0;
  std::uint64_t largest = 0;
  for (const auto& [layer, bytes] : layers) largest = std::max(largest, bytes);
  const std::uint64_t inputs = 3 * align64(n * 4);  // ids, positions, output rows
  return plus(plus(largest, outside), plus(times(2, buffer(n, model.hidden)), inputs));
}

Expected<std::vector<MemoryLine>> account(const ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                          const std::vector<HotExperts>& hot, const Policy& policy,
                                          const Target& target) {
  const bool update = policy.experts.update_every_tokens > 0;
  std::map<std::uint32_t, const HotExperts*> hot_of;  // by module
  for (const HotExperts& layer : hot) hot_of[layer.module] = &layer;
  std::vector<MemoryLine> lines;
  for (const std::string& device : devices_of(target)) {
    std::map<std::tuple<std::uint32_t, Format, std::uint32_t>, bool> counted;  // slots that two modules share are packed once
    for (std::size_t i = 0; i < model.modules.size(); ++i) {
      if (modules[i].device != device) continue;
      const Module& module = model.modules[i];
      std::uint64_t total = 0;
      for (const SlotUse& use : slots_of(module)) {
        if (!counted.emplace(std::tuple(use.slot, modules[i].weights, modules[i].group), true).second) continue;
        const WeightChoice choice{modules[i].weights, modules[i].group, modules[i].unrounded};
        KTC_ASSIGN_OR_RETURN(std::uint64_t bytes, slot_bytes(model, module, use, choice));
        total = plus(total, bytes);
      }
      if (const auto layer = hot_of.find(static_cast<std::uint32_t>(i)); layer != hot_of.end() && !update)
        total -= total / experts_of(module) * layer->second->ids.size();
      lines.push_back({device, "weights", module.name, total});
    }
    for (const HotExperts& layer : hot) {
      if (layer.device == device)
        lines.push_back({device, "hot-experts", model.modules[layer.module].name,
                         times(hot_expert_bytes(model, layer), layer.ids.size())});
    }
    if (const std::uint64_t expert = largest_hot_expert(model, hot, device); update && expert > 0)
      lines.push_back({device, "hot-experts", "spare", times(2, expert)});
    const KvCachePolicy& kv = policy.kv_cache;
    if (const std::uint64_t page = page_bytes(model, modules, kv, device); page > 0)
      lines.push_back({device, "kv-cache", "kv", times(page, pages_per_sequence(kv), kv.sequences)});
    if (const std::uint64_t arena = arena_bound(model, modules, policy, device); arena > 0)
      lines.push_back({device, "arena", "arena", arena});
  }
  return lines;
}

Status check_budget(const ModelDesc& model, const Placement& placement, const Policy& policy, const Target& target) {
  std::map<std::string_view, models::ModuleClass> class_of;
  for (const Module& module : model.modules) class_of[module.name] = module.cls;

  for (const std::string& device : devices_of(target)) {
    const auto limit = policy.limits.find(device);
    const std::uint64_t most = limit != policy.limits.end() ? limit->second.bytes : target.memory_of(device);
    if (most == 0) continue;
    std::uint64_t weights = 0, hot = 0, kv_bytes = 0, arena = 0;
    std::map<models::ModuleClass, std::uint64_t> by_class;
    for (const MemoryLine& line : placement.memory) {
      if (line.device != device) continue;
      std::uint64_t& sum = line.category == "weights"       ? weights
                           : line.category == "hot-experts" ? hot
                           : line.category == "kv-cache"    ? kv_bytes
                                                            : arena;
      sum = plus(sum, line.bytes);
      if (line.category == "weights") by_class[class_of[line.name]] = plus(by_class[class_of[line.name]], line.bytes);
    }
    const std::uint64_t fixed = plus(plus(weights, hot), arena), need = plus(fixed, kv_bytes);
    if (need <= most) continue;

    std::vector<std::pair<std::uint64_t, models::ModuleClass>> classes;
    for (const auto& [cls, bytes] : by_class) classes.emplace_back(bytes, cls);
    std::sort(classes.begin(), classes.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::string found = format_bytes(need) + " (";
    for (const auto& [bytes, cls] : classes)
      found += fmt::format("{} {}, ", models::to_string(cls), format_bytes(bytes));
    if (hot > 0) found += fmt::format("hot experts {}, ", format_bytes(hot));
    if (kv_bytes > 0) found += fmt::format("kv-cache {}, ", format_bytes(kv_bytes));
    found += fmt::format("arena at most {})", format_bytes(arena));

    const KvCachePolicy& kv = policy.kv_cache;
    const std::uint64_t page = page_bytes(model, placement.modules, kv, device);
    const std::uint64_t free_pages = most > fixed && page > 0 ? (most - fixed) / page : 0;
    const std::uint64_t sequences = free_pages / pages_per_sequence(kv);
    const std::uint64_t tokens = free_pages / kv.sequences * kv.page;
    std::string remedy;
    auto offer = [&remedy](std::string text) { remedy += (remedy.empty() ? "" : ", or ") + text; };
    if (sequences > 0)
      offer(fmt::format("kv_cache.sequences: {} is the most that fits with tokens: {}", sequences, kv.tokens));
    if (tokens > 0)
      offer(fmt::format("kv_cache.tokens: {} is the most that fits with sequences: {}", tokens, kv.sequences));
    if (const std::uint64_t expert = largest_hot_expert(model, placement.hot, device);
        expert > 0 && hot > need - most) {
      const std::uint64_t count = (hot - (need - most)) / expert;
      if (count > 0)
        offer(fmt::format("experts.on_gpu: {{max: {}}}, {} experts, is the most that fits", exact_size(count * expert),
                          count));
    }
    if (remedy.empty())
      remedy = fmt::format("{}place modules elsewhere, take a smaller batch.chunk, or raise the limit of {}",
                           kv_bytes > 0 ? "no KV cache fits: " : "", device);
    return make_error(StatusCode::resource_exhausted,
                      {limit != policy.limits.end() ? to_string(limit->second.position) : policy.file,
                       fmt::format("{} is too small by {}", device, format_bytes(need - most)), std::move(found),
                       fmt::format("at most {}{}", format_bytes(most),
                                   limit != policy.limits.end() ? "" : " of target '" + target.name + "'"),
                       std::move(remedy)});
  }
  return Status();
}

}  // namespace ktc::placement
