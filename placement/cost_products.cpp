// What one module takes, and the routed experts that one device has (cost_model.h has the formulas).
#include <algorithm>
#include <cmath>
#include <variant>

#include "placement/cost_model_impl.h"
#include "placement/memory.h"
#include "placement/product_time.h"
#include "placement/slot_use.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::Module;
using models::ModuleClass;

constexpr double kNoOverlap = 0.5;  // as in product_time
// That a GPU moves besides a product's operands for each value of many rows: rounded, activated, added.
constexpr double kValueBytes = 8;
// Of values as a product on a CPU writes them: choosing among a router's takes as long as twelve, a score's exponential
// as one, a norm's as less than half; products of single heads, of small matrices, take so many times as long as others
// (traces of checkpoints of 192 and 256 columns on two cores).
constexpr double kChoice = 12, kScore = 1, kNorm = 0.4, kPerHead = 2.5;
constexpr double kFewRows = 4;  // of an expert, that a GPU does not multiply in tiles
// Tokens of the cache that one worker of a CPU attends to (runtime/exec/attend_phase.h).
constexpr double kAttendPart = 512;

// Kernels, or parallel loops of a CPU, of one module in a step.
struct Kernels {
  bool cpu;
  double operator()(const models::EmbeddingDesc&) const { return 1; }
  double operator()(const models::NormDesc&) const { return 1; }               // with the sum in front of it
  double operator()(const models::GqaDesc&) const { return cpu ? 3 : 5; }      // q/k/v, append, attend and merge, o
  double operator()(const models::MlaDesc&) const { return cpu ? 6 : 8; }      // with the products per head
  double operator()(const models::RouterDesc&) const { return 1; }             // publish is part of the hand-off
  double operator()(const models::ExpertsDesc&) const { return cpu ? 1 : 2; }
  double operator()(const models::MlpDesc&) const { return cpu ? 1 : 2; }
  double operator()(const models::HeadDesc&) const { return 1; }
};

// Products of one module that follow each other on a CPU, each with the output of the one before: all workers meet between them.
struct Products {
  double operator()(const models::EmbeddingDesc&) const { return 0; }
  double operator()(const models::NormDesc&) const { return 0; }
  double operator()(const models::GqaDesc&) const { return 2; }
  double operator()(const models::MlaDesc&) const { return 3; }
  double operator()(const models::RouterDesc&) const { return 1; }
  double operator()(const models::ExpertsDesc&) const { return 2; }
  double operator()(const models::MlpDesc&) const { return 2; }
  double operator()(const models::HeadDesc&) const { return 1; }
};

// Operations of one row per cached token, and elements of the cache per token.
struct Attention {
  double operations = 0, elements = 0, heads = 0;
  double groups = 0;  // of heads that share keys
};
Attention attention_of(const Module& module) {
  if (const auto* d = std::get_if<models::GqaDesc>(&module.attributes))
    return {4.0 * d->heads * d->head_dim, 2.0 * d->kv_heads * d->head_dim, static_cast<double>(d->heads),
            static_cast<double>(d->kv_heads)};
  if (const auto* d = std::get_if<models::MlaDesc>(&module.attributes))
    return {2.0 * d->heads * (2.0 * d->kv_rank + d->rope_dim), static_cast<double>(d->kv_rank) + d->rope_dim,
            static_cast<double>(d->heads), d->heads / 4.0};
  return {};
}

}  // namespace

double matrix_operations(const ModelDesc& model, const Module& module, bool per_head) {
  double elements = 0;
  for (const SlotUse& use : slots_of(module))
    if (use.role != SlotRole::vector && (use.role == SlotRole::kv_b) == per_head)
      elements += static_cast<double>(model.slots[use.slot].rows) * static_cast<double>(model.slots[use.slot].columns);
  return 2 * elements;
}

double matrix_outputs(const ModelDesc& model, const Module& module) {
  double rows = 0;
  for (const SlotUse& use : slots_of(module))
    if (use.role != SlotRole::vector) rows += static_cast<double>(model.slots[use.slot].rows);
  return rows;
}

Time CostModel::Impl::work(const DeviceRates& rate, Format weights, Format activations, std::uint32_t group,
                           double bytes, double operations, double rows, Fixed fixed, double values,
                           bool experts, bool linear) const {
  const ProductTime product = product_time(rate, cpu,
                                           {weights, activations, group, bytes, operations, rows, row_scales, values,
                                            is_cpu(rate.device) ? cached : 0, experts, linear});
  Time time;
  if (!is_cpu(rate.device) && rows > 1)
    time[Bound::gpu_read] = values * kValueBytes / (rate.read * rate.reads.at(Format::bf16));
  time[is_cpu(rate.device) ? (product.computes() ? Bound::cpu_compute : Bound::cpu_read)
                           : (product.computes() ? Bound::gpu_compute : Bound::gpu_read)] += product.us;
  return with_fixed(time, fixed);
}

Time CostModel::Impl::with_fixed(Time time, Fixed fixed) {
  time[Bound::kernels] += fixed.us + std::max(0.0, fixed.least - time.total());
  return time;
}

Time CostModel::Impl::ends(const DeviceRates& rate, const Step& step, double products, double us) const {
  Time time;
  if (is_cpu(rate.device) && step.decode) time[Bound::cpu_read] = std::min(products * rate.product_us, us);
  return time;
}

Fixed CostModel::Impl::kernel_time(const DeviceRates& rate, const Step& step, bool router) const {
  if (is_cpu(rate.device)) return {rate.kernel_us, 0};
  if (step.decode) return {rate.kernel_us + rate.column_us * hidden, 0};
  return {rate.prefill_kernel_us, router ? rate.prefill_column_us * hidden : 0};
}

Time CostModel::Impl::attend(const DeviceRates& rate, double bytes, double operations, double scores,
                             double items) const {
  const bool on_cpu = is_cpu(rate.device);
  const double read =
      bytes / (on_cpu ? cached * rate.cache + (1 - cached) * rate.read : rate.read * rate.attention_read);
  const double compute = operations / rate.attention + (on_cpu ? kScore * scores * rate.value_us : 0);
  const double idle = on_cpu ? std::max(1.0, std::max(cpu.cores, 1u) / std::max(items, 1.0)) : 1;
  Time time;
  time[on_cpu ? (compute > read ? Bound::cpu_compute : Bound::cpu_read)
              : (compute > read ? Bound::gpu_compute : Bound::gpu_read)] =
      (std::max(read, compute) + (on_cpu ? kNoOverlap * std::min(read, compute) : 0)) * idle;
  return time;
}

Time CostModel::Impl::step_time(double rows) const {
  const DeviceRates& host = rates.of("cpu");
  const DeviceRates* device = &host;
  for (const ModulePlacement& module : modules)
    if (!is_cpu(module.device)) device = &rates.of(module.device);
  const double logits = rows * vocabulary * 4;
  const bool copied = shapes.head != models::kNoModule && !is_cpu(modules[shapes.head].device);
  Time time;
  time[Bound::kernels] = device->step_us;
  if (copied) time[Bound::pcie] = logits / std::max(rates.of(modules[shapes.head].device).pcie, 1.0);
  time[Bound::cpu_read] = logits * std::max(cpu.cores, 1u) / host.read;  // by one thread
  return time;
}

Time CostModel::Impl::transfer(const DeviceRates& gpu, double rows) const {
  Time time;
  time[Bound::handoff] = gpu.handoff_us;
  time[Bound::pcie] = gpu.pcie > 0 ? rows * hidden * 4 / gpu.pcie : 0;
  return time;
}

double CostModel::Impl::values_of(const Module& module, double rows, bool on_cpu) const {
  if (module.cls == ModuleClass::Embedding) return 0;
  if (module.cls == ModuleClass::Norm) return rows * hidden * (on_cpu ? kNorm : 1);
  const double outputs = rows * matrix_outputs(shapes, module);
  if (!on_cpu || module.cls != ModuleClass::Router) return outputs;
  return outputs * kChoice * std::max(1.0, std::max(cpu.cores, 1u) / rows);  // as if all workers wrote them
}

Expected<Time> CostModel::Impl::module_time(const Step& step, std::uint32_t index, StepParts* parts) const {
  const Module& module = shapes.modules[index];
  const ModulePlacement& placed = modules[index];
  const DeviceRates& rate = rates.of(placed.device);
  const bool cpu_side = is_cpu(placed.device);
  const double rows = module.cls == ModuleClass::Head && !step.decode ? 1 : step.rows;
  double bytes = 0, operations = rows * matrix_operations(shapes, module);
  if (module.cls == ModuleClass::Embedding) {
    bytes = rows * hidden * 4, operations = 0;
  } else {
    KTC_ASSIGN_OR_RETURN(const std::uint64_t packed,
                         weight_bytes(shapes, module, {placed.weights, placed.group, placed.unrounded, !cpu_side}));
    bytes = static_cast<double>(packed);
  }
  Time time = work(rate, placed.weights, placed.activations, placed.group, bytes, operations, rows,
                   kernel_time(rate, step, module.cls == ModuleClass::Router) *
                       std::visit(Kernels{cpu_side}, module.attributes),
                   values_of(module, rows, cpu_side), false, true);
  time += ends(rate, step, std::visit(Products{}, module.attributes), time.total() - time[Bound::kernels]);
  if (const double per_head = matrix_operations(shapes, module, true); per_head > 0)
    time += work(rate, placed.unrounded, cpu_side ? Format::f32 : placed.activations, 0, 0, rows * per_head, rows, {}) *
            (cpu_side && !step.decode ? kPerHead : 1);
  if (const Attention attention = attention_of(module); attention.operations > 0) {
    const double seen = step.decode ? step.context : rows / 2.0;  // a chunk sees itself, on average half
    const double passes = step.decode ? rows : std::max(1.0, rows / 64);  // blocks of 64 queries read the keys once
    time += attend(rate, passes * seen * attention.elements * cache_bytes, rows * seen * attention.operations,
                   rows * seen * attention.heads, rows * std::ceil(seen / kAttendPart) * attention.groups);
  }
  const double fixed = time[Bound::kernels], rest = time.total() - fixed;
  parts->kernels += fixed;
  (module.cls == ModuleClass::Head          ? parts->head
   : cpu_side                               ? parts->cpu_other
   : module.cls == ModuleClass::Attention   ? parts->gpu_attention
                                            : parts->gpu_dense) += rest;
  return time;
}

Time CostModel::Impl::expert_time(const Step& step, const MoeLayer& layer, const DeviceRates& rate, Format weights,
                                  Format activations, std::uint32_t group, double expert_bytes,
                                  const Load& load) const {
  if (load.distinct <= 1e-9) return {};
  const double pairs = load.pairs * step.rows;
  const Fixed kernels = kernel_time(rate, step) * (is_cpu(rate.device) ? 1 : 2);
  Time time;
  if (load.alike.empty())
    time = work(rate, weights, activations, group, load.distinct * expert_bytes, pairs * layer.operations,
                pairs / load.distinct, {});
  for (const Load::Alike& a : load.alike) {
    // a CPU's tiles have sixteen rows: where only some of the step's rows choose an expert half of its last one is
    // padding
    const double rows = a.rows + (is_cpu(rate.device) && a.rows >= 16 && a.rows < step.rows ? 8 : 0);
    time += work(rate, weights, activations, group, expert_bytes, rows * layer.operations, a.rows, {},
                 a.rows * layer.outputs, a.rows > kFewRows) *
            a.experts;
  }
  time += ends(rate, step, Products{}(models::ExpertsDesc{}), time.total());
  // a prompt's rows are prepared, and their sums cleared and added to, once for all experts
  if (is_cpu(rate.device) && !step.decode) time[Bound::cpu_compute] += step.rows * hidden * rate.value_us;
  return with_fixed(time, kernels);
}

}  // namespace ktc::placement
