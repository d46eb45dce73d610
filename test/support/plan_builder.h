// Builds plans by hand for tests of the runtime: weights with given values, caches, entries of steps.
//
// Everything is laid out in the plainest legal way: one weight file, one CPU, no two buffers of an entry overlap. The result
// passes verify_plan. Indices returned are those of the plan's vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/formats/formats.h"
#include "runtime/plan/plan.h"

namespace ktc::test {

// A fresh folder that is removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class PlanBuilder;

class EntryBuilder {
 public:
  // Rows of 64-byte multiples, 4 bytes for i32 inputs of one column.
  std::uint32_t buffer(const std::string& name, planfb::BufferRole role, planfb::Symbol symbol, std::uint64_t columns,
                       Format format = Format::f32);
  std::uint32_t workspace(const std::string& name, std::uint64_t bytes);
  // All columns, or some of them.
  planfb::View view(std::uint32_t buffer) const;
  planfb::View view(std::uint32_t buffer, std::uint64_t column, std::uint64_t columns) const {
    return planfb::View(buffer, column, columns);
  }
  template <typename OpT>
  planfb::StepT& step(const std::string& name, OpT op, std::initializer_list<planfb::View> inputs,
                      std::initializer_list<planfb::View> outputs, std::uint32_t workspace = plan::kNone) {
    planfb::StepT& step = add_step(name, inputs, outputs, workspace);
    step.op.Set(std::move(op));
    return step;
  }
  planfb::EntryT& entry() { return entry_; }

 private:
  friend class PlanBuilder;
  EntryBuilder(PlanBuilder& plan, planfb::EntryT& entry) : plan_(plan), entry_(entry) {}
  planfb::StepT& add_step(const std::string& name, std::initializer_list<planfb::View> inputs,
                          std::initializer_list<planfb::View> outputs, std::uint32_t workspace);
  PlanBuilder& plan_;
  planfb::EntryT& entry_;
  std::uint64_t end_ = 0;
};

class PlanBuilder {
 public:
  explicit PlanBuilder(std::string name);

  // Stores `values` [batch, rows, columns] in the weight file; `values` are rounded to the format in place, so that a reference
  // sees what the kernels see.
  std::uint32_t weight(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns,
                       std::vector<float>& values);
  std::uint32_t splat(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns,
                      float value);
  std::uint32_t alias(const std::string& name, std::uint32_t target);
  std::uint32_t rope(planfb::RopeStyle style, std::vector<float> inv_freq, float factor);
  struct Part {
    const char* name;
    std::uint32_t heads, width;
  };
  std::uint32_t cache(const std::string& name, Format format, std::uint32_t layers, std::initializer_list<Part> parts,
                      std::uint32_t page_tokens, std::uint32_t tokens_per_sequence, std::uint32_t sequences);
  // The reference to the builder is good until the next entry.
  EntryBuilder entry(planfb::EntryKind kind, std::uint32_t max_tokens, std::uint32_t max_rows, std::uint32_t max_sequences);

  planfb::PlanT& plan() { return plan_; }
  const std::vector<std::byte>& weight_bytes() const { return bytes_; }

  // Completes arena size and account, then writes plan.ktp and the weight file. Returns false when the disk refuses.
  bool write(const std::filesystem::path& folder);

 private:
  friend class EntryBuilder;
  planfb::WeightT& add_weight(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows,
                              std::uint64_t columns);
  void complete();
  planfb::PlanT plan_;
  std::vector<std::byte> bytes_;
};

}  // namespace ktc::test
