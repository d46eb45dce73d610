// Two tiny random models as plans, with the values of their weights at hand, for tests of the executor.
//
// `gqa`: two layers of grouped-query attention (fused q/k/v with bias, per-head norms, half rope) and routed
// experts (softmax). `mla`: a dense layer, then a layer with a sigmoid group router, routed and shared experts; multi-head latent
// attention with a low-rank query and interleaved rope. Dimensions are odd on purpose: no multiple of a block or a vector.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "test/support/plan_builder.h"

namespace ktc::test {

struct TinyOptions {
  bool mla = false;
  Format weights = Format::f32;
  Format cache = Format::f32;
  std::uint32_t page_tokens = 16;
  std::uint32_t tokens_per_sequence = 70;
  std::uint32_t sequences = 8;
  std::uint32_t seed = 1;
  bool select_early = false;  // the last MLP or experts see only the rows that need logits
};

struct TinyModel {
  static constexpr std::uint32_t kVocabulary = 203, kHidden = 72, kLayers = 2;
  static constexpr float kEps = 1e-5f;
  // gqa
  static constexpr std::uint32_t kHeads = 6, kKvHeads = 2, kHeadDim = 20;
  static constexpr std::uint32_t kExperts = 6, kTopK = 2, kIntermediate = 40;
  static constexpr float kScale = 0.2236f;
  // mla
  static constexpr std::uint32_t kMlaHeads = 5, kQueryRank = 36, kNope = 24, kRope = 12, kValue = 28, kLatent = 40;
  static constexpr std::uint32_t kMlaExperts = 12, kMlaTopK = 3, kGroups = 4, kTopkGroups = 2;
  static constexpr std::uint32_t kDense = 100, kShared = 52;
  static constexpr float kMlaScale = 0.1667f, kRouterScale = 2.5f, kRopeFactor = 1.1f;

  static constexpr std::uint32_t kMostTokens = 64, kMostRows = 48;

  explicit TinyModel(const TinyOptions& options);

  TinyOptions options;
  PlanBuilder builder;
  std::map<std::string, std::vector<float>> values;  // by weight name, as rounded to the format
  std::vector<float> inv_freq;

  std::uint32_t experts() const { return options.mla ? kMlaExperts : kExperts; }
  std::uint32_t top_k() const { return options.mla ? kMlaTopK : kTopK; }
  std::uint32_t moe_layers() const { return options.mla ? kLayers - 1 : kLayers; }

 private:
  std::uint32_t add(const std::string& name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns, float spread,
                    float centre = 0.0f, bool always_f32 = false);
  std::uint32_t index(const std::string& name) const { return indices_.at(name); }
  void add_weights();
  void add_entry(planfb::EntryKind kind, std::uint32_t tokens, std::uint32_t rows, std::uint32_t sequences);
  std::uint32_t select(EntryBuilder& e, std::uint32_t x);
  std::uint32_t gqa_layer(EntryBuilder& e, std::uint32_t layer, std::uint32_t x, std::uint32_t positions);
  std::uint32_t mla_layer(EntryBuilder& e, std::uint32_t layer, std::uint32_t x, std::uint32_t positions);
  std::map<std::string, std::uint32_t> indices_;
  std::uint32_t random_;
};

}  // namespace ktc::test
