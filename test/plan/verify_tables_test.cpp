// Model, devices, files, ropes, caches, account.
#include <cmath>
#include <limits>

#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::PlanT;

TEST(PlanVerify, TheSmallPlanIsRight) {
  EXPECT_EQ(plan::verify_plan(small_plan()).message(), "");
}

TEST(PlanVerify, MissingItemsOfAPlanInMemoryAreFound) {
  const auto message = [](auto change) {
    PlanT plan = small_plan();
    change(plan);
    return plan::verify_plan(plan).message();
  };
  const std::string end = "the item is missing; compile the model again";
  EXPECT_EQ(message([](PlanT& p) { p.model.reset(); }), "model: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.devices[0].reset(); }), "devices[0]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.account[1].reset(); }), "account[1]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.weight_files[0].reset(); }), "weight_files[0]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.weights[2].reset(); }), "weights[2]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.ropes[0].reset(); }), "ropes[0]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.caches[1].reset(); }), "caches[1]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.entries[0].reset(); }), "entries[0]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.text_files[0].reset(); }), "text_files[0]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.caches[0]->parts[1].reset(); }), "cache \"kv\": parts[1]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.entries[0]->buffers[0].reset(); }), "entry \"extend[4]\": buffers[0]: " + end);
  EXPECT_EQ(message([](PlanT& p) { p.entries[1]->steps[3].reset(); }), "entry \"decode[1]\": steps[3]: " + end);
}

KTC_BROKEN_PLANS(
    PlanVerifyModel,
    {
        {"name", [](PlanT& p) { p.model->name = ""; }, "model: name: found nothing, expected a name"},
        {"family", [](PlanT& p) { p.model->family = ""; }, "model: family: found nothing, expected a name"},
        {"vocab_size", [](PlanT& p) { p.model->vocab_size = 0; }, "model: vocab_size: found 0, expected at least 1"},
        {"huge_vocab_size", [](PlanT& p) { p.model->vocab_size = 0x80000000u; },
         "model: vocab_size: found 2147483648, expected at most 2147483647"},
        {"hidden_size", [](PlanT& p) { p.model->hidden_size = 0; }, "model: hidden_size: found 0, expected at least 1"},
        {"layers", [](PlanT& p) { p.model->layers = 0; }, "model: layers: found 0, expected at least 1"},
        {"max_positions", [](PlanT& p) { p.model->max_positions = 0; },
         "model: max_positions: found 0, expected at least 1"},
        {"bos_token", [](PlanT& p) { p.model->bos_token = 8; },
         "model: bos_token: found 8, expected -1 or an id below 8"},
        {"bos_token_negative", [](PlanT& p) { p.model->bos_token = -2; },
         "model: bos_token: found -2, expected -1 or an id below 8"},
        {"stop_tokens", [](PlanT& p) { p.model->stop_tokens[1] = -1; },
         "model: stop_tokens: found -1, expected ids of at least 0"},
        {"sampling", [](PlanT& p) { p.model->sampling->top_p = std::numeric_limits<float>::quiet_NaN(); },
         "model: sampling: top_p: found nan, expected a finite number"},
    });

KTC_BROKEN_PLANS(PlanVerifyDevices,
                 {
                     {"none", [](PlanT& p) { p.devices.clear(); }, "devices: count: found 0, expected at least 1"},
                     {"kind", [](PlanT& p) { p.devices[0]->kind = static_cast<planfb::DeviceKind>(9); },
                      "devices[0] \"cpu\": kind: found 9, expected cpu or cuda"},
                     {"cpu_name", [](PlanT& p) { p.devices[0]->name = "gpu"; },
                      "devices[0] \"gpu\": name: found \"gpu\", expected \"cpu\""},
                     {"cuda_name",
                      [](PlanT& p) {
                        p.devices[0]->name = "cuda:01";
                        p.devices[0]->kind = planfb::DeviceKind::cuda;
                      },
                      "devices[0] \"cuda:01\": name: found \"cuda:01\", expected \"cuda:N\""},
                     {"twice", [](PlanT& p) { p.devices.push_back(std::make_unique<planfb::DeviceT>(*p.devices[0])); },
                      "devices[1] \"cpu\": name: found it twice, expected every name once"},
                 });

KTC_BROKEN_PLANS(
    PlanVerifyFiles,
    {
        {"separator", [](PlanT& p) { p.weight_files[0]->path = "../all.weights"; },
         "weight_files[0] \"../all.weights\": file name: found \"../all.weights\", expected a plain name in the plan's "
         "folder, "
         "other than plan.ktp"},
        {"dots", [](PlanT& p) { p.text_files[0]->name = ".."; },
         "text_files[0] \"..\": file name: found \"..\", expected a plain name in the plan's folder, other than "
         "plan.ktp"},
        {"empty", [](PlanT& p) { p.text_files[0]->name = ""; },
         "text_files[0] \"\": file name: found \"\", expected a plain name in the plan's folder, other than plan.ktp"},
        {"zero_byte", [](PlanT& p) { p.text_files[0]->name = std::string("a\0b", 3); },
         std::string(
             "text_files[0] \"a\0b\": file name: found \"a\0b\", expected a plain name in the plan's folder, other "
             "than plan.ktp",
             108)},
        {"plan_itself", [](PlanT& p) { p.text_files[0]->name = "plan.ktp"; },
         "text_files[0] \"plan.ktp\": file name: found \"plan.ktp\", expected a plain name in the plan's folder, other "
         "than "
         "plan.ktp"},
        {"twice", [](PlanT& p) { p.text_files[0]->name = "all.weights"; },
         "text_files[0] \"all.weights\": file name: found it twice, expected every name once"},
    });

KTC_BROKEN_PLANS(PlanVerifyRopes, {
                                      {"style", [](PlanT& p) { p.ropes[0]->style = static_cast<planfb::RopeStyle>(7); },
                                       "ropes[0]: style: found 7, expected half or interleaved"},
                                      {"empty", [](PlanT& p) { p.ropes[1]->inv_freq.clear(); },
                                       "ropes[1]: inv_freq: found nothing, expected at least 1 value"},
                                      {"infinite", [](PlanT& p) { p.ropes[1]->inv_freq[1] = INFINITY; },
                                       "ropes[1]: inv_freq: found inf, expected finite numbers"},
                                      {"factor", [](PlanT& p) { p.ropes[0]->factor = -INFINITY; },
                                       "ropes[0]: factor: found -inf, expected a finite number"},
                                  });

KTC_BROKEN_PLANS(
    PlanVerifyCaches,
    {
        {"name", [](PlanT& p) { p.caches[0]->name = ""; }, "caches[0] \"\": name: found nothing, expected a name"},
        {"twice", [](PlanT& p) { p.caches[1]->name = "kv"; },
         "caches[1] \"kv\": name: found it twice, expected every name once"},
        {"device", [](PlanT& p) { p.caches[0]->device = 1; },
         "caches[0] \"kv\": device: found 1, expected an index in devices of 1 items"},
        {"format", [](PlanT& p) { p.caches[0]->format = 2; },
         "caches[0] \"kv\": format: found i32, expected one of f32, bf16"},
        {"unknown_format", [](PlanT& p) { p.caches[0]->format = 200; },
         "caches[0] \"kv\": format: found 200, expected one of f32, bf16"},
        {"layers", [](PlanT& p) { p.caches[0]->layers = 0; }, "caches[0] \"kv\": layers: found 0, expected at least 1"},
        {"page_tokens", [](PlanT& p) { p.caches[0]->page_tokens = 0; },
         "caches[0] \"kv\": page_tokens: found 0, expected at least 1"},
        {"tokens", [](PlanT& p) { p.caches[0]->tokens_per_sequence = 0; },
         "caches[0] \"kv\": tokens_per_sequence: found 0, expected at least 1"},
        {"sequences", [](PlanT& p) { p.caches[0]->sequences = 0; },
         "caches[0] \"kv\": sequences: found 0, expected at least 1"},
        {"parts", [](PlanT& p) { p.caches[0]->parts.clear(); },
         "caches[0] \"kv\": parts: found none, expected at least 1"},
        {"part_name", [](PlanT& p) { p.caches[0]->parts[0]->name = ""; },
         "caches[0] \"kv\": parts[0] \"\": name: found nothing, expected a name"},
        {"part_twice", [](PlanT& p) { p.caches[0]->parts[1]->name = "k"; },
         "caches[0] \"kv\": parts[1] \"k\": name: found it twice, expected every name once"},
        {"part_heads", [](PlanT& p) { p.caches[0]->parts[1]->heads = 0; },
         "caches[0] \"kv\": parts[1] \"v\": heads: found 0, expected at least 1"},
        {"part_width", [](PlanT& p) { p.caches[0]->parts[1]->width = 0; },
         "caches[0] \"kv\": parts[1] \"v\": width: found 0, expected at least 1"},
        {"pages", [](PlanT& p) { p.caches[0]->pages = 5; },
         "caches[0] \"kv\": pages: found 5, expected 6 for 2 sequences of 10 tokens in pages of 4"},
        {"pages_overflow",
         [](PlanT& p) {
           p.caches[0]->sequences = p.caches[0]->tokens_per_sequence = 0xffffffffu;
           p.caches[0]->page_tokens = 1;
         },
         "caches[0] \"kv\": pages: found 6, expected 18446744065119617025 for 4294967295 sequences of 4294967295 "
         "tokens in "
         "pages of 1"},
        {"size", [](PlanT& p) { p.caches[0]->parts[0]->heads = p.caches[0]->parts[0]->width = 0xffffffffu; },
         "caches[0] \"kv\": size: found more than 2^64 bytes, expected fewer"},
        {"geometry",
         [](PlanT& p) {
           p.caches[1]->page_tokens = 5;
           p.caches[1]->pages = 4;
         },
         "caches[1] \"latent\": geometry: found 2 sequences of 10 tokens in pages of 5, expected that of caches[0] "
         "\"kv\": 2 "
         "sequences of 10 tokens in pages of 4"},
    });

KTC_BROKEN_PLANS(
    PlanVerifyAccount,
    {
        {"device", [](PlanT& p) { p.account[0]->device = 3; },
         "account[0] \"kv\": device: found 3, expected an index in devices of 1 items"},
        {"category", [](PlanT& p) { p.account[0]->category = ""; },
         "account[0] \"kv\": category: found nothing, expected a name"},
        {"name", [](PlanT& p) { p.account[0]->name = ""; }, "account[0] \"\": name: found nothing, expected a name"},
        {"sum", [](PlanT& p) { p.account[0]->bytes = p.account[1]->bytes = ~0ull; },
         "account[1] \"latent\": sum of the device's lines: found more than 2^64 bytes, expected fewer"},
        {"cache", [](PlanT& p) { p.account[0]->bytes += 1; },
         "account of \"cpu\": category \"kv-cache\": found 2113 bytes, expected 2112 bytes, the sum of its caches"},
        {"weights", [](PlanT& p) { p.account[2]->bytes = 0; },
         "account of \"cpu\": category \"weights\": found 0 bytes, expected 16448 bytes, the sum of its weights "
         "without aliases"},
        {"arena", [](PlanT& p) { p.account.pop_back(); },
         "account of \"cpu\": category \"arena\": found 0 bytes, expected 4160 bytes, the sum of its arena"},
    });

}  // namespace
}  // namespace ktc::test
