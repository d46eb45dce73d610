#include "tools/ktc/run_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "tools/ktc/run_interrupt.h"
#include "tools/ktc/run_output.h"
#include "tools/ktc/text_file.h"

namespace ktc::run {
namespace {

using Ids = std::vector<std::int32_t>;

std::string flag_of(const PromptSource& source) {
  return source.file ? "--prompt-file " + source.file->string() : "--prompt";
}

Expected<std::vector<std::string>> read_prompts(const Options& options) {
  std::vector<std::string> texts;
  for (const PromptSource& source : options.prompts) {
    if (source.file) {
      KTC_ASSIGN_OR_RETURN(texts.emplace_back(), tools::read_text_file("--prompt-file", *source.file));
    } else {
      texts.push_back(source.text);
    }
  }
  return texts;
}

// Checked before the caches are allocated; the scheduler would refuse the same later.
Expected<std::vector<Ids>> encode_prompts(const Options& options, const Speaker& speaker,
                                          const std::vector<std::string>& texts) {
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string flag = flag_of(options.prompts[i]);
    std::vector<Message> messages;
    if (options.system) messages.push_back({"system", *options.system});
    messages.push_back({"user", texts[i]});
    KTC_ASSIGN_OR_RETURN(Ids ids, options.chat ? speaker.text.encode_chat(messages) : speaker.text.encode(texts[i]));
    if (ids.empty()) {
      return make_error(StatusCode::invalid_argument,
                        {.place = flag, .what = "empty prompt", .found = "0 tokens", .expected = "at least 1"});
    }
    if (ids.size() > speaker.session.longest_sequence()) {
      return longer_than_cache(flag, fmt::format("{} tokens", ids.size()), speaker.session.longest_sequence());
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

nlohmann::ordered_json to_json(const Ids& prompt, const Answer& answer, const Statistics& statistics) {
  return {{"prompt_ids", prompt},
          {"ids", answer.ids},
          {"text", answer.text},
          {"finish_reason", exec::to_string(answer.reason)},
          {"statistics", to_json(statistics)}};
}

std::string heading(std::size_t index, std::size_t count, std::string_view prompt) {
  return fmt::format("==> {} of {}: {}\n", index + 1, count, prompt);
}

}  // namespace

Expected<Speaker> open_speaker(const Options& options) {
  KTC_ASSIGN_OR_RETURN(Session session, open_plan(options));
  const auto start = std::chrono::steady_clock::now();
  KTC_ASSIGN_OR_RETURN(Text text, Text::open(*session.plan, options.chat));
  session.load_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const planfb::ModelT& model = session.model();
  std::random_device device;
  const std::uint64_t random_seed = (std::uint64_t{device()} << 32) | device();
  ResolvedSampling sampling = resolve_sampling(options, model.sampling.get(), random_seed);
  KTC_RETURN_IF_ERROR(exec::check_sampling(sampling.parameters).with_context("sampling defaults of the plan"));
  note("sampling: " + sampling.description);
  note(options.ignore_eos ? "stop tokens: ignored" : "stop tokens: " + text.describe_stop_tokens(model.stop_tokens));
  return Speaker{std::move(session), std::move(text), std::move(sampling)};
}

Expected<Answers> answer(Speaker& speaker, const Options& options, const std::vector<Ids>& prompts,
                         const std::function<Status(std::string_view)>& stream, const std::atomic<bool>& stop) {
  const Ids& stop_ids = speaker.session.model().stop_tokens;
  Answers result;
  result.answers.resize(prompts.size());
  std::vector<text::StreamDecoder> decoders;
  decoders.reserve(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) decoders.emplace_back(speaker.text.tokenizer(), true);
  Status stream_status;
  auto grow = [&](std::size_t i, std::string_view piece) {
    result.answers[i].text += piece;
    if (i == 0 && stream && stream_status.ok() && !piece.empty()) stream_status = stream(piece);
  };

  std::vector<exec::Request> requests(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    exec::Request& request = requests[i];
    request.prompt = prompts[i];
    request.sampling = speaker.sampling.parameters;
    request.max_tokens = options.max_tokens;
    request.stop_ids = stop_ids;
    request.ignore_eos = options.ignore_eos;
    request.on_token = [&, i](exec::RequestId, std::int32_t id) {
      const bool ends = !options.ignore_eos && std::ranges::find(stop_ids, id) != stop_ids.end();
      if (!ends) grow(i, decoders[i].push(id));  // a stop token need not be a special one, and is no text all the same
      return i > 0 || stream_status.ok();
    };
  }
  KTC_ASSIGN_OR_RETURN(exec::GenerateResult generated,
                       exec::generate(*speaker.session.executor, std::move(requests), &stop));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    grow(i, decoders[i].finish());
    exec::Completion& completion = generated.completions[i];
    result.answers[i].ids = std::move(completion.ids);
    result.answers[i].reason = completion.reason;
    result.answers[i].status = std::move(completion.status);
  }
  KTC_RETURN_IF_ERROR(stream_status);
  result.throughput = generated.throughput;
  return result;
}

Status run_generate(const Options& options) {
  KTC_ASSIGN_OR_RETURN(const std::vector<std::string> texts, read_prompts(options));
  KTC_ASSIGN_OR_RETURN(Speaker speaker, open_speaker(options));
  KTC_ASSIGN_OR_RETURN(const std::vector<Ids> prompts, encode_prompts(options, speaker, texts));
  KTC_RETURN_IF_ERROR(open_executor(options, speaker.session));

  const bool streams = prompts.size() == 1 && !options.json;
  const Interrupt interrupt;
  KTC_ASSIGN_OR_RETURN(
      Answers result, answer(speaker, options, prompts, streams ? write_out : std::function<Status(std::string_view)>(),
                             interrupt.flag()));
  KTC_RETURN_IF_ERROR(speaker.session.write_records());
  const Statistics statistics = speaker.session.statistics(result.throughput);
  if (streams) KTC_RETURN_IF_ERROR(write_out("\n"));
  Status first_failure;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Answer& a = result.answers[i];
    if (options.json) {
      KTC_RETURN_IF_ERROR(write_out(to_line(to_json(prompts[i], a, statistics))));
    } else if (!streams) {
      KTC_RETURN_IF_ERROR(write_out(heading(i, prompts.size(), texts[i]) + a.text + "\n"));
    }
    if (first_failure.ok() && !a.status.ok()) {
      first_failure = prompts.size() == 1 ? a.status : a.status.with_context(fmt::format("prompt {}", i + 1));
    }
  }
  note(to_text(statistics));
  return first_failure;
}

}  // namespace ktc::run
