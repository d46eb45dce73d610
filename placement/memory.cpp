#include "placement/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "placement/device_formats.h"
#include "placement/saturating.h"
#include "placement/slot_use.h"
#include "runtime/base/units.h"
#include "runtime/formats/gpu_stream.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/moving.h"
#include "runtime/formats/step_block.h"
#include "runtime/formats/workspace.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::Module;

std::uint64_t pages_per_sequence(const KvCachePolicy& kv) {
  return (std::uint64_t{kv.tokens} + kv.page - 1) / kv.page;
}

// Bytes of the packed weights of one slot. W_UK and W_UV have the elements of kv_b, but rows of nope and latent
// elements.
Expected<std::uint64_t> slot_bytes(const ModelDesc& model, const Module& module, const SlotUse& use,
                                   const WeightChoice& weights) {
  const models::WeightSlot& slot = model.slots[use.slot];
  const bool matrix = use.role == SlotRole::matrix, scaled = matrix && has_scales(weights.format);
  const bool panels = matrix && !weights.gpu && has_panels(weights.format, weights.activations);
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
    const Packing packing = panels ? Packing::panel : scaled ? Packing::gpu_rows : Packing::row_major;
    bytes = packed_bytes(format, packing, slot.batch, slot.rows, slot.columns, scaled ? weights.group : 0);
  }
  if (!bytes)
    return make_error(StatusCode::invalid_argument,
                      {slot.name, "weight too large", fmt::format("[{}, {}, {}]", slot.batch, slot.rows, slot.columns),
                       "a size below 2^64 bytes", "check config.json"});
  return *bytes;
}

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
  const auto bank = weight_bytes(model, module, {.format = layer.weights, .group = layer.group, .gpu = true});
  return bank.ok() ? *bank / experts_of(module) : UINT64_MAX;
}

std::uint64_t largest_hot_expert(const ModelDesc& model, const std::vector<HotExperts>& hot, std::string_view device) {
  std::uint64_t largest = 0;
  for (const HotExperts& layer : hot)
    if (layer.device == device) largest = std::max(largest, hot_expert_bytes(model, layer));
  return largest;
}

// Where the largest expert that may move to a device lands there: as the CPU packs it.
Expected<std::uint64_t> spare_expert_bytes(const ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                           const std::vector<HotExperts>& hot, std::string_view device) {
  std::uint64_t largest = 0;
  for (const HotExperts& layer : hot) {
    const Module& module = model.modules[layer.module];
    if (layer.device != device || layer.ids.size() >= experts_of(module)) continue;
    const ModulePlacement& cold = modules[layer.module];
    std::uint64_t bytes = 0;
    for (const SlotUse& use : slots_of(module)) {
      KTC_ASSIGN_OR_RETURN(const std::uint64_t bank, slot_bytes(model, module, use, {cold.weights, cold.group, cold.unrounded, false, cold.activations}));
      bytes = plus(bytes, plus(bank / experts_of(module), 255) / 256 * 256);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::vector<std::string> devices_of(const Target& target) {
  std::vector<std::string> devices{"cpu"};
  for (const GpuTarget& gpu : target.gpus) devices.push_back(gpu.device);
  return devices;
}

// The largest of the entries that kt-specialise-entries makes. Those of prompts may be cut in halves, which nobody knows yet.
std::uint64_t step_block_bytes(const ModelDesc& model, const Policy& policy) {
  const KvCachePolicy& kv = policy.kv_cache;
  std::uint64_t most = 0;
  for (const std::uint64_t n : {policy.batch.chunk, policy.batch.stream_chunk})
    if (n != 0)
      most = std::max(most, step_blocks(n, extend_rows(n, kv.sequences, model.vocab), std::min<std::uint64_t>(kv.sequences, n),
                                        pages_per_sequence(kv), n >= 2).bytes);
  for (const std::uint64_t n : policy.batch.decode) most = std::max(most, step_block_layout(n, n, n, pages_per_sequence(kv)).bytes);
  return most;
}

std::uint64_t record_bytes(const ModelDesc& model, const std::vector<ModulePlacement>& modules,
                           const std::vector<HotExperts>& hot, const Policy& policy) {
  std::map<std::uint32_t, std::size_t> hot_of;
  for (const HotExperts& one : hot) hot_of[one.module] += one.ids.size();
  std::uint64_t bytes = 0, top_k = 0;
  bool routed_on_gpu = false;
  for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
    if (const auto* router = std::get_if<models::RouterDesc>(&model.modules[i].attributes)) {
      top_k = router->top_k;
      routed_on_gpu = modules[i].device != "cpu";
    }
    const auto* experts = std::get_if<models::ExpertsDesc>(&model.modules[i].attributes);
    if (experts == nullptr || !routed_on_gpu || modules[i].device != "cpu") continue;
    if (const auto found = hot_of.find(i); found != hot_of.end() && found->second >= experts->experts) continue;
    const Format format = modules[i].activations == Format::f32 ? Format::f32 : Format::bf16;
    for (const std::uint64_t n : policy.batch.decode)
      bytes = plus(bytes, plus(record_layout(n, top_k, model.hidden, format).bytes, result_bytes(n, model.hidden, format)));
  }
  return bytes;
}

// What the largest of the CPU's banks needs on the GPU of its router, where long steps of prefill stream it. Experts that leave for
// hot banks make it smaller.
Expected<std::uint64_t> stream_bytes(const ModelDesc& model, const std::vector<ModulePlacement>& modules, const Policy& policy,
                                     std::string_view device) {
  GpuStreamAreas areas;
  std::string_view router = "cpu";
  for (std::size_t i = 0; i < model.modules.size() && policy.batch.stream_chunk != 0; ++i) {
    if (std::holds_alternative<models::RouterDesc>(model.modules[i].attributes)) router = modules[i].device;
    const auto* experts = std::get_if<models::ExpertsDesc>(&model.modules[i].attributes);
    if (experts == nullptr || modules[i].device != "cpu" || router != device || device == "cpu") continue;
    const std::uint32_t group = has_scales(modules[i].weights) ? modules[i].group : 0;
    const Packing packing = has_panels(modules[i].weights, modules[i].activations) ? Packing::panel_paired : Packing::row_major;
    const auto stream = gpu_stream(modules[i].weights, group, packing, experts->experts, model.hidden, experts->intermediate);
    if (!stream)
      return make_error(StatusCode::invalid_argument, {model.modules[i].name, "experts too large to stream", "", "a size below 2^57 bytes each",
                                                       "check config.json"});
    areas.add(*stream);
  }
  return areas.total();
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

Expected<std::vector<MemoryLine>> account(const ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                          const std::vector<HotExperts>& hot, const Policy& policy,
                                          const Target& target) {
  const bool update = policy.experts.update_every_tokens > 0;
  std::map<std::uint32_t, std::uint64_t> hot_of;  // by module, on all GPUs
  for (const HotExperts& layer : hot) hot_of[layer.module] += layer.ids.size();
  std::vector<MemoryLine> lines;
  for (const std::string& device : devices_of(target)) {
    std::map<std::tuple<std::uint32_t, Format, std::uint32_t, bool>, bool> counted;  // slots that two modules share are packed once
    for (std::size_t i = 0; i < model.modules.size(); ++i) {
      if (modules[i].device != device) continue;
      const Module& module = model.modules[i];
      std::uint64_t total = 0;
      for (const SlotUse& use : slots_of(module)) {
        const bool panels = device == "cpu" && has_panels(modules[i].weights, modules[i].activations);
        if (!counted.emplace(std::tuple(use.slot, modules[i].weights, modules[i].group, panels), true).second) continue;
        const WeightChoice choice{modules[i].weights, modules[i].group, modules[i].unrounded, device != "cpu", modules[i].activations};
        KTC_ASSIGN_OR_RETURN(std::uint64_t bytes, slot_bytes(model, module, use, choice));
        total = plus(total, bytes);
      }
      if (const auto layer = hot_of.find(static_cast<std::uint32_t>(i)); layer != hot_of.end() && !update)
        total -= total / experts_of(module) * layer->second;
      lines.push_back({device, "weights", module.name, total});
    }
    for (const HotExperts& layer : hot) {
      if (layer.device == device)
        lines.push_back({device, "hot-experts", model.modules[layer.module].name,
                         times(hot_expert_bytes(model, layer), layer.ids.size())});
    }
    for (const std::string& spares : devices_of(target)) {  // on the GPU itself, and on the CPU for all of them
      if (!update || spares == "cpu" || (device != spares && device != "cpu")) continue;
      KTC_ASSIGN_OR_RETURN(const std::uint64_t expert, spare_expert_bytes(model, modules, hot, spares));
      if (expert > 0) lines.push_back({device, device == "cpu" ? "spare" : "hot-experts", "spare", device == "cpu" ? times(kStagedExperts, expert) : spare_bound(expert)});
    }
    const KvCachePolicy& kv = policy.kv_cache;
    const bool gpu = device != "cpu";
    if (const std::uint64_t page = page_bytes(model, modules, kv, device); page > 0) {
      lines.push_back({device, "kv-cache", "kv", times(page, pages_per_sequence(kv), kv.sequences)});
      if (gpu) lines.push_back({device, "kv-cache", "page of padding rows", page});
    }
    const std::uint64_t arena = arena_bound(model, modules, hot, policy, device);
    if (arena > 0) lines.push_back({device, "arena", "arena", arena});
    if (!gpu) {
      if (const std::uint64_t bytes = record_bytes(model, modules, hot, policy); bytes > 0)
        lines.push_back({device, "records", "hand-off", bytes});
    } else if (arena > 0) {
      lines.push_back({device, "step-block", "inputs", step_block_bytes(model, policy)});
      KTC_ASSIGN_OR_RETURN(const std::uint64_t stream, stream_bytes(model, modules, policy, device));
      if (stream > 0) lines.push_back({device, "stream", "experts", stream});
      for (const GpuTarget& one : target.gpus)
        if (one.device == device) lines.push_back({device, "context", "driver", one.context});
    }
  }
  return lines;
}

// The largest batch.chunk with which everything else fits; 0: none, or the chunk does not decide.
static std::uint32_t largest_chunk(const ModelDesc& model, const Placement& placement, const Policy& policy, const Target& target,
                                   const std::string& device, std::uint64_t most) {
  if (policy.batch.stream_chunk != 0) return 0;
  Policy smaller = policy;
  std::uint32_t fits = 0, too_large = policy.batch.chunk;
  while (fits + 1 < too_large) {
    smaller.batch.chunk = fits + (too_large - fits) / 2;
    const auto lines = account(model, placement.modules, placement.hot, smaller, target);
    if (!lines.ok()) return 0;
    std::uint64_t need = 0;
    for (const MemoryLine& line : *lines)
      if (line.device == device) need = plus(need, line.bytes);
    (need <= most ? fits : too_large) = smaller.batch.chunk;
    if (fits == 0 && too_large == 1) return 0;
  }
  return fits;
}

Status check_budget(const ModelDesc& model, const Placement& placement, const Policy& policy, const Target& target) {
  std::map<std::string_view, models::ModuleClass> class_of;
  for (const Module& module : model.modules) class_of[module.name] = module.cls;

  for (const std::string& device : devices_of(target)) {
    const auto limit = policy.limits.find(device);
    const std::uint64_t most = limit != policy.limits.end() ? limit->second.bytes : target.memory_of(device);
    if (most == 0) continue;
    std::uint64_t weights = 0, hot = 0, kv_bytes = 0, arena = 0, rest = 0;
    std::map<models::ModuleClass, std::uint64_t> by_class;
    for (const MemoryLine& line : placement.memory) {
      if (line.device != device) continue;
      std::uint64_t& sum = line.category == "weights"       ? weights
                           : line.category == "hot-experts" ? hot
                           : line.category == "kv-cache"    ? kv_bytes
                           : line.category == "arena"       ? arena
                                                            : rest;
      sum = plus(sum, line.bytes);
      if (line.category == "weights") by_class[class_of[line.name]] = plus(by_class[class_of[line.name]], line.bytes);
    }
    const std::uint64_t fixed = plus(plus(weights, hot), plus(arena, rest)), need = plus(fixed, kv_bytes);
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
    if (rest > 0) found += fmt::format("{} {}, ", device == "cpu" ? "records" : "context, step block and stream", format_bytes(rest));
    found += fmt::format("arena at most {})", format_bytes(arena));

    const KvCachePolicy& kv = policy.kv_cache;
    const std::uint64_t page = page_bytes(model, placement.modules, kv, device);
    const std::uint64_t dummy = device == "cpu" ? 0 : page;
    const std::uint64_t free_pages = page > 0 && most > plus(fixed, dummy) ? (most - fixed - dummy) / page : 0;
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
    if (const std::uint32_t chunk = largest_chunk(model, placement, policy, target, device, most); chunk > 0)
      offer(fmt::format("batch.chunk: {} is the most that fits", chunk));
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
