#include "tools/ktc/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "runtime/exec/sampling.h"
#include "tools/ktc/run_choices.h"

namespace ktc::run {
namespace {

constexpr unsigned kGenerate = 1, kChat = 2, kPerplexity = 4, kLogits = 8, kBench = 16;
constexpr unsigned kSampled = kGenerate | kChat, kAll = 31;

Status bad_value(std::string_view flag, std::string_view found, std::string_view expected) {
  return make_error(
      StatusCode::invalid_argument,
      {.place = std::string(flag), .found = fmt::format("'{}'", found), .expected = std::string(expected)});
}

template <typename T>
Status read_number(std::string_view flag, std::string_view text, T low, T high, std::string_view expected, T& value) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= low && number <= high)) {
    return bad_value(flag, text, expected);
  }
  value = number;
  return {};
}

template <typename T>
Status read_count(std::string_view flag, std::string_view text, T& value) {
  return read_number<T>(flag, text, 1, std::numeric_limits<std::int32_t>::max(), "an integer of at least 1", value);
}

// Text of sampling values; their ranges are those of check_sampling.
template <typename T>
Status read_sampling(std::string_view flag, std::string_view text, std::optional<T>& value) {
  T number{};
  KTC_RETURN_IF_ERROR(read_number<T>(flag, text, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max(),
                                     std::is_integral_v<T> ? "an integer" : "a number", number));
  value = number;
  return {};
}

constexpr std::string_view kContainer = ".safetensors";

Status read_tensor_path(std::string_view flag, std::string_view text, std::optional<TensorPath>& value) {
  const std::size_t end = text.find(std::string(kContainer) + ":");
  const std::size_t colon = end == text.npos ? end : end + kContainer.size();
  if (colon == text.npos || colon + 1 == text.size()) return bad_value(flag, text, "FILE.safetensors:TENSOR");
  value = TensorPath{text.substr(0, colon), std::string(text.substr(colon + 1))};
  return {};
}

// One of the options of a choice that plans list.
Status choose(Options& options, std::string_view choice, std::string_view flag, const std::string& option) {
  if (!set_choice(options, choice, option)) return bad_value(flag, option, known_options(choice));
  options.chosen.push_back({choice, option, std::string(flag)});
  return {};
}

using Apply = Status (*)(Options&, std::string_view flag, const std::string& value);

struct Flag {
  std::string_view name;
  std::string_view value;  // what follows it, for people; empty: nothing
  unsigned modes;          // where it has a meaning
  const char* group;       // heading; null: as the one before
  const char* help;
  Apply apply;
};

constexpr Flag kFlags[] = {
    {"--prompt", "TEXT", kSampled, "What to do (one of):", "continue TEXT; several make a batch, printed in order",
     [](Options& o, std::string_view, const std::string& v) {
       o.prompts.push_back({v, {}});
       return Status();
     }},
    {"--prompt-file", "FILE", kSampled, nullptr, "the same with the text of FILE",
     [](Options& o, std::string_view, const std::string& v) {
       o.prompts.push_back({"", v});
       return Status();
     }},
    {"--chat", "", kChat, nullptr,
     "apply the model's chat template: to each --prompt as a user's message,\n"
     "or without one to a conversation, one line of standard input per turn",
     [](Options& o, std::string_view, const std::string&) {
       o.chat = true;
       return Status();
     }},
    {"--perplexity", "FILE", kPerplexity, nullptr,
     "exp(mean negative log-likelihood) of a text in windows, or with\n"
     "FILE.safetensors:TENSOR of int32 rows of ids, each on its own; the\n"
     "first id of a window or row conditions, the others are predicted",
     [](Options& o, std::string_view flag, const std::string& v) {
       if (v.find(kContainer) != v.npos) return read_tensor_path(flag, v, o.perplexity_ids);
       o.perplexity_text = v;
       return Status();
     }},
    {"--logits", "OUT.safetensors", kLogits, nullptr,
     "write \"logits\", float32 [rows, tokens, vocabulary], for the ids of --ids",
     [](Options& o, std::string_view, const std::string& v) {
       o.logits = v;
       return Status();
     }},
    {"--bench", "PROMPT,NEW", kBench, nullptr,
     "measure: PROMPT random ids, then NEW of the model's, likeliest or drawn as\n"
     "--temperature and its like say; medians over --repeat",
     [](Options& o, std::string_view flag, const std::string& v) {
       const std::size_t comma = v.find(',');
       if (comma == v.npos || !read_count(flag, v.substr(0, comma), o.bench_prompt).ok() ||
           !read_count(flag, v.substr(comma + 1), o.bench_new).ok()) {
         return bad_value(flag, v, "two integers of at least 1, as in 512,64");
       }
       return Status();
     }},

    {"--max-tokens", "N", kSampled, "Generation:", "end after N new tokens (256)",
     [](Options& o, std::string_view f, const std::string& v) { return read_count(f, v, o.max_tokens); }},
    {"--temperature", "T", kSampled | kBench, nullptr, "0 takes the likeliest token; where this and the plan are silent, 0",
     [](Options& o, std::string_view f, const std::string& v) { return read_sampling(f, v, o.temperature); }},
    {"--top-k", "K", kSampled | kBench, nullptr, "draw among the K likeliest; 0 is off",
     [](Options& o, std::string_view f, const std::string& v) { return read_sampling(f, v, o.top_k); }},
    {"--top-p", "P", kSampled | kBench, nullptr, "draw among the likeliest that together reach probability P; 1 is off",
     [](Options& o, std::string_view f, const std::string& v) { return read_sampling(f, v, o.top_p); }},
    {"--min-p", "P", kSampled | kBench, nullptr, "drop those below P times the likeliest; 0 is off",
     [](Options& o, std::string_view f, const std::string& v) { return read_sampling(f, v, o.min_p); }},
    {"--repetition-penalty", "R", kSampled | kBench, nullptr, "weaken tokens that occurred; 1 is off",
     [](Options& o, std::string_view f, const std::string& v) { return read_sampling(f, v, o.repetition_penalty); }},
    {"--seed", "S", kSampled | kBench, nullptr, "of the draws; without one, a random one that is printed",
     [](Options& o, std::string_view f, const std::string& v) {
       std::uint64_t seed = 0;
       KTC_RETURN_IF_ERROR(read_number<std::uint64_t>(f, v, 0, std::numeric_limits<std::uint64_t>::max(),
                                                      "an integer from 0 to 2^64 - 1", seed));
       o.seed = seed;
       return Status();
     }},
    {"--ignore-eos", "", kSampled, nullptr, "go on after a stop token",
     [](Options& o, std::string_view, const std::string&) {
       o.ignore_eos = true;
       return Status();
     }},
    {"--system", "TEXT", kChat, nullptr, "the system message of --chat",
     [](Options& o, std::string_view, const std::string& v) {
       o.system = v;
       return Status();
     }},

    {"--window", "N", kPerplexity, "Measuring:", "predictions per window of a text (the plan's longest sequence)",
     [](Options& o, std::string_view f, const std::string& v) {
       std::uint32_t window = 0;
       KTC_RETURN_IF_ERROR(read_count(f, v, window));
       o.window = window;
       return Status();
     }},
    {"--record-moments", "OUT.safetensors", kPerplexity, nullptr,
     "write the mean squares of what every product multiplies by, for\n"
     "ktc compile --moments; the plan's weights must be f32 or bf16",
     [](Options& o, std::string_view, const std::string& v) {
       o.record_moments = v;
       return Status();
     }},
    {"--ids", "FILE.safetensors:TENSOR", kLogits, nullptr, "int32 rows of ids for --logits",
     [](Options& o, std::string_view f, const std::string& v) { return read_tensor_path(f, v, o.ids); }},
    {"--topics", "N[:K]", kBench, nullptr,
     "run i of --bench takes its ids from range i mod N, or always from range K,\n"
     "of N equal ranges of all ids (see ktc compile --topics)",
     [](Options& o, std::string_view f, const std::string& v) {
       const std::size_t colon = v.find(':');
       std::uint32_t topic = 0;
       if (!read_count(f, v.substr(0, colon), o.topics).ok() ||
           (colon != v.npos && !read_number<std::uint32_t>(f, v.substr(colon + 1), 0, o.topics - 1, "", topic).ok()))
         return bad_value(f, v, "a number of ranges, and perhaps one of them from 0, as in 8 or 8:3");
       if (colon != v.npos) o.topic = topic;
       return Status();
     }},
    {"--repeat", "N", kBench, nullptr, "runs of --bench (3)",
     [](Options& o, std::string_view f, const std::string& v) { return read_count(f, v, o.repeat); }},

    {"--json", "", kAll, "General:", "one JSON object on standard output; one a line for several prompts",
     [](Options& o, std::string_view, const std::string&) {
       o.json = true;
       return Status();
     }},
    {"--threads", "N", kAll, nullptr, "workers (one per physical core that this process may use)",
     [](Options& o, std::string_view f, const std::string& v) {
       return read_number<int>(f, v, 1, 4096, "an integer from 1 to 4096", o.threads);
     }},
    {"--nodes", "auto|N", kAll, nullptr,
     "NUMA nodes that workers and weights are split over: auto (this\n"
     "machine's), 1 (not split), or the cores cut into N, as for a test;\n"
     "results are the same",
     [](Options& o, std::string_view f, const std::string& v) {
       if (v == "auto") return Status();
       return read_number<int>(f, v, 1, weights::kMostNodes, "auto or an integer from 1 to 16", o.nodes);
     }},
    {"--isa", "LEVEL", kAll, nullptr, "kernels: scalar, avx2, avx512, avx512_vnni, amx or best (best)",
     [](Options& o, std::string_view f, const std::string& v) { return choose(o, plan::kIsaChoice, f, v); }},
    {"--emulate-gpu", "", kAll, "GPUs:", "run the plan's GPUs on the host: slow, for tests; no GPU is needed",
     [](Options& o, std::string_view, const std::string&) {
       o.emulate_gpu = true;
       return Status();
     }},
    {"--handoff", "KIND", kAll, nullptr,
     "between CPU and GPU: doorbell, hostnode or automatic (automatic: doorbell,\n"
     "and hostnode where the system refuses mapped memory)",
     [](Options& o, std::string_view f, const std::string& v) { return choose(o, plan::kHandoffChoice, f, v); }},
    {"--products", "KIND", kAll, nullptr,
     "of prompts with bf16 weights on a GPU: own, or library (cuBLASLt where\n"
     "it can be opened: up to a third faster, 360 MiB of the card more) (own)",
     [](Options& o, std::string_view f, const std::string& v) { return choose(o, plan::kProductsChoice, f, v); }},
    {"--update", "KIND", kAll, nullptr,
     "experts that change sides, where the plan has them: auto (as long as it\n"
     "pays), on or off (auto)",
     [](Options& o, std::string_view f, const std::string& v) { return choose(o, plan::kUpdateChoice, f, v); }},
    {"--host-sampling", "", kAll, nullptr, "choose tokens on the host: every step waits for the token of the last one",
     [](Options& o, std::string_view f, const std::string&) { return choose(o, plan::kSamplingChoice, f, "host"); }},
    {"--no-graph", "", kAll, nullptr, "launch the steps of decode one by one instead of as a CUDA graph",
     [](Options& o, std::string_view, const std::string&) {
       o.graphs = false;
       return Status();
     }},

    {"--stats", "", kAll, "Looking inside:", "say for what share of the time CPU and GPU were busy",
     [](Options& o, std::string_view, const std::string&) {
       o.statistics = true;
       return Status();
     }},
    {"--trace", "FILE", kAll, nullptr,
     "write what ran when as a Chrome trace, for chrome://tracing or Perfetto;\n"
     "a traced step with a GPU is slower; with --no-graph its kernels show up",
     [](Options& o, std::string_view, const std::string& v) {
       o.trace = v;
       return Status();
     }},
    {"--record-experts", "FILE", kAll, nullptr,
     "write how often routers chose each expert, for experts.statistics of a\n"
     "policy; adds to the counts of a FILE that exists",
     [](Options& o, std::string_view, const std::string& v) {
       o.record_experts = v;
       return Status();
     }},
    {"--help", "", kAll, nullptr, "this text",
     [](Options& o, std::string_view, const std::string&) {
       o.help = true;
       return Status();
     }},
};

// The flag that chose the mode, for messages.
struct Chosen {
  Mode mode;
  unsigned bit;
  std::string_view flag;
};

constexpr std::string_view kModes = "one of --prompt, --prompt-file, --chat, --perplexity, --logits, --bench";

Expected<Chosen> choose_mode(const Options& o) {
  std::vector<Chosen> chosen;
  if (o.chat)
    chosen.push_back({Mode::chat, kChat, "--chat"});
  else if (!o.prompts.empty()) {
    chosen.push_back({Mode::generate, kGenerate, o.prompts[0].file ? "--prompt-file" : "--prompt"});
  }
  if (o.perplexity_text || o.perplexity_ids) chosen.push_back({Mode::perplexity, kPerplexity, "--perplexity"});
  if (o.logits) chosen.push_back({Mode::logits, kLogits, "--logits"});
  if (o.bench_prompt > 0) chosen.push_back({Mode::bench, kBench, "--bench"});
  if (chosen.empty()) {
    return make_error(StatusCode::invalid_argument, {.place = "command line",
                                                     .what = "nothing to do",
                                                     .expected = std::string(kModes),
                                                     .remedy = "ktc-run --help explains them"});
  }
  if (chosen.size() > 1) {
    return make_error(StatusCode::invalid_argument, {.place = "command line",
                                                     .what = "several things to do",
                                                     .found = fmt::format("{} and {}", chosen[0].flag, chosen[1].flag),
                                                     .expected = std::string(kModes)});
  }
  return chosen[0];
}

std::string modes_text(unsigned modes) {
  std::string text;
  auto add = [&](unsigned bit, const char* flag) {
    if (modes & bit) text += (text.empty() ? "" : " or ") + std::string(flag);
  };
  add(kGenerate, "--prompt");
  add(kChat, "--chat");
  add(kPerplexity, "--perplexity");
  add(kLogits, "--logits");
  add(kBench, "--bench");
  return text;
}

Status check_combination(const Options& o, const std::vector<const Flag*>& given) {
  KTC_ASSIGN_OR_RETURN(const Chosen chosen, choose_mode(o));
  for (const Flag* flag : given) {
    if (flag->modes & chosen.bit) continue;
    return make_error(StatusCode::invalid_argument, {.place = std::string(flag->name),
                                                     .what = "has no meaning here",
                                                     .found = std::string(chosen.flag),
                                                     .expected = modes_text(flag->modes)});
  }
  if (chosen.mode == Mode::logits && !o.ids) {
    return make_error(StatusCode::invalid_argument,
                      {.place = "--logits", .what = "needs --ids", .expected = "--ids FILE.safetensors:TENSOR"});
  }
  if (o.window && o.perplexity_ids) {
    return make_error(StatusCode::invalid_argument, {.place = "--window",
                                                     .what = "has no meaning here",
                                                     .found = "rows of ids",
                                                     .expected = "a text for --perplexity"});
  }
  if (chosen.mode == Mode::chat && o.prompts.empty() && o.json) {
    return make_error(StatusCode::invalid_argument,
                      {.place = "--json", .what = "needs a --prompt with --chat", .found = "a conversation"});
  }
  return {};
}

// The ranges live in check_sampling; here its parameter becomes a flag.
Status check_ranges(const Options& o) {
  exec::SamplingParameters p;
  p.temperature = o.temperature.value_or(p.temperature);
  p.top_k = o.top_k.value_or(p.top_k);
  p.top_p = o.top_p.value_or(p.top_p);
  p.min_p = o.min_p.value_or(p.min_p);
  p.repetition_penalty = o.repetition_penalty.value_or(p.repetition_penalty);
  const Status status = exec::check_sampling(p);
  return status.ok() ? status : Status(status.code(), "--" + status.message());
}

Status missing_value(const Flag& flag) {
  return make_error(StatusCode::invalid_argument,
                    {.place = std::string(flag.name), .found = "no value", .expected = std::string(flag.value)});
}

Status set_plan(Options& o, const std::string& argument) {
  if (!o.plan.empty()) {
    return make_error(StatusCode::invalid_argument, {.place = fmt::format("argument '{}'", argument),
                                                     .what = "unexpected",
                                                     .found = "a second plan",
                                                     .expected = "one",
                                                     .remedy = "give text with --prompt"});
  }
  o.plan = argument;
  return {};
}

}  // namespace

Expected<Options> parse_options(const std::vector<std::string>& arguments) {
  Options o;
  std::vector<const Flag*> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-") || argument == "-") {
      KTC_RETURN_IF_ERROR(set_plan(o, argument));
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument == "-h" ? "--help" : argument.substr(0, equals);
    const auto* flag = std::ranges::find(kFlags, std::string_view(name), &Flag::name);
    if (flag == std::end(kFlags)) {
      return make_error(StatusCode::invalid_argument,
                        {.place = name, .what = "unknown option", .remedy = "ktc-run --help lists all"});
    }
    std::string value;
    if (equals != argument.npos) {
      value = argument.substr(equals + 1);
      if (flag->value.empty()) {
        return make_error(StatusCode::invalid_argument,
                          {.place = name, .found = fmt::format("'{}'", value), .expected = "no value"});
      }
    } else if (!flag->value.empty()) {
      // what looks like one of our flags is one, unless written as --prompt=--json
      if (i + 1 == arguments.size() ||
          std::ranges::find(kFlags, std::string_view(arguments[i + 1]), &Flag::name) != std::end(kFlags)) {
        return missing_value(*flag);
      }
      value = arguments[++i];
    }
    KTC_RETURN_IF_ERROR(flag->apply(o, flag->name, value));
    given.push_back(flag);
  }
  if (o.help) return o;
  if (o.plan.empty()) {
    return make_error(StatusCode::invalid_argument, {.place = "PLAN",
                                                     .found = "none",
                                                     .expected = "the folder of a plan, NAME.ktp",
                                                     .remedy = "ktc compile makes one"});
  }
  KTC_RETURN_IF_ERROR(check_combination(o, given));
  KTC_RETURN_IF_ERROR(check_ranges(o));
  o.mode = choose_mode(o)->mode;
  return o;
}

std::string help_text() {
  std::string text =
      "ktc-run: run a plan that ktc compile made: generate text, chat, judge quality, measure\n"
      "\n"
      "usage: ktc-run PLAN --prompt TEXT [options]\n";
  constexpr std::size_t kColumn = 34;
  for (const Flag& flag : kFlags) {
    if (flag.group != nullptr) text += fmt::format("\n{}\n", flag.group);
    std::string left = fmt::format("  {}{}{}", flag.name, flag.value.empty() ? "" : " ", flag.value);
    std::string_view help = flag.help;
    while (!help.empty()) {
      const std::size_t end = std::min(help.find('\n'), help.size());
      text += fmt::format("{:<{}}{}\n", left, kColumn, help.substr(0, end));
      left.clear();
      help.remove_prefix(std::min(end + 1, help.size()));
    }
  }
  text +=
      "\n"
      "Text goes to standard output, everything else to standard error. Where the plan states sampling\n"
      "defaults of the model and the command line is silent, they hold. Ctrl-C ends the generation and\n"
      "keeps what is there; a second one ends the program.\n"
      "Exit status: 0 done, 1 something given is wrong, 2 an error of ktc.\n"
      "\n"
      "Examples:\n"
      "  ktc-run demo.ktp --prompt \"The Linux kernel\" --max-tokens 64\n"
      "  ktc-run demo.ktp --chat --system \"Answer briefly.\" --temperature 0.7 --top-p 0.9\n"
      "  ktc-run demo.ktp --perplexity eval.txt --window 512 --json\n"
      "  ktc-run demo.ktp --bench 512,64 --threads 8\n";
  return text;
}

}  // namespace ktc::run
