// Small models for placement tests, as read_model would describe them: shapes only, no tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_desc.h"

namespace ktc::test {

struct ModelShape {
  std::uint32_t layers = 2, dense_layers = 0;
  std::uint32_t hidden = 64, vocab = 256;
  std::uint32_t heads = 4, kv_heads = 2, head_dim = 16;
  std::uint32_t experts = 8, top_k = 2, intermediate = 32;
  bool mla = false;  // nope 32, rope 16, v 24, latent 48, q rank 40
  bool shared_expert = false, tied = false, router_bias = false;
  std::uint32_t max_positions = 0;  // 0: unstated
  models::TensorType type = models::TensorType::bf16;
  models::TensorType router_type = models::TensorType::bf16;
};

models::ModelDesc build_model(const ModelShape& shape);

// Index of the module with this name; fails the test when there is none.
std::uint32_t module_named(const models::ModelDesc& model, const std::string& name);

}  // namespace ktc::test
