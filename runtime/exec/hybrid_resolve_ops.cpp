// Steps of a GPU, from the plan's numbers to the arguments of kernels.
#include "runtime/exec/hybrid_resolve.h"
#include "runtime/exec/kv_layout.h"
#include "runtime/exec/step_reader.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/halves.h"

namespace ktc::exec {

using planfb::BufferRole;
using planfb::Op;

namespace {

constexpr std::size_t kMostSummands = std::size(gpu::AddArgs{}.in);

// A part of a step's scratch memory.
gpu::Scratch part(const gpu::Scratch& scratch, std::uint64_t offset, std::uint64_t bytes) { return {scratch.data + offset, bytes}; }

gpu::Matrix values(const gpu::Scratch& scratch, std::uint64_t offset, std::uint64_t columns) {
  return {reinterpret_cast<float*>(scratch.data + offset), columns, static_cast<std::uint32_t>(columns)};
}

Status gqa(const GpuStepReader& r, const planfb::GqaOpT& op, std::vector<Launch>& launches) {
  const GpuGqaWorkspace space = gpu_gqa_workspace(r.bound(), op.heads, op.kv_heads, op.head_dim);
  gpu::GqaAppendArgs append = {};
  append.q = r.in(0);
  append.k = r.in(1);
  append.v = r.in(2);
  append.q_norm = r.vector(op.w_q_norm);
  append.k_norm = r.vector(op.w_k_norm);
  append.norm_eps = op.norm_eps;
  append.rope = r.rope(op.rope);
  append.cache = r.cache(op.cache, op.cache_layer);
  append.batch = r.batch();
  append.heads = op.heads;
  append.kv_heads = op.kv_heads;
  append.head_dim = op.head_dim;
  append.query = values(r.scratch(), 0, std::uint64_t{op.heads} * op.head_dim);
  gpu::GqaAttendArgs attend = {};
  attend.query = append.query;
  attend.out = r.out(0);
  attend.cache = append.cache;
  attend.batch = append.batch;
  attend.heads = op.heads;
  attend.kv_heads = op.kv_heads;
  attend.head_dim = op.head_dim;
  attend.scale = op.scale;
  attend.scratch = part(r.scratch(), space.query, space.partial);
  if (r.entry_.kind == planfb::EntryKind::decode)  // one token per sequence
    return r.add(launches, r.gpu_.kernels.gqa_decode, gpu::GqaDecodeArgs{append, attend});
  KTC_RETURN_IF_ERROR(r.add(launches, r.gpu_.kernels.gqa_append, append));
  return r.add(launches, r.gpu_.kernels.gqa_attend, attend);
}

Status mla(const GpuStepReader& r, const planfb::MlaOpT& op, std::vector<Launch>& launches) {
  const GpuMlaWorkspace space = gpu_mla_workspace(r.bound(), op.heads, op.latent_dim, op.rope_dim);
  gpu::MlaAppendArgs append = {};
  append.q = r.in(0);
  append.latent = r.in(1);
  append.k_rope = r.in(2);
  append.rope = r.rope(op.rope);
  append.cache = r.cache(op.cache, op.cache_layer);
  append.batch = r.batch();
  append.w_uk = r.weight(op.w_uk);
  append.heads = op.heads;
  append.nope_dim = op.nope_dim;
  append.rope_dim = op.rope_dim;
  append.latent_dim = op.latent_dim;
  append.activations = r.activations();
  append.query = values(r.scratch(), 0, std::uint64_t{op.heads} * (op.latent_dim + op.rope_dim));
  gpu::MlaAttendArgs attend = {};
  attend.query = append.query;
  attend.context = values(r.scratch(), space.query, std::uint64_t{op.heads} * op.latent_dim);
  attend.out = r.out(0);
  attend.cache = append.cache;
  attend.batch = append.batch;
  attend.w_uv = r.weight(op.w_uv);
  attend.heads = op.heads;
  attend.rope_dim = op.rope_dim;
  attend.v_dim = op.v_dim;
  attend.latent_dim = op.latent_dim;
  attend.scale = op.scale;
  attend.activations = r.activations();
  attend.scratch = part(r.scratch(), space.query + space.context, space.partial);
  KTC_RETURN_IF_ERROR(r.add(launches, r.gpu_.kernels.mla_append, append));
  return r.add(launches, r.gpu_.kernels.mla_attend, attend);
}

Status linear(const GpuStepReader& r, const planfb::LinearOpT& op, std::vector<Launch>& launches) {
  gpu::LinearArgs args = {};
  args.x = r.in(0);
  args.w = r.weight(op.w);
  args.bias = r.vector(op.w_bias);
  args.out = r.out(0);
  args.activations = r.activations();
  args.scratch = r.scratch();
  if (r.gpu_.large != nullptr && r.entry_.kind != planfb::EntryKind::decode) args.large = r.gpu_.large->find(args);
  return r.add(launches, r.gpu_.kernels.linear, args);
}

gpu::RouteArgs route_args(const GpuStepReader& r, const planfb::RouteOpT& op) {
  gpu::RouteArgs args = {};
  args.x = r.in(0);
  args.w = r.weight(op.w);
  args.bias = r.vector(op.w_bias);
  args.ids = r.ids(r.step_.outputs[0]);
  args.weights = r.out(1);
  args.experts = op.experts;
  args.top_k = op.top_k;
  args.groups = op.groups;
  args.topk_groups = op.topk_groups;
  args.sigmoid = op.kind == planfb::RouterKind::sigmoid_group;
  args.normalise = op.normalise;
  args.scale = op.scale;
  args.scratch = r.scratch();
  return args;
}

Status mlp(const GpuStepReader& r, const planfb::MlpOpT& op, std::vector<Launch>& launches) {
  gpu::MlpArgs args = {};
  args.x = r.in(0);
  args.gate_up = r.weight(op.w_gate_up);
  args.down = r.weight(op.w_down);
  args.out = r.out(0);
  args.activations = r.activations();
  args.scratch = r.scratch();
  return r.add(launches, r.gpu_.kernels.mlp, args);
}

// Rows of the first half come before those of the second one, whose row of token t is t - (tokens of the first half).
Status select_of_halves(const GpuStepReader& r, const gpu::SelectRowsArgs& args, const gpu::Matrix& second, std::vector<Launch>& launches) {
  const auto fn = r.gpu_.kernels.select_rows;
  if (fn == nullptr) return r.no_kernel();
  launches.push_back([fn, args, second](device::Stream& stream, const Counts& counts) -> Status {
    gpu::SelectRowsArgs part = args;
    part.rows = counts.first_rows;
    if (part.rows != 0) KTC_RETURN_IF_ERROR(stream.launch(fn, part));
    part.rows = counts.rows - counts.first_rows;
    if (part.rows == 0) return {};
    part.output_rows.data += counts.first_rows * args.output_rows.stride;
    part.out.data += counts.first_rows * args.out.stride;
    part.x = second;
    part.x.data -= counts.first_tokens * second.stride;
    return stream.launch(fn, part);
  });
  return {};
}

// The terms of a sum.
template <typename Args>
Status terms(const GpuStepReader& r, Args& args) {
  args.count = static_cast<std::uint32_t>(r.step_.inputs.size());
  if (args.count > kMostSummands)
    return refuse(r.step_, "a sum of too many terms", std::to_string(args.count), "at most " + std::to_string(kMostSummands));
  for (std::size_t i = 0; i < args.count; ++i) args.in[i] = r.in(i);
  return {};
}

Expected<gpu::AddNormArgs> add_norm_args(const GpuStepReader& r) {
  const planfb::AddNormOpT& op = *r.step_.op.AsAddNormOp();
  gpu::AddNormArgs args = {};
  KTC_RETURN_IF_ERROR(terms(r, args));
  args.sum = r.out(0);
  args.w = r.vector(op.w);
  args.eps = op.eps;
  args.out = r.out(1);
  return args;
}

Status launches_of(const GpuStepReader& r, std::vector<Launch>& launches) {
  const gpu::KernelSet& kernels = r.gpu_.kernels;
  const planfb::OpUnion& op = r.step_.op;
  switch (op.type) {
    case Op::EmbedOp: {
      gpu::EmbedArgs args = {};
      args.ids = r.ids(r.step_.inputs[0]);
      if (r.entry_.kind == planfb::EntryKind::decode && r.gpu_.sample.rows != 0) {
        args.feed = r.gpu_.feed();
        args.fed = r.gpu_.next_ids();
      }
      args.w = r.weight(op.AsEmbedOp()->w);
      args.out = r.out(0);
      return r.add(launches, kernels.embed, args);
    }
    case Op::NormOp: {
      gpu::NormArgs args = {};
      args.x = r.in(0);
      args.w = r.vector(op.AsNormOp()->w);
      args.eps = op.AsNormOp()->eps;
      args.out = r.out(0);
      return r.add(launches, kernels.rms_norm, args);
    }
    case Op::AddOp: {
      gpu::AddArgs args = {};
      KTC_RETURN_IF_ERROR(terms(r, args));
      args.out = r.out(0);
      return r.add(launches, kernels.add, args);
    }
    case Op::AddNormOp: {
      KTC_ASSIGN_OR_RETURN(const gpu::AddNormArgs args, add_norm_args(r));
      return r.add(launches, kernels.add_norm, args);
    }
    case Op::SelectRowsOp: {
      gpu::SelectRowsArgs args = {};
      args.x = r.in(0);
      args.output_rows = r.ids(r.step_.inputs[1]);
      args.out = r.out(0);
      if (r.step_.inputs.size() > 2) return select_of_halves(r, args, r.in(2), launches);
      return r.add(launches, kernels.select_rows, args);
    }
    case Op::LinearOp: return linear(r, *op.AsLinearOp(), launches);
    case Op::GqaOp: return gqa(r, *op.AsGqaOp(), launches);
    case Op::MlaOp: return mla(r, *op.AsMlaOp(), launches);
    case Op::RouteOp: return r.add(launches, kernels.route, route_args(r, *op.AsRouteOp()));
    case Op::ExpertsOp: return r.add(launches, kernels.experts, experts_args(r, *op.AsExpertsOp()));
    case Op::MlpOp: return mlp(r, *op.AsMlpOp(), launches);
    default: return refuse(r.step_, "an op that this executor does not run", planfb::EnumNameOp(op.type), "");
  }
}

}  // namespace

std::byte* GpuStepReader::address(const planfb::View& view) const {
  const planfb::BufferT& b = buffer(view);
  std::byte* block = gpu_.block();
  switch (b.role) {
    case BufferRole::ids: return block + block_.ids;
    case BufferRole::positions: return block + block_.positions;
    case BufferRole::output_rows: return block + block_.output_rows;
    case BufferRole::deferred: return block + block_.deferred;
    default: return gpu_.arena.data() + b.offset + view.column() * 4;
  }
}

std::uint64_t GpuStepReader::stride(const planfb::View& view) const {
  switch (buffer(view).role) {
    case BufferRole::ids:
    case BufferRole::positions:
    case BufferRole::output_rows:
    case BufferRole::deferred: return 1;
    default: return buffer(view).row_bytes / 4;
  }
}

gpu::Scratch GpuStepReader::scratch() const {
  if (step_.workspace == plan::kNone) return {};
  const planfb::BufferT& b = *entry_.buffers[step_.workspace];
  return {gpu_.arena.data() + b.offset, b.bytes};
}

gpu::Batch GpuStepReader::batch() const {
  gpu::Batch batch;
  batch.live = block_at(block_.live);
  batch.sequence = block_at(block_.sequence);
  batch.positions = block_at(block_.positions);
  batch.q_first = block_at(block_.q_first);
  batch.kv_length = block_at(block_.kv_length);
  batch.page_first = block_at(block_.page_first);
  batch.pages = block_at(block_.pages);
  return batch;
}

gpu::Cache GpuStepReader::cache(std::uint32_t index, std::uint32_t layer) const {
  const planfb::CacheT& from = *plan_.caches[index];
  const std::uint64_t page = kv_page_bytes(from);
  gpu::Cache cache;
  cache.format = static_cast<Format>(from.format);
  cache.page_tokens = from.page_tokens;
  const auto part = [&](std::size_t i) {
    std::byte* base = gpu_.caches[index].data() + std::uint64_t{layer} * (std::uint64_t{from.pages} + 1) * page;
    return gpu::CachePart{base + kv_part(from, i).offset, page, from.parts[i]->heads, from.parts[i]->width};
  };
  cache.a = part(0);
  cache.b = part(1);
  return cache;
}

gpu::Rope GpuStepReader::rope(std::uint32_t index) const {
  const GpuRope& rope = gpu_.ropes[index];
  return {rope.cos + rope_offset(rope), rope.sin + rope_offset(rope), 2 * rope.half, plan_.ropes[index]->style == planfb::RopeStyle::interleaved};
}

// Each half has rows of the table of its own, so that both are there at once.
std::uint64_t GpuStepReader::rope_offset(const GpuRope& rope) const {
  return part() == Part::second ? first_half_bound(entry_.max_tokens) * rope.half : 0;
}

Status GpuStepReader::no_kernel() const {
  return make_error(StatusCode::unsupported, {.place = "step " + step_.name,
                                              .what = "this build has no kernel for it on a GPU",
                                              .found = planfb::EnumNameOp(step_.op.type),
                                              .remedy = "build with KTC_CUDA=ON, or run with --emulate-gpu"});
}

gpu::ExpertsArgs experts_args(const GpuStepReader& r, const planfb::ExpertsOpT& op) {
  gpu::ExpertsArgs args = {};
  args.x = r.in(0);
  args.ids = r.ids(r.step_.inputs[1]);
  args.weights = r.in(2);
  args.filter.slots = r.slots(op.w_gate_up, op.slots);
  if (op.late != 0) args.filter.deferred = reinterpret_cast<const std::int32_t*>(r.address(r.step_.inputs[3]));
  args.filter.late = op.late;
  args.filter.part = static_cast<std::uint32_t>(op.part);
  args.filter.among_all = op.late_among_all;
  args.gate_up = r.weight(op.w_gate_up);
  args.down = r.weight(op.w_down);
  args.out = r.out(0);
  args.top_k = args.ids.columns;
  args.experts = r.plan_.model->experts;
  args.activations = r.activations();
  args.scratch = r.scratch();
  return args;
}

Expected<std::vector<Launch>> resolve_launches(const GpuStepReader& reader) {
  std::vector<Launch> launches;
  KTC_RETURN_IF_ERROR(launches_of(reader, launches));
  return launches;
}

Status see_joinable(const GpuStepReader& reader, std::size_t step, StepJoiner& joiner) {
  if (reader.of_rows()) return {};
  if (const auto* op = reader.step_.op.AsRouteOp()) joiner.saw(step, reader.gpu_.kernels, route_args(reader, *op));
  if (reader.step_.op.AsAddNormOp() != nullptr) {
    KTC_ASSIGN_OR_RETURN(const gpu::AddNormArgs args, add_norm_args(reader));
    joiner.saw(step, reader.gpu_.kernels, args);
  }
  return {};
}

Expected<Launch> rope_launch(const GpuStepReader& reader, std::uint32_t index) {
  const GpuRope& rope = reader.gpu_.ropes[index];
  gpu::RopeTableArgs args = {};
  args.inv_freq = rope.inv_freq;
  args.factor = static_cast<double>(reader.plan_.ropes[index]->factor);
  args.half = rope.half;
  args.positions = reader.block_at(reader.block_.positions);
  args.cos = rope.cos + reader.rope_offset(rope);
  args.sin = rope.sin + reader.rope_offset(rope);
  const auto fn = reader.gpu_.kernels.rope_table;
  if (fn == nullptr) return reader.no_kernel();
  return Launch([fn, args](device::Stream& stream, const Counts& counts) -> Status {
    if (counts.tokens == 0) return {};
    gpu::RopeTableArgs now = args;
    now.tokens = counts.tokens;
    return stream.launch(fn, now);
  });
}

}  // namespace ktc::exec
