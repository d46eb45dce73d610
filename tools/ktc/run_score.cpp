#include "tools/ktc/run_score.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "runtime/base/units.h"
#include "runtime/exec/scoring.h"
#include "runtime/safetensors/safetensors.h"
#include "tools/ktc/run_ids.h"
#include "tools/ktc/run_output.h"
#include "tools/ktc/run_session.h"
#include "tools/ktc/run_text.h"
#include "tools/ktc/run_windows.h"
#include "tools/ktc/text_file.h"

namespace ktc::run {
namespace {

using Clock = std::chrono::steady_clock;

// Logits are kept in memory until they are written.
constexpr std::uint64_t kLargestLogits = 1ull << 30;

Expected<Windows> text_windows(const Options& options, const Session& session) {
  const std::uint32_t longest = session.longest_sequence();
  const std::uint32_t window = options.window.value_or(longest);
  if (window > longest) return longer_than_cache("--window", fmt::format("{}", window), longest);
  KTC_ASSIGN_OR_RETURN(const std::string text, tools::read_text_file("--perplexity", *options.perplexity_text));
  KTC_ASSIGN_OR_RETURN(const Text tokenizer, Text::open(*session.plan));
  KTC_ASSIGN_OR_RETURN(std::vector<std::int32_t> ids, tokenizer.encode(text));
  if (ids.size() < 2) {
    return make_error(StatusCode::invalid_argument,
                      {.place = "--perplexity " + options.perplexity_text->string(),
                       .found = fmt::format("{} token{}", ids.size(), ids.size() == 1 ? "" : "s"),
                       .expected = "at least 2"});
  }
  return cut_windows(std::move(ids), window);
}

Expected<Windows> id_windows(const Options& options, const Session& session) {
  KTC_ASSIGN_OR_RETURN(IdRows rows, read_id_rows("--perplexity", *options.perplexity_ids, session.model().vocab_size));
  if (rows.columns < 2) {
    return make_error(StatusCode::invalid_argument, {.place = "--perplexity " + options.perplexity_ids->file.string(),
                                                     .found = "rows of 1 id",
                                                     .expected = "at least 2",
                                                     .remedy = "the first id conditions and is not predicted"});
  }
  if (rows.columns - 1 > session.longest_sequence()) {  // the last id is not run
    return longer_than_cache("--perplexity", fmt::format("rows of {} ids", rows.columns),
                             std::uint64_t{session.longest_sequence()} + 1);
  }
  Windows windows;
  for (std::uint64_t r = 0; r < rows.rows; ++r) windows.ranges.push_back({r * rows.columns, rows.columns});
  windows.ids = std::move(rows.ids);
  return windows;
}

// Minutes on a large model: says every few seconds how far it is.
class Ticker {
 public:
  void tick(std::size_t done, std::size_t total, double perplexity) {
    if (Clock::now() < next_ || done == total) return;
    next_ = Clock::now() + std::chrono::seconds(2);
    note(fmt::format("perplexity {:.4f} after {} of {} windows", perplexity, done, total));
  }

 private:
  Clock::time_point next_ = Clock::now() + std::chrono::seconds(2);
};

exec::Throughput prefill(std::uint64_t tokens, Clock::time_point start) {
  exec::Throughput result;
  result.prompt_tokens = tokens;
  result.prefill_time = Clock::now() - start;
  return result;
}

Status write_moments(const std::filesystem::path& file, const exec::Moments& moments) {
  std::vector<std::vector<float>> means;
  std::vector<safetensors::OutputTensor> tensors;
  means.reserve(moments.weights.size());  // tensors point into it
  for (const auto& [name, sum] : moments.weights) {
    std::vector<float>& mean = means.emplace_back();
    for (const double square : sum.squares)
      mean.push_back(static_cast<float>(square / static_cast<double>(std::max<std::uint64_t>(1, sum.rows))));
    tensors.push_back({.name = name, .dtype = "F32", .shape = {mean.size()}, .data = std::as_bytes(std::span(mean))});
  }
  KTC_RETURN_IF_ERROR(safetensors::write_file(file, tensors));
  note(fmt::format("wrote {}: second moments of the left operands of {} weights", file.string(), tensors.size()));
  return {};
}

}  // namespace

Status run_perplexity(const Options& options) {
  KTC_ASSIGN_OR_RETURN(Session session, open_plan(options));
  KTC_ASSIGN_OR_RETURN(const Windows windows,
                       options.perplexity_ids ? id_windows(options, session) : text_windows(options, session));
  exec::Moments moments;
  KTC_RETURN_IF_ERROR(open_executor(options, session, options.record_moments ? &moments : nullptr));
  const auto start = Clock::now();
  exec::Likelihood sum;
  Ticker ticker;
  for (std::size_t w = 0; w < windows.ranges.size(); ++w) {
    KTC_RETURN_IF_ERROR(
        exec::add_likelihood(*session.executor, windows.window(w), sum).with_context(fmt::format("window {}", w)));
    ticker.tick(w + 1, windows.ranges.size(), sum.perplexity());
  }
  const Statistics statistics = session.statistics(prefill(sum.tokens, start));
  note(to_text(statistics));
  KTC_RETURN_IF_ERROR(session.write_records());
  if (options.record_moments) KTC_RETURN_IF_ERROR(write_moments(*options.record_moments, moments));
  if (!options.json) {
    return write_out(fmt::format("perplexity {:.6f} over {} tokens in {} windows\n", sum.perplexity(), sum.tokens,
                                 windows.ranges.size()));
  }
  return write_out(to_line({{"perplexity", sum.perplexity()},
                            {"mean_negative_log_likelihood", sum.negative_sum / static_cast<double>(sum.tokens)},
                            {"tokens", sum.tokens},
                            {"windows", windows.ranges.size()},
                            {"statistics", to_json(statistics)}}));
}

Status run_logits(const Options& options) {
  KTC_ASSIGN_OR_RETURN(Session session, open_plan(options));
  const std::uint64_t vocabulary = session.model().vocab_size;
  KTC_ASSIGN_OR_RETURN(const IdRows rows, read_id_rows("--ids", *options.ids, session.model().vocab_size));
  if (rows.columns > session.longest_sequence()) {
    return longer_than_cache("--ids", fmt::format("rows of {} ids", rows.columns), session.longest_sequence());
  }
  // rows.ids is below 256 MiB and a vocabulary below 2^32: no overflow
  const std::uint64_t bytes = rows.ids.size() * vocabulary * sizeof(float);
  if (bytes > kLargestLogits) {
    return make_error(
        StatusCode::invalid_argument,
        {.place = "--logits",
         .what = "too large",
         .found = fmt::format("{} for {} ids of {} logits", format_bytes(bytes), rows.ids.size(), vocabulary),
         .expected = "at most " + format_bytes(kLargestLogits),
         .remedy = "give fewer ids"});
  }
  KTC_RETURN_IF_ERROR(open_executor(options, session));
  std::vector<float> logits;
  logits.reserve(bytes / sizeof(float));
  const auto start = Clock::now();
  for (std::uint64_t r = 0; r < rows.rows; ++r) {
    KTC_RETURN_IF_ERROR(
        exec::visit_logits(*session.executor, rows.row(r), [&](std::size_t, std::span<const float> row) {
          logits.insert(logits.end(), row.begin(), row.end());
          return Status();
        }).with_context(fmt::format("row {}", r)));
  }
  const Statistics statistics = session.statistics(prefill(rows.ids.size(), start));
  KTC_RETURN_IF_ERROR(session.write_records());
  const safetensors::OutputTensor tensor{.name = "logits",
                                         .dtype = "F32",
                                         .shape = {rows.rows, rows.columns, vocabulary},
                                         .data = std::as_bytes(std::span(logits))};
  KTC_RETURN_IF_ERROR(safetensors::write_file(*options.logits, std::span(&tensor, 1)));
  note(to_text(statistics));
  const std::string file = options.logits->string();
  if (!options.json) {
    return write_out(fmt::format("wrote {}: logits [{}, {}, {}]\n", file, rows.rows, rows.columns, vocabulary));
  }
  return write_out(to_line(
      {{"logits", file}, {"shape", {rows.rows, rows.columns, vocabulary}}, {"statistics", to_json(statistics)}}));
}

}  // namespace ktc::run
