// Attention ops against their projections, rope and cache.
#include <fmt/format.h>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/workspace.h"
#include "runtime/plan/step_check.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 61;  // sums of two stay below 2^62; align64 cannot overflow

struct PartRule {
  std::string_view name;
  std::uint64_t heads, width;
};

// A rope turns the first 2 * inv_freq elements of a head: of `dim`, or fewer where the model rotates a part.
void check_rope(StepCheck& c, std::uint32_t rope, std::uint64_t dim, bool part) {
  const auto& ropes = c.site().plan.ropes;
  c.check(rope < ropes.size(), "rope", number(std::uint64_t{rope}),
          fmt::format("an index in ropes of {} items", ropes.size()));
  if (!c.ok()) return;
  const std::uint64_t rotated = ropes[rope]->inv_freq.size() * 2;
  c.check(part ? rotated <= dim : rotated == dim, fmt::format("ropes[{}]: inv_freq", rope),
          fmt::format("{} values", ropes[rope]->inv_freq.size()),
          fmt::format("{}half of {}", part ? "at most " : "", dim));
}

void check_cache(StepCheck& c, std::uint32_t index, std::uint32_t layer, std::initializer_list<PartRule> rules) {
  const auto& caches = c.site().plan.caches;
  c.check(index < caches.size(), "cache", number(std::uint64_t{index}),
          fmt::format("an index in caches of {} items", caches.size()));
  if (!c.ok()) return;
  const CacheT& cache = *caches[index];
  const std::string name = "cache " + shown(cache.name);
  c.check(cache.device == c.step().device, "device of " + name, shown(c.site().plan.devices[cache.device]->name),
          "the step's, " + shown(c.site().plan.devices[c.step().device]->name));
  c.check(layer < cache.layers, "cache_layer", number(std::uint64_t{layer}),
          fmt::format("below the {} of {}", cache.layers, name));
  std::string found, expected;
  for (const auto& part : cache.parts)
    found += fmt::format("{}{} {}x{}", found.empty() ? "" : ", ", part->name, part->heads, part->width);
  for (const PartRule& rule : rules)
    expected += fmt::format("{}{} {}x{}", expected.empty() ? "" : ", ", rule.name, rule.heads, rule.width);
  c.check(found == expected, "parts of " + name, found.substr(0, 200), expected);
}

Status gqa(const EntrySite& site, std::size_t index, const GqaOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(4, 1)) return c.take();
  c.check(op.heads > 0 && op.kv_heads > 0 && op.head_dim > 0 && op.heads % op.kv_heads == 0, "heads",
          fmt::format("{} of {}, {} for keys and values", op.heads, op.head_dim, op.kv_heads),
          "positive numbers, heads a multiple of kv_heads");
  if (!c.ok()) return c.take();
  const std::uint64_t q = std::uint64_t{op.heads} * op.head_dim, kv = std::uint64_t{op.kv_heads} * op.head_dim;
  c.input_has_role(3, BufferRole::positions);
  const Symbol symbol = c.symbol_of_input(3);  // tokens, or a half of them
  const std::uint64_t rows = site.bound(symbol);
  c.input_is(0, Format::f32, symbol, q);
  c.input_is(1, Format::f32, symbol, kv);
  c.input_is(2, Format::f32, symbol, kv);
  c.output_is(0, Format::f32, symbol, q);
  c.finite("scale", op.scale);
  check_rope(c, op.rope, op.head_dim, true);
  c.vector_weight("w_q_norm", op.w_q_norm, op.head_dim, true);
  c.vector_weight("w_k_norm", op.w_k_norm, op.head_dim, true);
  c.epsilon("norm_eps", op.norm_eps);
  check_cache(c, op.cache, op.cache_layer, {{"k", op.kv_heads, op.head_dim}, {"v", op.kv_heads, op.head_dim}});
  const auto bytes = product({rows, q, 4});
  if (c.on_gpu()) {
    const auto partial = product({rows, op.heads, kGpuMostSplits, std::uint64_t{op.head_dim} + 2, 4});
    c.gpu_workspace(bytes && partial && *partial < kLargest
                        ? std::optional(gpu_gqa_workspace(rows, op.heads, op.kv_heads, op.head_dim).total())
                        : std::nullopt);
    return c.take();
  }
  c.workspace(bytes && *bytes < kLargest
                  ? std::optional(gqa_workspace(rows, op.heads, op.head_dim).total())
                  : std::nullopt);
  return c.take();
}

Status mla(const EntrySite& site, std::size_t index, const MlaOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(4, 1)) return c.take();
  c.check(op.heads > 0 && op.nope_dim > 0 && op.rope_dim > 0 && op.v_dim > 0 && op.latent_dim > 0, "dimensions",
          fmt::format("{} heads, nope {}, rope {}, v {}, latent {}", op.heads, op.nope_dim, op.rope_dim, op.v_dim,
                      op.latent_dim),
          "positive numbers");
  if (!c.ok()) return c.take();
  const std::uint64_t heads = op.heads;
  const auto q = product({heads, std::uint64_t{op.nope_dim} + op.rope_dim});
  c.check(q.has_value(), "dimensions", "more than 2^64 columns", "fewer");
  if (!c.ok()) return c.take();
  c.input_has_role(3, BufferRole::positions);
  const Symbol symbol = c.symbol_of_input(3);  // tokens, or a half of them
  const std::uint64_t rows = site.bound(symbol);
  c.input_is(0, Format::f32, symbol, *q);
  c.input_is(1, Format::f32, symbol, op.latent_dim);
  c.input_is(2, Format::f32, symbol, op.rope_dim);
  c.output_is(0, Format::f32, symbol, heads * op.v_dim);
  c.finite("scale", op.scale);
  check_rope(c, op.rope, op.rope_dim, false);
  const WeightT *uk = c.weight("w_uk", op.w_uk), *uv = c.weight("w_uv", op.w_uv);
  c.weight_is("w_uk", uk, heads, op.latent_dim, op.nope_dim);
  c.weight_is("w_uv", uv, heads, op.v_dim, op.latent_dim);
  c.packed_as("w_uk", uk, Packing::row_major);
  c.packed_as("w_uv", uv, Packing::row_major);
  check_cache(c, op.cache, op.cache_layer, {{"latent", 1, op.latent_dim}, {"rope", 1, op.rope_dim}});
  const auto bytes = product({rows, heads, std::uint64_t{op.latent_dim} + op.rope_dim, 4});
  if (c.on_gpu()) {
    const auto partial = product({rows, heads, kGpuMostSplits, std::uint64_t{op.latent_dim} + 2, 4});
    c.gpu_workspace(bytes && *bytes < kLargest && partial && *partial < kLargest
                        ? std::optional(gpu_mla_workspace(rows, heads, op.latent_dim, op.rope_dim).total())
                        : std::nullopt);
    return c.take();
  }
  c.workspace(bytes && *bytes < kLargest
                  ? std::optional(mla_workspace(rows, heads, op.latent_dim, op.rope_dim).total())
                  : std::nullopt);
  return c.take();
}

}  // namespace

Status verify_attention(const EntrySite& site, std::size_t index) {
  const OpUnion& op = site.entry.steps[index]->op;
  if (op.type == Op::GqaOp) return gqa(site, index, *op.AsGqaOp());
  return mla(site, index, *op.AsMlaOp());
}

}  // namespace ktc::plan::detail
