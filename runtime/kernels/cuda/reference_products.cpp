// Reference: linear, mlp, experts.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"

namespace ktc::gpu {

using namespace reference;

int linear_reference(const LinearArgs& a, void*) {
  product(a.w, a.w.data, a.rows, a.activations, [&](std::size_t r) { return row_of(a.x, r); },
          [&](std::size_t r, std::size_t n, float sum) { row_of(a.out, r)[n] = a.bias != nullptr ? sum + a.bias[n] : sum; });
  return 0;
}

namespace {

// h[m] = silu(gate x(m)) * (up x(m)), [rows][intermediate]: gate rows come first, so h holds gate until up arrives.
template <typename XRow>
void swiglu(const Weight& w, const std::byte* matrix, std::size_t rows, Format activations, const XRow& x_row, float* h) {
  const std::size_t intermediate = w.rows / 2;
  product(w, matrix, rows, activations, x_row, [&](std::size_t m, std::size_t n, float sum) {
    float& out = h[m * intermediate + n % intermediate];
    out = n < intermediate ? sum : silu_plain(out) * sum;
  });
}

}  // namespace

// Rows of h that the scratch memory holds, at most `most`; 0: too little.
static std::size_t rows_of_h(const Scratch& scratch, std::size_t intermediate, std::size_t most) {
  const std::uint64_t rows = scratch.bytes / (intermediate * sizeof(float));
  return rows < most ? static_cast<std::size_t>(rows) : most;
}

int mlp_reference(const MlpArgs& a, void*) {
  const std::size_t intermediate = a.down.columns, piece = rows_of_h(a.scratch, intermediate, a.rows);
  float* h = reinterpret_cast<float*>(a.scratch.data);
  if (piece == 0) return a.rows != 0;
  for (std::size_t first = 0; first < a.rows; first += piece) {
    const std::size_t count = a.rows - first < piece ? a.rows - first : piece;
    swiglu(a.gate_up, a.gate_up.data, count, a.activations, [&](std::size_t r) { return row_of(a.x, first + r); }, h);
    product(a.down, a.down.data, count, a.activations, [&](std::size_t r) { return h + r * intermediate; },
            [&](std::size_t r, std::size_t n, float sum) { row_of(a.out, first + r)[n] = sum; });
  }
  return 0;
}

// Experts in ascending order of their ids, as on the CPU; pairs of one expert in pieces that fit on the stack's lists.
int experts_reference(const ExpertsArgs& a, void*) {
  constexpr std::size_t kPairs = 64;
  const std::size_t intermediate = a.down.columns, piece = rows_of_h(a.scratch, intermediate, kPairs);
  float* h = reinterpret_cast<float*>(a.scratch.data);
  if (piece == 0) return a.rows != 0;
  for (std::size_t r = 0; r < a.rows && !a.accumulate; ++r) std::memset(row_of(a.out, r), 0, a.out.columns * sizeof(float));

  std::size_t tokens[kPairs];
  float weights[kPairs];
  std::size_t count = 0;
  for (std::uint32_t e = 0; e < a.experts; ++e) {
    const std::int32_t slot = pair_slot(a.filter.slots, static_cast<std::int32_t>(e), a.experts);
    if (slot < 0 || static_cast<std::uint32_t>(slot) - a.first >= a.gate_up.batch) continue;
    const auto compute = [&] {
      if (count == 0) return;
      const auto matrix = static_cast<std::size_t>(slot) - a.first;
      swiglu(a.gate_up, matrix_of(a.gate_up, matrix), count, a.activations, [&](std::size_t m) { return row_of(a.x, tokens[m]); }, h);
      product(a.down, matrix_of(a.down, matrix), count, a.activations, [&](std::size_t m) { return h + m * intermediate; },
              [&](std::size_t m, std::size_t n, float sum) {
                float& out = row_of(a.out, tokens[m])[n];
                out = out + weights[m] * sum;
              });
      count = 0;
    };
    for (std::size_t t = 0; t < a.rows; ++t) {
      const std::int32_t* ids = row_of(a.ids, t);
      const float* w = row_of(a.weights, t);
      for (std::uint32_t k = 0; k < a.top_k; ++k) {
        if (ids[k] != static_cast<std::int32_t>(e)) continue;
        const bool deferred = a.filter.late != 0 && a.filter.deferred != nullptr && a.filter.deferred[t] != 0;
        if (filtered_slot(a.filter.slots, deferred, a.filter.late, a.filter.part, a.filter.among_all, a.experts, ids, w, a.top_k, k) < 0)
          continue;
        tokens[count] = t;
        weights[count++] = w[k];
        if (count == piece) compute();
      }
    }
    compute();
  }
  return 0;
}

}  // namespace ktc::gpu
