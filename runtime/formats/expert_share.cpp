#include "runtime/formats/expert_share.h"

#include <algorithm>
#include <vector>

namespace ktc {

namespace {

std::uint64_t ahead_ns(const ExpertShare& share, std::uint32_t rows) { return share.ahead_ns + std::uint64_t{share.ahead_row_ns} * rows; }

}  // namespace

std::uint32_t matrices_ahead(const ExpertShare& share, std::uint32_t matrices, std::uint32_t rows) {
  const std::uint64_t ns = ahead_ns(share, rows);
  const std::uint64_t copy = std::max(share.copy_ns, 1u);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>((ns + copy - 1) / copy, matrices));
}

SharedExperts share_experts(const ExpertShare& share, std::span<const std::uint32_t> chosen, std::uint32_t rows,
                            std::span<std::uint8_t> on_cpu) {
  std::fill(on_cpu.begin(), on_cpu.end(), std::uint8_t{0});
  std::uint64_t copies = 0, gpu = ahead_ns(share, rows);  // of what is left
  std::vector<std::uint32_t> order;
  const std::uint32_t ahead = matrices_ahead(share, static_cast<std::uint32_t>(chosen.size()), rows);
  for (std::uint32_t m = 0; m < chosen.size(); ++m) {
    if (m < ahead || chosen[m] != 0) copies += share.copy_ns;
    if (chosen[m] == 0) continue;
    gpu += share.gpu_ns + std::uint64_t{share.gpu_row_ns} * chosen[m];
    if (m >= ahead) order.push_back(m);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return chosen[a] < chosen[b]; });
  SharedExperts best;
  best.left_ns = std::max(copies, gpu);
  std::uint64_t cpu = ahead_ns(share, rows) + share.values_ns + std::uint64_t{share.values_row_ns} * rows, cpu_rows = 0;
  const std::uint64_t without = best.left_ns;
  std::uint64_t least = without;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    const std::uint32_t n = chosen[order[i]];
    cpu += share.cpu_ns + std::uint64_t{share.cpu_row_ns} * n;
    cpu_rows += n;
    copies -= share.copy_ns;
    gpu -= share.gpu_ns + std::uint64_t{share.gpu_row_ns} * n;
    const std::uint64_t left = std::max(copies, gpu);
    if (cpu >= least) break;  // it only grows
    if (std::max(cpu, left) >= least) continue;
    least = std::max(cpu, left);
    best = {i + 1, cpu_rows, cpu, left};
  }
  if (least > without - without / 10) return {0, 0, 0, without};
  for (std::uint32_t i = 0; i < best.on_cpu; ++i) on_cpu[order[i]] = 1;
  return best;
}

}  // namespace ktc
