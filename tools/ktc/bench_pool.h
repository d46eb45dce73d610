// Weights to measure on: experts in panels, random, more than the caches hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/exec/parallel.h"
#include "runtime/formats/panel.h"
#include "runtime/weights/host_memory.h"
#include "tools/ktc/bench_options.h"

namespace ktc::bench {

// `experts` gate_up matrices one behind the other, then as many down matrices. A layer is a window of the pool: the experts that
// it activates are `first`, first + 1, ...; each is megabytes, so it does not matter which neighbours they have.
struct Pool {
  WeightFormat format;
  PanelLayout gate_up, down;
  std::size_t experts = 0;
  weights::HostBlock memory;

  std::uint64_t expert_bytes() const { return gate_up.matrix_bytes + down.matrix_bytes; }
  const std::byte* gate_up_at(std::size_t expert) const { return memory.data() + expert * gate_up.matrix_bytes; }
  const std::byte* down_at(std::size_t expert) const {
    return memory.data() + experts * gate_up.matrix_bytes + expert * down.matrix_bytes;
  }
};

// At least `bytes` and at least `most_active` experts, touched first by the workers. Codes are random and never zero, scales such
// that a layer neither grows nor shrinks its input much. Codes of padding are random too: padding of activations is zero, and
// nobody reads padded output features.
Expected<Pool> make_pool(const WeightFormat& format, std::uint64_t hidden, std::uint64_t intermediate, std::uint64_t bytes,
                         std::size_t most_active, exec::Workers& workers);

// One panel of `layout`, from a seed.
void fill_panel(const PanelLayout& layout, std::uint64_t seed, std::byte* panel);

}  // namespace ktc::bench
