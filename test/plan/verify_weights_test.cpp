// The weight table.
#include <cmath>

#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::PlanT;

// weights[0] is embed, weights[1] norm, weights[15] the alias layers.1.experts.gate_up of weights[7], weights[17] a
// splat.
KTC_BROKEN_PLANS(
    PlanVerifyWeights,
    {
        {"name", [](PlanT& p) { p.weights[0]->name = ""; }, "weights[0] \"\": name: found nothing, expected a name"},
        {"twice", [](PlanT& p) { p.weights[1]->name = "embed"; },
         "weights[1] \"embed\": name: found it twice, expected every name once"},
        {"device", [](PlanT& p) { p.weights[1]->device = 4; },
         "weights[1] \"norm\": device: found 4, expected an index in devices of 1 items"},
        {"source", [](PlanT& p) { p.weights[1]->source = static_cast<planfb::WeightSource>(4); },
         "weights[1] \"norm\": source: found 4, expected file, splat, alias or random"},
        {"format", [](PlanT& p) { p.weights[1]->format = 2; },
         "weights[1] \"norm\": format: found i32, expected one of f32, bf16, int8, int4, fp8"},
        {"unknown_format", [](PlanT& p) { p.weights[1]->format = 99; },
         "weights[1] \"norm\": format: found 99, expected one of f32, bf16, int8, int4, fp8"},
        {"packing", [](PlanT& p) { p.weights[1]->packing = 99; },
         "weights[1] \"norm\": packing: found 99, expected a packing that this ktc has"},
        {"empty", [](PlanT& p) { p.weights[0]->rows = 0; },
         "weights[0] \"embed\": shape: found [1, 0, 16], expected no dimension of 0"},
        {"overflow", [](PlanT& p) { p.weights[0]->rows = 1ull << 60; },
         "weights[0] \"embed\": shape: found [1, 1152921504606846976, 16], expected fewer than 2^64 bytes"},
        {"bytes", [](PlanT& p) { p.weights[0]->bytes = 511; },
         "weights[0] \"embed\": bytes: found 511, expected 512 for bf16 [1, 8, 16] in row_major"},
        {"file", [](PlanT& p) { p.weights[0]->file = 1; },
         "weights[0] \"embed\": file: found 1, expected an index in weight_files of 1 items"},
        {"no_file", [](PlanT& p) { p.weights[0]->file = plan::kNone; },
         "weights[0] \"embed\": file: found none, expected an index in weight_files of 1 items"},
        {"offset", [](PlanT& p) { p.weights[1]->offset += 4; },
         "weights[1] \"norm\": offset: found 516, expected a multiple of 64"},
        {"range", [](PlanT& p) { p.weights[1]->offset = 1 << 20; },
         "weights[1] \"norm\": range in \"all.weights\": found [1048576, 1048640), expected inside its 21824 bytes"},
        {"range_overflow", [](PlanT& p) { p.weights[1]->offset = ~63ull; },
         "weights[1] \"norm\": range in \"all.weights\": found [18446744073709551552, more than 2^64), expected inside "
         "its "
         "21824 bytes"},
        {"overlap", [](PlanT& p) { p.weights[1]->offset = 448; },
         "weights[1] \"norm\": offset: found 448, expected 512 or more, behind weights[0] \"embed\""},
        {"same_place", [](PlanT& p) { p.weights[2]->offset = p.weights[1]->offset; },
         "weights[2] \"head_norm\": offset: found 512, expected 576 or more, behind weights[1] \"norm\""},
        {"splat_value", [](PlanT& p) { p.weights[17]->splat_value = NAN; },
         "weights[17] \"layers.1.shared.gate_up\": splat_value: found nan, expected a finite number"},
        {"alias_of", [](PlanT& p) { p.weights[15]->alias_of = plan::kNone; },
         "weights[15] \"layers.1.experts.gate_up\": alias_of: found none, expected an index in weights of 19 items"},
        {"alias_of_alias", [](PlanT& p) { p.weights[15]->alias_of = 16; },
         "weights[15] \"layers.1.experts.gate_up\": alias_of: found weights[16] \"layers.1.experts.down\", an alias "
         "itself, "
         "expected a weight with bytes of its own"},
        {"alias_of_itself", [](PlanT& p) { p.weights[15]->alias_of = 15; },
         "weights[15] \"layers.1.experts.gate_up\": alias_of: found weights[15] \"layers.1.experts.gate_up\", an alias "
         "itself, "
         "expected a weight with bytes of its own"},
        {"alias_of_another_shape", [](PlanT& p) { p.weights[15]->alias_of = 8; },
         "weights[15] \"layers.1.experts.gate_up\": alias_of: found weights[8] \"layers.0.experts.down\" of another "
         "shape, "
         "format, group, packing or device, expected an equal one"},
    });

TEST(PlanVerifyWeights, ALongNameIsCutInMessages) {
  PlanT plan = small_plan();
  plan.weights[0]->name = std::string(100000, 'n');
  plan.weights[0]->device = 9;
  EXPECT_LT(plan::verify_plan(plan).message().size(), 300u);
}

}  // namespace
}  // namespace ktc::test
