// verify_plan: meaning, in the order in which later parts rely on earlier ones. The first failure is the one reported.
#include "runtime/plan/verify.h"

#include <fmt/format.h>

namespace ktc::plan {
namespace detail {

Status wrong(std::string place, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::data_corrupt, {std::move(place), std::move(what), std::move(found), std::move(expected),
                                               "compile the model again"});
}

std::string shown(std::string_view name) {
  constexpr std::size_t kLongest = 120;
  return name.size() <= kLongest ? fmt::format("\"{}\"", name) : fmt::format("\"{}...\"", name.substr(0, kLongest));
}

std::string item(std::string_view vector, std::size_t index, std::string_view name) {
  return fmt::format("{}[{}] {}", vector, index, shown(name));
}

std::string number(std::uint64_t value) {
  return fmt::format("{}", value);
}
std::string bytes_text(std::uint64_t value) {
  return fmt::format("{} bytes", value);
}
std::string real(float value) {
  return fmt::format("{}", value);
}

Status check_index(const std::string& place, std::string what, std::uint64_t index, std::size_t size,
                   std::string_view vector) {
  if (index < size) return {};
  return wrong(place, std::move(what), index == kNone ? "none" : number(index),
               fmt::format("an index in {} of {} items", vector, size));
}

std::optional<std::uint64_t> product(std::initializer_list<std::uint64_t> factors) {
  std::uint64_t result = 1;
  for (std::uint64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return std::nullopt;
  return result;
}

std::optional<std::uint64_t> sum(std::optional<std::uint64_t> a, std::optional<std::uint64_t> b) {
  std::uint64_t result = 0;
  if (!a || !b || __builtin_add_overflow(*a, *b, &result)) return std::nullopt;
  return result;
}

std::optional<std::uint64_t> bounded(std::initializer_list<std::uint64_t> factors) {
  const auto bytes = product(factors);
  return bytes && *bytes < std::uint64_t{1} << 60 ? bytes : std::nullopt;
}

bool is_gpu(const planfb::PlanT& plan, std::uint32_t device) {
  return plan.devices[device]->kind == planfb::DeviceKind::cuda;
}

std::optional<std::uint64_t> cache_bytes(const planfb::CacheT& cache, planfb::DeviceKind kind) {
  const auto width = static_cast<std::uint64_t>(format_bits(static_cast<Format>(cache.format)) / 8);
  std::optional<std::uint64_t> page = 0;
  for (const auto& part : cache.parts) page = sum(page, product({part->heads, cache.page_tokens, part->width, width}));
  const std::uint64_t pages = std::uint64_t{cache.pages} + (kind == planfb::DeviceKind::cuda ? 1 : 0);
  return page ? product({cache.layers, pages, *page}) : std::nullopt;
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == ".." || name == "plan.ktp") return false;
  for (char c : name)
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

const planfb::WeightT& storage_of(const planfb::PlanT& plan, const planfb::WeightT& weight) {
  return weight.source == planfb::WeightSource::alias ? *plan.weights[weight.alias_of] : weight;
}

namespace {

// A plan that was read has no missing items; one that was built in memory may.
template <typename T>
Status check_present(const std::vector<std::unique_ptr<T>>& items, const std::string& name) {
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i] == nullptr) return wrong(fmt::format("{}[{}]", name, i), "the item is missing", "", "");
  return {};
}

Status verify_presence(const planfb::PlanT& plan) {
  if (plan.model == nullptr) return wrong("model", "the item is missing", "", "");
  KTC_RETURN_IF_ERROR(check_present(plan.devices, "devices"));
  KTC_RETURN_IF_ERROR(check_present(plan.account, "account"));
  KTC_RETURN_IF_ERROR(check_present(plan.weight_files, "weight_files"));
  KTC_RETURN_IF_ERROR(check_present(plan.weights, "weights"));
  KTC_RETURN_IF_ERROR(check_present(plan.ropes, "ropes"));
  KTC_RETURN_IF_ERROR(check_present(plan.caches, "caches"));
  KTC_RETURN_IF_ERROR(check_present(plan.entries, "entries"));
  KTC_RETURN_IF_ERROR(check_present(plan.text_files, "text_files"));
  KTC_RETURN_IF_ERROR(check_present(plan.moving, "moving"));
  KTC_RETURN_IF_ERROR(check_present(plan.choices, "choices"));
  for (const auto& cache : plan.caches)
    KTC_RETURN_IF_ERROR(check_present(cache->parts, "cache " + shown(cache->name) + ": parts"));
  for (const auto& entry : plan.entries) {
    KTC_RETURN_IF_ERROR(check_present(entry->buffers, "entry " + shown(entry->name) + ": buffers"));
    KTC_RETURN_IF_ERROR(check_present(entry->steps, "entry " + shown(entry->name) + ": steps"));
    KTC_RETURN_IF_ERROR(check_present(entry->graphs, "entry " + shown(entry->name) + ": graphs"));
  }
  return {};
}

}  // namespace
}  // namespace detail

Status verify_plan(const planfb::PlanT& plan) {
  KTC_RETURN_IF_ERROR(detail::verify_presence(plan));
  KTC_RETURN_IF_ERROR(detail::verify_model(plan));
  KTC_RETURN_IF_ERROR(detail::verify_devices(plan));
  KTC_RETURN_IF_ERROR(detail::verify_files(plan));
  KTC_RETURN_IF_ERROR(detail::verify_weight_table(plan));
  KTC_RETURN_IF_ERROR(detail::verify_ropes(plan));
  KTC_RETURN_IF_ERROR(detail::verify_caches(plan));
  KTC_RETURN_IF_ERROR(detail::verify_account(plan));
  KTC_RETURN_IF_ERROR(detail::verify_entries(plan));
  KTC_RETURN_IF_ERROR(detail::verify_entry_account(plan));
  KTC_RETURN_IF_ERROR(detail::verify_moving(plan));
  KTC_RETURN_IF_ERROR(detail::verify_choices(plan));
  if ((features_of(plan) & ~plan.required_features) == 0) return {};
  return detail::wrong("plan", "required_features", fmt::format("bits {:#x}", plan.required_features),
                       fmt::format("{:#x} among them", features_of(plan)));
}

}  // namespace ktc::plan
