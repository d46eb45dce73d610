#include "compiler/emit/StepBuilder.h"

#include <algorithm>

#include "compiler/passes/analysis/Workspace.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/TypeSwitch.h"
#include "runtime/formats/formats.h"

namespace ktc::compiler {
namespace {

using mlir::FlatSymbolRefAttr;

std::uint32_t weightIndex(const PlanIndex& index, FlatSymbolRefAttr ref) {
  return ref ? index.weights.at(ref.getValue().str()) : plan::kNone;
}
std::uint32_t bankIndex(const PlanIndex& index, FlatSymbolRefAttr ref, const char* part) {
  return index.weights.at(ref.getValue().str() + "." + part);
}
float toFloat(const llvm::APFloat& value) { return value.convertToFloat(); }

// x_granule and tile_rows of a product; h_granule where it has one.
template <typename Table>
void setTile(Table& table, kt::TileAttr tile) {
  if (!tile) return;
  table.x_granule = static_cast<std::uint16_t>(tile.getX());
  table.tile_rows = static_cast<std::uint16_t>(tile.getRows());
  if constexpr (requires { table.h_granule; }) table.h_granule = static_cast<std::uint16_t>(tile.getH());
}

std::vector<std::int32_t> slotsOf(mlir::DenseI32ArrayAttr slots) {
  if (!slots) return {};
  return {slots.asArrayRef().begin(), slots.asArrayRef().end()};
}
std::uint8_t formatOf(llvm::StringRef name) { return static_cast<std::uint8_t>(*parse_format(name.str())); }

planfb::RouterKind routerKind(kt::RouterKind kind) {
  return kind == kt::RouterKind::softmax_topk ? planfb::RouterKind::softmax_topk : planfb::RouterKind::sigmoid_group;
}

// Sets the op union; false for an op that is not a step of the plan.
bool setOp(planfb::OpUnion& out, mlir::Operation* op, PlanIndex& index) {
  return llvm::TypeSwitch<mlir::Operation*, bool>(op)
      .Case([&](kt::EmbedOp o) {
        planfb::EmbedOpT t;
        t.w = weightIndex(index, o.getWeightAttr());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::NormOp o) {
        planfb::NormOpT t;
        t.kind = planfb::NormKind::rms;
        t.w = weightIndex(index, o.getWeightAttr());
        t.eps = toFloat(o.getEps());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::LinearOp o) {
        planfb::LinearOpT t;
        t.w = weightIndex(index, o.getWeightAttr());
        t.w_bias = weightIndex(index, o.getBiasAttr());
        setTile(t, o.getTileAttr());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::LmHeadOp o) {
        planfb::LinearOpT t;
        t.w = weightIndex(index, o.getWeightAttr());
        t.head = true;
        setTile(t, o.getTileAttr());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::GqaOp o) {
        planfb::GqaOpT t;
        t.heads = static_cast<std::uint32_t>(o.getHeads());
        t.kv_heads = static_cast<std::uint32_t>(o.getKvHeads());
        t.head_dim = static_cast<std::uint32_t>(o.getHeadDim());
        t.scale = toFloat(o.getScale());
        t.rope = index.rope(o.getRopeAttr());
        t.w_q_norm = weightIndex(index, o.getQNormAttr());
        t.w_k_norm = weightIndex(index, o.getKNormAttr());
        t.norm_eps = toFloat(o.getNormEps());
        t.cache = index.caches.at(o.getCache().str());
        t.cache_layer = static_cast<std::uint32_t>(o.getCacheLayer());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::MlaOp o) {
        planfb::MlaOpT t;
        t.heads = static_cast<std::uint32_t>(o.getHeads());
        t.nope_dim = static_cast<std::uint32_t>(o.getNopeDim());
        t.rope_dim = static_cast<std::uint32_t>(o.getRopeDim());
        t.v_dim = static_cast<std::uint32_t>(o.getVDim());
        t.latent_dim = static_cast<std::uint32_t>(o.getLatentDim());
        t.scale = toFloat(o.getScale());
        t.rope = index.rope(o.getRopeAttr());
        t.w_uk = weightIndex(index, o.getWUkAttr());
        t.w_uv = weightIndex(index, o.getWUvAttr());
        t.cache = index.caches.at(o.getCache().str());
        t.cache_layer = static_cast<std::uint32_t>(o.getCacheLayer());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::RouteOp o) {
        planfb::RouteOpT t;
        t.kind = routerKind(o.getKind());
        t.w = weightIndex(index, o.getWeightAttr());
        t.w_bias = weightIndex(index, o.getBiasAttr());
        t.experts = static_cast<std::uint32_t>(o.getExperts());
        t.top_k = static_cast<std::uint32_t>(o.getTopK());
        t.normalise = o.getNormalise();
        t.scale = toFloat(o.getScale());
        t.groups = static_cast<std::uint32_t>(o.getGroups());
        t.topk_groups = static_cast<std::uint32_t>(o.getTopkGroups());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::ExpertsOp o) {
        planfb::ExpertsOpT t;
        t.w_gate_up = bankIndex(index, o.getBankAttr(), "gate_up");
        t.w_down = bankIndex(index, o.getBankAttr(), "down");
        t.activation = planfb::Activation::swiglu;
        t.layer = static_cast<std::uint32_t>(std::max<std::int64_t>(0, o.getModule().getLayer()));
        setTile(t, o.getTileAttr());
        t.slots = slotsOf(o.getSlotsAttr());
        if (kt::LateAttr late = o.getLateAttr()) {
          t.late = static_cast<std::uint16_t>(late.getCount());
          t.late_among_all = late.getAmongAll();
          t.part = late.getPart() == kt::ExpertsPart::late ? planfb::ExpertsPart::late : planfb::ExpertsPart::in_time;
        }
        t.stream = o.getStream();
        if (t.stream) t.stream_group = static_cast<std::uint32_t>(streamOf(o)->group);  // its account was counted with it
        if (kt::ShareAttr s = o.getShareAttr()) {
          t.share = std::make_unique<planfb::ExpertShareT>();
          t.share->ahead_ns = s.getAhead(), t.share->ahead_row_ns = s.getAheadRow();
          t.share->copy_ns = s.getCopy(), t.share->gpu_ns = s.getGpu(), t.share->gpu_row_ns = s.getGpuRow();
          t.share->cpu_ns = s.getCpu(), t.share->cpu_row_ns = s.getCpuRow();
          t.share->values_ns = s.getValues(), t.share->values_row_ns = s.getValuesRow();
        }
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::MlpOp o) {
        planfb::MlpOpT t;
        t.w_gate_up = weightIndex(index, o.getGateUpAttr());
        t.w_down = weightIndex(index, o.getDownAttr());
        t.activation = planfb::Activation::swiglu;
        setTile(t, o.getTileAttr());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::AddOp) {
        out.Set(planfb::AddOpT());
        return true;
      })
      .Case([&](kt::AddNormOp o) {
        planfb::AddNormOpT t;
        t.w = weightIndex(index, o.getWeightAttr());
        t.eps = toFloat(o.getEps());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::TransferOp) {
        out.Set(planfb::CopyOpT());
        return true;
      })
      .Case([&](kt::SubmitOp o) {
        planfb::PublishOpT t;
        t.record = static_cast<std::uint32_t>(o.getRecord());
        t.format = formatOf(o.getFormat());
        t.slots = slotsOf(o.getSlotsAttr());
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::AwaitOp o) {
        planfb::AwaitOpT t;
        t.record = static_cast<std::uint32_t>(o.getRecord());
        t.format = formatOf(o.getFormat());
        t.skip_empty = o.getSkipEmpty();
        out.Set(std::move(t));
        return true;
      })
      .Case([&](kt::SelectRowsOp) {
        out.Set(planfb::SelectRowsOpT());
        return true;
      })
      .Case([&](kt::SampleOp) {
        out.Set(planfb::SampleOpT());
        return true;
      })
      .Default([](mlir::Operation*) { return false; });
}

planfb::StepKind kindOf(kt::StepOpInterface op) {
  if (mlir::isa<kt::TransferOp>(op.getOperation())) return planfb::StepKind::copy;
  if (mlir::isa<kt::SubmitOp>(op.getOperation())) return planfb::StepKind::publish;
  if (mlir::isa<kt::AwaitOp>(op.getOperation())) return planfb::StepKind::await;
  return op.getPlaceAttr().getDevice() == "cpu" ? planfb::StepKind::compute : planfb::StepKind::launch;
}

std::vector<planfb::View> views(mlir::ArrayAttr attributes) {
  std::vector<planfb::View> out;
  for (mlir::Attribute attribute : attributes) {
    auto view = mlir::cast<kt::ViewAttr>(attribute);
    out.emplace_back(static_cast<std::uint32_t>(view.getBuffer()), view.getColumn(), view.getColumns());
  }
  return out;
}

}  // namespace

std::uint32_t PlanIndex::rope(mlir::Attribute attribute) {
  auto found = std::find(ropes.begin(), ropes.end(), attribute);
  if (found == ropes.end()) found = ropes.insert(ropes.end(), attribute);
  return static_cast<std::uint32_t>(found - ropes.begin());
}

Expected<std::unique_ptr<planfb::StepT>> buildStep(kt::StepOpInterface op, PlanIndex& index) {
  auto step = std::make_unique<planfb::StepT>();
  step->name = kt::stepName(op);
  step->location = kt::locationText(op->getLoc());
  step->kind = kindOf(op);
  step->device = index.devices.at(op.getPlaceAttr().getDevice().str());
  step->activations = static_cast<std::uint8_t>(*parse_format(op.getPlaceAttr().getActivations().str()));
  step->inputs = views(op.getInViewsAttr());
  step->outputs = views(op.getOutViewsAttr());
  if (mlir::isa<kt::LinearOp>(op.getOperation()) && step->outputs.size() > 1) {
    // consecutive columns of one buffer (kt-verify-lowered): the plan's op has the one output that spans them
    const planfb::View first = step->outputs.front(), last = step->outputs.back();
    step->outputs = {planfb::View(first.buffer(), first.column(), last.column() + last.columns() - first.column())};
  }
  if (mlir::IntegerAttr graph = op.getGraphAttr()) step->graph = static_cast<std::uint32_t>(graph.getInt());
  if (mlir::IntegerAttr group = op.getLaunchGroupAttr()) step->launch_group = static_cast<std::uint32_t>(group.getInt());
  if (mlir::IntegerAttr workspace = op.getWorkspaceAttr())
    step->workspace = static_cast<std::uint32_t>(workspace.getInt());
  if (!setOp(step->op, op.getOperation(), index))
    return make_error(StatusCode::internal, {.place = step->location,
                                             .what = "the plan has no step for " + op->getName().getStringRef().str(),
                                             .remedy = "please report this with the model and the policy"});
  return step;
}

}  // namespace ktc::compiler
