// Each op against its operands, weights, caches and the model.
#include <cmath>

#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::PlanT;
using planfb::StepT;
using planfb::View;

StepT& step_of(PlanT& plan, std::string_view name) {
  return step(entry(plan, "extend[4]"), name);
}
View view(PlanT& plan, std::string_view name, std::uint64_t column, std::uint64_t columns) {
  return View(buffer_index(entry(plan, "extend[4]"), name), column, columns);
}
planfb::GqaOpT& gqa(PlanT& p) {
  return *step_of(p, "layers.0.attention").op.AsGqaOp();
}
planfb::MlaOpT& mla(PlanT& p) {
  return *step_of(p, "layers.1.attention").op.AsMlaOp();
}
planfb::RouteOpT& route(PlanT& p) {
  return *step_of(p, "layers.0.mlp.router").op.AsRouteOp();
}
planfb::RouteOpT& grouped(PlanT& p) {
  return *step_of(p, "layers.1.mlp.router").op.AsRouteOp();
}
planfb::ExpertsOpT& experts(PlanT& p) {
  return *step_of(p, "layers.0.mlp.experts").op.AsExpertsOp();
}
planfb::MlpOpT& mlp(PlanT& p) {
  return *step_of(p, "layers.1.mlp.shared").op.AsMlpOp();
}
void add_gpu(PlanT& plan) {
  auto device = std::make_unique<planfb::DeviceT>();
  device->name = "cuda:0";
  device->kind = planfb::DeviceKind::cuda;
  plan.devices.push_back(std::move(device));
}

#define KTC_EXTEND(step) "entry \"extend[4]\": step " step ": "

KTC_BROKEN_PLANS(
    PlanVerifyOp,
    {
        {"none", [](PlanT& p) { step_of(p, "embed").op.Reset(); },
         KTC_EXTEND("0 \"embed\"") "op: found none, expected an op that this ktc has"},
        {"unknown",
         [](PlanT& p) {
           step_of(p, "embed").op.Reset();
           step_of(p, "embed").op.type = static_cast<planfb::Op>(16);  // as unpacking leaves a newer schema's member
         },
         KTC_EXTEND("0 \"embed\"") "op: found 16, expected an op that this ktc has"},
        {"sample_in_extend", [](PlanT& p) { step_of(p, "embed").op.Set(planfb::SampleOpT()); },
         KTC_EXTEND(
             "0 \"embed\"") "op: found SampleOp in an entry of kind extend, expected SampleOp in sample entries, and "
                            "there alone"},
        {"add_in_sample", [](PlanT& p) { step(entry(p, "sample[2]"), "sample").op.Set(planfb::AddOpT()); },
         "entry \"sample[2]\": step 0 \"sample\": op: found AddOp in an entry of kind sample, expected SampleOp in "
         "sample "
         "entries, and "
         "there alone"},
        {"embed_operands", [](PlanT& p) { step_of(p, "embed").inputs.clear(); },
         KTC_EXTEND("0 \"embed\"") "EmbedOp: operands: found 0 inputs, 1 outputs, expected 1 inputs, 1 outputs"},
        {"embed_ids", [](PlanT& p) { step_of(p, "embed").inputs[0] = view(p, "positions", 0, 1); },
         KTC_EXTEND("0 \"embed\"") "EmbedOp: inputs[0]: found \"positions\" of role positions, expected the buffer of "
                                   "role ids"},
        {"embed_out", [](PlanT& p) { step_of(p, "embed").outputs[0] = view(p, "x", 0, 15); },
         KTC_EXTEND("0 \"embed\"") "EmbedOp: outputs[0]: found f32 [tokens, 15], expected f32 [tokens, 16]"},
        {"embed_weight", [](PlanT& p) { step_of(p, "embed").op.AsEmbedOp()->w = 500; },
         KTC_EXTEND("0 \"embed\"") "EmbedOp: w: found 500, expected an index in weights of 19 items"},
        {"embed_shape", [](PlanT& p) { step_of(p, "embed").op.AsEmbedOp()->w = weight_index(p, "layers.0.o"); },
         KTC_EXTEND("0 \"embed\"") "EmbedOp: shape of w \"layers.0.o\": found [1, 16, 16], expected [1, 8, 16]"},
        {"weight_device",
         [](PlanT& p) {
           add_gpu(p);
           weight(p, "embed").device = 1;
           p.account[2]->bytes -= 512;
           auto line = std::make_unique<planfb::AccountLineT>(*p.account[2]);
           line->device = 1;
           line->bytes = 512;
           p.account.push_back(std::move(line));
         },
         KTC_EXTEND("0 \"embed\"") "EmbedOp: device of w \"embed\": found \"cuda:0\", expected the step's, \"cpu\""},
        {"norm_kind", [](PlanT& p) { step_of(p, "norm").op.AsNormOp()->kind = static_cast<planfb::NormKind>(1); },
         KTC_EXTEND("23 \"norm\"") "NormOp: kind: found 1, expected rms"},
        {"norm_eps", [](PlanT& p) { step_of(p, "norm").op.AsNormOp()->eps = -1; },
         KTC_EXTEND("23 \"norm\"") "NormOp: eps: found -1, expected a finite number of at least 0"},
        {"norm_weight", [](PlanT& p) { step_of(p, "norm").op.AsNormOp()->w = plan::kNone; },
         KTC_EXTEND("23 \"norm\"") "NormOp: w: found none, expected an index in weights of 19 items"},
        {"norm_shape", [](PlanT& p) { step_of(p, "norm").op.AsNormOp()->w = weight_index(p, "head_norm"); },
         KTC_EXTEND("23 \"norm\"") "NormOp: shape of w \"head_norm\": found [1, 1, 8], expected [1, 1, 16]"},
        {"norm_format",
         [](PlanT& p) {
           weight(p, "norm").format = 1;  // 16 values of bf16 in one row of 64 bytes, as of f32
         },
         KTC_EXTEND("1 \"layers.0.attention.norm\"") "NormOp: format of w \"norm\": found bf16, expected f32"},
        {"norm_symbol", [](PlanT& p) { step_of(p, "norm").outputs[0] = view(p, "h", 0, 16); },
         KTC_EXTEND("23 \"norm\"") "NormOp: outputs[0]: found f32 [tokens, 16], expected f32 [rows, 16]"},
        {"linear_in", [](PlanT& p) { step_of(p, "head").inputs[0] = view(p, "selected", 0, 8); },
         KTC_EXTEND("24 \"head\"") "LinearOp: inputs[0]: found f32 [rows, 8], expected f32 [rows, 16]"},
        {"linear_batch", [](PlanT& p) { step_of(p, "head").op.AsLinearOp()->w = weight_index(p, "layers.1.uk"); },
         KTC_EXTEND("24 \"head\"") "LinearOp: shape of w \"layers.1.uk\": found [2, 8, 8], expected [1, 8, 8]"},
        {"linear_bias", [](PlanT& p) { step_of(p, "head").op.AsLinearOp()->w_bias = weight_index(p, "norm"); },
         KTC_EXTEND("24 \"head\"") "LinearOp: shape of w_bias \"norm\": found [1, 1, 16], expected [1, 1, 8]"},
        {"add_one", [](PlanT& p) { step_of(p, "layers.0.attention.add").inputs.pop_back(); },
         KTC_EXTEND("5 \"layers.0.attention.add\"") "AddOp: operands: found 1 inputs, 1 outputs, expected at least 2 "
                                                    "inputs, 1 "
                                                    "output"},
        {"add_shape", [](PlanT& p) { step_of(p, "layers.0.attention.add").inputs[1] = view(p, "h", 0, 8); },
         KTC_EXTEND(
             "5 \"layers.0.attention.add\"") "AddOp: inputs[1]: found f32 [tokens, 8], expected f32 [tokens, 16]"},
        {"select_rows", [](PlanT& p) { step_of(p, "select").inputs[1] = view(p, "ids", 0, 1); },
         KTC_EXTEND("22 \"select\"") "SelectRowsOp: inputs[1]: found \"ids\" of role ids, expected the buffer of role "
                                     "output_rows"},
        {"sample_part", [](PlanT& p) { step(entry(p, "sample[2]"), "sample").inputs[0] = View(0, 0, 4); },
         "entry \"sample[2]\": step 0 \"sample\": SampleOp: inputs[0]: found f32 [rows, 4], expected f32 [rows, 8]"},
    });

KTC_BROKEN_PLANS(
    PlanVerifyAttention,
    {
        {"gqa_operands", [](PlanT& p) { step_of(p, "layers.0.attention").inputs.pop_back(); },
         KTC_EXTEND(
             "3 \"layers.0.attention\"") "GqaOp: operands: found 3 inputs, 1 outputs, expected 4 inputs, 1 outputs"},
        {"gqa_heads", [](PlanT& p) { gqa(p).kv_heads = 0; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: heads: found 2 of 8, 0 for keys and values, expected positive "
                                                "numbers, "
                                                "heads a multiple of kv_heads"},
        {"gqa_group", [](PlanT& p) { gqa(p).kv_heads = 3; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: heads: found 2 of 8, 3 for keys and values, expected positive "
                                                "numbers, "
                                                "heads a multiple of kv_heads"},
        {"gqa_q", [](PlanT& p) { gqa(p).heads = 4; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: inputs[0]: found f32 [tokens, 16], expected f32 [tokens, 32]"},
        {"gqa_positions", [](PlanT& p) { step_of(p, "layers.0.attention").inputs[3] = view(p, "ids", 0, 1); },
         KTC_EXTEND(
             "3 \"layers.0.attention\"") "GqaOp: inputs[3]: found \"ids\" of role ids, expected the buffer of role "
                                         "positions"},
        {"gqa_scale", [](PlanT& p) { gqa(p).scale = NAN; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: scale: found nan, expected a finite number"},
        {"gqa_rope", [](PlanT& p) { gqa(p).rope = 2; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: rope: found 2, expected an index in ropes of 2 items"},
        {"gqa_rope_length", [](PlanT& p) { p.ropes[0]->inv_freq.push_back(1); },
         KTC_EXTEND(
             "3 \"layers.0.attention\"") "GqaOp: ropes[0]: inv_freq: found 5 values, expected at most half of 8"},
        {"gqa_q_norm", [](PlanT& p) { gqa(p).w_q_norm = weight_index(p, "norm"); },
         KTC_EXTEND(
             "3 \"layers.0.attention\"") "GqaOp: shape of w_q_norm \"norm\": found [1, 1, 16], expected [1, 1, 8]"},
        {"gqa_norm_eps", [](PlanT& p) { gqa(p).norm_eps = INFINITY; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: norm_eps: found inf, expected a finite number of at least 0"},
        {"gqa_cache", [](PlanT& p) { gqa(p).cache = 7; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: cache: found 7, expected an index in caches of 2 items"},
        {"gqa_cache_layer", [](PlanT& p) { gqa(p).cache_layer = 1; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: cache_layer: found 1, expected below the 1 of cache \"kv\""},
        {"gqa_cache_parts", [](PlanT& p) { gqa(p).cache = 1; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: parts of cache \"latent\": found latent 1x8, rope 1x4, "
                                                "expected k 1x8, "
                                                "v 1x8"},
        {"gqa_cache_device",
         [](PlanT& p) {
           add_gpu(p);
           p.caches[0]->device = p.account[0]->device = 1;
           p.account[0]->bytes += p.account[0]->bytes / p.caches[0]->pages;  // the dummy page
         },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: device of cache \"kv\": found \"cuda:0\", expected the step's, "
                                                "\"cpu\""},
        {"gqa_no_workspace", [](PlanT& p) { step_of(p, "layers.0.attention").workspace = plan::kNone; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: workspace: found none, expected at least 256 bytes"},
        {"gqa_workspace", [](PlanT& p) { buffer(entry(p, "extend[4]"), "scratch").bytes = 255; },
         KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: workspace: found 255 bytes, expected at least 256 bytes"},
        {"mla_dimensions", [](PlanT& p) { mla(p).latent_dim = 0; },
         KTC_EXTEND(
             "14 \"layers.1.attention\"") "MlaOp: dimensions: found 2 heads, nope 8, rope 4, v 8, latent 0, expected "
                                          "positive numbers"},
        {"mla_q", [](PlanT& p) { mla(p).heads = mla(p).nope_dim = mla(p).rope_dim = 0xffffffffu; },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: dimensions: found more than 2^64 columns, expected fewer"},
        {"mla_latent", [](PlanT& p) { step_of(p, "layers.1.attention").inputs[1] = view(p, "latent", 0, 7); },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: inputs[1]: found f32 [tokens, 7], expected f32 [tokens, 8]"},
        {"mla_rope_dim", [](PlanT& p) { mla(p).rope = 0; },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: ropes[0]: inv_freq: found 4 values, expected half of 4"},
        {"mla_uk", [](PlanT& p) { mla(p).w_uk = weight_index(p, "layers.1.router"); },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: shape of w_uk \"layers.1.router\": found [1, 4, 16], expected "
                                                 "[2, 8, 8]"},
        {"mla_uv", [](PlanT& p) { mla(p).w_uv = plan::kNone; },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: w_uv: found none, expected an index in weights of 19 items"},
        {"mla_cache", [](PlanT& p) { p.caches[1]->parts[1]->name = "r"; },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: parts of cache \"latent\": found latent 1x8, r 1x4, expected "
                                                 "latent 1x8, "
                                                 "rope 1x4"},
        {"mla_workspace", [](PlanT& p) { buffer(entry(p, "extend[4]"), "scratch").bytes = 639; },
         KTC_EXTEND("14 \"layers.1.attention\"") "MlaOp: workspace: found 639 bytes, expected at least 640 bytes"},
    });

KTC_BROKEN_PLANS(
    PlanVerifyExperts,
    {
        {"route_operands", [](PlanT& p) { step_of(p, "layers.0.mlp.router").outputs.pop_back(); },
         KTC_EXTEND(
             "7 \"layers.0.mlp.router\"") "RouteOp: operands: found 1 inputs, 1 outputs, expected 1 inputs, 2 outputs"},
        {"route_kind", [](PlanT& p) { route(p).kind = static_cast<planfb::RouterKind>(2); },
         KTC_EXTEND("7 \"layers.0.mlp.router\"") "RouteOp: kind: found 2, expected softmax_topk or sigmoid_group"},
        {"route_experts", [](PlanT& p) { route(p).experts = 5; },
         KTC_EXTEND("7 \"layers.0.mlp.router\"") "RouteOp: experts: found 5, expected the model's 4"},
        {"route_too_many_experts", [](PlanT& p) { p.model->experts = route(p).experts = 4097; },
         KTC_EXTEND("7 \"layers.0.mlp.router\"") "RouteOp: experts: found 4097, expected at most 4096"},
        {"route_no_groups", [](PlanT& p) { grouped(p).groups = 0; },
         KTC_EXTEND("18 \"layers.1.mlp.router\"") "RouteOp: groups: found 0, expected a divisor of 4"},
        {"route_groups", [](PlanT& p) { grouped(p).groups = 3; },
         KTC_EXTEND("18 \"layers.1.mlp.router\"") "RouteOp: groups: found 3, expected a divisor of 4"},
        {"route_topk_groups", [](PlanT& p) { grouped(p).topk_groups = 3; },
         KTC_EXTEND("18 \"layers.1.mlp.router\"") "RouteOp: topk_groups: found 3, expected 1 to 2"},
        {"route_softmax_groups", [](PlanT& p) { route(p).groups = 2; },
         KTC_EXTEND("7 \"layers.0.mlp.router\"") "RouteOp: groups: found 2, expected 1 for softmax_topk"},
        {"route_top_k", [](PlanT& p) { grouped(p).top_k = 3; },
         KTC_EXTEND("18 \"layers.1.mlp.router\"") "RouteOp: top_k: found 3, expected 1 to 2"},
        {"route_ids", [](PlanT& p) { buffer(entry(p, "extend[4]"), "expert_ids").format = 0; },
         KTC_EXTEND(
             "7 \"layers.0.mlp.router\"") "RouteOp: outputs[0]: found f32 [tokens, 2], expected i32 [tokens, 2]"},
        {"route_shape", [](PlanT& p) { route(p).w = weight_index(p, "embed"); },
         KTC_EXTEND(
             "7 \"layers.0.mlp.router\"") "RouteOp: shape of w \"embed\": found [1, 8, 16], expected [1, 4, 16]"},
        {"route_bias", [](PlanT& p) { grouped(p).w_bias = weight_index(p, "norm"); },
         KTC_EXTEND(
             "18 \"layers.1.mlp.router\"") "RouteOp: shape of w_bias \"norm\": found [1, 1, 16], expected [1, 1, 4]"},
        {"route_scale", [](PlanT& p) { route(p).scale = INFINITY; },
         KTC_EXTEND("7 \"layers.0.mlp.router\"") "RouteOp: scale: found inf, expected a finite number"},
        {"route_splat", [](PlanT& p) { weight(p, "layers.0.router").source = planfb::WeightSource::splat; },
         KTC_EXTEND(
             "7 \"layers.0.mlp.router\"") "RouteOp: source of w \"layers.0.router\": found splat, expected the "
                                          "checkpoint's weights: a router of equal ones always picks the same experts"},
        {"route_alias_of_splat",
         [](PlanT& p) {
           weight(p, "layers.1.router").source = planfb::WeightSource::splat;
           weight(p, "layers.0.router").source = planfb::WeightSource::alias;
           weight(p, "layers.0.router").alias_of = weight_index(p, "layers.1.router");
           p.account[2]->bytes -= 256;
         },
         KTC_EXTEND(
             "7 \"layers.0.mlp.router\"") "RouteOp: source of w \"layers.0.router\": found splat, expected the "
                                          "checkpoint's weights: a router of equal ones always picks the same experts"},
        {"route_workspace", [](PlanT& p) { step_of(p, "layers.0.mlp.router").workspace = plan::kNone; },
         KTC_EXTEND("7 \"layers.0.mlp.router\"") "RouteOp: workspace: found none, expected at least 64 bytes"},
        {"experts_activation", [](PlanT& p) { experts(p).activation = static_cast<planfb::Activation>(1); },
         KTC_EXTEND("8 \"layers.0.mlp.experts\"") "ExpertsOp: activation: found 1, expected swiglu"},
        {"experts_layer", [](PlanT& p) { experts(p).layer = 2; },
         KTC_EXTEND("8 \"layers.0.mlp.experts\"") "ExpertsOp: layer: found 2, expected below the model's 2"},
        {"experts_ids", [](PlanT& p) { step_of(p, "layers.0.mlp.experts").inputs[1] = view(p, "expert_ids", 0, 1); },
         KTC_EXTEND(
             "8 \"layers.0.mlp.experts\"") "ExpertsOp: inputs[2]: found f32 [tokens, 2], expected f32 [tokens, 1]"},
        {"experts_gate_up", [](PlanT& p) { experts(p).w_gate_up = weight_index(p, "embed"); },
         KTC_EXTEND(
             "8 \"layers.0.mlp.experts\"") "ExpertsOp: shape of w_gate_up \"embed\": found [1, 8, 16], expected [4, 8, "
                                           "16]"},
        {"experts_down", [](PlanT& p) { experts(p).w_down = experts(p).w_gate_up; },
         KTC_EXTEND(
             "8 \"layers.0.mlp.experts\"") "ExpertsOp: shape of w_down \"layers.0.experts.gate_up\": found [4, 8, 16], "
                                           "expected [4, 16, 4]"},
        {"experts_page", [](PlanT& p) { weight(p, "layers.0.experts.gate_up").offset += 2048; },
         KTC_EXTEND(
             "8 \"layers.0.mlp.experts\"") "ExpertsOp: offset of w_gate_up \"layers.0.experts.gate_up\": found 6144, "
                                           "expected a multiple of 4096 for experts"},
        {"experts_workspace",
         [](PlanT& p) {
           // a scratch of its own, too small
           planfb::EntryT& e = entry(p, "extend[4]");
           e.buffers.push_back(std::make_unique<planfb::BufferT>(buffer(e, "scratch")));
           e.buffers.back()->name = "small";
           e.buffers.back()->bytes = 319;
           step_of(p, "layers.0.mlp.experts").workspace = static_cast<std::uint32_t>(e.buffers.size() - 1);
         },
         KTC_EXTEND("8 \"layers.0.mlp.experts\"") "ExpertsOp: workspace: found 319 bytes, expected at least 320 bytes"},
        {"mlp_activation", [](PlanT& p) { mlp(p).activation = static_cast<planfb::Activation>(4); },
         KTC_EXTEND("20 \"layers.1.mlp.shared\"") "MlpOp: activation: found 4, expected swiglu"},
        {"mlp_odd",
         [](PlanT& p) {
           weight(p, "layers.1.shared.gate_up").rows = 7;
           weight(p, "layers.1.shared.gate_up").bytes -= 64;
           p.account[2]->bytes -= 64;
         },
         KTC_EXTEND("20 \"layers.1.mlp.shared\"") "MlpOp: rows of w_gate_up \"layers.1.shared.gate_up\": found 7, "
                                                  "expected an even "
                                                  "number"},
        {"mlp_down", [](PlanT& p) { mlp(p).w_down = weight_index(p, "layers.0.o"); },
         KTC_EXTEND("20 \"layers.1.mlp.shared\"") "MlpOp: shape of w_down \"layers.0.o\": found [1, 16, 16], expected "
                                                  "[1, 16, 4]"},
        {"mlp_workspace", [](PlanT& p) { step_of(p, "layers.1.mlp.shared").workspace = plan::kNone; },
         KTC_EXTEND("20 \"layers.1.mlp.shared\"") "MlpOp: workspace: found none, expected at least 64 bytes"},
    });

TEST(PlanVerifyOps, AWorkspaceWhoseSizeOverflowsIsRefused) {
  // tokens * experts * 4 beyond 2^60 cannot be reached by a buffer, but by the numbers of a file
  PlanT plan = small_plan();
  planfb::EntryT& e = entry(plan, "extend[4]");
  for (auto& b : e.buffers) {
    if (b->symbol != planfb::Symbol::tokens) continue;
    b->bytes = b->row_bytes * 0xffffffffull;
  }
  e.max_tokens = 0xffffffffu;
  plan.devices[0]->arena_bytes = 1ull << 62;
  plan.account.back()->bytes = 1ull << 62;
  EXPECT_EQ(plan::verify_plan(plan).message(),
            KTC_EXTEND("3 \"layers.0.attention\"") "GqaOp: workspace: found 640 bytes, expected at least 274877906880 bytes; "
                                                   "compile the model again");
}

}  // namespace
}  // namespace ktc::test
