#include "runtime/plan/step_check.h"

#include <fmt/format.h>

#include <cmath>

namespace ktc::plan::detail {

using namespace planfb;

namespace {
std::string type_text(Format format, Symbol symbol, std::uint64_t columns) {
  return fmt::format("{} [{}, {}]", to_string(format), EnumNameSymbol(symbol), columns);
}
std::string shape_text(std::uint64_t batch, std::uint64_t rows, std::uint64_t columns) {
  return fmt::format("[{}, {}, {}]", batch, rows, columns);
}
}  // namespace

StepCheck::StepCheck(const EntrySite& site, std::size_t index)
    : site_(site), step_(*site.entry.steps[index]), index_(index) {}

void StepCheck::check(bool condition, std::string_view what, std::string found, std::string expected) {
  if (condition || !ok()) return;
  status_ = wrong(fmt::format("{}: {}", site_.place(index_), EnumNameOp(step_.op.type)), std::string(what),
                  std::move(found), std::move(expected));
}

void StepCheck::finite(std::string_view what, float value) {
  check(std::isfinite(value), what, real(value), "a finite number");
}

void StepCheck::epsilon(std::string_view what, float value) {
  check(std::isfinite(value) && value >= 0, what, real(value), "a finite number of at least 0");
}

bool StepCheck::operands(std::size_t inputs, std::size_t outputs) {
  check(step_.inputs.size() == inputs && step_.outputs.size() == outputs, "operands",
        fmt::format("{} inputs, {} outputs", step_.inputs.size(), step_.outputs.size()),
        fmt::format("{} inputs, {} outputs", inputs, outputs));
  return ok();
}

void StepCheck::operand_is(std::string_view list, std::size_t i, const View& view, Format format, Symbol symbol,
                           std::uint64_t columns) {
  if (!ok()) return;
  const BufferT& of = buffer(view);
  if (static_cast<Format>(of.format) == format && of.symbol == symbol && view.columns() == columns) return;
  check(false, fmt::format("{}[{}]", list, i), type_text(static_cast<Format>(of.format), of.symbol, view.columns()),
        type_text(format, symbol, columns));
}

void StepCheck::operand_has_role(std::string_view list, std::size_t i, const View& view, BufferRole role) {
  if (!ok() || buffer(view).role == role) return;  // a role fixes format, symbol and columns
  check(false, fmt::format("{}[{}]", list, i),
        fmt::format("{} of role {}", shown(buffer(view).name), EnumNameBufferRole(buffer(view).role)),
        fmt::format("the buffer of role {}", EnumNameBufferRole(role)));
}

void StepCheck::input_is(std::size_t i, Format format, Symbol symbol, std::uint64_t columns) {
  operand_is("inputs", i, input(i), format, symbol, columns);
}
void StepCheck::output_is(std::size_t i, Format format, Symbol symbol, std::uint64_t columns) {
  operand_is("outputs", i, output(i), format, symbol, columns);
}
void StepCheck::input_has_role(std::size_t i, BufferRole role) {
  operand_has_role("inputs", i, input(i), role);
}
void StepCheck::output_has_role(std::size_t i, BufferRole role) {
  operand_has_role("outputs", i, output(i), role);
  // of the outputs only logits have more than one column
  if (ok())
    output_is(i, static_cast<Format>(buffer(output(i)).format), buffer(output(i)).symbol, buffer(output(i)).columns);
}

const WeightT* StepCheck::weight(std::string_view field, std::uint32_t index) {
  return weight_on(field, index, step_.device);
}

const WeightT* StepCheck::weight_on(std::string_view field, std::uint32_t index, std::uint32_t device) {
  if (!ok()) return nullptr;
  const auto& weights = site_.plan.weights;
  if (index >= weights.size()) {
    check(false, field, index == kNone ? "none" : number(std::uint64_t{index}),
          fmt::format("an index in weights of {} items", weights.size()));
    return nullptr;
  }
  const WeightT& weight = *weights[index];
  check(weight.device == device, fmt::format("device of {} {}", field, shown(weight.name)),
        shown(site_.plan.devices[weight.device]->name),
        (device == step_.device ? "the step's, " : "") + shown(site_.plan.devices[device]->name));
  return ok() ? &weight : nullptr;
}

void StepCheck::weight_is(std::string_view field, const WeightT* weight, std::uint64_t batch, std::uint64_t rows,
                          std::uint64_t columns) {
  if (weight == nullptr || !ok()) return;
  if (weight->batch == batch && weight->rows == rows && weight->columns == columns) return;
  check(false, fmt::format("shape of {} {}", field, shown(weight->name)),
        shape_text(weight->batch, weight->rows, weight->columns), shape_text(batch, rows, columns));
}

std::uint64_t StepCheck::gate_up_is(const WeightT* gate_up, std::uint64_t batch, std::uint64_t hidden) {
  if (gate_up == nullptr || !ok()) return 0;
  check(gate_up->rows % 2 == 0, "rows of w_gate_up " + shown(gate_up->name), number(gate_up->rows), "an even number");
  weight_is("w_gate_up", gate_up, batch, gate_up->rows, hidden);
  return ok() ? gate_up->rows / 2 : 0;
}

void StepCheck::packed_as(std::string_view field, const WeightT* weight, Packing packing) {
  if (weight == nullptr || !ok() || static_cast<Packing>(weight->packing) == packing) return;
  check(false, fmt::format("packing of {} {}", field, shown(weight->name)),
        std::string(to_string(static_cast<Packing>(weight->packing))), std::string(to_string(packing)));
}

bool StepCheck::panels(std::initializer_list<Panels> weights, std::uint16_t x_granule, std::uint16_t h_granule,
                       std::uint16_t tile_rows, bool streamed) {
  for (const Panels& one : weights)
    if (one.weight == nullptr) return false;
  if (on_gpu()) {
    check(x_granule == 0, "x_granule", number(std::uint64_t{x_granule}), "0 on a cuda device");
    check(h_granule == 0, "h_granule", number(std::uint64_t{h_granule}), "0 on a cuda device");
    check(tile_rows == 0, "tile_rows", number(std::uint64_t{tile_rows}), "0 on a cuda device");
    const auto format = static_cast<Format>(weights.begin()->weight->format);
    const bool rows = static_cast<Packing>(weights.begin()->weight->packing) == Packing::row_major;
    for (const Panels& one : weights) {
      if (streamed) packed_as(one.field, one.weight, rows ? Packing::row_major : one.paired ? Packing::panel_paired : Packing::panel);
      check(static_cast<Format>(one.weight->format) == format, fmt::format("format of {} {}", one.field, shown(one.weight->name)),
            std::string(to_string(static_cast<Format>(one.weight->format))),
            fmt::format("that of {}, {}", weights.begin()->field, to_string(format)));
    }
    return false;
  }
  const bool any = static_cast<Packing>(weights.begin()->weight->packing) != Packing::row_major;
  for (const Panels& one : weights) {
    packed_as(one.field, one.weight, !any ? Packing::row_major : one.paired ? Packing::panel_paired : Packing::panel);
    if (!any || !ok()) continue;
    const auto format = static_cast<Format>(one.weight->format);
    const Format expected = format == Format::int8 || format == Format::int4 ? Format::int8 : Format::bf16;
    check(static_cast<Format>(step_.activations) == expected, "activations",
          std::string(to_string(static_cast<Format>(step_.activations))),
          fmt::format("{} for {} {} in {}", to_string(expected), one.field, shown(one.weight->name), to_string(format)));
  }
  const auto granule = [&](std::string_view what, std::uint16_t value) {
    const bool known = value == 0 || (any && (value == 64 || value == 128));
    check(known, what, number(std::uint64_t{value}), any ? "0, 64 or 128" : "0 for weights in rows");
  };
  granule("x_granule", x_granule);
  granule("h_granule", h_granule);
  check(any || tile_rows == 0, "tile_rows", number(std::uint64_t{tile_rows}), "0 for weights in rows");
  return any && ok();
}

void StepCheck::vector_weight(std::string_view field, std::uint32_t index, std::uint64_t columns, bool optional) {
  if (optional && index == kNone) return;
  const WeightT* w = weight(field, index);
  weight_is(field, w, 1, 1, columns);
  packed_as(field, w, Packing::row_major);
  if (w != nullptr && ok() && static_cast<Format>(w->format) != Format::f32)
    check(false, fmt::format("format of {} {}", field, shown(w->name)),
          std::string(to_string(static_cast<Format>(w->format))), "f32");
}

void StepCheck::workspace(std::optional<std::uint64_t> bytes) {
  if (!ok()) return;
  check(bytes.has_value(), "workspace", "a size of more than 2^62 bytes", "less");
  check(step_.workspace != kNone, "workspace", "none", ok() ? fmt::format("at least {} bytes", *bytes) : "");
  if (!ok()) return;
  const std::uint64_t found = site_.entry.buffers[step_.workspace]->bytes;
  check(found >= *bytes, "workspace", bytes_text(found), fmt::format("at least {} bytes", *bytes));
}

}  // namespace ktc::plan::detail
