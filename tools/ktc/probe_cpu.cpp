#include <algorithm>
#include <chrono>

#include "runtime/exec/cpu_count.h"
#include "runtime/weights/host_memory.h"
#include "tools/ktc/bench_experts.h"
#include "tools/ktc/probe_machine.h"

namespace ktc::tools {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Layers of a model of 30B parameters: small experts, so that what is not reading counts.
bench::ExpertsOptions options_for(std::vector<std::string> formats, std::vector<std::uint32_t> tokens, double gib) {
  bench::ExpertsOptions options;
  options.experts = 128, options.hidden = 2048, options.intermediate = 768, options.top_k = 8;
  options.tokens = std::move(tokens);
  options.format_names = std::move(formats);
  options.rounds = 5;
  options.gib = gib;
  return options;
}

Expected<bench::ExpertsResult> measure(bench::ExpertsOptions options) {
  KTC_RETURN_IF_ERROR(bench::check(options));
  return bench::measure_experts(options);
}

Expected<double> loop_us() {
  constexpr int kLoops = 5000;
  KTC_ASSIGN_OR_RETURN(const auto workers, exec::Workers::create(exec::default_thread_count()));
  const auto count = static_cast<std::size_t>(4 * workers->threads());
  double best = 0;
  for (int round = 0; round < 3; ++round)
    workers->enter([&] {
      const double start = now();
      for (int i = 0; i < kLoops; ++i) workers->parallel_for(count, 1, [](std::size_t, std::size_t) {});
      const double us = (now() - start) / kLoops * 1e6;
      best = round == 0 ? us : std::min(best, us);
    });
  return best;
}

}  // namespace

Status probe_cpu(placement::CpuTarget* cpu) {
  double gib = 1;
  if (const auto available = weights::available_memory())
    gib = std::clamp(static_cast<double>(*available) / (std::uint64_t{1} << 30) / 8, 0.25, 1.0);
  KTC_ASSIGN_OR_RETURN(const bench::ExpertsResult result, measure(options_for({"int8", "int4/64", "fp8/128"}, {1, 64}, gib)));
  cpu->read_gb_per_s = result.read.median / 1e9;
  if (result.peak_tiled) {
    cpu->amx_int8_tops = result.integer_peak.median / 1e12;
    bench::ExpertsOptions vectors = options_for({"int8"}, {1}, 0.25);
    vectors.isa = "avx512_vnni";
    vectors.rounds = 3;
    KTC_ASSIGN_OR_RETURN(const bench::ExpertsResult few, measure(std::move(vectors)));
    cpu->vnni_tops = few.integer_peak.median / 1e12;
  } else {
    cpu->vnni_tops = result.integer_peak.median / 1e12;
  }
  for (const bench::CaseResult& c : result.cases)
    if (c.routing.per_expert == 1) cpu->read_efficiency[c.format.format] = std::clamp(c.of_read.median, 0.01, 1.0);
  for (const bench::CaseResult& c : result.cases) {
    if (c.routing.per_expert == 1 || !c.tiled) continue;
    // what is left when half of the reading is taken away, as the cost model adds it (cost_model.h)
    const double reading = c.bytes / (result.read.median * cpu->read_efficiency[c.format.format]);
    const double computing = std::max(c.seconds.median - reading / 2, c.seconds.median / 2);
    const double peak = c.format.integer() ? result.integer_peak.median : result.float_peak.median;
    if (peak > 0) cpu->matrix_efficiency[c.format.format] = std::clamp(c.operations / computing / peak, 0.001, 1.0);
  }
  KTC_ASSIGN_OR_RETURN(cpu->kernel_us, loop_us());
  return {};
}

}  // namespace ktc::tools
