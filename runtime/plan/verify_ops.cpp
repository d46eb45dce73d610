// The rules of each op (plan.fbs states them beside the op), and the dispatch to those that have a file of their own.
// Values are f32 throughout: kernels read and write nothing else yet (runtime/kernels/cpu/kernels.h).
#include <fmt/format.h>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/workspace.h"
#include "runtime/plan/step_check.h"
#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;  // no sum of the workspace's areas overflows

Status embed(const EntrySite& site, std::size_t index, const EmbedOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(1, 1)) return c.take();
  const ModelT& model = *site.plan.model;
  c.input_has_role(0, BufferRole::ids);
  c.output_is(0, Format::f32, c.symbol_of_input(0), model.hidden_size);
  const WeightT* w = c.weight("w", op.w);
  c.weight_is("w", w, 1, model.vocab_size, model.hidden_size);
  c.packed_as("w", w, Packing::row_major);  // single rows are read
  return c.take();
}

Status norm(const EntrySite& site, std::size_t index, const NormOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(1, 1)) return c.take();
  const std::uint64_t columns = c.input(0).columns();
  c.check(is_member(op.kind), "kind", number(static_cast<std::uint64_t>(op.kind)), "rms");
  c.input_is(0, Format::f32, c.symbol_of_input(0), columns);
  c.output_is(0, Format::f32, c.symbol_of_input(0), columns);
  c.vector_weight("w", op.w, columns, false);
  c.epsilon("eps", op.eps);
  return c.take();
}

Status linear(const EntrySite& site, std::size_t index, const LinearOpT& op) {
  StepCheck c(site, index);
  if (!c.operands(1, 1)) return c.take();
  const WeightT* w = c.weight("w", op.w);
  if (w == nullptr) return c.take();
  c.weight_is("w", w, 1, w->rows, w->columns);
  c.input_is(0, Format::f32, c.symbol_of_input(0), w->columns);
  c.output_is(0, Format::f32, c.symbol_of_input(0), w->rows);
  c.vector_weight("w_bias", op.w_bias, w->rows, true);
  const bool panels = c.panels({{"w", w, false}}, op.x_granule, 0, op.tile_rows);
  if (!c.ok() || (!panels && !c.on_gpu())) return c.take();
  const std::uint64_t rows = site.bound(c.symbol_of_input(0));
  const auto size = product({sum(rows, 63).value_or(UINT64_MAX), sum(w->columns, 63).value_or(UINT64_MAX), 64});
  if (c.on_gpu()) {
    c.gpu_workspace(size && *size < kLargest
                        ? std::optional(gpu_linear_workspace(static_cast<Format>(c.step().activations), rows, w->columns)
                                            .total())
                        : std::nullopt);
    return c.take();
  }
  c.workspace(size && *size < kLargest
                  ? std::optional(panel_linear_workspace(static_cast<Format>(c.step().activations), rows, w->columns,
                                                         op.x_granule, op.tile_rows)
                                      .total())
                  : std::nullopt);
  return c.take();
}

constexpr std::size_t kMostGpuSummands = 8;  // AddArgs, AddNormArgs of runtime/kernels/cuda/gpu_kernels.h

// Two or more of one shape; `outputs` of the same.
bool sum_operands(StepCheck& c, std::size_t outputs) {
  const std::size_t inputs = c.step().inputs.size();
  c.check(inputs >= 2 && c.step().outputs.size() == outputs, "operands",
          fmt::format("{} inputs, {} outputs", inputs, c.step().outputs.size()),
          fmt::format("at least 2 inputs, {} output{}", outputs, outputs == 1 ? "" : "s"));
  c.check(!c.on_gpu() || inputs <= kMostGpuSummands, "operands", fmt::format("{} inputs", inputs),
          fmt::format("at most {} on a cuda device", kMostGpuSummands));
  if (!c.ok()) return false;
  for (std::size_t i = 0; i < inputs; ++i) c.input_is(i, Format::f32, c.symbol_of_input(0), c.input(0).columns());
  for (std::size_t i = 0; i < outputs; ++i) c.output_is(i, Format::f32, c.symbol_of_input(0), c.input(0).columns());
  return c.ok();
}

Status add(const EntrySite& site, std::size_t index) {
  StepCheck c(site, index);
  sum_operands(c, 1);
  return c.take();
}

Status add_norm(const EntrySite& site, std::size_t index, const AddNormOpT& op) {
  StepCheck c(site, index);
  if (!sum_operands(c, 2)) return c.take();
  c.vector_weight("w", op.w, c.input(0).columns(), false);
  c.epsilon("eps", op.eps);
  return c.take();
}

Status select_rows(const EntrySite& site, std::size_t index) {
  StepCheck c(site, index);
  const bool cut = is_cut(site.entry);  // then of both halves
  if (!c.operands(cut ? 3 : 2, 1)) return c.take();
  c.input_is(0, Format::f32, cut ? Symbol::first_half : Symbol::tokens, c.input(0).columns());
  c.input_has_role(1, BufferRole::output_rows);
  if (cut) c.input_is(2, Format::f32, Symbol::second_half, c.input(0).columns());
  c.output_is(0, Format::f32, Symbol::rows, c.input(0).columns());
  return c.take();
}

Status sample(const EntrySite& site, std::size_t index) {
  StepCheck c(site, index);
  if (!c.operands(1, 1)) return c.take();
  c.input_has_role(0, BufferRole::logits);
  if (c.ok()) c.input_is(0, Format::f32, Symbol::rows, site.plan.model->vocab_size);
  c.output_has_role(0, BufferRole::next_ids);
  const StepT& step = *site.entry.steps[index];  // older plans have no workspace: their executor is the host's sampler
  if (step.kind == StepKind::launch && step.workspace != kNone) c.workspace(gpu_sample_workspace(site.entry.max_rows));
  return c.take();
}

}  // namespace

Status verify_op(const EntrySite& site, std::size_t index) {
  const OpUnion& op = site.entry.steps[index]->op;
  if (op.type == Op::NONE || !is_member(op.type) || op.value == nullptr)
    return wrong(site.place(index), "op",
                 op.type == Op::NONE || is_member(op.type) ? "none" : number(static_cast<std::uint64_t>(op.type)),
                 "an op that this ktc has");
  if ((op.type == Op::SampleOp) != (site.entry.kind == EntryKind::sample))
    return wrong(site.place(index), "op",
                 fmt::format("{} in an entry of kind {}", EnumNameOp(op.type), EnumNameEntryKind(site.entry.kind)),
                 "SampleOp in sample entries, and there alone");
  switch (op.type) {
    case Op::EmbedOp: return embed(site, index, *op.AsEmbedOp());
    case Op::NormOp: return norm(site, index, *op.AsNormOp());
    case Op::LinearOp: return linear(site, index, *op.AsLinearOp());
    case Op::GqaOp:
    case Op::MlaOp: return verify_attention(site, index);
    case Op::RouteOp:
    case Op::MlpOp: return verify_experts(site, index);
    case Op::ExpertsOp: return verify_bank(site, index);
    case Op::AddOp: return add(site, index);
    case Op::SelectRowsOp: return select_rows(site, index);
    case Op::SampleOp: return sample(site, index);
    case Op::AddNormOp: return add_norm(site, index, *op.AsAddNormOp());
    case Op::CopyOp:
    case Op::PublishOp:
    case Op::AwaitOp: return verify_transfer(site, index);
    case Op::NONE: break;
  }
  return {};
}

}  // namespace ktc::plan::detail
