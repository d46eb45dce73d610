// Weights in panels: formats, groups, granules, scratch.
#include "runtime/formats/workspace.h"
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::MlpOpT;
using planfb::PlanT;

void repack(PlanT& plan, std::string_view name, Format format, Packing packing, std::uint16_t group) {
  planfb::WeightT& w = weight(plan, name);
  const std::uint64_t bytes = packed_bytes(format, packing, w.batch, w.rows, w.columns, group).value_or(0);
  for (auto& line : plan.account)
    if (line->category == "weights") line->bytes += bytes - w.bytes;
  w.format = static_cast<std::uint8_t>(format);
  w.packing = static_cast<std::uint8_t>(packing);
  w.group = group;
  w.bytes = bytes;
}

// The small plan with its shared block in int8 and int4/64 panels, which verifies.
void to_panels(PlanT& plan) {
  repack(plan, "layers.1.shared.gate_up", Format::int8, Packing::panel_paired, 0);
  repack(plan, "layers.1.shared.down", Format::int4, Packing::panel, 64);
  const std::uint64_t at = plan.devices[0]->arena_bytes;
  std::uint64_t most = 0;
  for (auto& e : plan.entries) {
    for (auto& s : e->steps) {
      if (s->name != "layers.1.mlp.shared") continue;
      MlpOpT& op = *s->op.AsMlpOp();
      op.x_granule = 64;
      op.h_granule = 128;
      op.tile_rows = 9;
      s->activations = static_cast<std::uint8_t>(Format::int8);
      const std::uint64_t bytes = panel_mlp_workspace(Format::int8, e->max_tokens, 16, 4, 64, 128, 9).total();
      most = std::max(most, bytes);
      auto scratch = std::make_unique<planfb::BufferT>(buffer(*e, "scratch"));
      scratch->name = "panels";
      scratch->offset = at;
      scratch->bytes = bytes;
      s->workspace = static_cast<std::uint32_t>(e->buffers.size());
      e->buffers.push_back(std::move(scratch));
    }
  }
  plan.devices[0]->arena_bytes += most;
  for (auto& line : plan.account)
    if (line->category == "arena") line->bytes += most;
}

planfb::StepT& shared(PlanT& plan) {
  return step(entry(plan, "extend[4]"), "layers.1.mlp.shared");
}
MlpOpT& mlp(PlanT& plan) {
  return *shared(plan).op.AsMlpOp();
}

#define KTC_SHARED "entry \"extend[4]\": step 20 \"layers.1.mlp.shared\": MlpOp: "

TEST(PlanVerifyPanels, PanelsVerifyAndAreShown) {
  PlanT plan = small_plan();
  to_panels(plan);
  EXPECT_EQ(plan::verify_plan(plan).message(), "");
  const std::string text = plan::dump(plan);
  EXPECT_NE(text.find("weight \"layers.1.shared.gate_up\" int8/row panel_paired [1, 8, 16] on \"cpu\""),
            std::string::npos);
  EXPECT_NE(text.find("weight \"layers.1.shared.down\" int4/64 panel [1, 16, 4] on \"cpu\""), std::string::npos);
  EXPECT_NE(text.find("activation=swiglu x_granule=64 h_granule=128 tile_rows=9 activations=int8"), std::string::npos);
  EXPECT_NE(plan::sizes(plan).find("int4/64"), std::string::npos);
  EXPECT_NE(plan::diff(small_plan(), plan).find("+ weight \"layers.1.shared.down\" int4/64 panel"), std::string::npos);
}

template <typename Change>
std::function<void(PlanT&)> with(Change change) {
  return [change](PlanT& plan) {
    to_panels(plan);
    change(plan);
  };
}

KTC_BROKEN_PLANS(
    PlanVerifyBrokenPanels,
    {
        {"packing", with([](PlanT& p) { weight(p, "layers.1.shared.down").packing = 0; }),
         "weights[18] \"layers.1.shared.down\": packing: found row_major, expected one that int4 has"},
        {"rows_in_panels", with([](PlanT& p) { weight(p, "norm").packing = 1; }),
         "weights[1] \"norm\": packing: found panel, expected one that f32 has"},
        {"group", with([](PlanT& p) { weight(p, "layers.1.shared.down").group = 48; }),
         "weights[18] \"layers.1.shared.down\": group: found 48, expected one that int4 has"},
        {"group_of_int8", with([](PlanT& p) { weight(p, "layers.1.shared.gate_up").group = 32; }),
         "weights[17] \"layers.1.shared.gate_up\": group: found 32, expected one that int8 has"},
        {"bytes", with([](PlanT& p) { weight(p, "layers.1.shared.down").bytes += 64; }),
         "weights[18] \"layers.1.shared.down\": bytes: found 1152, expected 1088 for int4 [1, 16, 4] in panel"},
        {"activations", with([](PlanT& p) { shared(p).activations = 0; }),
         KTC_SHARED "activations: found f32, expected int8 for w_gate_up \"layers.1.shared.gate_up\" in int8"},
        {"mixed", with([](PlanT& p) { repack(p, "layers.1.shared.down", Format::bf16, Packing::row_major, 0); }),
         KTC_SHARED "packing of w_down \"layers.1.shared.down\": found row_major, expected panel"},
        {"unpaired", with([](PlanT& p) { weight(p, "layers.1.shared.gate_up").packing = 1; }),
         KTC_SHARED "packing of w_gate_up \"layers.1.shared.gate_up\": found panel, expected panel_paired"},
        {"paired_down",
         with([](PlanT& p) { repack(p, "layers.1.shared.down", Format::int4, Packing::panel_paired, 64); }),
         KTC_SHARED "packing of w_down \"layers.1.shared.down\": found panel_paired, expected panel"},
        {"x_granule", with([](PlanT& p) { mlp(p).x_granule = 32; }),
         KTC_SHARED "x_granule: found 32, expected 0, 64 or 128"},
        {"h_granule", with([](PlanT& p) { mlp(p).h_granule = 7; }),
         KTC_SHARED "h_granule: found 7, expected 0, 64 or 128"},
        {"granule_of_rows", [](PlanT& p) { mlp(p).x_granule = 64; },
         KTC_SHARED "x_granule: found 64, expected 0 for weights in rows"},
        {"tiles_of_rows", [](PlanT& p) { mlp(p).tile_rows = 9; },
         KTC_SHARED "tile_rows: found 9, expected 0 for weights in rows"},
        {"workspace", with([](PlanT& p) { shared(p).workspace = plan::kNone; }),
         KTC_SHARED "workspace: found none, expected at least " +
             std::to_string(panel_mlp_workspace(Format::int8, 4, 16, 4, 64, 128, 9).total()) + " bytes"},
    });

}  // namespace
}  // namespace ktc::test
