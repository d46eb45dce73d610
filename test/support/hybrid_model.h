// A tiny model (tiny_model.h) as a plan for a GPU and the CPU: routed experts on the CPU or split, everything else on the GPU;
// hand-offs in decode entries, copies in the others, late experts where asked. What the compiler would make of it, by hand.
#pragma once

#include <memory>
#include <optional>

#include "runtime/formats/expert_share.h"
#include "test/support/tiny_model.h"

namespace ktc::test {

struct HybridOptions {
  TinyOptions tiny;
  std::uint32_t hot = 0;            // experts of each layer that are on the GPU; neither side has just one
  Format record = Format::f32;      // of records and cells
  std::uint32_t late = 0;           // experts per token that are late, in every layer with experts but the last
  bool scope_all = false;           // among all experts; false: among those on the CPU
  bool defer_prefill = false, defer_decode = true;
  bool skip_empty = false;
  bool samples = true;              // sample entries that the GPU runs; false: as plans were without them
  std::uint32_t update_every_tokens = 0;  // experts move: the CPU has all of them; wants 0 < hot < experts
  std::optional<ExpertShare> share; // of what is streamed, where nothing is late: the CPU takes some
  bool halves = false;              // extend entries are cut in halves
  std::uint32_t stream_group = 0;   // in extend entries the CPU's experts pass through the GPU, so many at once; 0: they stay
};

// Writes the plan to `folder`/hybrid.ktp and opens it; null after a failed expectation.
std::shared_ptr<const plan::OpenPlan> hybrid_plan(TinyModel& model, const HybridOptions& options,
                                                  const std::filesystem::path& folder);

}  // namespace ktc::test
