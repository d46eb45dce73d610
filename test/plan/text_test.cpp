// The texts: stable, complete, ordered.
#include "runtime/plan/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "test/plan/small_plan.h"

namespace ktc::plan {
namespace {

using planfb::PlanT;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PlanDump, NamesEverything) {
  const std::string text = dump(test::small_plan());
  for (const char* line : {
           "plan KTP1\n  producer \"ktc test\"\n  required_features 0x0\n  target \"test.yaml\"\n",
           "model \"small\" family=\"test\" vocab_size=8 hidden_size=16 layers=2 experts=4 max_positions=64\n",
           "  bos_token 1\n  stop_tokens [2, 3]\n",
           "  sampling temperature=0.7 top_k=20 top_p=-1 min_p=-1 repetition_penalty=-1\n",
           "device \"cpu\" cpu arena_bytes=4160\n",
           "account \"cpu\" \"kv-cache\" \"latent\" bytes=576\n",
           "weight_file \"all.weights\" bytes=21824\n",
           "text_file \"tokenizer.json\" bytes=3 digest=",
           "weight \"embed\" bf16 row_major [1, 8, 16] on \"cpu\" file=\"all.weights\" offset=0 bytes=512 digest=",
           "weight \"layers.1.experts.down\" bf16 row_major [4, 16, 4] on \"cpu\" alias=\"layers.0.experts.down\"\n",
           "weight \"layers.1.shared.down\" bf16 row_major [1, 16, 4] on \"cpu\" splat=-0.25 bytes=1024\n",
           "rope 1 interleaved factor=1.1 inv_freq=[1, 0.3]\n",
           "cache \"kv\" f32 on \"cpu\" layers=1 page_tokens=4 pages=6 tokens_per_sequence=10 sequences=2\n"
           "  part \"k\" heads=1 width=8\n",
           "entry \"extend[4]\" extend max_tokens=4 max_rows=2 max_sequences=2\n"
           "  buffer \"ids\" ids i32 [tokens, 1] row_bytes=4 on \"cpu\" offset=0 bytes=16\n",
           "  buffer \"scratch\" workspace on \"cpu\" offset=3520 bytes=640\n",
           "  step compute on \"cpu\" \"embed\" EmbedOp w=\"embed\" activations=f32 (\"ids\") -> (\"x\")\n",
           "  step compute on \"cpu\" \"layers.0.attention.qkv\" LinearOp w=\"layers.0.qkv\" "
           "w_bias=\"layers.0.qkv_bias\" "
           "activations=f32 (\"h\") -> (\"qkv\") from=\"small.yaml:12\"\n",
           "GqaOp heads=2 kv_heads=1 head_dim=8 scale=0.35355338 rope=0 w_q_norm=\"head_norm\" w_k_norm=\"head_norm\" "
           "norm_eps=1e-06 cache=\"kv\"[0] activations=f32 (\"qkv\"[0+16], \"qkv\"[16+8], \"qkv\"[24+8], "
           "\"positions\") -> "
           "(\"attention\") workspace=\"scratch\"\n",
           "MlaOp heads=2 nope_dim=8 rope_dim=4 v_dim=8 latent_dim=8 scale=0.2886751 rope=1 w_uk=\"layers.1.uk\" "
           "w_uv=\"layers.1.uv\" cache=\"latent\"[0] ",
           "RouteOp kind=sigmoid_group w=\"layers.1.router\" w_bias=\"layers.1.router_bias\" experts=4 top_k=2 "
           "normalise=false scale=2.5 groups=2 topk_groups=1 ",
           "ExpertsOp w_gate_up=\"layers.1.experts.gate_up\" w_down=\"layers.1.experts.down\" activation=swiglu "
           "layer=1 ",
           "MlpOp w_gate_up=\"layers.1.shared.gate_up\" w_down=\"layers.1.shared.down\" activation=swiglu ",
           "LinearOp w=\"embed\" head=true ",
           "SampleOp activations=f32 (\"logits\") -> (\"next_ids\")\n",
           "policy\n  | version: 1\n  | rules: []\n",
       })
    EXPECT_TRUE(has(text, line)) << line << "\nis not in\n" << text;
}

TEST(PlanDump, DoesNotDependOnOrderWhereOrderMeansNothing) {
  const std::string text = dump(test::small_plan());
  PlanT plan = test::small_plan();
  std::reverse(plan.account.begin(), plan.account.end());
  EXPECT_EQ(dump(plan), text);
  PlanT first = test::small_plan(), second = test::small_plan();
  auto file = std::make_unique<planfb::TextFileT>();
  file->name = "a.json";
  first.text_files.insert(first.text_files.begin(), std::make_unique<planfb::TextFileT>(*file));
  second.text_files.push_back(std::move(file));
  EXPECT_EQ(dump(first), dump(second));
}

TEST(PlanDump, PrintsIndicesThatLeadNowhere) {
  PlanT plan = test::small_plan();
  auto& entry = *plan.entries[0];
  entry.steps[0]->inputs[0] = planfb::View(77, 0, 1);
  entry.steps[0]->device = 78;
  entry.steps[0]->op.AsEmbedOp()->w = 79;
  entry.steps[1]->op.type = static_cast<planfb::Op>(80);
  entry.steps[3]->op.AsGqaOp()->cache = 81;
  entry.steps[3]->workspace = 82;
  entry.buffers[4]->role = static_cast<planfb::BufferRole>(83);
  plan.weights[0]->file = 84;
  plan.weights[15]->alias_of = 85;
  plan.weights[1]->source = static_cast<planfb::WeightSource>(86);
  plan.weights[2]->format = 87;
  entry.steps[1]->op.type = planfb::Op::NormOp;  // the union's destructor must find its type
  const std::string text = dump(plan);
  for (int i : {77, 78, 79, 81, 82, 83, 84, 85, 86}) EXPECT_TRUE(has(text, "invalid(" + std::to_string(i) + ")")) << i;
  EXPECT_TRUE(has(text, "weight \"head_norm\" invalid row_major"));
}

TEST(PlanText, QuotesWhatWouldBreakALine) {
  EXPECT_EQ(detail::quote("a\"b\\c\nd\x01"
                          "é"),
            "\"a\\\"b\\\\c\\nd\\x01é\"");
}

TEST(PlanText, FloatsReadBack) {
  for (float value : {0.1f, 1e-6f, 0.35355338f, 1.0f / 3, 3.4028235e38f, 1.4e-45f, -0.0f, 16777217.0f}) {
    const std::string text = detail::float_text(value);
    EXPECT_EQ(std::strtof(text.c_str(), nullptr), value) << text;
    EXPECT_EQ(std::signbit(std::strtof(text.c_str(), nullptr)), std::signbit(value)) << text;
  }
}

TEST(PlanText, NamesAreInNaturalOrder) {
  const std::vector<std::string> sorted = {"",
                                           "a",
                                           "layers.02.x",
                                           "layers.2.x",
                                           "layers.2.y",
                                           "layers.10",
                                           "layers.10.x",
                                           "layers.a",
                                           "x18446744073709551616",
                                           "x18446744073709551617"};
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t j = 0; j < sorted.size(); ++j)
      EXPECT_EQ(detail::natural_less(sorted[i], sorted[j]), i < j) << sorted[i] << " " << sorted[j];
}

TEST(PlanDiff, IsEmptyForEqualPlansAndNamesTheEntryOtherwise) {
  const PlanT before = test::small_plan();
  EXPECT_EQ(diff(before, test::small_plan()), "");
  PlanT after = test::small_plan();
  test::step(test::entry(after, "decode[2]"), "norm").op.AsNormOp()->eps = 0.5f;
  after.entries[0]->steps.erase(after.entries[0]->steps.begin());
  EXPECT_EQ(
      diff(before, after),
      "@ entry \"extend[4]\" extend max_tokens=4 max_rows=2 max_sequences=2\n"
      "-   step compute on \"cpu\" \"embed\" EmbedOp w=\"embed\" activations=f32 (\"ids\") -> (\"x\")\n"
      "@ entry \"decode[2]\" decode max_tokens=2 max_rows=2 max_sequences=2\n"
      "-   step compute on \"cpu\" \"norm\" NormOp kind=rms w=\"norm\" eps=1e-06 activations=f32 (\"selected\") -> "
      "(\"selected\")\n"
      "+   step compute on \"cpu\" \"norm\" NormOp kind=rms w=\"norm\" eps=0.5 activations=f32 (\"selected\") -> "
      "(\"selected\")\n");
}

// Applying the - and + lines of a diff to the one side's multiset of lines gives the other's.
void expect_diff_adds_up(const PlanT& before, const PlanT& after) {
  const auto sorted_lines = [](const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      lines.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return lines;
  };
  std::vector<std::string> want = sorted_lines(dump(after)), got = sorted_lines(dump(before));
  for (const std::string& line : sorted_lines(diff(before, after))) {
    if (line[0] == '@') continue;
    if (line[0] == '+') {
      got.push_back(line.substr(2));
    } else {
      const auto at = std::find(got.begin(), got.end(), line.substr(2));
      ASSERT_NE(at, got.end()) << line;
      got.erase(at);
    }
  }
  std::sort(want.begin(), want.end());
  std::sort(got.begin(), got.end());
  EXPECT_EQ(got, want);
}

TEST(PlanDiff, AddsUpWhateverChanged) {
  std::uint32_t random = 1;
  const auto next = [&random](std::size_t below) {
    random = random * 1664525u + 1013904223u;
    return (random >> 8) % below;
  };
  for (int round = 0; round < 40; ++round) {
    PlanT after = test::small_plan();
    for (std::size_t change = next(12); change < 12; ++change) {
      auto& steps = after.entries[next(3)]->steps;
      switch (next(3)) {
        case 0: steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(next(steps.size()))); break;
        case 1: std::swap(steps[next(steps.size())], steps[next(steps.size())]); break;
        default: steps[next(steps.size())]->name += "x"; break;
      }
    }
    expect_diff_adds_up(test::small_plan(), after);
  }
}

TEST(PlanDiff, PlansWithNothingInCommonAreBounded) {
  PlanT before = test::small_plan(), after = test::small_plan();
  for (int i = 0; i < 3000; ++i) {
    before.account.push_back(std::make_unique<planfb::AccountLineT>(*before.account[0]));
    before.account.back()->name = "before" + std::to_string(i);
    after.account.push_back(std::make_unique<planfb::AccountLineT>(*after.account[0]));
    after.account.back()->name = "after" + std::to_string(i);
  }
  const std::string text = diff(before, after);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6000);
}

TEST(PlanSizes, GroupsByDeviceCategoryFormatAndPattern) {
  EXPECT_EQ(sizes(test::small_plan()), R"("cpu" by category: 22.2 KiB (22720 bytes)
      16.1 KiB   72.4%       1 x  weights
       4.1 KiB   18.3%       1 x  arena
       2.1 KiB    9.3%       2 x  kv-cache
"cpu" weights by format: 16.1 KiB (16448 bytes)
      15.2 KiB   94.9%      11 x  bf16
         832 B    5.1%       6 x  f32
"cpu" weights by name: 16.1 KiB (16448 bytes)
       4.0 KiB   24.9%       1 x  layers.*.experts.down
       2.0 KiB   12.5%       1 x  layers.*.experts.gate_up
       2.0 KiB   12.5%       1 x  layers.*.qkv
       1.5 KiB    9.3%       1 x  layers.*.q
       1.0 KiB    6.2%       1 x  layers.*.o
       1.0 KiB    6.2%       1 x  layers.*.shared.down
       1.0 KiB    6.2%       1 x  layers.*.uk
       1.0 KiB    6.2%       1 x  layers.*.uv
         768 B    4.7%       1 x  layers.*.kv_a
         512 B    3.1%       1 x  embed
         512 B    3.1%       2 x  layers.*.router
         512 B    3.1%       1 x  layers.*.shared.gate_up
         128 B    0.8%       1 x  layers.*.qkv_bias
          64 B    0.4%       1 x  head_norm
          64 B    0.4%       1 x  layers.*.router_bias
          64 B    0.4%       1 x  norm
  2 more are aliases and take no bytes
)");
}

}  // namespace
}  // namespace ktc::plan
