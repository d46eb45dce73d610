// Opens a plan folder NAME.ktp/: verifies plan.ktp once and returns it as plain structs, which are then trusted.
//
// plan.ktp = FlatBuffer (identifier KTP1, plan.fbs) padded to 8 bytes, then a 16-byte footer: "KTPDIGST", XXH3-64 of all bytes
// before the footer, little-endian. docs/plan-format.md has the picture.
// Threading: an OpenPlan is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan_generated.h"  // made by flatc at build time; object API: planfb::PlanT and friends
#include "runtime/base/status.h"
#include "runtime/formats/gpu_stream.h"

namespace ktc::plan {

// Bits of Plan.required_features. A reader refuses bits that it does not know.
enum class Feature : std::uint64_t {
  // Steps of a GPU or between devices, or experts of which an op computes a part (slots, late, part): a reader without it would
  // take every expert id for a matrix of the bank.
  hybrid = 1,
  // Two ops of which a rule at run time says what each computes (ExpertsOp.share): a reader without it would compute all twice.
  shared_experts = 2,
  // Entries whose tokens are cut in two (Symbol.first_half, second_half).
  halves = 4
};
constexpr std::uint64_t kKnownFeatures = static_cast<std::uint64_t>(Feature::hybrid) | static_cast<std::uint64_t>(Feature::shared_experts) |
                                         static_cast<std::uint64_t>(Feature::halves);
constexpr std::uint32_t kNone = 0xffffffffu;

// Rows of one half of a step's tokens (runtime/formats/halves.h).
constexpr bool is_half(planfb::Symbol symbol) { return symbol == planfb::Symbol::first_half || symbol == planfb::Symbol::second_half; }
// Whether the entry's tokens are cut in two.
bool is_cut(const planfb::EntryT& entry);
// Most rows of a symbol, of `tokens` for workspaces.
std::uint64_t bound_of(const planfb::EntryT& entry, planfb::Symbol symbol);

struct OpenPlan {
  std::filesystem::path folder;
  planfb::PlanT plan;
};

// Structure (footer, identifier, FlatBuffers verifier), then meaning (verify_plan), then the lengths of the weight and text
// files on disk. No weight byte is read. Errors within milliseconds, before any large allocation.
Expected<std::shared_ptr<const OpenPlan>> open_plan(const std::filesystem::path& folder);

// The same on bytes, without the files beside it. `name` stands for the plan in messages.
Expected<planfb::PlanT> parse_plan(std::span<const std::byte> bytes, std::string_view name);

// Meaning alone: indices, ranges without overflow, alignment, shapes of each op against its weights, buffers and caches,
// buffers whose live ranges meet do not overlap in the arena, workspace sizes, formats, account against buffers.
Status verify_plan(const planfb::PlanT& plan);

// What a reader must know to compute this plan rightly; verify_plan refuses a plan that asks for less. Emission sets
// required_features to it.
std::uint64_t features_of(const planfb::PlanT& plan);

// Bytes that the plan's entries decide beside the arenas, as account lines state them; no check against overflow, the plan
// verified or is being built. step_block_bytes: of category "step-block" of a GPU, the largest entry's block
// (runtime/formats/step_block.h). record_bytes: of category "records" of the CPU, the records and results of every publish and
// await step (runtime/formats/handoff.h), in pinned host memory. stream_areas: of category "stream" of a GPU, what banks that pass
// through it share.
std::uint64_t step_block_bytes(const planfb::PlanT& plan);
// spare_bytes, spare_host_bytes: of category "spare" of a GPU and of the CPU, for experts that move (runtime/formats/moving.h).
std::uint64_t spare_bytes(const planfb::PlanT& plan, std::uint32_t device);
std::uint64_t spare_host_bytes(const planfb::PlanT& plan);
GpuStreamAreas stream_areas(const planfb::PlanT& plan, std::uint32_t device);
std::uint64_t record_bytes(const planfb::PlanT& plan);

// plan.ktp's bytes, footer included. Deterministic: equal plans give equal bytes.
std::vector<std::byte> serialise_plan(const planfb::PlanT& plan);

// Compares the bytes of every weight and text file with their digests. `progress(done, total)` in bytes, may be null.
Status verify_weights(const OpenPlan& plan, void (*progress)(void*, std::uint64_t, std::uint64_t), void* context);

// Stable text: sorted where order means nothing, no pointers, no times. For people, lit tests and diffs.
std::string dump(const planfb::PlanT& plan);
// Lines that differ between two dumps, with - and +; empty when equal.
std::string diff(const planfb::PlanT& before, const planfb::PlanT& after);
// Bytes per device by category, and its weights by format and by name with layer numbers replaced by *.
std::string sizes(const planfb::PlanT& plan);

std::uint64_t digest64(std::span<const std::byte> bytes);  // XXH3-64

}  // namespace ktc::plan
