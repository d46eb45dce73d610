// Which slots a module uses, and as what: the one place that knows the attribute structs of models/model_desc.h here.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_desc.h"

namespace ktc::placement {

enum class SlotRole : std::uint8_t {
  matrix,  // packed in the module's weight format
  vector,  // norm weight or bias: packed as f32
  kv_b,    // MLA's [heads * (nope + v), latent]: packed as W_UK [heads, latent, nope] and W_UV [heads, v, latent]
};

struct SlotUse {
  std::uint32_t slot;  // index in ModelDesc::slots
  SlotRole role;
};

// Absent optional slots are left out.
std::vector<SlotUse> slots_of(const models::Module& module);

// Whether every matrix of the module is FP8, and there is one: `native` may keep its codes.
bool keeps_fp8(const models::ModelDesc& model, const models::Module& module);

// The precision without scales that `native` stands for: bf16 when every matrix of the module is bf16 or FP8, else f32 (which holds f16
// exactly; bf16 would not). FP8 times its scale has more digits than bf16: that rounding is far below the one to FP8, and
// twice the memory would not pay for it. f32 for a module without matrices.
bool has_only_bf16_matrices(const models::ModelDesc& model, const models::Module& module);

}  // namespace ktc::placement
