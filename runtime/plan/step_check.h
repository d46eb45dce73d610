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
  // The same of another device than the step's.
  const planfb::WeightT* weight_on(std::string_view field, std::uint32_t index, std::uint32_t device);
  // The weight is [batch, rows, columns].
  void weight_is(std::string_view field, const planfb::WeightT* weight, std::uint64_t batch, std::uint64_t rows,
                 std::uint64_t columns);
  // gate and up rows in one matrix: [batch, 2 * intermediate, hidden]. Returns intermediate, 0 after a failure.
  std::uint64_t gate_up_is(const planfb::WeightT* gate_up, std::uint64_t batch, std::uint64_t hidden);
  // The weight's packing is `packing`.
  void packed_as(std::string_view field, const planfb::WeightT* weight, Packing packing);
  // Weights in panels (all of them or none, the first being `paired` or plain): the activations their kernels take, granules
  // of 0, 64 or 128. Without panels, as on a GPU, granules and tile_rows say nothing and are 0. True: panels on a CPU. The
  // weights of one op on a GPU have one format; in panels only where the caller says that they are `streamed` from a CPU.
  struct Panels {
    std::string_view field;
    const planfb::WeightT* weight;
    bool paired;
  };
  bool panels(std::initializer_list<Panels> weights, std::uint16_t x_granule, std::uint16_t h_granule, std::uint16_t tile_rows,
              bool streamed = false);
  bool on_gpu() const { return is_gpu(site_.plan, step_.device); }
  // An f32 vector of `columns`; kNone is allowed when `optional`.
  void vector_weight(std::string_view field, std::uint32_t index, std::uint64_t columns, bool optional);

  void check(bool condition, std::string_view what, std::string found, std::string expected);
  void finite(std::string_view what, float value);
  void epsilon(std::string_view what, float value);  // finite and not negative
  // At least `bytes` of workspace; nullopt: the size overflows.
  void workspace(std::optional<std::uint64_t> bytes);
  // The same for a step of a GPU, of which some need none.
  void gpu_workspace(std::optional<std::uint64_t> bytes) {
    if (bytes != std::optional<std::uint64_t>(0)) workspace(bytes);
  }

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
