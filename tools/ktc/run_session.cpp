#include "tools/ktc/run_session.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "runtime/base/progress.h"
#include "runtime/weights/host_memory.h"
#include "tools/ktc/run_choices.h"
#include "tools/ktc/run_output.h"

namespace ktc::run {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A worker or the driver hangs and run() will not return: without this, neither would the program.
void end_process(void*) {
  note("ktc-run: a device or a worker does not answer any more; the program ends without cleaning up");
  std::_Exit(2);
}

// ", cuda:0 (emulated), hand-off by doorbell"; nothing for a plan without GPUs.
std::string devices_text(const Options& options, const exec::Executor& executor) {
  std::string text;
  for (const auto& device : executor.plan().plan.devices)
    if (device->kind == planfb::DeviceKind::cuda) text += ", " + device->name + (options.emulate_gpu ? " (emulated)" : "");
  if (!text.empty()) text += fmt::format(", hand-off by {}", exec::to_string(executor.handoff()));
  return text;
}

}  // namespace

Expected<Session> open_plan(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  Session session;
  KTC_ASSIGN_OR_RETURN(session.plan, plan::open_plan(options.plan));
  session.load_seconds = seconds_since(start);
  return session;
}

Status longer_than_cache(std::string place, std::string found, std::uint64_t most) {
  return make_error(StatusCode::invalid_argument,
                    {.place = std::move(place),
                     .what = "longer than the KV cache",
                     .found = std::move(found),
                     .expected = fmt::format("at most {}", most),
                     .remedy = "shorten it, or compile with a larger kv_cache.tokens in the policy"});
}

Status open_executor(const Options& asked, Session& session, exec::Moments* moments) {
  const auto start = std::chrono::steady_clock::now();
  Options options = asked;
  KTC_RETURN_IF_ERROR(apply_choices(session.plan->plan, options));
  Progress progress("loading weights");
  exec::ExecutorOptions settings;
  settings.threads = options.threads;
  settings.nodes = options.nodes;
  settings.isa = options.isa;
  settings.emulate_gpu = options.emulate_gpu;
  settings.graphs = options.graphs;
  settings.device_sampling = options.device_sampling;
  settings.handoff = options.handoff;
  settings.products = options.products;
  settings.update = options.update;
  settings.wedged = end_process;
  settings.note = [](void*, std::string_view line) { note(line); };
  if (options.trace) {
    KTC_ASSIGN_OR_RETURN(session.trace, TraceFile::create(*options.trace, session.plan->plan));
    settings.tracer = session.trace->tracer();
  }
  if (options.record_experts) {
    KTC_ASSIGN_OR_RETURN(session.experts, ExpertRecorder::open(*options.record_experts, session.plan->plan));
    settings.expert_counts = session.experts->counts();
  }
  session.busy_shares = options.statistics;
  settings.moments = moments;
  // Weights that fit in memory are read now, with progress, so that the first tokens do not wait for the disk; larger ones
  // are read as they are used.
  std::uint64_t bytes = 0;
  for (const auto& weight : session.plan->plan.weights)
    if (weight->source == planfb::WeightSource::file && session.plan->plan.devices[weight->device]->kind == planfb::DeviceKind::cpu)
      bytes += weight->bytes;
  const std::optional<std::uint64_t> available = weights::available_memory();
  settings.populate = available && bytes < *available;
  settings.progress = {.report = Progress::report, .context = &progress};
  KTC_ASSIGN_OR_RETURN(session.executor, exec::Executor::open(session.plan, settings));
  progress.finish();
  session.load_seconds += seconds_since(start);
  const planfb::ModelT& model = session.model();
  note(fmt::format("loaded {} ({}, {} layers) in {:.2f} s: {} thread{}{}, {}", model.name, model.family, model.layers,
                   session.load_seconds, session.executor->threads(), session.executor->threads() == 1 ? "" : "s",
                   session.executor->nodes() == 1 ? "" : fmt::format(" on {} nodes", session.executor->nodes()), to_string(session.executor->isa())) +
       devices_text(options, *session.executor));
  return {};
}

}  // namespace ktc::run
