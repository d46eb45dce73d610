#include "runtime/exec/affinity.h"

#include <sched.h>

#include <algorithm>

namespace ktc::exec {
namespace {

constexpr int kWordBits = 8 * sizeof(unsigned long);

bool read_mask(CpuSet& set) {
  return sched_getaffinity(0, sizeof set.words, reinterpret_cast<cpu_set_t*>(set.words.data())) == 0;
}
bool write_mask(const CpuSet& set) {
  return sched_setaffinity(0, sizeof set.words, reinterpret_cast<const cpu_set_t*>(set.words.data())) == 0;
}

}  // namespace

bool CpuSet::add(int cpu) {
  if (cpu < 0 || cpu >= kMostCpusInSet) return false;
  words[static_cast<std::size_t>(cpu / kWordBits)] |= 1UL << (cpu % kWordBits);
  return true;
}

bool CpuSet::has(int cpu) const {
  return cpu >= 0 && cpu < kMostCpusInSet && (words[static_cast<std::size_t>(cpu / kWordBits)] >> (cpu % kWordBits) & 1) != 0;
}

Pinning::Pinning(int threads, const std::vector<std::vector<int>>& cores) {
  const auto count = static_cast<std::size_t>(std::max(1, threads));
  if (count > cores.size()) return;
  std::vector<CpuSet> sets(count);
  for (std::size_t i = 0; i < count; ++i)
    for (const int cpu : cores[i])
      if (!sets[i].add(cpu)) return;
  cores_ = std::move(sets);
}

void Pinning::settle_caller() const {
  if (empty() || cores_[0].has(sched_getcpu())) return;
  CpuSet before;
  if (!read_mask(before)) return;
  CpuSet allowed = cores_[0];
  for (std::size_t i = 0; i < allowed.words.size(); ++i) allowed.words[i] &= before.words[i];
  if (allowed == CpuSet{} || !write_mask(allowed)) return;
  write_mask(before);
}

Pinned::Pinned(const CpuSet* core) { bound_ = core != nullptr && read_mask(before_) && write_mask(*core); }

Pinned::~Pinned() {
  if (bound_) write_mask(before_);
}

}  // namespace ktc::exec
