#include "runtime/exec/attend_memory.h"

#include <algorithm>

#include "runtime/exec/attend_phase.h"

namespace ktc::exec {
namespace {

// Parts of the keys are held at once only up to here; where more would be needed, a worker takes them one after the other.
constexpr std::uint64_t kMostPartsFloats = std::uint64_t{16} << 20;

}  // namespace

Status AttendMemory::allocate(const planfb::PlanT& plan, const std::vector<const std::vector<Step>*>& entries, int threads) {
  std::uint64_t width = 0, heads = 0;
  for (const std::vector<Step>* entry : entries)
    for (const Step& step : *entry) {
      if (const auto* gqa = std::get_if<GqaStep>(&step))
        width = std::max<std::uint64_t>(width, gqa->head_dim), heads = std::max<std::uint64_t>(heads, gqa->heads);
      else if (const auto* mla = std::get_if<MlaStep>(&step))
        width = std::max<std::uint64_t>(width, mla->latent_dim), heads = std::max<std::uint64_t>(heads, mla->heads);
    }
  if (width == 0) return {};
  const std::uint64_t workers = static_cast<unsigned>(threads);
  scratch_each_ = align64(kernels::kMostAttendRows * width * sizeof(float)) / sizeof(float);
  scratch_floats_ = scratch_each_ * workers;
  std::uint64_t longest = 1;
  for (const auto& cache : plan.caches) longest = std::max<std::uint64_t>(longest, cache->tokens_per_sequence);
  if (threads > 1 && attend_parts(longest) > 1) {
    // no more than 2 * threads items are split; heads and widths are below 2^32 and parts below 2^23
    const std::uint64_t one = heads * (width + 2);
    parts_floats_ = one > kMostPartsFloats ? 0 : std::min(kMostPartsFloats, one * attend_parts(longest) * 2 * workers);
  }
  const std::uint64_t bytes = (scratch_floats_ + parts_floats_) * sizeof(float);
  KTC_ASSIGN_OR_RETURN(memory_, weights::HostBlock::allocate(bytes, "attention scratch"));
  return {};
}

void AttendMemory::fill(StepState& state, Part part) {
  std::vector<TokenRun>& runs = runs_[static_cast<std::size_t>(part)];
  state.attend_scratch = reinterpret_cast<float*>(memory_.data());
  state.attend_scratch_each = scratch_each_;
  state.attend_parts = state.attend_scratch + scratch_floats_;
  state.attend_parts_floats = parts_floats_;

  // long runs where tokens are many, so that every worker still gets some
  const std::size_t workers = static_cast<std::size_t>(state.workers->threads());
  const std::size_t most = std::clamp<std::size_t>(state.tokens / (4 * workers), 1, kMostRunTokens);
  runs.clear();
  for (std::size_t t = 0; t < state.tokens; ++t) {
    const Token& token = state.token[t];
    if (!runs.empty() && runs.back().count < most) {
      const Token& before = state.token[t - 1];
      if (before.pages == token.pages && before.position + 1 == token.position) {
        ++runs.back().count;
        continue;
      }
    }
    runs.push_back({static_cast<std::uint32_t>(t), 1});
  }
  std::sort(runs.begin(), runs.end(), [&](const TokenRun& a, const TokenRun& b) {
    const std::uint32_t p = state.token[a.first].position, q = state.token[b.first].position;
    return p != q ? p > q : a.first < b.first;
  });
  state.runs = runs.data();
  state.run_count = runs.size();
}

}  // namespace ktc::exec
