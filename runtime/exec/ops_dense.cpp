// Embed, Norm, Linear, Mlp, Add, SelectRows: one row of the output depends on one row of the input.
#include <cstring>

#include "runtime/exec/matmul_phase.h"

namespace ktc::exec {

void run_step(const EmbedStep& s, const StepState& state) {
  row_phase(*state.workers, state.tokens, s.out.columns, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t)
      s.load(s.w.data + static_cast<std::size_t>(*s.ids.row(t)) * s.w.row_bytes, s.out.columns, s.out.row(t));
  });
}

void run_step(const NormStep& s, const StepState& state) {
  row_phase(*state.workers, state.count(s.of_rows), s.x.columns, [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) s.norm(s.x.row(r), s.w, s.eps, s.x.columns, s.out.row(r));
  });
}

void run_step(const LinearStep& s, const StepState& state) {
  matmul_phase(*state.workers, state.count(s.of_rows), s.w.rows, s.w.columns, s.w.row_bytes,
               [&](std::size_t m, std::size_t m_end, std::size_t n, std::size_t n_end) {
                 kernels::MatmulArgs args = product_args(s.x, s.w, s.out, m, m_end, n, n_end);
                 args.bias = s.bias;
                 s.matmul(args);
               });
}

void run_step(const MlpStep& s, const StepState& state) {
  const std::size_t rows = state.count(s.of_rows);
  const Matrix hidden = {s.hidden, s.intermediate, s.intermediate};
  matmul_phase(*state.workers, rows, s.intermediate, s.gate_up.columns, 2 * s.gate_up.row_bytes,
               [&](std::size_t m, std::size_t m_end, std::size_t n, std::size_t n_end) {
                 s.gate_up_fn(product_args(s.x, s.gate_up, hidden, m, m_end, n, n_end), s.intermediate);
               });
  matmul_phase(*state.workers, rows, s.down.rows, s.intermediate, s.down.row_bytes,
               [&](std::size_t m, std::size_t m_end, std::size_t n, std::size_t n_end) {
                 s.matmul(product_args(hidden, s.down, s.out, m, m_end, n, n_end));
               });
}

void run_step(const AddStep& s, const StepState& state) {
  row_phase(*state.workers, state.count(s.of_rows), s.count * s.out.columns, [&](std::size_t begin, std::size_t end) {
    const float* inputs[AddStep::kMostInputs];
    for (std::size_t r = begin; r < end; ++r) {
      for (std::size_t i = 0; i < s.count; ++i) inputs[i] = s.inputs[i].row(r);
      s.add(inputs, s.count, s.out.columns, s.out.row(r));
    }
  });
}

// A row is summed and normed by one worker while it is in its cache.
void run_step(const AddNormStep& s, const StepState& state) {
  row_phase(*state.workers, state.count(s.of_rows), (s.count + 1) * s.out.columns, [&](std::size_t begin, std::size_t end) {
    const float* inputs[AddStep::kMostInputs];
    for (std::size_t r = begin; r < end; ++r) {
      for (std::size_t i = 0; i < s.count; ++i) inputs[i] = s.inputs[i].row(r);
      s.add(inputs, s.count, s.sum.columns, s.sum.row(r));
      s.norm(s.sum.row(r), s.w, s.eps, s.sum.columns, s.out.row(r));
    }
  });
}

void run_step(const SelectRowsStep& s, const StepState& state) {
  row_phase(*state.workers, state.rows, s.out.columns, [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      const std::size_t t = static_cast<std::size_t>(*s.output_rows.row(r));
      const bool second = s.second.data != nullptr && t >= state.cut;
      std::memcpy(s.out.row(r), second ? s.second.row(t - state.cut) : s.x.row(t), s.out.columns * sizeof(float));
    }
  });
}

}  // namespace ktc::exec
