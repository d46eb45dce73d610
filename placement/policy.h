// The policy: what the user asks for (DESIGN section 5, docs/policy.md). Parsed strictly: an unknown key, a duplicate
// key, a value of the wrong kind is an error with file:line:column.
//
// The parser knows the whole schema, also words that no kernel serves yet; place() refuses those, since only it knows
// the device. Positions are kept for everything that place() may have to complain about. Threading: plain values,
// immutable after parse_policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_desc.h"
#include "models/yaml_reader.h"
#include "runtime/base/status.h"
#include "runtime/formats/formats.h"

namespace ktc::placement {

using yaml::Position;   // file: as given on the command line, its last component only
using yaml::to_string;  // "policy.yaml:7:12"

// A format as the policy spells it: a word of the schema, perhaps one that formats.def does not have yet.
// Weights: native, f32, bf16, fp8, int8, int4, mxfp4. Activations: f32, bf16, int8.
struct FormatChoice {
  std::string word;  // empty: not stated
  Position position;
  bool stated() const { return !word.empty(); }
};

constexpr std::uint32_t kGroupRow = UINT32_MAX;

struct PlaceSpec {
  std::string device;  // "cpu", "cuda:0"
  Position device_position;
  FormatChoice weights;      // not stated: native, the checkpoint's own
  FormatChoice activations;  // not stated: the default of the weights' format and device
  std::uint32_t group = 0;   // columns per scale of int8, int4 and fp8: 32, 64, 128, kGroupRow; 0: not stated
  bool pin = false;          // forbids movement
};

struct Rule {
  std::optional<models::ModuleClass> cls;  // nullopt: "*", or no class stated
  std::string name;                        // regular expression (name_pattern.h), matched whole; empty: any
  PlaceSpec place;
  Position position;
};

enum class Strategy : std::uint8_t { uniform, frequency, front_loading, random, auto_ };
std::string_view to_string(Strategy strategy);  // as policies spell it: "front-loading", "auto"

// How many routed experts go to GPUs: a share of all, a count per layer, or bytes.
struct ExpertBudget {
  enum class Kind : std::uint8_t { share, per_layer, bytes } kind = Kind::share;
  double share = 0;  // 0..1
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  bool none() const { return kind == Kind::share ? share == 0 : kind == Kind::per_layer ? count == 0 : bytes == 0; }
};
std::string to_string(const ExpertBudget& budget);  // "10%", "12", "12.0 GiB": as explore.h's parse_on_gpu reads it

struct ExpertsPolicy {
  Strategy strategy = Strategy::uniform;
  ExpertBudget on_gpu;  // default: none
  std::vector<std::string> gpu_devices;
  FormatChoice gpu_weights;               // not stated: native
  std::uint32_t gpu_group = 0;            // as PlaceSpec::group
  FormatChoice gpu_activations;           // not stated: the default of the weights' format
  std::string statistics;                 // path, from the policy's folder if it is relative; empty: none
  Position statistics_position;
  std::map<std::uint32_t, std::vector<std::uint64_t>> counts;  // what the file says, by model layer; read_policy fills it
  std::uint64_t seed = 1;                 // strategy random
  std::uint32_t update_every_tokens = 0;  // 0: off
  Position position;
  Position on_gpu_position;
  std::vector<Position> gpu_device_positions;  // parallel to gpu_devices
};

enum class DeferScope : std::uint8_t { cpu, all };
struct DeferPolicy {
  std::uint32_t max_per_token = 0;  // 0: nothing is deferred
  bool decode = true, extend = false;
  DeferScope scope = DeferScope::cpu;
  Position position;
};

struct KvCachePolicy {
  Format dtype = Format::bf16;
  std::uint32_t tokens = 4096;  // longest sequence
  std::uint32_t sequences = 1;  // most sequences at once
  std::uint32_t page = 16;      // tokens per page, a power of two
  Position position;
};

struct BatchPolicy {
  std::vector<std::uint32_t> decode{1};  // ascending buckets
  std::uint32_t chunk = 512;             // tokens per prefill step
  std::uint32_t stream_chunk = 0;        // 0: no streamed prefill
  std::uint32_t stream_from = 0;         // fewest tokens of a step that streams; 0: the cost model's choice
  bool stream_share = true;              // the CPU may compute a share of a streamed step's experts
  Position position;
};

struct Limit {
  std::uint64_t bytes = 0;
  Position position;
};

// What the policy asked for and did not get. Without `best-effort: true` in the policy the first one is an error.
struct Difference {
  std::string place;  // "policy.yaml:9:5"
  std::string what, requested, granted, why;
};

struct Policy {
  std::vector<Rule> rules;  // first match wins
  ExpertsPolicy experts;
  DeferPolicy defer;
  KvCachePolicy kv_cache;
  BatchPolicy batch;
  // Input features that share a scale of int8 activations: 64, 128, or 0 for the whole row. Fixed in the plan, equal on every path.
  std::uint32_t activation_group = 64;
  std::map<std::string, Limit> limits;  // by device; overrides the target's memory
  bool best_effort = false;             // what cannot be granted is listed, not refused
  std::string file;                     // last component of the path
  std::vector<Difference> replaced;     // by for_target (for_target.h): what this policy asked for before
};

// `name` is used in positions, its last component only. Never reads files.
Expected<Policy> parse_policy(std::string_view text, std::string_view name);
// Reads the file of `experts.statistics` too. Errors besides those of parse_policy: a file cannot be read, is larger than it can
// be, or is no statistics.
Expected<Policy> read_policy(const std::filesystem::path& path);

}  // namespace ktc::placement
