#include "compiler/pipeline/Pipeline.h"

#include <map>

#include "compiler/import/Import.h"
#include "compiler/passes/Passes.h"
#include "compiler/pipeline/Diagnostics.h"
#include "dialects/kt/KtWalk.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassRegistry.h"
#include "runtime/base/units.h"

namespace ktc::compiler {

// ------------------------------------------------------------------------------------------------------------------
// the order

namespace {

// The passes that establish one phase. The check at its end always runs: it costs a walk, and it says which pass broke
// what.
void addPhase(mlir::OpPassManager& passes, Phase phase, const PipelineOptions& options) {
  auto enabled = [&](std::string_view pass) { return !llvm::is_contained(options.disabled, pass); };
  switch (phase) {
    case Phase::imported: {
      // First, because everything behind it wants bounds, and because a decision may differ between prefill and decode.
      SpecialiseEntriesOptions entries;
      entries.decode.assign(options.batch.decode.begin(), options.batch.decode.end());
      entries.chunk = options.batch.chunk;
      entries.streamChunk = options.batch.stream_chunk;
      passes.addPass(createSpecialiseEntries(entries));
      passes.addPass(createVerifyImported());
      return;
    }
    case Phase::placed:
      // Before any fold: rules of the policy match modules of the checkpoint, one weight each.
      passes.addPass(options.makePlace());
      passes.addPass(createSplitExperts({.enable = enabled("split-experts")}));
      passes.addPass(createVerifyPlaced());
      return;
    case Phase::transferred:
      // In front of every fold: they reason about modules, not about fused ops. Deferral first: it says what is added where,
      // and transfers follow.
      passes.addPass(createDeferExperts({.enable = enabled("defer-experts")}));
      // Behind it, so that what is late does not depend on the entry.
      passes.addPass(createStreamExperts({.chunk = enabled("stream-experts") ? options.batch.stream_chunk : 0}));
      passes.addPass(createInsertTransfers());
      passes.addPass(createVerifyTransferred());
      return;
    case Phase::optimised:
      // Needs places: only projections in one place may become one. Also legalises kv_b, so it is not optional.
      passes.addPass(createFoldWeights({.enable = enabled("fold-weights")}));
      if (enabled("fuse")) passes.addPass(createFuse());
      // Behind the folds: what is cut, and ordered, is kernels. Halves without an order are no faster.
      if (enabled("halve-batches") && enabled("schedule")) passes.addPass(options.makeHalve());
      if (enabled("schedule")) passes.addPass(options.makeSchedule());
      passes.addPass(createVerifyOptimised());
      return;
    case Phase::tiled:
      // After the folds: a packing is for the matrix that a kernel reads, whatever it was made of.
      passes.addPass(options.makeTile());
      passes.addPass(createVerifyTiled());
      return;
    case Phase::lowered:
      if (enabled("form-cuda-graphs")) passes.addPass(createFormCudaGraphs());
      // Steps of one graph alone are one launch; in front of memory, because they are alive together.
      if (enabled("join-launches")) passes.addPass(createJoinLaunches());
      // Last: an address is for a step that nothing moves any more.
      passes.addPass(createPlanMemory());
      passes.addPass(createVerifyLowered());
      return;
    case Phase::planned: return;  // emit
  }
}

}  // namespace

void buildPipeline(mlir::OpPassManager& passes, std::optional<Phase> from, Phase to, const PipelineOptions& options) {
  int first = from ? static_cast<int>(*from) + 1 : 0;
  for (int phase = first; phase <= static_cast<int>(to); ++phase) addPhase(passes, static_cast<Phase>(phase), options);
}

// ---------------------------------------------------------------------------------------------------------------------
// phases

std::optional<Phase> parsePhase(std::string_view name) {
  return kt::symbolizePhase(llvm::StringRef(name.data(), name.size()));
}

std::string listPhases() {
  std::string list;
  for (unsigned i = 0; i <= static_cast<unsigned>(Phase::planned); ++i) {
    list += (list.empty() ? "" : ", ") + kt::stringifyPhase(static_cast<Phase>(i)).str();
  }
  return list;
}

Expected<std::string> parseSwitchable(std::string_view name) {
  std::string bare(name.substr(name.substr(0, 3) == "kt-" ? 3 : 0)), list;
  for (std::string_view known : kSwitchable) {
    if (bare == known) return bare;
    list += (list.empty() ? "" : ", ") + std::string(known);
  }
  return make_error(StatusCode::invalid_argument, {.place = "--disable-pass",
                                                   .what = "no optimisation of that name",
                                                   .found = std::string(name),
                                                   .expected = "one of " + list});
}

// --------------------------------------------------------------------------------------------------------------------
// running

namespace {

// Placement compared an upper bound of the arena with what a device may hold; now the account is final. It cannot have
// grown on the way from a checkpoint, but it can in text that somebody edited.
Status checkBudget(mlir::ModuleOp module, const placement::Policy& policy, const placement::Target& target) {
  std::map<std::string, uint64_t> needs;
  for (auto line : module->getAttrOfType<mlir::ArrayAttr>(kt::kAccount).getAsRange<kt::AccountAttr>()) {
    uint64_t& need = needs[line.getDevice().str()];
    if (__builtin_add_overflow(need, line.getBytes(), &need)) need = UINT64_MAX;
  }
  for (const auto& [device, need] : needs) {
    auto limit = policy.limits.find(device);
    uint64_t most = limit != policy.limits.end() ? limit->second.bytes : target.memory_of(device);
    if (most == 0 || need <= most) continue;  // 0: unknown
    return make_error(StatusCode::resource_exhausted,
                      {.place = limit != policy.limits.end() ? to_string(limit->second.position) : policy.file,
                       .what = device + " is too small",
                       .found = format_bytes(need),
                       .expected = "at most " + format_bytes(most),
                       .remedy = "lower batch.chunk or kv_cache.tokens, or start from the checkpoint"});
  }
  return {};
}

Status runPasses(mlir::ModuleOp module, std::optional<Phase> from, const placement::Policy& policy,
                 const placement::Target& target, const CompileOptions& options, PlacedModel placed = {}) {
  DiagnosticCollector diagnostics(*module.getContext(), options.remarks);
  Status placing;
  mlir::PassManager passes(module.getContext());
  passes.enableVerifier(true);
  buildPipeline(passes, from, std::min(options.stop, Phase::lowered),
                {policy.batch, [&] { return createPlace(policy, target, placing, placed); },
                 [&] { return createTileCpu(target, options.tile, policy.activation_group); },
                 [&] { return createSchedule(target, policy.activation_group); },
                 options.disabled,
                 [&] { return createHalveBatches(target, policy.activation_group, options.halves_below); }});
  if (mlir::succeeded(passes.run(module))) {
    return options.stop >= Phase::lowered ? checkBudget(module, policy, target) : Status();
  }
  if (!placing.ok()) return placing;
  return diagnostics.status(StatusCode::internal, "the compiler broke its own rules; please report this");
}

}  // namespace

Expected<mlir::OwningOpRef<mlir::ModuleOp>> compileTo(mlir::MLIRContext& context, const models::ModelDesc& model,
                                                      const placement::Policy& policy, const placement::Target& target,
                                                      const CompileOptions& options) {
  KTC_ASSIGN_OR_RETURN(mlir::OwningOpRef<mlir::ModuleOp> module, importModel(context, model, policy, target));
  KTC_RETURN_IF_ERROR(runPasses(*module, std::nullopt, policy, target, options, {&model, options.placed}));
  return module;
}

Status resume(mlir::ModuleOp module, std::optional<Phase> start, const placement::Policy& policy,
              const placement::Target& target, const CompileOptions& options) {
  std::optional<Phase> phase = kt::phaseOf(module);
  auto name = [](std::optional<Phase> p) { return p ? kt::stringifyPhase(*p).str() : std::string("no phase"); };
  if (start && phase != start) {
    return make_error(StatusCode::invalid_argument, {.place = "--start-from",
                                                     .what = "the IR is in another phase",
                                                     .found = name(phase),
                                                     .expected = name(start),
                                                     .remedy = "name the phase that kt.phase states"});
  }
  if (phase && *phase > options.stop) {
    return make_error(StatusCode::invalid_argument, {.place = "--stop-after",
                                                     .what = "the IR is past that phase",
                                                     .found = name(phase),
                                                     .expected = "at most " + name(options.stop),
                                                     .remedy = "stop later, or start from an earlier text"});
  }
  return runPasses(module, phase, policy, target, options);
}

Expected<mlir::OwningOpRef<mlir::ModuleOp>> parseModule(mlir::MLIRContext& context, std::string_view text,
                                                        std::string_view name) {
  context.loadDialect<kt::KtDialect>();
  DiagnosticCollector diagnostics(context, nullptr);
  auto module = mlir::parseSourceString<mlir::ModuleOp>(llvm::StringRef(text.data(), text.size()), &context,
                                                        llvm::StringRef(name.data(), name.size()));
  if (!module) return diagnostics.status(StatusCode::invalid_argument, "write it with --stop-after, or correct it");
  // text outside the braces becomes a module around ours, which no pass would look into
  if (module->getOps<kt::EntryOp>().empty()) {
    return make_error(StatusCode::invalid_argument, {.place = std::string(name),
                                                     .what = "no kt.entry in the module",
                                                     .expected = "one module, with nothing outside its braces",
                                                     .remedy = "write it with --stop-after, or correct it"});
  }
  return module;
}

std::string printModule(mlir::ModuleOp module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  mlir::OpPrintingFlags flags;
  flags.enableDebugInfo(/*enable=*/true, /*prettyForm=*/false);
  module.print(stream, flags);
  stream << "\n";
  return text;
}

// ---------------------------------------------------------------------------------------------------------------- for
// ktc-opt

namespace {

enum class Start { fresh = -1, imported, placed, transferred, optimised, tiled, lowered };

struct PipelineFlags : mlir::PassPipelineOptions<PipelineFlags> {
  Option<Start> from{
      *this, "from", llvm::cl::desc("phase that the input is in"), llvm::cl::init(Start::fresh),
      llvm::cl::values(clEnumValN(Start::fresh, "fresh", "as import makes it"),
                       clEnumValN(Start::imported, "imported", ""), clEnumValN(Start::placed, "placed", ""),
                       clEnumValN(Start::transferred, "transferred", ""), clEnumValN(Start::optimised, "optimised", ""),
                       clEnumValN(Start::tiled, "tiled", ""), clEnumValN(Start::lowered, "lowered", ""))};
  Option<Phase> to{
      *this, "to", llvm::cl::desc("phase to stop after"), llvm::cl::init(Phase::lowered),
      llvm::cl::values(clEnumValN(Phase::imported, "imported", ""), clEnumValN(Phase::placed, "placed", ""),
                       clEnumValN(Phase::transferred, "transferred", ""), clEnumValN(Phase::optimised, "optimised", ""),
                       clEnumValN(Phase::tiled, "tiled", ""), clEnumValN(Phase::lowered, "lowered", ""))};
  Option<std::string> policy{*this, "policy", llvm::cl::desc("policy file for kt-place")};
  Option<std::string> target{*this, "target", llvm::cl::desc("target file for kt-place (default: this machine)")};
  ListOption<uint32_t> decode{*this, "decode", llvm::cl::desc("buckets of decode and sample")};
  Option<uint32_t> chunk{*this, "chunk", llvm::cl::desc("tokens of an extend step"), llvm::cl::init(512)};
  ListOption<std::string> disable{*this, "disable", llvm::cl::desc("optimisations to leave out, for example fuse,schedule")};
  Option<double> halvesBelow{*this, "halves-below", llvm::cl::desc("halves take at most this share of the whole's predicted time"),
                             llvm::cl::init(kHalvesBelow)};
  Option<uint32_t> streamChunk{*this, "stream-chunk", llvm::cl::desc("tokens of a streamed extend step"),
                               llvm::cl::init(0)};
};

}  // namespace

void registerPipeline() {
  mlir::PassPipelineRegistration<PipelineFlags>(
      "kt-pipeline", "the compiler's pipeline from one phase to another",
      [](mlir::OpPassManager& passes, const PipelineFlags& flags) {
        PipelineOptions options;
        if (!flags.decode.empty()) options.batch.decode.assign(flags.decode.begin(), flags.decode.end());
        options.batch.chunk = flags.chunk;
        options.batch.stream_chunk = flags.streamChunk;
        options.makePlace = [&] { return createPlace(PlaceOptions{flags.policy, flags.target}); };
        options.makeTile = [&] {
          TileCpuOptions tile;
          tile.target = flags.target;
          return createTileCpu(tile);
        };
        options.makeSchedule = [&] {
          ScheduleOptions schedule;
          schedule.target = flags.target;
          return createSchedule(schedule);
        };
        options.makeHalve = [&] {
          HalveBatchesOptions halve;
          halve.target = flags.target;
          halve.below = flags.halvesBelow;
          return createHalveBatches(halve);
        };
        for (const std::string& name : flags.disable) {
          Expected<std::string> pass = parseSwitchable(name);
          if (!pass.ok()) llvm::report_fatal_error(llvm::StringRef(pass.status().message()), /*gen_crash_diag=*/false);
          options.disabled.push_back(*pass);
        }
        std::optional<Phase> from;
        if (flags.from != Start::fresh) from = static_cast<Phase>(flags.from.getValue());
        buildPipeline(passes, from, flags.to, options);
      });
}

}  // namespace ktc::compiler
