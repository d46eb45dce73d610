// One step's op against its operands and weights: a checker that keeps the first failure, so that the rules of an op
// read as a list. Private to runtime/plan.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

class StepCheck {
 public:
  StepCheck(const EntrySite& site, std::size_t index);

  bool ok() const { return status_.ok(); }
  Status take() { return std::move(status_); }

  // Number of operands; false when it is another, and then no operand may be looked at.
  bool operands(std::size_t inputs, std::size_t outputs);

  const planfb::View& input(std::size_t i) const { return step_.inputs[i]; }
  const planfb::View& output(std::size_t i) const { return step_.outputs[i]; }
  const planfb::BufferT& buffer(const planfb::View& view) const { return *site_.entry.buffers[view.buffer()]; }
  planfb::Symbol symbol_of_input(std::size_t i) const { return buffer(input(i)).symbol; }

  // Operand i is `format` [symbol, columns].
  void input_is(std::size_t i, Format format, planfb::Symbol symbol, std::uint64_t columns);
  void output_is(std::size_t i, Format format, planfb::Symbol symbol, std::uint64_t columns);
  // Operand i is the entry's buffer of `role`, whole.
  void input_has_role(std::size_t i, planfb::BufferRole role);
  void output_has_role(std::size_t i, planfb::BufferRole role);

  // The weight `field` refers to, of the step's device; null after a failure.
  const planfb::WeightT* weight(std::string_view field, std::uint32_t index);
  // The weight is [batch, rows, columns].
  void weight_is(std::string_view field, const planfb::WeightT* weight, std::uint64_t batch, std::uint64_t rows,
                 std::uint64_t columns);
  // The weight's packing is `packing`.
  void packed_as(std::string_view field, const planfb::WeightT* weight, Packing packing);
  // Weights in panels (all of them or none, the first being `paired` or plain): the activations their kernels take, granules
  // of 0, 64 or 128. Without panels granules and tile_rows say nothing and are 0. True: panels.
  struct Panels {
    std::string_view field;
    const planfb::WeightT* weight;
    bool paired;
  };
  bool panels(std::initializer_list<Panels> weights, std::uint16_t x_granule, std::uint16_t h_granule, std::uint16_t tile_rows);
  // An f32 vector of `columns`; kNone is allowed when `optional`.
  void vector_weight(std::string_view field, std::uint32_t index, std::uint64_t columns, bool optional);

  void check(bool condition, std::string_view what, std::string found, std::string expected);
  void finite(std::string_view what, float value);
  void epsilon(std::string_view what, float value);  // finite and not negative
  // At least `bytes` of workspace; nullopt: the size overflows.
  void workspace(std::optional<std::uint64_t> bytes);

  const EntrySite& site() const { return site_; }
  const planfb::StepT& step() const { return step_; }

 private:
  void operand_is(std::string_view list, std::size_t i, const planfb::View& view, Format format, planfb::Symbol symbol,
                  std::uint64_t columns);
  void operand_has_role(std::string_view list, std::size_t i, const planfb::View& view, planfb::BufferRole role);

  const EntrySite& site_;
  const planfb::StepT& step_;
  std::size_t index_;
  Status status_;
};

}  // namespace ktc::plan::detail
