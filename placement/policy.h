// The policy: what the user asks for (DESIGN section 5, docs/policy.md). Parsed strictly: an unknown key, a duplicate key, a
// value of the wrong kind is an error with file:line:column.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_desc.h"
#include "runtime/base/status.h"
#include "runtime/formats/formats.h"

namespace ktc::placement {

struct Position {
  std::string file;            // as given on the command line, its last component only
  int line = 0;                // from 1
  int column = 0;
};
std::string to_string(const Position& position);  // "policy.yaml:7:12"

// Formats as a policy spells them; `native` keeps the checkpoint's own.
struct PlaceSpec {
  std::string device;                        // "cpu", "cuda:0"
  std::optional<Format> weights;             // nullopt: native
  std::optional<Format> activations;         // nullopt: the default of the weights' format and device
  bool pin = false;                          // forbids movement
};

struct Rule {
  std::optional<models::ModuleClass> cls;    // nullopt: "*"
  std::string name;                          // regular expression, matched whole; empty: any
  PlaceSpec place;
  Position position;
};

enum class Strategy : std::uint8_t { uniform, frequency, front_loading, random, auto_ };

// How many routed experts go to GPUs: a share of all, a count per layer, or bytes.
struct ExpertBudget {
  enum class Kind : std::uint8_t { share, per_layer, bytes } kind = Kind::share;
  double share = 0;                          // 0..1
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

struct ExpertsPolicy {
  Strategy strategy = Strategy::uniform;
  ExpertBudget on_gpu;
  std::vector<std::string> gpu_devices;
  std::optional<Format> gpu_weights;         // nullopt: native
  std::string statistics;                    // path, empty: none
  std::uint64_t seed = 1;                    // strategy random
  std::uint32_t update_every_tokens = 0;     // 0: off
  Position position;
};

enum class DeferScope : std::uint8_t { cpu, all };
struct DeferPolicy {
  std::uint32_t max_per_token = 0;
  bool decode = true, extend = false;
  DeferScope scope = DeferScope::cpu;
  Position position;
};

struct KvCachePolicy {
  Format dtype = Format::bf16;
  std::uint32_t tokens = 4096;               // longest sequence
  std::uint32_t sequences = 1;               // most sequences at once
  std::uint32_t page = 16;                   // tokens per page
  Position position;
};

struct BatchPolicy {
  std::vector<std::uint32_t> decode{1};      // ascending buckets
  std::uint32_t chunk = 512;                 // tokens per prefill step
  std::uint32_t stream_chunk = 0;            // 0: no streamed prefill
  Position position;
};

struct Policy {
  std::vector<Rule> rules;                   // first match wins
  ExpertsPolicy experts;
  DeferPolicy defer;
  KvCachePolicy kv_cache;
  BatchPolicy batch;
  std::map<std::string, std::uint64_t> limits;  // device -> bytes, overrides the target's memory
  std::string file;                          // last component of the path
};

// `name` is used in positions. Never reads files.
Expected<Policy> parse_policy(std::string_view text, std::string_view name);
Expected<Policy> read_policy(const std::filesystem::path& path);

}  // namespace ktc::placement
