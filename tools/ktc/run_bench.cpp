#include "tools/ktc/run_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/exec/generator.h"
#include "tools/ktc/run_output.h"
#include "tools/ktc/run_session.h"

namespace ktc::run {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

Expected<exec::Throughput> measure(Session& session, std::vector<std::int32_t> prompt, std::uint32_t new_tokens) {
  std::vector<exec::Request> requests(1);
  requests[0].prompt = std::move(prompt);
  requests[0].max_tokens = new_tokens;
  KTC_ASSIGN_OR_RETURN(exec::GenerateResult result, exec::generate(*session.executor, std::move(requests)));
  KTC_RETURN_IF_ERROR(result.completions[0].status);
  return result.throughput;
}

}  // namespace

Status run_bench(const Options& options) {
  KTC_ASSIGN_OR_RETURN(Session session, open_plan(options));
  // the last token never enters the cache
  const std::uint64_t longest = std::uint64_t{session.longest_sequence()} + 1;
  if (std::uint64_t{options.bench_prompt} + options.bench_new > longest) {
    return longer_than_cache("--bench", fmt::format("{} + {} tokens", options.bench_prompt, options.bench_new),
                             longest);
  }
  KTC_RETURN_IF_ERROR(open_executor(options, session));
  const std::uint64_t seed = options.seed.value_or(0);
  std::vector<std::int32_t> prompt(options.bench_prompt);
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<std::int32_t>(exec::uniform(seed, i) * session.model().vocab_size);
  }
  // the first pass reads weights from disk and touches the caches
  KTC_RETURN_IF_ERROR(measure(session, prompt, std::min(options.bench_new, 2u)).status());
  if (session.experts != nullptr) session.experts->reset();  // that pass is not part of what is measured
  std::vector<double> prefill, decode;
  exec::Throughput total;
  for (std::uint32_t run = 0; run < options.repeat; ++run) {
    KTC_ASSIGN_OR_RETURN(const exec::Throughput t, measure(session, prompt, options.bench_new));
    prefill.push_back(t.prefill_tokens_per_second());
    decode.push_back(t.decode_tokens_per_second());
    total.prompt_tokens += t.prompt_tokens;
    total.prefill_time += t.prefill_time;
    total.decode_tokens += t.decode_tokens;
    total.decode_time += t.decode_time;
    note(
        fmt::format("run {}: prefill {:.1f} tokens/s, decode {:.1f} tokens/s", run + 1, prefill.back(), decode.back()));
  }
  KTC_RETURN_IF_ERROR(session.write_records());
  const Statistics statistics = session.statistics(total);
  note(to_text(statistics));
  if (!options.json) {
    return write_out(
        fmt::format("prefill {:.1f} tokens/s, decode {:.1f} tokens/s (medians of {} runs of {} + {} tokens)\n",
                    median(prefill), median(decode), options.repeat, options.bench_prompt, options.bench_new));
  }
  return write_out(to_line({{"prompt_tokens", options.bench_prompt},
                            {"new_tokens", options.bench_new},
                            {"seed", seed},
                            {"prefill_tokens_per_second", median(prefill)},
                            {"decode_tokens_per_second", median(decode)},
                            {"runs", {{"prefill_tokens_per_second", prefill}, {"decode_tokens_per_second", decode}}},
                            {"statistics", to_json(statistics)}}));
}

}  // namespace ktc::run
