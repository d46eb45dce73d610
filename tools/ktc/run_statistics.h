// What a run cost: one object in JSON, one line for people.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "runtime/exec/executor.h"
#include "runtime/exec/generator.h"

namespace ktc::run {

struct Statistics {
  double load_seconds = 0;  // opening plan, weights, tokenizer
  exec::Throughput throughput;
  std::uint64_t peak_memory_bytes = 0;  // of the process, mapped weights that were touched included
  int threads = 0;
  std::string isa;
  exec::Busy busy;
  bool busy_shares = false;  // say them
  bool gpu = false;          // the plan has one
  std::optional<exec::UpdateTrial> updates;  // of experts that change sides
};

Statistics collect_statistics(double load_seconds, const exec::Executor& executor, const exec::Throughput& throughput);
nlohmann::ordered_json to_json(const Statistics& statistics);

// Busy shares count from the executor's opening. The GPU's is a lower bound: what the CPU waited for it; it may be busy beside the
// CPU as well, which only a trace shows.
// "prefill 3 tokens, 210.4 tokens/s; decode 63 tokens, 85.1 tokens/s; load 0.05 s; memory 120.3 MiB; 2 threads, avx512"
std::string to_text(const Statistics& statistics);

// One JSON object on one line; bytes that are not UTF-8 become U+FFFD.
std::string to_line(const nlohmann::ordered_json& object);

}  // namespace ktc::run
