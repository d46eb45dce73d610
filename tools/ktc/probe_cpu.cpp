#include <algorithm>
#include <chrono>
#include <map>

#include "runtime/base/cpu_features.h"
#include "runtime/exec/cpu_count.h"
#include "runtime/weights/host_memory.h"
#include "tools/ktc/bench_experts.h"
#include "tools/ktc/probe_machine.h"

namespace ktc::tools {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::uint32_t kHidden = 2048;

// Layers of a model of 30B parameters: small experts, so that what is not reading counts.
bench::ExpertsOptions options_for(std::vector<std::string> formats, std::vector<std::uint32_t> tokens, double gib) {
  bench::ExpertsOptions options;
  options.experts = 128, options.hidden = kHidden, options.intermediate = 768, options.top_k = 8;
  options.tokens = std::move(tokens);
  options.format_names = std::move(formats);
  options.rounds = 4;
  options.gib = gib;
  return options;
}

// Experts so small that a cache holds them all; of the tiny ones a value costs more than its multiplications.
bench::ExpertsOptions cached_options(std::uint32_t hidden, std::uint32_t intermediate, std::vector<std::uint32_t> tokens) {
  bench::ExpertsOptions options = options_for({"int8"}, std::move(tokens), 1.0 / 1024);
  options.experts = 32, options.hidden = hidden, options.intermediate = intermediate;
  return options;
}
constexpr std::uint32_t kTinyHidden = 256, kTinyIntermediate = 128;

constexpr double kTinyValues = 2 * kTinyIntermediate + kTinyHidden;  // that a row and an expert write
constexpr double kVectorReach = 0.9;                                  // as in placement/product_time.cpp
constexpr double kTileRest = 8;

Expected<bench::ExpertsResult> measure(bench::ExpertsOptions options) {
  KTC_RETURN_IF_ERROR(bench::check(options));
  return bench::measure_experts(options);
}

// probe_cpu_plans sets their efficiencies: a rate keeps its value when the peak that it is a share of changes.
bool solved_by_plans(Format format) { return format == Format::f32 || format == Format::bf16; }

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
  const CpuFeatures& features = host_cpu_features();
  const bool tiles = features.amx_tile && features.amx_int8;
  std::vector<std::string> formats = {"int8", "int4/64", "fp8/128"};
  if (tiles && features.amx_bf16) formats.push_back("bf16");
  KTC_ASSIGN_OR_RETURN(const bench::ExpertsResult result,
                       measure(options_for(formats, tiles ? std::vector<std::uint32_t>{1, 64, 512} : std::vector<std::uint32_t>{1, 64}, gib)));
  cpu->read_gb_per_s = result.read_mean / 1e9;
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
  std::map<Format, double> single;  // bytes per second of experts of one token
  for (const bench::CaseResult& c : result.cases)
    if (c.routing.per_expert == 1) {
      cpu->read_efficiency[c.format.format] = std::clamp(c.of_read.median, 0.01, 1.0);
      single[c.format.format] = c.bytes_per_second.median;
    }
  KTC_ASSIGN_OR_RETURN(const bench::ExpertsResult tiny, measure(cached_options(kTinyHidden, kTinyIntermediate, {1})));
  KTC_ASSIGN_OR_RETURN(const bench::ExpertsResult middle, measure(cached_options(1024, 512, {1})));
  // what more bytes take, without what every layer takes
  const double more_bytes = middle.cases[0].bytes - tiny.cases[0].bytes, more_time = middle.cases[0].seconds.median - tiny.cases[0].seconds.median;
  cpu->cache_gb_per_s = std::clamp(more_bytes / std::max(more_time, 1e-9) / 1e9, cpu->read_gb_per_s / 2, cpu->read_gb_per_s * 20);

  // What is left of tiny matrices when the multiplications are taken away; kernels without tiles write values one panel at a time.
  {
    bench::ExpertsOptions plain = cached_options(kTinyHidden, kTinyIntermediate, {64});
    if (result.peak_tiled) plain.isa = "avx512_vnni";
    KTC_ASSIGN_OR_RETURN(const bench::ExpertsResult values, measure(std::move(plain)));
    const bench::CaseResult& c = values.cases[0];
    const double left = c.seconds.median - c.operations / (kVectorReach * cpu->vnni_tops * 1e12);
    cpu->value_ns = std::max(left, c.seconds.median / 10) * 1e9 * cpu->cores / (kTinyValues * static_cast<double>(c.routing.pairs()));
  }
  for (const bench::CaseResult& c : result.cases) {
    if (c.routing.per_expert == 1 || !c.tiled) continue;
    // what is left when half of the reading and the rows' preparation are taken away, as the cost model adds them (cost_model.h)
    const double reading = c.bytes / single[c.format.format];
    const double rest = reading / 2 + static_cast<double>(c.routing.tokens) * kHidden * cpu->value_ns * 1e-9 / cpu->cores;
    const double computing = std::max(c.seconds.median - rest, c.seconds.median / 2);
    const double peak = c.format.integer() ? result.integer_peak.median : result.float_peak.median;
    const double rows = static_cast<double>(c.routing.per_expert), share = c.operations * (1 + kTileRest / rows) / computing / peak;
    if (peak > 0) (rows > 64 ? cpu->many_rows_efficiency : cpu->matrix_efficiency)[c.format.format] = std::clamp(share, 0.001, 1.0);
  }
  KTC_ASSIGN_OR_RETURN(cpu->kernel_us, loop_us());
  return {};
}

Status probe_cpu_again(placement::CpuTarget* cpu) {
  placement::CpuTarget later = *cpu;
  KTC_RETURN_IF_ERROR(probe_cpu(&later));
  const placement::CpuTarget first = *cpu;
  cpu->vnni_tops = (first.vnni_tops + later.vnni_tops) / 2;
  cpu->amx_int8_tops = (first.amx_int8_tops + later.amx_int8_tops) / 2;
  cpu->value_ns = (first.value_ns + later.value_ns) / 2;
  const auto mean = [&](placement::Efficiency* to, const placement::Efficiency& other) {
    for (auto& [format, share] : *to) {
      const double before = format == Format::f32 ? first.vnni_tops : first.amx_int8_tops;
      const double after = format == Format::f32 ? later.vnni_tops : later.amx_int8_tops;
      if (before <= 0 || after <= 0) continue;
      const auto found = other.find(format);
      const double rate = share * before, again = solved_by_plans(format) || found == other.end() ? rate : found->second * after;
      share = std::min(1.0, (rate + again) / (before + after));
    }
  };
  mean(&cpu->matrix_efficiency, later.matrix_efficiency);
  mean(&cpu->many_rows_efficiency, later.many_rows_efficiency);
  mean(&cpu->linear_efficiency, {});  // the same rate of the new peak
  return {};
}

}  // namespace ktc::tools
