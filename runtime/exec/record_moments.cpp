#include "runtime/exec/record_moments.h"

namespace ktc::exec {
namespace {

// Row r of `count` is row_of(r).
template <typename RowOf>
void add(const planfb::PlanT& plan, std::uint32_t weight, std::size_t count, std::size_t columns, const RowOf& row_of,
         Moments& moments) {
  Moments::Sum& sum = moments.weights[plan.weights[weight]->name];
  sum.squares.resize(columns);
  sum.rows += count;
  for (std::size_t r = 0; r < count; ++r) {
    const float* x = row_of(r);
    for (std::size_t c = 0; c < columns; ++c) sum.squares[c] += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  }
}

struct Record {
  const planfb::PlanT& plan;
  const planfb::StepT& step;
  const StepState& state;
  Moments& moments;

  void operator()(const LinearStep& s) const {
    add(plan, step.op.AsLinearOp()->w, state.count(s.of_rows), s.x.columns, [&](std::size_t r) { return s.x.row(r); }, moments);
  }
  void operator()(const MlpStep& s) const {
    const planfb::MlpOpT& op = *step.op.AsMlpOp();
    const std::size_t rows = state.count(s.of_rows);
    add(plan, op.w_gate_up, rows, s.x.columns, [&](std::size_t r) { return s.x.row(r); }, moments);
    add(plan, op.w_down, rows, s.intermediate, [&](std::size_t r) { return s.hidden + r * s.intermediate; }, moments);
  }
  void operator()(const ExpertsStep& s) const {
    if (state.count(s.of_rows) == 0) return;
    const planfb::ExpertsOpT& op = *step.op.AsExpertsOp();
    const std::size_t pairs = s.first[s.experts];
    add(plan, op.w_gate_up, pairs, s.x.columns, [&](std::size_t p) { return s.x.row(s.pair_row[p]); }, moments);
    add(plan, op.w_down, pairs, s.intermediate, [&](std::size_t p) { return s.hidden + p * s.intermediate; }, moments);
  }
  template <typename Other>
  void operator()(const Other&) const {}
};

struct HasPanels {
  bool operator()(const PanelLinearStep&) const { return true; }
  bool operator()(const PanelMlpStep&) const { return true; }
  bool operator()(const PanelExpertsStep&) const { return true; }
  template <typename Other>
  bool operator()(const Other&) const {
    return false;
  }
};

}  // namespace

Status check_recordable(const std::vector<Program>& programs) {
  for (const Program& program : programs)
    for (std::size_t i = 0; i < program.steps.size(); ++i)
      if (std::visit(HasPanels(), program.steps[i]))
        return make_error(StatusCode::unsupported,
                          {"second moments", "step '" + program.names[i] + "' rounds its left operands",
                           "weights in panels", "weights in rows, which take f32 activations", "compile with placement/policies/exact.yaml and record with that"});
  return {};
}

void record_moments(const planfb::PlanT& plan, const Program& program, std::size_t index, const StepState& state,
                    Moments& moments) {
  std::visit(Record{plan, *plan.entries[program.entry]->steps[index], state, moments}, program.steps[index]);
}

}  // namespace ktc::exec
