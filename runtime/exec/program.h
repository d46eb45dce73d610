// A plan's entries as the executor runs them: every step a small struct of raw pointers, resolved once at open.
//
// Pointers go into the arena, the KV cache, the weight files and the per-step tables, all of which outlive the program.
// Activations are f32; strides are in elements. No step looks anything up by name or index of the plan.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/exec/kv_layout.h"
#include "runtime/exec/parallel.h"
#include "runtime/kernels/cpu/kernels.h"

namespace ktc::exec {

// Row r at data + r * stride.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::size_t stride = 0;
  std::size_t columns = 0;
  T* row(std::size_t r) const { return data + r * stride; }
};
using Matrix = Rows<float>;
using Ids = Rows<std::int32_t>;

// A packed [batch, rows, columns] weight.
struct Weight {
  const std::byte* data = nullptr;
  std::size_t row_bytes = 0, rows = 0, columns = 0;
  const std::byte* matrix(std::size_t b) const { return data + b * rows * row_bytes; }
};

// cos and sin of each token of the step, [tokens, half]; filled once per step for all layers that share the rope.
struct RopeTable {
  const float* inv_freq = nullptr;
  std::size_t half = 0;
  double factor = 1.0;
  bool interleaved = false;
  float* cos = nullptr;
  float* sin = nullptr;
};

// A token of the step and the pages of its sequence.
struct Token {
  const std::uint32_t* pages = nullptr;
  std::uint32_t position = 0;
};

// Tokens [first, first + count) of the step: one sequence, consecutive positions.
struct TokenRun {
  std::uint32_t first = 0, count = 0;
};

// Says to a GPU that waits that its result is almost there (docs/handoff.md). Any worker may; saying it again does no harm.
struct ResultNear {
  std::uint32_t* epoch_word = nullptr;
  std::uint32_t* layer_word = nullptr;
  std::uint32_t epoch = 0, layer = 0;
  void announce() const {
    __atomic_store_n(layer_word, layer, __ATOMIC_RELAXED);
    __atomic_store_n(epoch_word, epoch, __ATOMIC_RELEASE);
  }
};

struct ResultCells;  // result_cells.h

// What changes from step to step.
struct StepState {
  Workers* workers = nullptr;
  std::size_t tokens = 0, rows = 0;
  std::size_t first = 0;                        // of the tokens: how many of the step's stand before them; not 0 in a second half alone
  std::size_t cut = 0;                          // of an entry cut in halves: how many tokens its first one has
  const Token* token = nullptr;                 // [tokens]
  const TokenRun* runs = nullptr;               // [run_count]: every token once, by descending position
  std::size_t run_count = 0;
  bool prefill = false;                         // some sequence brings several tokens
  std::uint32_t* busy_experts = nullptr;        // [experts], scratch of the step that runs
  std::byte* tile_scratch = nullptr;            // [workers][tile_scratch_each], for tile kernels; null: there are none
  std::size_t tile_scratch_each = 0;
  float* attend_scratch = nullptr;              // [workers][attend_scratch_each]: a part of the keys for kMostAttendRows heads
  std::size_t attend_scratch_each = 0;
  float* attend_parts = nullptr;                // [attend_parts_floats], for parts of the keys that several workers take
  std::size_t attend_parts_floats = 0;
  kernels::TileScopeFn enter_tiles = nullptr, leave_tiles = nullptr;
  const ResultNear* near = nullptr;             // announced when the last item of an experts op is claimed; null: nobody waits
  ResultCells* cells = nullptr;                 // where an experts op that can leaves its result as well, and says so; null: nowhere
  std::size_t count(bool of_rows) const { return of_rows ? rows : tokens; }
};

struct EmbedStep {
  Ids ids;
  Weight w;
  kernels::LoadFn load;
  Matrix out;
};
struct NormStep {
  Matrix x, out;
  const float* w;
  float eps;
  kernels::RmsNormFn norm;
  bool of_rows;
};
struct LinearStep {
  Matrix x, out;
  Weight w;
  const float* bias;
  kernels::MatmulFn matmul;
  bool of_rows;
};
struct GqaStep {
  Matrix q, k, v, out;
  std::size_t heads, kv_heads, head_dim;
  float scale, norm_eps;
  const float* q_norm;  // or null
  const float* k_norm;  // or null
  const RopeTable* rope;
  KvLayer layer;
  KvPart k_part, v_part;
  float* query;  // workspace [tokens, heads * head_dim]
  kernels::RmsNormFn norm;
  kernels::RopeFn rotate;
  kernels::StoreFn store;
  kernels::AttendFn attend;
  kernels::AttendJoinFn join;
};
struct MlaStep {
  Matrix q, latent, k_rope, out;
  std::size_t heads, nope_dim, rope_dim, v_dim, latent_dim;
  float scale;
  const RopeTable* rope;
  Weight w_uk, w_uv;
  KvLayer layer;
  KvPart latent_part, rope_part;
  float* query;    // workspace [tokens, heads, latent_dim + rope_dim]
  float* context;  // workspace [tokens, heads, latent_dim]
  kernels::MatmulFn matmul_uk, matmul_uv;
  kernels::RopeFn rotate;
  kernels::StoreFn store;
  kernels::AttendFn attend;
  kernels::AttendJoinFn join;
};
struct RouteStep {
  Matrix x, weights;
  Ids ids;
  Weight w;
  const float* bias;  // or null
  std::size_t experts, top_k, groups, topk_groups;
  bool sigmoid, normalise;
  float scale;
  float* logits;  // workspace [rows, experts]
  kernels::MatmulFn matmul;
  bool of_rows;
};
// Which (row, k) pairs of a router's choice an op computes, and from which matrix of its bank; the same rules as gpu::PairFilter
// (runtime/kernels/cuda/gpu_kernels.h).
struct PairFilter {
  enum class Part : std::uint8_t { all, in_time, late };
  const std::int32_t* slots = nullptr;  // [ids] matrix of each expert id, -1: not this op's; null: the id itself
  std::size_t ids = 0;                  // expert ids there are
  Ids deferred;                         // one column; data null: no row is deferred
  std::size_t late = 0;                 // pairs of a deferred row that are late
  Part part = Part::all;
  bool among_all = false;               // late ones are chosen among all pairs of the row, not among those of this op

  bool is_expert(std::int32_t id) const { return static_cast<std::uint32_t>(id) < ids; }
  // Matrix of expert `id`, or -1.
  std::int32_t slot(std::int32_t id) const { return !is_expert(id) ? -1 : slots == nullptr ? id : slots[id]; }
};

struct ExpertsStep {
  Matrix x, weights, out;
  Ids ids;
  PairFilter filter;
  Weight gate_up, down;
  std::size_t experts, top_k, intermediate;  // experts: matrices of the bank
  float* hidden;               // workspace [rows * top_k, intermediate], sorted by expert
  std::uint32_t* pair_row;     // workspace [rows * top_k]: the row of each sorted pair
  std::uint32_t* active;       // workspace [rows * top_k]: matrices with rows, ascending
  std::uint32_t* first;        // workspace [experts + 1]: first sorted pair of each matrix
  float* pair_weight;          // workspace [rows * top_k]
  std::uint64_t* activations;  // [filter.ids], added to: once for each pair of this op, whichever its part; or null
  kernels::GateUpFn gate_up_fn;
  kernels::MatmulFn matmul;
  bool of_rows;
};
struct MlpStep {
  Matrix x, out;
  Weight gate_up, down;
  std::size_t intermediate;
  float* hidden;  // workspace [rows, intermediate]
  kernels::GateUpFn gate_up_fn;
  kernels::MatmulFn matmul;
  bool of_rows;
};
struct AddStep {
  static constexpr std::size_t kMostInputs = 8;
  std::array<Matrix, kMostInputs> inputs;
  std::size_t count;
  Matrix out;
  kernels::AddFn add;
  bool of_rows;
};
// sum = inputs[0] + inputs[1] + ..., out = rms norm of sum; sum may be inputs[0].
struct AddNormStep {
  std::array<Matrix, AddStep::kMostInputs> inputs;
  std::size_t count;
  Matrix sum, out;
  const float* w;
  float eps;
  kernels::AddFn add;
  kernels::RmsNormFn norm;
  bool of_rows;
};
struct SelectRowsStep {
  Matrix x, out;
  Ids output_rows;
  Matrix second;  // of an entry cut in halves: x is the first one; else no data
};

// Counting sort of the filtered (row, k) pairs by matrix; within a matrix pairs stay in row order. Fills pair_row,
// pair_weight, first and active; returns the number of active matrices. An id that is no expert (logits were NaN) gets no pair.
std::size_t sort_pairs(const ExpertsStep& step, std::size_t rows);

void run_step(const EmbedStep& step, const StepState& state);
void run_step(const NormStep& step, const StepState& state);
void run_step(const LinearStep& step, const StepState& state);
void run_step(const GqaStep& step, const StepState& state);
void run_step(const MlaStep& step, const StepState& state);
void run_step(const RouteStep& step, const StepState& state);
void run_step(const ExpertsStep& step, const StepState& state);
void run_step(const MlpStep& step, const StepState& state);
void run_step(const AddStep& step, const StepState& state);
void run_step(const AddNormStep& step, const StepState& state);
void run_step(const SelectRowsStep& step, const StepState& state);

// Largest head or rope part that the attention steps take: their scratch lies on the stack.
constexpr std::size_t kMostHeadWidth = 1024;

}  // namespace ktc::exec
