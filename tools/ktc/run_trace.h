// A Chrome trace of a run (the JSON array format of chrome://tracing and Perfetto).
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/exec/trace.h"
#include "runtime/plan/plan.h"

namespace ktc::run {

// Written while it runs; a file that was cut short still opens. Rows: steps, one for the CPU, one for its waits, one per GPU.
class TraceFile {
 public:
  // Errors: the file cannot be written.
  static Expected<std::unique_ptr<TraceFile>> create(const std::filesystem::path& path, const planfb::PlanT& plan);
  ~TraceFile() { (void)finish(); }

  exec::Tracer tracer() { return {&TraceFile::report, this}; }
  Status finish();  // further slices are lost

 private:
  static void report(void* file, const exec::TraceSlice& slice);
  std::filesystem::path path_;
  std::ofstream out_;
  std::uint64_t start_ = 0;
  bool open_ = false;
};

}  // namespace ktc::run
