// The account against what the plan's tables and entries need, and the features that they need.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/formats/gpu_stream.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/step_block.h"
#include "runtime/plan/verify.h"

namespace ktc::plan {

using namespace planfb;

std::uint64_t features_of(const PlanT& plan) {
  bool hybrid = false, shared = false, halves = false;
  for (const auto& device : plan.devices) hybrid = hybrid || device->kind == DeviceKind::cuda;
  for (const auto& entry : plan.entries) halves = halves || is_cut(*entry);
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps)
      if (const ExpertsOpT* op = step->op.AsExpertsOp()) {
        hybrid = hybrid || !op->slots.empty() || op->late != 0 || op->part != ExpertsPart::all;
        shared = shared || op->share != nullptr;
      }
  return (hybrid ? static_cast<std::uint64_t>(Feature::hybrid) : 0) | (shared ? static_cast<std::uint64_t>(Feature::shared_experts) : 0) |
         (halves ? static_cast<std::uint64_t>(Feature::halves) : 0);
}

std::uint64_t step_block_bytes(const PlanT& plan) {
  std::uint64_t pages = 0, most = 0;
  for (const auto& cache : plan.caches)
    pages = (std::uint64_t{cache->tokens_per_sequence} + cache->page_tokens - 1) / cache->page_tokens;
  for (const auto& entry : plan.entries)
    if (entry->kind != EntryKind::sample)
      most = std::max(most, step_blocks(entry->max_tokens, entry->max_rows, entry->max_sequences, pages, is_cut(*entry)).bytes);
  return most;
}

GpuStreamAreas stream_areas(const PlanT& plan, std::uint32_t device) {
  GpuStreamAreas areas;
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps) {
      const ExpertsOpT* op = step->op.AsExpertsOp();
      if (op == nullptr || !op->stream || step->device != device) continue;
      const WeightT& down = *plan.weights[op->w_down];
      if (const auto stream = gpu_stream(static_cast<Format>(down.format), down.group, static_cast<Packing>(down.packing), down.batch,
                                         down.rows, down.columns, op->stream_group))
        areas.add(*stream);
    }
  return areas;
}

std::uint64_t record_bytes(const PlanT& plan) {
  std::uint64_t bytes = 0;
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps) {
      if (const PublishOpT* op = step->op.AsPublishOp())
        bytes += record_layout(entry->max_tokens, step->inputs[1].columns(), step->inputs[0].columns(), static_cast<Format>(op->format)).bytes;
      if (const AwaitOpT* op = step->op.AsAwaitOp())
        bytes += result_bytes(entry->max_tokens, step->inputs[0].columns(), static_cast<Format>(op->format));
    }
  return bytes;
}

namespace detail {

Status verify_account(const PlanT& plan) {
  const std::size_t devices = plan.devices.size();
  // what the plan's own tables say, against the lines of the three categories that they determine
  std::vector<std::optional<std::uint64_t>> weights(devices, 0), caches(devices, 0), total(devices, 0);
  for (const auto& weight : plan.weights)
    if (weight->source != WeightSource::alias) weights[weight->device] = sum(weights[weight->device], weight->bytes);
  for (const auto& cache : plan.caches)
    caches[cache->device] = sum(caches[cache->device], cache_bytes(*cache, plan.devices[cache->device]->kind));

  std::vector<std::uint64_t> weight_lines(devices, 0), cache_lines(devices, 0), arena_lines(devices, 0);
  for (std::size_t i = 0; i < plan.account.size(); ++i) {
    const AccountLineT& line = *plan.account[i];
    const std::string place = item("account", i, line.name);
    KTC_RETURN_IF_ERROR(check_index(place, "device", line.device, devices, "devices"));
    if (line.category.empty()) return wrong(place, "category", "nothing", "a name");
    if (line.name.empty()) return wrong(place, "name", "nothing", "a name");
    total[line.device] = sum(total[line.device], line.bytes);
    if (!total[line.device]) return wrong(place, "sum of the device's lines", "more than 2^64 bytes", "fewer");
    if (line.category == "weights") weight_lines[line.device] += line.bytes;
    if (line.category == "kv-cache") cache_lines[line.device] += line.bytes;
    if (line.category == "arena") arena_lines[line.device] += line.bytes;
  }
  for (std::size_t d = 0; d < devices; ++d) {
    const auto compare = [&](const char* category, std::uint64_t lines, std::optional<std::uint64_t> tables,
                             const char* of) {
      if (tables && lines == *tables) return Status();
      return wrong("account of " + shown(plan.devices[d]->name), fmt::format("category \"{}\"", category),
                   bytes_text(lines),
                   tables ? fmt::format("{}, the sum of {}", bytes_text(*tables), of) : "fewer than 2^64 bytes");
    };
    KTC_RETURN_IF_ERROR(compare("weights", weight_lines[d], weights[d], "its weights without aliases"));
    KTC_RETURN_IF_ERROR(compare("kv-cache", cache_lines[d], caches[d], "its caches"));
    KTC_RETURN_IF_ERROR(compare("arena", arena_lines[d], plan.devices[d]->arena_bytes, "its arena"));
  }
  return {};
}

Status verify_entry_account(const PlanT& plan) {
  const std::size_t devices = plan.devices.size();
  std::vector<std::uint64_t> block_lines(devices, 0), record_lines(devices, 0), stream_lines(devices, 0);
  bool gpu = false;
  for (const auto& line : plan.account) {
    if (line->category == "step-block") block_lines[line->device] += line->bytes;
    if (line->category == "stream") stream_lines[line->device] += line->bytes;
    if (line->category == "records") record_lines[line->device] += line->bytes;
    gpu = gpu || is_gpu(plan, line->device);
  }
  if (!gpu) return {};  // nothing of a CPU's plan has these categories
  for (const auto& entry : plan.entries)
    for (const auto& cache : plan.caches) {
      const std::uint64_t pages = (std::uint64_t{cache->tokens_per_sequence} + cache->page_tokens - 1) / cache->page_tokens;
      if (!bounded({entry->max_sequences, pages, 4}))
        return wrong("entry " + shown(entry->name), "step block", "2^60 bytes or more", "fewer");
    }
  for (std::size_t d = 0; d < devices; ++d) {
    const bool cuda = is_gpu(plan, static_cast<std::uint32_t>(d));
    const std::uint64_t block = cuda ? step_block_bytes(plan) : 0, records = d == 0 ? record_bytes(plan) : 0;
    const std::string place = "account of " + shown(plan.devices[d]->name);
    if (block_lines[d] != block)
      return wrong(place, "category \"step-block\"", bytes_text(block_lines[d]),
                   bytes_text(block) + (cuda ? ", the largest of the entries" : " on a cpu"));
    const std::uint64_t stream = cuda ? stream_areas(plan, static_cast<std::uint32_t>(d)).total() : 0;
    if (stream_lines[d] != stream)
      return wrong(place, "category \"stream\"", bytes_text(stream_lines[d]),
                   bytes_text(stream) + (cuda ? ", the largest of its steps" : " on a cpu"));
    if (record_lines[d] != records)
      return wrong(place, "category \"records\"", bytes_text(record_lines[d]),
                   bytes_text(records) + (d == 0 ? ", the sum of its hand-offs" : ": they are the cpu's"));
  }
  return {};
}

}  // namespace detail
}  // namespace ktc::plan
