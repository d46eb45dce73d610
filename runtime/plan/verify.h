// The parts of verify_plan and what they share, private to runtime/plan.
// Every part may rely on those before it in verify.cpp; within a part, an index is checked before it is used.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/formats/formats.h"
#include "runtime/plan/plan.h"

namespace ktc::plan::detail {

// A failure of meaning: the compiler wrote nonsense, or someone changed the file and its digest.
Status wrong(std::string place, std::string what, std::string found, std::string expected);

std::string shown(std::string_view name);                                             // quoted, a long one cut
std::string item(std::string_view vector, std::size_t index, std::string_view name);  // weights[3] "name"
std::string number(std::uint64_t value);
std::string bytes_text(std::uint64_t value);  // 64 bytes
std::string real(float value);              // shortest text that reads back

Status check_index(const std::string& place, std::string what, std::uint64_t index, std::size_t size,
                   std::string_view vector);

// Values come from a file: an enum's may be beyond its last.
template <typename E>
bool is_member(E value) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(E::MAX);
}

// nullopt on 64-bit overflow.
std::optional<std::uint64_t> product(std::initializer_list<std::uint64_t> factors);
std::optional<std::uint64_t> sum(std::optional<std::uint64_t> a, std::optional<std::uint64_t> b);

// The product when it is below 2^60: sums of four stay below 2^62, and rounding up to 64 or 256 cannot overflow.
std::optional<std::uint64_t> bounded(std::initializer_list<std::uint64_t> factors);

// All layers and pages of a cache, on a GPU with the dummy page of padding tokens behind each layer's pool; nullopt on overflow.
std::optional<std::uint64_t> cache_bytes(const planfb::CacheT& cache, planfb::DeviceKind kind);

bool is_gpu(const planfb::PlanT& plan, std::uint32_t device);

// A file beside plan.ktp: a plain name that cannot point outside the folder.
bool is_plain_file_name(std::string_view name);

// The weight whose bytes this one has.
const planfb::WeightT& storage_of(const planfb::PlanT& plan, const planfb::WeightT& weight);

Status verify_model(const planfb::PlanT& plan);
Status verify_devices(const planfb::PlanT& plan);
Status verify_files(const planfb::PlanT& plan);  // weight_files, text_files: names alone
Status verify_weight_table(const planfb::PlanT& plan);
Status verify_ropes(const planfb::PlanT& plan);
Status verify_caches(const planfb::PlanT& plan);
Status verify_account(const planfb::PlanT& plan);        // weights, kv-cache, arena
Status verify_entry_account(const planfb::PlanT& plan);  // step-block, records: behind verify_entries
Status verify_moving(const planfb::PlanT& plan);         // behind verify_entries
Status verify_choices(const planfb::PlanT& plan);        // choices.cpp
Status verify_entries(const planfb::PlanT& plan);  // names, kinds, buckets; then the four below for each

struct EntrySite {
  const planfb::PlanT& plan;
  const planfb::EntryT& entry;
  std::string place() const;                         // entry "decode[8]"
  std::string place(std::size_t step) const;         // entry "decode[8]": step 4 "model.layers.0.mlp"
  std::uint64_t bound(planfb::Symbol symbol) const;  // of tokens or rows
};
bool is_input(const EntrySite& site, planfb::BufferRole role);  // written by the executor before the first step
Status verify_buffers(const EntrySite& site);
Status verify_graphs(const EntrySite& site);                       // names, devices; their steps follow each other; launch groups
Status verify_launch_groups(const EntrySite& site);                // which steps of a graph are one launch
Status verify_step(const EntrySite& site, std::size_t step);       // kind, device, views, workspace
Status verify_op(const EntrySite& site, std::size_t step);         // shapes; calls one function per op
Status verify_attention(const EntrySite& site, std::size_t step);  // GqaOp, MlaOp
Status verify_experts(const EntrySite& site, std::size_t step);    // RouteOp, MlpOp
Status verify_bank(const EntrySite& site, std::size_t step);       // ExpertsOp
Status verify_share(const EntrySite& site);                        // what a GPU streams and the CPU shares
Status verify_parts(const EntrySite& site);                        // what is late is computed by one other step
Status verify_transfer(const EntrySite& site, std::size_t step);   // CopyOp, PublishOp, AwaitOp
Status verify_handoffs(const EntrySite& site);                     // one publish, one await per record
Status verify_flow(const EntrySite& site);                         // values are written before they are read
Status verify_arena(const EntrySite& site);                        // live ranges do not meet in the arena

}  // namespace ktc::plan::detail
