#include "compiler/emit/PlanBuilder.h"

#include <algorithm>
#include <map>

#include "compiler/emit/StepBuilder.h"
#include "dialects/kt/Kt.h"
#include "dialects/kt/KtWalk.h"
#include "ktc_version.h"
#include "runtime/formats/formats.h"
#include "runtime/plan/choices.h"

namespace ktc::compiler {
namespace {

constexpr std::uint64_t kWeightAlignment = 64;
constexpr std::uint64_t kPage = 4096;  // expert banks and file ends: mmap, registration and NUMA binding work in pages

std::uint64_t alignUp(std::uint64_t value, std::uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

class Builder {
 public:
  Builder(mlir::ModuleOp module, const models::ModelDesc& model) : module_(module) {
    for (std::uint32_t i = 0; i < model.slots.size(); ++i) slots_[model.slots[i].name] = i;
  }

  Expected<PlanAndJobs> run() {
    auto phase = module_->getAttrOfType<kt::PhaseAttr>("kt.phase");
    if (!phase || phase.getValue() != kt::Phase::lowered)
      return make_error(StatusCode::invalid_argument,
                        {.place = "kt.phase",
                         .what = "only lowered IR can be emitted",
                         .found = phase ? kt::stringifyPhase(phase.getValue()).str() : "no phase",
                         .expected = "lowered",
                         .remedy = "run the pipeline to the end, for example without --stop-after"});
    plan_.producer = std::string("ktc ") + KTC_VERSION;
    addModel();
    addDevices();
    KTC_RETURN_IF_ERROR(addWeights());
    addCaches();
    KTC_RETURN_IF_ERROR(addEntries());
    addRopes();
    if (auto defer = module_->getAttrOfType<kt::DeferAttr>(kt::kDefer)) {
      plan_.defer_prefill = defer.getPrefill();
      plan_.defer_decode = defer.getDecode();
    }
    addMoving();
    plan_.required_features = plan::features_of(plan_);
    plan_.choices = plan::permitted_choices(plan_);
    for (FileJobs& file : files_) {
      auto out = std::make_unique<planfb::WeightFileT>();
      out->path = file.path;
      out->bytes = file.bytes = alignUp(file.bytes, kPage);
      plan_.weight_files.push_back(std::move(out));
    }
    return PlanAndJobs{std::move(plan_), std::move(files_)};
  }

 private:
  // Layers of which both sides have experts.
  void addMoving() {
    auto every = module_->getAttrOfType<mlir::IntegerAttr>(kt::kUpdate);
    if (!every) return;
    std::map<std::uint32_t, planfb::MovingExpertsT> layers;
    for (const auto& entry : plan_.entries)
      for (const auto& step : entry->steps) {
        const planfb::ExpertsOpT* op = step->op.AsExpertsOp();
        if (op == nullptr || op->slots.empty()) continue;
        planfb::MovingExpertsT& layer = layers[op->layer];
        layer.layer = op->layer;
        if (plan_.devices[plan_.weights[op->w_gate_up]->device]->kind == planfb::DeviceKind::cpu) {
          layer.w_cold_gate_up = op->w_gate_up;
          layer.w_cold_down = op->w_down;
        } else {
          layer.w_hot_gate_up = op->w_gate_up;
          layer.w_hot_down = op->w_down;
          layer.slots = op->slots;
        }
      }
    for (auto& [number, layer] : layers) plan_.moving.push_back(std::make_unique<planfb::MovingExpertsT>(std::move(layer)));
    if (!plan_.moving.empty()) plan_.update_every_tokens = static_cast<std::uint32_t>(every.getInt());
  }

  void addModel() {
    auto facts = module_->getAttrOfType<kt::ModelAttr>("kt.model");
    auto out = std::make_unique<planfb::ModelT>();
    out->name = facts.getName().str();
    out->family = facts.getFamily().str();
    out->vocab_size = static_cast<std::uint32_t>(facts.getVocab());
    out->hidden_size = static_cast<std::uint32_t>(facts.getHidden());
    out->layers = static_cast<std::uint32_t>(facts.getLayers());
    out->max_positions = static_cast<std::uint32_t>(facts.getMaxPositions());
    out->bos_token = static_cast<std::int32_t>(facts.getBosToken());
    if (auto stops = facts.getStopTokens()) out->stop_tokens.assign(stops.asArrayRef().begin(), stops.asArrayRef().end());
    module_.walk([&](kt::RouteOp route) { out->experts = static_cast<std::uint32_t>(route.getExperts()); });
    out->sampling = std::make_unique<planfb::SamplingDefaultsT>();
    if (auto stated = facts.getSampling())
      for (mlir::NamedAttribute attribute : stated) {
        auto set = [&](const char* name, float& field) {
          if (attribute.getName() != name) return;
          field = static_cast<float>(mlir::cast<mlir::FloatAttr>(attribute.getValue()).getValueAsDouble());
        };
        set("temperature", out->sampling->temperature);
        set("top_p", out->sampling->top_p);
        set("min_p", out->sampling->min_p);
        set("repetition_penalty", out->sampling->repetition_penalty);
        if (attribute.getName() == "top_k")
          out->sampling->top_k = static_cast<std::int32_t>(mlir::cast<mlir::IntegerAttr>(attribute.getValue()).getInt());
      }
    plan_.model = std::move(out);
    if (auto target = module_->getAttrOfType<mlir::StringAttr>("kt.target")) plan_.target = target.str();
    if (auto policy = module_->getAttrOfType<mlir::StringAttr>("kt.policy")) plan_.policy = policy.str();
  }

  void addDevices() {
    for (mlir::Attribute attribute : module_->getAttrOfType<mlir::ArrayAttr>("kt.devices")) {
      auto device = mlir::cast<kt::DeviceAttr>(attribute);
      index_.devices[device.getName().str()] = static_cast<std::uint32_t>(plan_.devices.size());
      auto out = std::make_unique<planfb::DeviceT>();
      out->name = device.getName().str();
      out->kind = out->name == "cpu" ? planfb::DeviceKind::cpu : planfb::DeviceKind::cuda;
      out->arena_bytes = device.getArena();
      plan_.devices.push_back(std::move(out));
    }
    for (mlir::Attribute attribute : module_->getAttrOfType<mlir::ArrayAttr>("kt.account")) {
      auto line = mlir::cast<kt::AccountAttr>(attribute);
      auto out = std::make_unique<planfb::AccountLineT>();
      out->device = index_.devices.at(line.getDevice().str());
      out->category = line.getCategory().str();
      out->name = line.getName().str();
      out->bytes = line.getBytes();
      plan_.account.push_back(std::move(out));
    }
  }

  FileJobs& fileOf(const std::string& device) {
    std::string path = device + ".weights";
    std::replace(path.begin(), path.end(), ':', '-');  // "cuda-0.weights"
    for (FileJobs& file : files_)
      if (file.path == path) return file;
    files_.push_back({path, 0, {}, {}});
    return files_.back();
  }

  Status addWeight(const std::string& name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns,
                   llvm::StringRef device, llvm::StringRef format, llvm::StringRef packing, std::uint64_t group,
                   mlir::ArrayAttr recipe, std::uint64_t alignment, mlir::DenseI32ArrayAttr ids = {}) {
    WeightJob job;
    job.name = name;
    job.batch = batch;
    job.rows = rows;
    job.columns = columns;
    job.format = *parse_format(format.str());
    job.packing = *parse_packing(packing.str());
    job.group = static_cast<std::uint32_t>(group);
    job.bytes = packed_bytes(job.format, job.packing, batch, rows, columns, job.group).value_or(0);
    for (mlir::Attribute attribute : recipe) {
      auto piece = mlir::cast<kt::PieceAttr>(attribute);
      auto slot = slots_.find(piece.getSlot().str());
      if (slot == slots_.end())
        return make_error(StatusCode::invalid_argument,
                          {.place = "weight @" + name,
                           .what = "the checkpoint has no slot",
                           .found = piece.getSlot().str(),
                           .remedy = "compile from the checkpoint that the IR was imported from"});
      job.pieces.push_back({.slot = slot->second,
                            .src_row = piece.getSrcRow(),
                            .row_step = piece.getRowStep(),
                            .rows = piece.getRows(),
                            .transpose = piece.getTranspose(),
                            .dst_batch = piece.getDstBatch(),
                            .dst_row = piece.getDstRow(),
                            .repeat = piece.getRepeat(),
                            .repeat_src_row = piece.getRepeatSrcRow(),
                            .repeat_dst_batch = piece.getRepeatDstBatch(),
                            .repeat_dst_row = piece.getRepeatDstRow()});
    }
    if (ids) job.matrices.assign(ids.asArrayRef().begin(), ids.asArrayRef().end());
    FileJobs& file = fileOf(device.str());
    job.offset = alignUp(file.bytes, alignment);
    file.bytes = job.offset + job.bytes;

    auto out = std::make_unique<planfb::WeightT>();
    out->name = name;
    out->source = planfb::WeightSource::file;
    out->format = static_cast<std::uint8_t>(job.format);
    out->packing = static_cast<std::uint8_t>(job.packing);
    out->group = static_cast<std::uint16_t>(job.group);
    out->batch = batch;
    out->rows = rows;
    out->columns = columns;
    out->device = index_.devices.at(device.str());
    out->file = static_cast<std::uint32_t>(&file - files_.data());
    out->offset = job.offset;
    out->bytes = job.bytes;
    index_.weights[name] = static_cast<std::uint32_t>(plan_.weights.size());
    file.weights.push_back(static_cast<std::uint32_t>(plan_.weights.size()));
    file.jobs.push_back(std::move(job));
    plan_.weights.push_back(std::move(out));
    return {};
  }

  Status addWeights() {
    for (mlir::Operation& op : *module_.getBody()) {
      if (auto weight = mlir::dyn_cast<kt::WeightOp>(op)) {
        KTC_RETURN_IF_ERROR(addWeight(weight.getSymName().str(), weight.getBatch(), weight.getRows(), weight.getColumns(),
                                      *weight.getDevice(), *weight.getFormat(), *weight.getPacking(),
                                      weight.getGroup().value_or(0), weight.getRecipe(), kWeightAlignment));
      } else if (auto bank = mlir::dyn_cast<kt::ExpertBankOp>(op)) {
        const std::uint64_t experts = bank.getExperts(), hidden = bank.getHidden(), inner = bank.getIntermediate();
        const std::string name = bank.getSymName().str();
        KTC_RETURN_IF_ERROR(addWeight(name + ".gate_up", experts, 2 * inner, hidden, *bank.getDevice(), *bank.getFormat(),
                                      *bank.getPacking(), bank.getGroup().value_or(0), bank.getGateUp(), kPage, bank.getIdsAttr()));
        KTC_RETURN_IF_ERROR(addWeight(name + ".down", experts, hidden, inner, *bank.getDevice(), *bank.getFormat(),
                                      bank.getDownPacking(), bank.getGroup().value_or(0), bank.getDown(), kPage, bank.getIdsAttr()));
      }
    }
    return {};
  }

  void addCaches() {
    for (auto cache : module_.getOps<kt::CacheOp>()) {
      index_.caches[cache.getSymName().str()] = static_cast<std::uint32_t>(plan_.caches.size());
      auto out = std::make_unique<planfb::CacheT>();
      out->name = cache.getSymName().str();
      out->device = index_.devices.at(cache.getDevice()->str());
      out->format = static_cast<std::uint8_t>(*parse_format(cache.getFormat()->str()));
      out->layers = static_cast<std::uint32_t>(cache.getLayers());
      for (mlir::Attribute attribute : cache.getParts()) {
        auto part = mlir::cast<kt::PartAttr>(attribute);
        auto o = std::make_unique<planfb::CachePartT>();
        o->name = part.getName().str();
        o->heads = static_cast<std::uint32_t>(part.getHeads());
        o->width = static_cast<std::uint32_t>(part.getWidth());
        out->parts.push_back(std::move(o));
      }
      out->page_tokens = static_cast<std::uint32_t>(cache.getPage());
      out->pages = static_cast<std::uint32_t>(cache.getPoolPages());
      out->tokens_per_sequence = static_cast<std::uint32_t>(cache.getTokens());
      out->sequences = static_cast<std::uint32_t>(cache.getSequences());
      plan_.caches.push_back(std::move(out));
    }
  }

  Status addEntries() {
    for (auto entry : module_.getOps<kt::EntryOp>()) {
      auto out = std::make_unique<planfb::EntryT>();
      out->name = entry.getSymName().str();
      out->kind = entry.getKind() == kt::EntryKind::extend   ? planfb::EntryKind::extend
                  : entry.getKind() == kt::EntryKind::decode ? planfb::EntryKind::decode
                                                             : planfb::EntryKind::sample;
      kt::BoundsAttr bounds = *entry.getBounds();
      out->max_tokens = static_cast<std::uint32_t>(bounds.getTokens());
      out->max_rows = static_cast<std::uint32_t>(bounds.getRows());
      out->max_sequences = static_cast<std::uint32_t>(bounds.getSequences());
      out->from_tokens = static_cast<std::uint32_t>(entry.getFrom().value_or(0));
      for (mlir::Attribute attribute : entry.getBuffersAttr()) {
        auto buffer = mlir::cast<kt::BufferAttr>(attribute);
        auto o = std::make_unique<planfb::BufferT>();
        o->name = buffer.getName().str();
        o->device = index_.devices.at(buffer.getDevice().str());
        o->role = static_cast<planfb::BufferRole>(buffer.getRole());
        o->symbol = buffer.getRole() == kt::BufferRole::workspace ? planfb::Symbol::workspace
                    : buffer.getDim() == kt::Dim::tokens          ? planfb::Symbol::tokens
                    : buffer.getDim() == kt::Dim::first_half      ? planfb::Symbol::first_half
                    : buffer.getDim() == kt::Dim::second_half     ? planfb::Symbol::second_half
                                                                  : planfb::Symbol::rows;
        o->format = static_cast<std::uint8_t>(*parse_format(buffer.getFormat().str()));
        o->columns = buffer.getColumns();
        o->row_bytes = buffer.getRowBytes();
        o->offset = buffer.getOffset();
        o->bytes = buffer.getBytes();
        out->buffers.push_back(std::move(o));
      }
      if (mlir::ArrayAttr graphs = entry.getGraphsAttr()) {
        for (auto graph : graphs.getAsRange<kt::GraphAttr>()) {
          auto o = std::make_unique<planfb::GraphT>();
          o->name = graph.getName().str();
          o->device = index_.devices.at(graph.getDevice().str());
          out->graphs.push_back(std::move(o));
        }
      }
      for (mlir::Operation& op : entry.getBody().front()) {
        auto step = mlir::dyn_cast<kt::StepOpInterface>(op);
        if (!step) continue;  // kt.return
        KTC_ASSIGN_OR_RETURN(std::unique_ptr<planfb::StepT> built, buildStep(step, index_));
        out->steps.push_back(std::move(built));
      }
      plan_.entries.push_back(std::move(out));
    }
    return {};
  }

  void addRopes() {
    for (mlir::Attribute attribute : index_.ropes) {
      auto rope = mlir::cast<kt::RopeAttr>(attribute);
      auto out = std::make_unique<planfb::RopeT>();
      out->style = rope.getStyle() == kt::RopeStyle::half ? planfb::RopeStyle::half : planfb::RopeStyle::interleaved;
      out->inv_freq.assign(rope.getInvFreq().asArrayRef().begin(), rope.getInvFreq().asArrayRef().end());
      out->factor = static_cast<float>(rope.getFactor().getValueAsDouble());
      plan_.ropes.push_back(std::move(out));
    }
  }

  mlir::ModuleOp module_;
  std::map<std::string, std::uint32_t> slots_;
  PlanIndex index_;
  planfb::PlanT plan_;
  std::vector<FileJobs> files_;
};

static_assert(static_cast<int>(kt::BufferRole::logits) == static_cast<int>(planfb::BufferRole::logits) &&
                  static_cast<int>(kt::BufferRole::workspace) == static_cast<int>(planfb::BufferRole::workspace) &&
                  static_cast<int>(kt::BufferRole::deferred) == static_cast<int>(planfb::BufferRole::deferred),
              "buffer roles are copied by value");

}  // namespace

Expected<PlanAndJobs> buildPlan(mlir::ModuleOp module, const models::ModelDesc& model) { return Builder(module, model).run(); }

}  // namespace ktc::compiler
