#include "placement/slot_use.h"

namespace ktc::placement {
namespace {

struct Collect {
  std::vector<SlotUse> uses;
  void add(SlotRole role, std::initializer_list<std::uint32_t> slots) {
    for (std::uint32_t slot : slots)
      if (slot != models::kNoSlot) uses.push_back({slot, role});
  }

  void operator()(const models::EmbeddingDesc& d) { add(SlotRole::matrix, {d.weight}); }
  void operator()(const models::NormDesc& d) { add(SlotRole::vector, {d.weight}); }
  void operator()(const models::GqaDesc& d) {
    add(SlotRole::matrix, {d.q, d.k, d.v, d.o});
    add(SlotRole::vector, {d.q_bias, d.k_bias, d.v_bias, d.o_bias, d.q_norm, d.k_norm});
  }
  void operator()(const models::MlaDesc& d) {
    add(SlotRole::matrix, {d.q, d.q_a, d.q_b, d.kv_a});
    add(SlotRole::kv_b, {d.kv_b});
    add(SlotRole::matrix, {d.o});
    add(SlotRole::vector, {d.q_a_norm, d.kv_a_norm});
  }
  void operator()(const models::RouterDesc& d) {
    add(SlotRole::matrix, {d.weight});
    add(SlotRole::vector, {d.bias});
  }
  void operator()(const models::ExpertsDesc& d) { add(SlotRole::matrix, {d.gate_up, d.down}); }
  void operator()(const models::MlpDesc& d) { add(SlotRole::matrix, {d.gate_up, d.down}); }
  void operator()(const models::HeadDesc& d) { add(SlotRole::matrix, {d.weight}); }
};

}  // namespace

std::vector<SlotUse> slots_of(const models::Module& module) {
  Collect collect;
  std::visit(collect, module.attributes);
  return std::move(collect.uses);
}

bool keeps_fp8(const models::ModelDesc& model, const models::Module& module) {
  bool any = false;
  for (const SlotUse& use : slots_of(module)) {
    if (use.role == SlotRole::vector) continue;
    any = true;
    if (model.slots[use.slot].type != models::TensorType::f8_e4m3) return false;
  }
  return any;
}

bool has_only_bf16_matrices(const models::ModelDesc& model, const models::Module& module) {
  bool any = false;
  for (const SlotUse& use : slots_of(module)) {
    if (use.role == SlotRole::vector) continue;
    any = true;
    const models::TensorType type = model.slots[use.slot].type;
    if (type != models::TensorType::bf16 && type != models::TensorType::f8_e4m3) return false;
  }
  return any;
}

}  // namespace ktc::placement
