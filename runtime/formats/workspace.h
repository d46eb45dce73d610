// Scratch memory of one CPU step, as a pure function of its shape: the compiler reserves it in the arena, the executor uses it.
// All sizes are bytes and multiples of 64. Areas lie one behind the other in the order of the fields.
#pragma once

#include <cstdint>

namespace ktc {

constexpr std::uint64_t align64(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// gqa: q after norm and rope, f32 [tokens, heads * head_dim].
struct GqaWorkspace {
  std::uint64_t query;
  std::uint64_t total() const { return query; }
};
constexpr GqaWorkspace gqa_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t head_dim) {
  return {align64(tokens * heads * head_dim * 4)};
}

// mla: latent query f32 [tokens, heads, latent + rope], context f32 [tokens, heads, latent].
struct MlaWorkspace {
  std::uint64_t query;
  std::uint64_t context;
  std::uint64_t total() const { return query + context; }
};
constexpr MlaWorkspace mla_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t latent, std::uint64_t rope) {
  return {align64(tokens * heads * (latent + rope) * 4), align64(tokens * heads * latent * 4)};
}

// route: logits f32 [tokens, experts].
struct RouteWorkspace {
  std::uint64_t logits;
  std::uint64_t total() const { return logits; }
};
constexpr RouteWorkspace route_workspace(std::uint64_t tokens, std::uint64_t experts) {
  return {align64(tokens * experts * 4)};
}

// experts: hidden activations f32 [tokens * top_k, intermediate], pairs sorted by expert u32 [2, tokens * top_k],
// first pair of each expert u32 [experts + 1], routing weight of each sorted pair f32 [tokens * top_k].
struct ExpertsWorkspace {
  std::uint64_t hidden;
  std::uint64_t pairs;
  std::uint64_t offsets;
  std::uint64_t weights;
  std::uint64_t total() const { return hidden + pairs + offsets + weights; }
};
constexpr ExpertsWorkspace experts_workspace(std::uint64_t tokens, std::uint64_t top_k, std::uint64_t intermediate,
                                             std::uint64_t experts) {
  return {align64(tokens * top_k * intermediate * 4), align64(tokens * top_k * 8), align64((experts + 1) * 4),
          align64(tokens * top_k * 4)};
}

// mlp: hidden activations f32 [rows, intermediate].
struct MlpWorkspace {
  std::uint64_t hidden;
  std::uint64_t total() const { return hidden; }
};
constexpr MlpWorkspace mlp_workspace(std::uint64_t rows, std::uint64_t intermediate) {
  return {align64(rows * intermediate * 4)};
}

}  // namespace ktc
