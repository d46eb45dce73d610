// What a GPU computes: one argument struct and one function per operation, in two complete sets, CUDA kernels and host
// functions over the same memory layouts ("reference"). The host-emulated accelerator (runtime/device) runs the second set.
//
// A function of the CUDA set launches on the given cudaStream_t and returns at once; one of the reference set computes before it
// returns and ignores the stream. Neither allocates, synchronises or keeps state; everything may be captured into a graph.
// Return: 0, or a cudaError_t value of the launch (the reference set: 0). Threading: any, as long as outputs are disjoint.
//
// Values are f32 matrices, row r at data + r * stride. `activations` says what the left operand of a product is rounded to
// (f32: not at all; bf16: nearest even) before it is multiplied; sums are f32 in an order of the kernel's own. Pointers are
// device addresses unless a comment says otherwise. Rows beyond the live ones are computed like any other and mean nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/formats/formats.h"
#include "runtime/formats/sample_row.h"

namespace ktc::gpu {

class LargeProduct;

struct Matrix {
  float* data = nullptr;
  std::uint64_t stride = 0;      // elements
  std::uint32_t columns = 0;
};
struct Ids {
  std::int32_t* data = nullptr;
  std::uint64_t stride = 0;
  std::uint32_t columns = 0;
};
// A packed [batch, rows, columns] weight. packing row_major (f32, bf16: rows padded to 64 bytes) or gpu_rows (int8, int4, fp8:
// runtime/formats/gpu_rows.h); panel and panel_paired only where a comment says so.
struct Weight {
  const std::byte* data = nullptr;
  Format format = Format::f32;
  Packing packing = Packing::row_major;
  std::uint32_t group = 0, batch = 1, rows = 0, columns = 0;
  std::uint64_t row_bytes = 0, matrix_bytes = 0;
};
struct Scratch {
  std::byte* data = nullptr;     // 256-byte aligned
  std::uint64_t bytes = 0;       // at least the function of runtime/formats/gpu_workspace.h for the op
};

// Who is in the step: lies in the step block (runtime/formats/step_block.h), written by the host before the step.
struct Batch {
  const std::int32_t* live = nullptr;        // [3]: live tokens, live rows, sequences
  const std::int32_t* sequence = nullptr;    // [tokens]: of each token; padding tokens: the dummy sequence
  const std::int32_t* positions = nullptr;   // [tokens]
  const std::int32_t* q_first = nullptr;     // [sequences + 1]: first token of each sequence
  const std::int32_t* kv_length = nullptr;   // [sequences]: cached tokens after this step's append
  const std::int32_t* page_first = nullptr;  // [sequences + 1]: first entry of each sequence in `pages`
  const std::int32_t* pages = nullptr;       // page ids
  std::uint32_t tokens = 0, sequences = 0;   // of the entry's bounds (decode: one token per sequence)
};
// One layer of a paged cache part: element (page, head, slot, i) at
//   base + page * page_bytes + ((head * page_tokens + slot) * width + i) * sizeof(format)
struct CachePart {
  std::byte* base = nullptr;                 // of this layer and part
  std::uint64_t page_bytes = 0;
  std::uint32_t heads = 0, width = 0;
};
struct Cache {
  Format format = Format::bf16;              // f32 or bf16
  std::uint32_t page_tokens = 0;
  CachePart a, b;                            // k, v; or latent, rope
};
struct Rope {
  const float* cos = nullptr;                // [tokens][dim / 2], rope_table() fills them once per step
  const float* sin = nullptr;
  std::uint32_t dim = 0;
  bool interleaved = false;
};

// Which (token, k) pairs of a router's choice an op computes, and from which matrix.
//   slot = slots ? slots[id] : id; a pair whose id or slot is negative is not this op's.
//   late > 0: of a token with deferred[token] != 0, the `late` pairs of lowest weight (of equal weights the one with the higher
//   id is lower) among those of this op (`among_all`: among all top_k) are late; part 0: all pairs, 1: those that are not late,
//   2: the late ones. Tokens with deferred 0 have no late pairs.
struct PairFilter {
  const std::int32_t* slots = nullptr;       // [experts] or null
  const std::int32_t* deferred = nullptr;    // [tokens], needed when late > 0
  std::uint32_t late = 0;
  std::uint32_t part = 0;
  bool among_all = false;
};

// ---------------------------------------------------------------------------------------------------------------- hand-off
//
// Record of one layer and entry in mapped pinned host memory, written by publish(), read by the host:
//   RecordHeader (64 bytes), ids i32 [tokens][top_k], weights f32 [tokens][top_k], x `format` [tokens][columns], each area
//   aligned to 64 bytes (runtime/formats/handoff.h). All but the header first, then the epoch with release.sys.
// Result: cells of 16 bytes, written by the host, each with one aligned 16-byte store: bf16 [6] or f32 [3], then the epoch u32.
//   Columns are cut into panels of 32, a panel of a row has 6 (bf16) or 11 (f32) cells: [row][panel][cell].
struct RecordHeader {
  std::uint32_t epoch;                       // last word written
  std::uint32_t tokens;                      // live
  std::uint32_t pairs;                       // (live token, k) pairs with a slot on the CPU
  std::uint32_t reserved[13];
};
// Words in mapped pinned host memory, shared by all layers of a device.
struct HandoffWords {
  std::uint32_t near_epoch;                  // unused by kernels of this version when 0
  std::uint32_t near_layer;                  // the host sets near_epoch, near_layer when a layer's result is near
  std::uint32_t heartbeat;                   // the host counts it up while it serves
  std::uint32_t poison;                      // not 0: every wait ends at once, results are zeros
};

struct RopeTableArgs { const float* inv_freq; double factor; std::uint32_t half; const std::int32_t* positions; std::uint32_t tokens; float* cos; float* sin; };
// feed: null, or [rows]: where it is not negative, the id is fed[feed[r]], what a sample step chose; else ids[r]. An id that is not in
// the table gives zeros.
struct EmbedArgs { Ids ids; Weight w; Matrix out; std::uint32_t rows; const std::int32_t* feed = nullptr; const std::int32_t* fed = nullptr; };
struct NormArgs { Matrix x; const float* w; float eps; Matrix out; std::uint32_t rows; };   // rms
struct AddArgs { Matrix in[8]; std::uint32_t count; Matrix out; std::uint32_t rows; };
// sum = in[0] + in[1] + ..., left to right; out = rms norm of sum. sum may be one of the inputs.
struct AddNormArgs { Matrix in[8]; std::uint32_t count; Matrix sum; const float* w; float eps; Matrix out; std::uint32_t rows; };
// large: on the host, for many rows of bf16; null: our kernels alone (large_product.h).
struct LinearArgs { Matrix x; Weight w; const float* bias; Matrix out; std::uint32_t rows; Format activations; Scratch scratch;
                    const LargeProduct* large = nullptr; };
struct SelectRowsArgs { Matrix x; Ids output_rows; Matrix out; std::uint32_t rows; };
// q, k normed per head where a weight is given, turned by rope, k and v appended to the cache; turned q goes to `query`
// [tokens][heads * head_dim], f32.
struct GqaAppendArgs { Matrix q, k, v; const float* q_norm; const float* k_norm; float norm_eps; Rope rope; Cache cache; Batch batch;
                       std::uint32_t heads, kv_heads, head_dim; Matrix query; };
// Both attend ops may leave anything in `query`. own_kernels: not FlashInfer's, for comparisons (flashinfer/attend.h).
struct GqaAttendArgs { Matrix query, out; Cache cache; Batch batch; std::uint32_t heads, kv_heads, head_dim; float scale; Scratch scratch;
                       bool own_kernels = false; };
// Both, of one cache and batch, for steps in which every sequence has one token: nothing that is attended but a token's own key is new.
struct GqaDecodeArgs { GqaAppendArgs append; GqaAttendArgs attend; };
// latent (normed) and the turned rope part appended; query [tokens][heads * (latent + rope)] = [W_UK q_nope, turned q_rope].
struct MlaAppendArgs { Matrix q, latent, k_rope; Rope rope; Cache cache; Batch batch; Weight w_uk;
                       std::uint32_t heads, nope_dim, rope_dim, latent_dim; Format activations; Matrix query; };
// context [tokens][heads * latent]; then out[head] = W_UV context[head].
struct MlaAttendArgs { Matrix query, context, out; Cache cache; Batch batch; Weight w_uv; std::uint32_t heads, rope_dim, v_dim, latent_dim;
                       float scale; Format activations; Scratch scratch; bool own_kernels = false; };
struct RouteArgs { Matrix x; Weight w; const float* bias; Ids ids; Matrix weights; std::uint32_t rows, experts, top_k, groups, topk_groups;
                   bool sigmoid, normalise; float scale; Scratch scratch; };
// out = sum over the filtered pairs of weight * down(swiglu(gate_up(x))), 0 for a token without pairs. Of a bank that passes through
// in groups, gate_up and down hold the matrices from `first` on: only their pairs are computed; `accumulate`: added to out.
struct ExpertsArgs { Matrix x; Ids ids; Matrix weights; PairFilter filter; Weight gate_up, down; Matrix out; std::uint32_t rows, top_k, experts;
                     Format activations; Scratch scratch; std::uint32_t first = 0; bool accumulate = false; };
struct MlpArgs { Matrix x; Weight gate_up, down; Matrix out; std::uint32_t rows; Format activations; Scratch scratch; };
struct PublishArgs { Matrix x; Ids ids; Matrix weights; const std::int32_t* slots;  // of the CPU's op, [experts] or null: all
                     std::uint32_t top_k; std::byte* record; Format format;          // mapped; of x in the record: f32 or bf16
                     const std::int32_t* live; const std::uint32_t* epoch;           // device, in the step block
                     std::uint32_t* pairs;                                            // device: pairs published, for await()
                     std::uint32_t rows; };
// Memory that the kernels behind a wait will read and that nothing writes: the card fetches it into its cache while it waits, if it
// waits. Changes no value.
struct Fetch { const std::byte* data; std::uint64_t bytes; };
struct AwaitArgs { const std::byte* cells; Format format; Matrix out; HandoffWords* words; std::uint32_t layer;
                   const std::int32_t* live; const std::uint32_t* epoch; const std::uint32_t* pairs; bool skip_empty;  // no pairs: zeros, no wait
                   std::uint32_t rows; Fetch fetch[4] = {}; };
// Ops that follow each other in a decode step, in one launch where that is faster; every output is written as by the ops themselves.
// add_norm (where norm.count is not 0: route.x is its out), route, publish (of route's x, ids and weights).
struct RoutePublishArgs { AddNormArgs norm; RouteArgs route; PublishArgs publish; };
// add_norm, then route of its out.
struct NormRouteArgs { AddNormArgs norm; RouteArgs route; };
// await, then add_norm, of which norm.in[term] is await.out.
struct AwaitNormArgs { AwaitArgs await; AddNormArgs norm; std::uint32_t term; };
// ids[r] = what parameters[r] chooses of row r (sample_math.h), the same in both sets to the bit; ~id, which is negative, of the first
// logit that is not finite. parameters: on the device. greedy: on the host; all rows are, so that one kernel is enough.
struct SampleArgs { Matrix logits; const SampleRow* parameters; Ids ids; std::uint32_t rows; bool greedy; Scratch scratch; };
// Values of panels (Packing::panel or panel_paired of `from`) as `to`: row_major bf16, or gpu_rows of the same format.
struct UnpackArgs { Weight from, to; std::uint32_t first, count; };  // matrices [first, first + count) of from to [0, count) of to

struct KernelSet {
#define KTC_GPU_KERNEL(name, Args) int (*name)(const Args&, void* stream) = nullptr;
#include "runtime/kernels/cuda/gpu_kernels.def"
};

const KernelSet& reference_kernels();
// All null in a build without CUDA.
const KernelSet& cuda_kernels();

}  // namespace ktc::gpu
