// The tables that steps refer to, other than weights: model, devices, files, ropes, caches, account.
#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string_view>

#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

Status check_positive(const std::string& place, const char* what, std::uint64_t value) {
  return value > 0 ? Status() : wrong(place, what, "0", "at least 1");
}

// "cuda:7" without a sign, a leading zero or an absurd length.
bool is_cuda_name(std::string_view name) {
  if (!name.starts_with("cuda:")) return false;
  name.remove_prefix(5);
  if (name.empty() || name.size() > 4 || (name.size() > 1 && name[0] == '0')) return false;
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

Status verify_model(const PlanT& plan) {
  const ModelT& model = *plan.model;
  if (model.name.empty()) return wrong("model", "name", "nothing", "a name");
  if (model.family.empty()) return wrong("model", "family", "nothing", "a name");
  KTC_RETURN_IF_ERROR(check_positive("model", "vocab_size", model.vocab_size));
  KTC_RETURN_IF_ERROR(check_positive("model", "hidden_size", model.hidden_size));
  KTC_RETURN_IF_ERROR(check_positive("model", "layers", model.layers));
  KTC_RETURN_IF_ERROR(check_positive("model", "max_positions", model.max_positions));
  if (model.vocab_size > 0x7fffffffu)
    return wrong("model", "vocab_size", number(model.vocab_size), "at most 2147483647");
  if (model.bos_token < -1 || model.bos_token >= static_cast<std::int64_t>(model.vocab_size))
    return wrong("model", "bos_token", fmt::format("{}", model.bos_token),
                 fmt::format("-1 or an id below {}", model.vocab_size));
  for (std::int32_t token : model.stop_tokens)
    if (token < 0) return wrong("model", "stop_tokens", fmt::format("{}", token), "ids of at least 0");
  if (const SamplingDefaultsT* sampling = model.sampling.get()) {
    const std::pair<const char*, float> values[] = {{"temperature", sampling->temperature},
                                                    {"top_p", sampling->top_p},
                                                    {"min_p", sampling->min_p},
                                                    {"repetition_penalty", sampling->repetition_penalty}};
    for (const auto& [name, value] : values)
      if (!std::isfinite(value)) return wrong("model: sampling", name, real(value), "a finite number");
  }
  return {};
}

Status verify_devices(const PlanT& plan) {
  if (plan.devices.empty()) return wrong("devices", "count", "0", "at least 1");
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < plan.devices.size(); ++i) {
    const DeviceT& device = *plan.devices[i];
    const std::string place = item("devices", i, device.name);
    if (!is_member(device.kind))
      return wrong(place, "kind", number(static_cast<std::uint64_t>(device.kind)), "cpu or cuda");
    const bool named = device.kind == DeviceKind::cpu ? device.name == "cpu" : is_cuda_name(device.name);
    if (!named)
      return wrong(place, "name", shown(device.name), device.kind == DeviceKind::cpu ? "\"cpu\"" : "\"cuda:N\"");
    if (!names.insert(device.name).second) return wrong(place, "name", "it twice", "every name once");
    if (i == 0 && plan.devices.size() > 1 && device.kind != DeviceKind::cpu)
      return wrong(place, "name", shown(device.name), "\"cpu\", which comes first");
  }
  return {};
}

Status verify_files(const PlanT& plan) {
  std::set<std::string_view> names;
  const auto check = [&names](const char* vector, std::size_t index, const std::string& name) {
    const std::string place = item(vector, index, name);
    if (!is_plain_file_name(name))
      return wrong(place, "file name", shown(name), "a plain name in the plan's folder, other than plan.ktp");
    if (!names.insert(name).second) return wrong(place, "file name", "it twice", "every name once");
    return Status();
  };
  for (std::size_t i = 0; i < plan.weight_files.size(); ++i)
    KTC_RETURN_IF_ERROR(check("weight_files", i, plan.weight_files[i]->path));
  for (std::size_t i = 0; i < plan.text_files.size(); ++i)
    KTC_RETURN_IF_ERROR(check("text_files", i, plan.text_files[i]->name));
  return {};
}

Status verify_ropes(const PlanT& plan) {
  for (std::size_t i = 0; i < plan.ropes.size(); ++i) {
    const RopeT& rope = *plan.ropes[i];
    const std::string place = fmt::format("ropes[{}]", i);
    if (!is_member(rope.style))
      return wrong(place, "style", number(static_cast<std::uint64_t>(rope.style)), "half or interleaved");
    if (rope.inv_freq.empty()) return wrong(place, "inv_freq", "nothing", "at least 1 value");
    for (float value : rope.inv_freq)
      if (!std::isfinite(value)) return wrong(place, "inv_freq", real(value), "finite numbers");
    if (!std::isfinite(rope.factor)) return wrong(place, "factor", real(rope.factor), "a finite number");
  }
  return {};
}

Status verify_caches(const PlanT& plan) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < plan.caches.size(); ++i) {
    const CacheT& cache = *plan.caches[i];
    const std::string place = item("caches", i, cache.name);
    if (cache.name.empty()) return wrong(place, "name", "nothing", "a name");
    if (!names.insert(cache.name).second) return wrong(place, "name", "it twice", "every name once");
    KTC_RETURN_IF_ERROR(check_index(place, "device", cache.device, plan.devices.size(), "devices"));
    const auto format = static_cast<Format>(cache.format);
    if (!format_serves(format, FormatKind::cache))
      return wrong(place, "format",
                   is_valid(format) ? std::string(to_string(format)) : number(std::uint64_t{cache.format}),
                   "one of " + list_formats(FormatKind::cache));
    KTC_RETURN_IF_ERROR(check_positive(place, "layers", cache.layers));
    KTC_RETURN_IF_ERROR(check_positive(place, "page_tokens", cache.page_tokens));
    KTC_RETURN_IF_ERROR(check_positive(place, "tokens_per_sequence", cache.tokens_per_sequence));
    KTC_RETURN_IF_ERROR(check_positive(place, "sequences", cache.sequences));
    if (cache.parts.empty()) return wrong(place, "parts", "none", "at least 1");
    std::set<std::string_view> parts;
    for (std::size_t p = 0; p < cache.parts.size(); ++p) {
      const CachePartT& part = *cache.parts[p];
      const std::string part_place = place + ": " + item("parts", p, part.name);
      if (part.name.empty()) return wrong(part_place, "name", "nothing", "a name");
      if (!parts.insert(part.name).second) return wrong(part_place, "name", "it twice", "every name once");
      KTC_RETURN_IF_ERROR(check_positive(part_place, "heads", part.heads));
      KTC_RETURN_IF_ERROR(check_positive(part_place, "width", part.width));
    }
    const std::uint64_t each = (std::uint64_t{cache.tokens_per_sequence} + cache.page_tokens - 1) / cache.page_tokens;
    const std::uint64_t pages = cache.sequences * each;  // below 2^64: both factors are below 2^32 + 1
    if (cache.pages != pages)
      return wrong(place, "pages", number(std::uint64_t{cache.pages}),
                   fmt::format("{} for {} sequences of {} tokens in pages of {}", pages, cache.sequences,
                               cache.tokens_per_sequence, cache.page_tokens));
    if (!cache_bytes(cache, plan.devices[cache.device]->kind)) return wrong(place, "size", "more than 2^64 bytes", "fewer");
    // one page table per sequence serves all caches
    const CacheT& first = *plan.caches[0];
    if (cache.page_tokens != first.page_tokens || cache.tokens_per_sequence != first.tokens_per_sequence ||
        cache.sequences != first.sequences)
      return wrong(place, "geometry",
                   fmt::format("{} sequences of {} tokens in pages of {}", cache.sequences, cache.tokens_per_sequence,
                               cache.page_tokens),
                   fmt::format("that of {}: {} sequences of {} tokens in pages of {}", item("caches", 0, first.name),
                               first.sequences, first.tokens_per_sequence, first.page_tokens));
  }
  return {};
}

}  // namespace ktc::plan::detail
