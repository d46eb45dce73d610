// A plan with every op, every weight source and both cache kinds, in a few kilobytes, and a table to break it with.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace ktc::test {

// Two layers: grouped-query attention with a softmax router, then latent attention with a sigmoid router, whose expert
// bank is the first layer's under another name, and a splat dense block beside. Entries extend[4], decode[1],
// decode[2], sample[2]. Written to `folder` (plan.ktp, all.weights, tokenizer.json) when it is not empty.
void write_small_plan(const std::filesystem::path& folder);

// A fresh copy each time.
planfb::PlanT small_plan();
const std::vector<std::byte>& small_plan_bytes();

// Parts of the small plan, by name; the test ends with a message when there is none.
planfb::EntryT& entry(planfb::PlanT& plan, std::string_view name);
planfb::BufferT& buffer(planfb::EntryT& entry, std::string_view name);
planfb::StepT& step(planfb::EntryT& entry, std::string_view name);
planfb::WeightT& weight(planfb::PlanT& plan, std::string_view name);
std::uint32_t buffer_index(const planfb::EntryT& entry, std::string_view name);
std::uint32_t weight_index(const planfb::PlanT& plan, std::string_view name);

// One way to break the plan and what verify_plan says then, without "; compile the model again" at its end.
struct Broken {
  const char* name;
  std::function<void(planfb::PlanT&)> change;
  std::string message;
};
void PrintTo(const Broken& broken, std::ostream* out);
// The message of verify_plan after the change, with the common remedy cut off.
std::string message_of(const Broken& broken);

}  // namespace ktc::test
