#include "tools/ktc/run_statistics.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "runtime/base/units.h"

namespace ktc::run {

Statistics collect_statistics(double load_seconds, const exec::Executor& executor, const exec::Throughput& throughput) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {.load_seconds = load_seconds,
          .throughput = throughput,
          .peak_memory_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024,  // Linux counts KiB
          .threads = executor.threads(),
          .isa = std::string(to_string(executor.isa())),
          .busy = executor.busy(),
          .gpu = executor.plan().plan.devices.size() > 1,
          .updates = executor.updates()};
}

namespace {

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

nlohmann::ordered_json to_json(const Statistics& s) {
  nlohmann::ordered_json json = {{"load_seconds", s.load_seconds},
          {"prompt_tokens", s.throughput.prompt_tokens},
          {"prefill_tokens_per_second", s.throughput.prefill_tokens_per_second()},
          {"decode_tokens", s.throughput.decode_tokens},
          {"decode_tokens_per_second", s.throughput.decode_tokens_per_second()},
          {"peak_memory_bytes", s.peak_memory_bytes},
          {"threads", s.threads},
          {"isa", s.isa}};
  if (s.busy_shares) {
    json["cpu_busy"] = share(s.busy.cpu, s.busy.steps);
    if (s.gpu) json["gpu_busy_at_least"] = share(s.busy.wait, s.busy.steps);
  }
  if (s.busy.streamed_pairs != 0) json["streamed_pairs_on_cpu"] = share(s.busy.shared_pairs, s.busy.streamed_pairs);
  if (const auto& u = s.updates)
    json["moved_experts"] = {{"moves", u->moves},
                             {"hit_rate", share(u->hits, u->pairs)},
                             {"hit_rate_without", share(u->initial_hits, u->pairs)},
                             {"saved_seconds", u->gain_seconds()},
                             {"cost_seconds", u->cost_seconds}};
  return json;
}

std::string to_text(const Statistics& s) {
  std::string text = fmt::format("prefill {} tokens, {:.1f} tokens/s", s.throughput.prompt_tokens,
                                 s.throughput.prefill_tokens_per_second());
  if (s.throughput.decode_tokens > 0) {
    text += fmt::format("; decode {} tokens, {:.1f} tokens/s", s.throughput.decode_tokens,
                        s.throughput.decode_tokens_per_second());
  }
  if (s.busy_shares) {
    text += fmt::format("; CPU busy {:.1f} %", 100 * share(s.busy.cpu, s.busy.steps));
    if (s.gpu) text += fmt::format(", GPU at least {:.1f} %", 100 * share(s.busy.wait, s.busy.steps));
  }
  if (s.busy_shares && s.busy.streamed_pairs != 0)
    text += fmt::format("; of streamed experts' pairs {:.1f} % on the CPU", 100 * share(s.busy.shared_pairs, s.busy.streamed_pairs));
  if (s.updates && s.busy_shares) text += "; " + exec::to_text(*s.updates);
  return text + fmt::format("; load {:.2f} s; memory {}; {} thread{}, {}", s.load_seconds,
                            format_bytes(s.peak_memory_bytes), s.threads, s.threads == 1 ? "" : "s", s.isa);
}

std::string to_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace ktc::run
