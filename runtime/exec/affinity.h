// Which CPUs each worker of an executor stays on.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ktc::exec {

// As large as Linux allows: the kernel refuses to fill a smaller set than it uses itself.
constexpr int kMostCpusInSet = 8192;

// A set of CPU numbers in the layout that the kernel reads.
struct CpuSet {
  std::array<unsigned long, kMostCpusInSet / (8 * sizeof(unsigned long))> words{};

  // Whether `cpu` fits.
  bool add(int cpu);
  bool has(int cpu) const;
  bool operator==(const CpuSet&) const = default;
};

// One core per worker: worker i has all usable CPUs of core i, so that the system may still choose among siblings. Empty when
// there are more workers than cores: then every thread goes where the system puts it.
class Pinning {
 public:
  Pinning() = default;
  // `cores` as usable_cores() lists them.
  Pinning(int threads, const std::vector<std::vector<int>>& cores);
  // Worker i has the CPUs cores[i], one set for each worker.
  explicit Pinning(const std::vector<std::vector<int>>& cores) : Pinning(static_cast<int>(cores.size()), cores) {}

  bool empty() const { return cores_.empty(); }
  // Null when empty.
  const CpuSet* core(int worker) const { return empty() ? nullptr : &cores_[static_cast<std::size_t>(worker)]; }

  // Moves the calling thread to the core of worker 0 and leaves it free to move again: a caller's thread is not ours to bind,
  // but it should not begin a step on the core of another worker.
  void settle_caller() const;

 private:
  std::vector<CpuSet> cores_;
};

// Keeps the calling thread on `core` for as long as this lives, then restores what was before. Nothing happens when `core` is
// null or the system refuses: numbers do not depend on it.
class Pinned {
 public:
  explicit Pinned(const CpuSet* core);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  bool bound_ = false;
  CpuSet before_;
};

}  // namespace ktc::exec
