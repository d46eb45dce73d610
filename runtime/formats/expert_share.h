// Which experts of a bank that passes through a GPU the CPU computes meanwhile: a closed rule over how many rows of the step chose
// each, so that equal steps are cut equally on every machine. The compiler predicts with it, the executor follows it.
//
// An expert costs the link and the GPU the same few bytes however few rows chose it, and the CPU little more than its rows. So the
// CPU takes those of fewest rows (of equal ones the lower matrix first), as many as make max(CPU, what is left) smallest, where
//   ahead = ahead_ns + ahead_row_ns * rows         the GPU, until the choice is known; the link copies from the start
//   CPU   = ahead + values_ns + values_row_ns * rows + sum(cpu_ns + cpu_row_ns * rows of it)
//   left  = max(sum(copy_ns), ahead + sum(gpu_ns + gpu_row_ns * rows of it))
// None where that saves less than a tenth of what the link and the GPU take alone: a share has costs that no rate knows (8192 tokens
// of Qwen3-30B-A3B's shape lost a fifth to one that promised a hundredth, docs/performance.md). An expert that no row chose is neither copied nor
// computed. Copies of a layer begin before its router has chosen: the matrices below matrices_ahead() are never the CPU's.
#pragma once

#include <cstdint>
#include <span>

namespace ktc {

// Rates of one bank, in ns: predictions of the compiler (placement/streaming.h), fixed in the plan.
struct ExpertShare {
  std::uint32_t ahead_ns = 0, ahead_row_ns = 0;    // of a layer, until the choice is known; per row of the step
  std::uint32_t copy_ns = 0;                       // one expert over the link, at least 1
  std::uint32_t gpu_ns = 0, gpu_row_ns = 0;        // one expert on the GPU; each row of it
  std::uint32_t cpu_ns = 0, cpu_row_ns = 0;        // one expert on the CPU; each row of it
  std::uint32_t values_ns = 0, values_row_ns = 0;  // rows of the step to the CPU, and the result back
  bool operator==(const ExpertShare&) const = default;
};

struct SharedExperts {
  std::uint32_t on_cpu = 0;    // experts that the CPU takes
  std::uint64_t cpu_rows = 0;  // rows of those
  std::uint64_t cpu_ns = 0, left_ns = 0;  // predicted, of the layer; cpu_ns 0 where it takes none
};

// Of `matrices`, how many are copied before the choice of a step of `rows` rows is known.
std::uint32_t matrices_ahead(const ExpertShare& share, std::uint32_t matrices, std::uint32_t rows);

// chosen[m]: rows of the step that chose matrix m. on_cpu[m], as long: 1 for those that the CPU takes, 0 for the others.
SharedExperts share_experts(const ExpertShare& share, std::span<const std::uint32_t> chosen, std::uint32_t rows,
                            std::span<std::uint8_t> on_cpu);

}  // namespace ktc
