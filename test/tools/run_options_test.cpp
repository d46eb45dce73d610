#include "tools/ktc/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tools/ktc/run_choices.h"
#include "tools/ktc/run_sampling.h"
#include "tools/ktc/run_windows.h"

namespace ktc::run {
namespace {

Options parsed(const std::vector<std::string>& arguments) {
  const Expected<Options> options = parse_options(arguments);
  EXPECT_TRUE(options.ok()) << options.status().message();
  return options.ok() ? *options : Options{};
}

std::string error(const std::vector<std::string>& arguments) {
  const Expected<Options> options = parse_options(arguments);
  if (options.ok()) return "accepted";
  EXPECT_EQ(options.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(options.status().message().find('\n'), std::string::npos);
  return options.status().message();
}

// With a plan and a prompt in front.
std::string error_with(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"p.ktp", "--prompt", "x"});
  return error(arguments);
}

TEST(RunOptions, ReadsEveryGenerationFlag) {
  const Options o = parsed({"demo.ktp",
                            "--prompt",
                            "The Linux kernel",
                            "--max-tokens",
                            "64",
                            "--temperature",
                            "0.7",
                            "--top-k",
                            "40",
                            "--top-p=0.9",
                            "--min-p",
                            "0.05",
                            "--repetition-penalty",
                            "1.1",
                            "--seed",
                            "18446744073709551615",
                            "--ignore-eos",
                            "--threads",
                            "3",
                            "--isa",
                            "scalar",
                            "--json"});
  EXPECT_EQ(o.plan, "demo.ktp");
  EXPECT_EQ(o.mode, Mode::generate);
  ASSERT_EQ(o.prompts.size(), 1u);
  EXPECT_EQ(o.prompts[0].text, "The Linux kernel");
  EXPECT_EQ(o.max_tokens, 64u);
  EXPECT_FLOAT_EQ(*o.temperature, 0.7f);
  EXPECT_EQ(*o.top_k, 40);
  EXPECT_FLOAT_EQ(*o.top_p, 0.9f);
  EXPECT_FLOAT_EQ(*o.min_p, 0.05f);
  EXPECT_FLOAT_EQ(*o.repetition_penalty, 1.1f);
  EXPECT_EQ(*o.seed, ~std::uint64_t{0});
  EXPECT_TRUE(o.ignore_eos);
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.isa, IsaLevel::scalar);
  EXPECT_TRUE(o.json);
}

TEST(RunOptions, IsSilentWhereTheUserIs) {
  const Options o = parsed({"--prompt", "x", "demo.ktp"});
  EXPECT_EQ(o.max_tokens, 256u);
  EXPECT_FALSE(o.temperature || o.top_k || o.top_p || o.min_p || o.repetition_penalty || o.seed || o.system);
  EXPECT_FALSE(o.ignore_eos || o.json || o.chat);
  EXPECT_EQ(o.threads, 0);
  EXPECT_EQ(o.isa, IsaLevel::best);
}

TEST(RunOptions, PromptsAreArbitraryTextInOrder) {
  const Options o = parsed({"p.ktp", "--prompt", "-x", "--prompt-file", "a.txt", "--prompt", "[a]", "--prompt={}",
                            "--prompt", "", "--prompt=--json", "--prompt", "--unknown", "--prompt", "a=b"});
  ASSERT_EQ(o.prompts.size(), 8u);
  EXPECT_EQ(o.prompts[0].text, "-x");
  EXPECT_EQ(o.prompts[1].file, "a.txt");
  EXPECT_EQ(o.prompts[2].text, "[a]");
  EXPECT_EQ(o.prompts[3].text, "{}");
  EXPECT_EQ(o.prompts[4].text, "");
  EXPECT_EQ(o.prompts[5].text, "--json");
  EXPECT_EQ(o.prompts[6].text, "--unknown");
  EXPECT_EQ(o.prompts[7].text, "a=b");
  EXPECT_FALSE(o.json);
}

TEST(RunOptions, ReadsTheOtherModes) {
  const Options chat = parsed({"p.ktp", "--chat", "--system", "Be brief."});
  EXPECT_EQ(chat.mode, Mode::chat);
  EXPECT_EQ(*chat.system, "Be brief.");
  EXPECT_EQ(parsed({"p.ktp", "--chat", "--prompt", "hi", "--json"}).mode, Mode::chat);

  const Options text = parsed({"p.ktp", "--perplexity", "eval.txt", "--window", "512"});
  EXPECT_EQ(text.mode, Mode::perplexity);
  EXPECT_EQ(*text.perplexity_text, "eval.txt");
  EXPECT_EQ(*text.window, 512u);

  const Options ids = parsed({"p.ktp", "--perplexity", "a:b/r.safetensors:eval_ids:2"});
  EXPECT_EQ(ids.perplexity_ids->file, "a:b/r.safetensors");
  EXPECT_EQ(ids.perplexity_ids->tensor, "eval_ids:2");

  const Options logits = parsed({"p.ktp", "--logits", "out.safetensors", "--ids", "in.safetensors:ids"});
  EXPECT_EQ(logits.mode, Mode::logits);
  EXPECT_EQ(*logits.logits, "out.safetensors");
  EXPECT_EQ(logits.ids->tensor, "ids");

  const Options bench = parsed({"p.ktp", "--bench", "512,64", "--repeat", "5", "--seed", "1"});
  EXPECT_EQ(bench.mode, Mode::bench);
  EXPECT_EQ(bench.bench_prompt, 512u);
  EXPECT_EQ(bench.bench_new, 64u);
  EXPECT_EQ(bench.repeat, 5u);
}

TEST(RunOptions, SaysWhatIsMissing) {
  EXPECT_EQ(error({}), "PLAN: found none, expected the folder of a plan, NAME.ktp; ktc compile makes one");
  EXPECT_EQ(error({"--prompt", "x"}),
            "PLAN: found none, expected the folder of a plan, NAME.ktp; ktc compile makes one");
  EXPECT_EQ(error({"p.ktp", "--json"}),
            "command line: nothing to do: expected one of --prompt, --prompt-file, --chat, --perplexity, --logits, "
            "--bench; ktc-run --help explains them");
  EXPECT_EQ(error({"p.ktp", "--prompt"}), "--prompt: found no value, expected TEXT");
  EXPECT_EQ(error({"p.ktp", "--prompt", "--json"}), "--prompt: found no value, expected TEXT");
  EXPECT_EQ(error({"p.ktp", "--logits", "o.safetensors"}),
            "--logits: needs --ids: expected --ids FILE.safetensors:TENSOR");
}

TEST(RunOptions, SaysWhatDoesNotBelong) {
  EXPECT_EQ(error_with({"--promt", "y"}), "--promt: unknown option; ktc-run --help lists all");
  EXPECT_EQ(error_with({"q.ktp"}),
            "argument 'q.ktp': unexpected: found a second plan, expected one; give text with --prompt");
  EXPECT_EQ(error_with({"--bench", "1,1"}),
            "command line: several things to do: found --prompt and --bench, expected one of --prompt, --prompt-file, "
            "--chat, --perplexity, --logits, --bench");
  EXPECT_EQ(error({"p.ktp", "--perplexity", "a", "--logits", "b", "--ids", "c.safetensors:d"}),
            "command line: several things to do: found --perplexity and --logits, expected one of --prompt, "
            "--prompt-file, --chat, --perplexity, --logits, --bench");
  EXPECT_EQ(error_with({"--system", "s"}), "--system: has no meaning here: found --prompt, expected --chat");
  EXPECT_EQ(error_with({"--window", "9"}), "--window: has no meaning here: found --prompt, expected --perplexity");
  EXPECT_EQ(error({"p.ktp", "--bench", "1,1", "--ignore-eos"}),
            "--ignore-eos: has no meaning here: found --bench, expected --prompt or --chat");
  EXPECT_EQ(error({"p.ktp", "--bench", "1,1", "--topics", "4:4"}),
            "--topics: found '4:4', expected a number of ranges, and perhaps one of them from 0, as in 8 or 8:3");
  EXPECT_EQ(error({"p.ktp", "--perplexity", "a.safetensors:t", "--window", "9"}),
            "--window: has no meaning here: found rows of ids, expected a text for --perplexity");
  EXPECT_EQ(error({"p.ktp", "--chat", "--json"}), "--json: needs a --prompt with --chat: found a conversation");
  EXPECT_EQ(error_with({"--json=yes"}), "--json: found 'yes', expected no value");
}

TEST(RunOptions, SaysWhichValueIsWrong) {
  EXPECT_EQ(error_with({"--max-tokens", "0"}), "--max-tokens: found '0', expected an integer of at least 1");
  EXPECT_EQ(error_with({"--max-tokens", "-5"}), "--max-tokens: found '-5', expected an integer of at least 1");
  EXPECT_EQ(error_with({"--max-tokens", "5x"}), "--max-tokens: found '5x', expected an integer of at least 1");
  EXPECT_EQ(error_with({"--max-tokens", "99999999999"}),
            "--max-tokens: found '99999999999', expected an integer of at least 1");
  EXPECT_EQ(error_with({"--temperature", "warm"}), "--temperature: found 'warm', expected a number");
  EXPECT_EQ(error_with({"--temperature", "nan"}), "--temperature: found 'nan', expected a number");
  EXPECT_EQ(error_with({"--temperature", "-1"}), "--temperature: found -1, expected a finite number of at least 0");
  EXPECT_EQ(error_with({"--top-k", "1.5"}), "--top-k: found '1.5', expected an integer");
  EXPECT_EQ(error_with({"--top-k", "-1"}), "--top-k: found -1, expected an integer of at least 0");
  EXPECT_EQ(error_with({"--top-p", "2"}), "--top-p: found 2, expected a number above 0 and at most 1");
  EXPECT_EQ(error_with({"--min-p", "-0.5"}), "--min-p: found -0.5, expected a number from 0 to 1");
  EXPECT_EQ(error_with({"--repetition-penalty", "0"}),
            "--repetition-penalty: found 0, expected a finite number above 0");
  EXPECT_EQ(error_with({"--seed", "-1"}), "--seed: found '-1', expected an integer from 0 to 2^64 - 1");
  EXPECT_EQ(error_with({"--threads", "0"}), "--threads: found '0', expected an integer from 1 to 4096");
  EXPECT_EQ(error_with({"--isa", "sse9"}), "--isa: found 'sse9', expected scalar, avx2, avx512, avx512_vnni, amx or best");
  EXPECT_EQ(error({"p.ktp", "--bench", "512"}),
            "--bench: found '512', expected two integers of at least 1, as in 512,64");
  EXPECT_EQ(error({"p.ktp", "--bench", "512,0"}),
            "--bench: found '512,0', expected two integers of at least 1, as in 512,64");
  EXPECT_EQ(error({"p.ktp", "--bench", "1,1", "--repeat", "x"}),
            "--repeat: found 'x', expected an integer of at least 1");
  EXPECT_EQ(error({"p.ktp", "--perplexity", "a.safetensors"}),
            "--perplexity: found 'a.safetensors', expected FILE.safetensors:TENSOR");
  EXPECT_EQ(error({"p.ktp", "--logits", "o", "--ids", "a.safetensors:"}),
            "--ids: found 'a.safetensors:', expected FILE.safetensors:TENSOR");
  EXPECT_EQ(error({"p.ktp", "--perplexity", "a", "--window", "0"}),
            "--window: found '0', expected an integer of at least 1");
}

// A plan that permits some of it.
planfb::PlanT plan_with(std::initializer_list<std::pair<const char*, std::vector<std::string>>> choices) {
  planfb::PlanT plan;
  for (const auto& [name, options] : choices) {
    plan.choices.push_back(std::make_unique<planfb::ChoiceT>());
    plan.choices.back()->name = name;
    plan.choices.back()->options = options;
  }
  return plan;
}

TEST(RunOptions, AskAPlanForWhatItPermits) {
  const planfb::PlanT plan = plan_with({{"handoff", {"hostnode"}}, {"isa", {"avx2", "scalar"}}, {"sampling", {"host"}}, {"tempo", {"fast"}}, {"update", {"later", "on"}}});
  Options o = parsed({"p.ktp", "--prompt", "x", "--isa", "scalar", "--handoff=hostnode", "--host-sampling", "--update", "on"});
  EXPECT_EQ(apply_choices(plan, o).message(), "");
  EXPECT_EQ(o.isa, IsaLevel::scalar);
  EXPECT_EQ(o.update, exec::UpdateKind::on);
  const auto refused = [&](std::initializer_list<std::string> flags) {
    std::vector<std::string> arguments = {"p.ktp", "--prompt", "x"};
    arguments.insert(arguments.end(), flags);
    Options asked = parsed(arguments);
    return std::string(apply_choices(plan, asked).message());
  };
  EXPECT_EQ(refused({"--isa", "amx"}), "--isa: found amx, expected what the plan permits: avx2, scalar");
  EXPECT_EQ(refused({"--isa", "scalar", "--handoff", "doorbell"}), "--handoff: found doorbell, expected what the plan permits: hostnode");
  EXPECT_EQ(refused({"--products", "own"}),
            "--products: the plan leaves nothing to choose there: found own; leave the flag out; ktc-plan dump lists the plan's choices");
  EXPECT_EQ(refused({"--update", "auto"}), "--update: found auto, expected what the plan permits: later, on");
}

TEST(RunOptions, APlansDefaultsHoldWhereFlagsAreSilent) {
  Options o = parsed({"p.ktp", "--prompt", "x"});
  ASSERT_TRUE(o.device_sampling);
  EXPECT_EQ(apply_choices(plan_with({{"handoff", {"hostnode"}}, {"isa", {"avx2", "scalar"}}, {"products", {"library", "own"}}, {"sampling", {"host"}}, {"update", {"later", "on"}}}), o).message(), "");
  EXPECT_EQ(o.handoff, exec::HandoffKind::hostnode);
  EXPECT_EQ(o.isa, IsaLevel::avx2);
  EXPECT_EQ(o.products, exec::ProductsKind::library);
  EXPECT_FALSE(o.device_sampling);
  EXPECT_EQ(o.update, exec::UpdateKind::automatic) << "of an option that this program does not know";
  Options old = parsed({"p.ktp", "--prompt", "x", "--products", "library", "--host-sampling"});
  EXPECT_EQ(apply_choices(planfb::PlanT(), old).message(), "") << "a plan from before the list permits everything";
  EXPECT_EQ(old.products, exec::ProductsKind::library);
  EXPECT_EQ(old.isa, IsaLevel::best);
}

// What plans list is what this program knows, under the names that the executor prints.
TEST(RunOptions, KnowEveryOptionOfAPlan) {
  EXPECT_EQ(known_options("handoff"), "doorbell, hostnode or automatic");
  EXPECT_EQ(known_options("sampling"), "device or host");
  EXPECT_EQ(known_options("tempo"), "");
  Options o;
  for (const char* option : {"best", "scalar", "avx2", "avx512", "avx512_vnni", "amx"}) {
    EXPECT_TRUE(set_choice(o, plan::kIsaChoice, option)) << option;
    EXPECT_EQ(o.isa, parse_isa_level(option)) << option;
  }
  for (const char* option : {"automatic", "doorbell", "hostnode"}) {
    EXPECT_TRUE(set_choice(o, plan::kHandoffChoice, option)) << option;
    EXPECT_EQ(exec::to_string(o.handoff), option);
  }
  for (const char* option : {"own", "library"}) {
    EXPECT_TRUE(set_choice(o, plan::kProductsChoice, option)) << option;
    EXPECT_EQ(exec::to_string(o.products), option);
  }
  for (const char* option : {"auto", "on", "off"}) {
    EXPECT_TRUE(set_choice(o, plan::kUpdateChoice, option)) << option;
    EXPECT_EQ(exec::to_string(o.update), option);
  }
  EXPECT_FALSE(set_choice(o, plan::kUpdateChoice, "own"));
}

TEST(RunOptions, HelpNamesEveryFlagAndFitsATerminal) {
  EXPECT_TRUE(parsed({"--help"}).help);
  EXPECT_TRUE(parsed({"-h"}).help);
  const std::string help = help_text();
  for (const char* flag :
       {"--prompt ",     "--prompt-file ", "--chat",    "--perplexity ", "--logits ", "--bench ",
        "--max-tokens ", "--temperature ", "--top-k ",  "--top-p ",      "--min-p ",  "--repetition-penalty ",
        "--seed ",       "--ignore-eos",   "--system ", "--window ",     "--ids ",    "--repeat ",
        "--json",        "--threads ",     "--isa ",    "--help"}) {
    EXPECT_NE(help.find(std::string("\n  ") + flag), std::string::npos) << flag;
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
}

TEST(RunSampling, CommandLineThenPlanThenGreedy) {
  planfb::SamplingDefaultsT plan;
  Options o;
  EXPECT_EQ(resolve_sampling(o, nullptr, 5).description, "greedy");
  EXPECT_EQ(resolve_sampling(o, &plan, 5).description, "greedy");
  EXPECT_EQ(resolve_sampling(o, &plan, 5).parameters.temperature, 0);

  plan.temperature = 0.5f;
  plan.top_k = 20;
  plan.repetition_penalty = 1.25f;
  const ResolvedSampling stated = resolve_sampling(o, &plan, 5);
  EXPECT_EQ(stated.description,
            "temperature 0.5 (plan), top-k 20 (plan), repetition penalty 1.25 (plan), seed 5 (random)");
  EXPECT_EQ(stated.parameters.top_k, 20);
  EXPECT_EQ(stated.parameters.seed, 5u);

  o.top_k = 0;
  o.top_p = 0.75f;
  o.seed = 9;
  const ResolvedSampling both = resolve_sampling(o, &plan, 5);
  EXPECT_EQ(both.description,
            "temperature 0.5 (plan), top-p 0.75 (command line), repetition penalty 1.25 (plan), seed 9 (command line)");
  EXPECT_EQ(both.parameters.top_k, 0);
  EXPECT_EQ(both.parameters.seed, 9u);

  o.temperature = 0;
  EXPECT_EQ(resolve_sampling(o, &plan, 5).description,
            "greedy, repetition penalty 1.25 (plan); without --temperature no effect of top-p 0.75 (command line)");
}

TEST(RunWindows, EveryIdButTheFirstIsPredictedOnce) {
  for (std::size_t length = 2; length < 30; ++length) {
    for (std::size_t predictions = 1; predictions < 12; ++predictions) {
      std::vector<std::int32_t> ids(length);
      for (std::size_t i = 0; i < length; ++i) ids[i] = static_cast<std::int32_t>(i);
      const Windows windows = cut_windows(ids, predictions);
      std::vector<std::int32_t> predicted;
      for (std::size_t w = 0; w < windows.ranges.size(); ++w) {
        const auto window = windows.window(w);
        EXPECT_GE(window.size(), 2u);
        EXPECT_LE(window.size(), predictions + 1);
        predicted.insert(predicted.end(), window.begin() + 1, window.end());
      }
      EXPECT_EQ(predicted, std::vector<std::int32_t>(ids.begin() + 1, ids.end()));
    }
  }
}

}  // namespace
}  // namespace ktc::run
