#include "tools/ktc/run_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/exec/generator.h"
#include "tools/ktc/run_output.h"
#include "tools/ktc/run_sampling.h"
#include "tools/ktc/run_session.h"

namespace ktc::run {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

Expected<exec::Throughput> measure(Session& session, const exec::SamplingParameters& sampling, std::vector<std::int32_t> prompt,
                                   std::uint32_t new_tokens) {
  std::vector<exec::Request> requests(1);
  requests[0].prompt = std::move(prompt);
  requests[0].sampling = sampling;
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
  const ResolvedSampling sampling = resolve_sampling(options, nullptr, seed);  // the plan's defaults are for texts
  KTC_RETURN_IF_ERROR(exec::check_sampling(sampling.parameters).with_context("--bench"));
  // Runs of one topic have prompts of their own; without topics all have the same.
  const std::uint64_t vocabulary = session.model().vocab_size;
  if (options.topics > vocabulary)
    return make_error(StatusCode::invalid_argument,
                      {"--topics", "ranges of ids", std::to_string(options.topics), fmt::format("at most {}, the ids", vocabulary), ""});
  const auto prompt_of = [&](std::uint32_t run) {
    const std::uint64_t topic = options.topic.value_or(run % options.topics);
    const std::uint64_t first = vocabulary * topic / options.topics, end = vocabulary * (topic + 1) / options.topics;
    const std::uint64_t draws = options.topics == 1 ? seed : seed + run + 1;
    std::vector<std::int32_t> prompt(options.bench_prompt);
    for (std::size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<std::int32_t>(static_cast<double>(first) + exec::uniform(draws, i) * static_cast<double>(end - first));
    return prompt;
  };
  // the first pass reads weights from disk and touches the caches
  KTC_RETURN_IF_ERROR(measure(session, sampling.parameters, prompt_of(0), std::min(options.bench_new, 2u)).status());
  if (session.experts != nullptr) session.experts->reset();  // that pass is not part of what is measured
  std::vector<double> prefill, decode, hit_rates;
  exec::Throughput total;
  exec::UpdateTrial before = session.executor->updates().value_or(exec::UpdateTrial{});
  for (std::uint32_t run = 0; run < options.repeat; ++run) {
    KTC_ASSIGN_OR_RETURN(const exec::Throughput t, measure(session, sampling.parameters, prompt_of(run), options.bench_new));
    prefill.push_back(t.prefill_tokens_per_second());
    decode.push_back(t.decode_tokens_per_second());
    total.prompt_tokens += t.prompt_tokens;
    total.prefill_time += t.prefill_time;
    total.decode_tokens += t.decode_tokens;
    total.decode_time += t.decode_time;
    std::string hits;
    if (const auto now = session.executor->updates(); now && now->pairs > before.pairs) {
      hit_rates.push_back(static_cast<double>(now->hits - before.hits) / static_cast<double>(now->pairs - before.pairs));
      hits = fmt::format(", {:.1f} % of pairs hot", 100 * hit_rates.back());
      before = *now;
    }
    note(fmt::format("run {}: prefill {:.1f} tokens/s, decode {:.1f} tokens/s{}", run + 1, prefill.back(), decode.back(), hits));
  }
  KTC_RETURN_IF_ERROR(session.write_records());
  const Statistics statistics = session.statistics(total);
  note(to_text(statistics));
  if (!options.json) {
    return write_out(
        fmt::format("prefill {:.1f} tokens/s, decode {:.1f} tokens/s (medians of {} runs of {} + {} tokens)\n",
                    median(prefill), median(decode), options.repeat, options.bench_prompt, options.bench_new));
  }
  nlohmann::ordered_json runs = {{"prefill_tokens_per_second", prefill}, {"decode_tokens_per_second", decode}};
  if (!hit_rates.empty()) runs["hit_rate"] = hit_rates;
  return write_out(to_line({{"prompt_tokens", options.bench_prompt},
                            {"new_tokens", options.bench_new},
                            {"seed", seed},
                            {"prefill_tokens_per_second", median(prefill)},
                            {"decode_tokens_per_second", median(decode)},
                            {"sampling", sampling.description},
                            {"runs", std::move(runs)},
                            {"statistics", to_json(statistics)}}));
}

}  // namespace ktc::run
