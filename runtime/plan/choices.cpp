#include "runtime/plan/choices.h"

#include <algorithm>
#include <initializer_list>

#include "runtime/plan/verify.h"

namespace ktc::plan {

using namespace planfb;

namespace {

template <typename Holds>
bool any_step(const PlanT& plan, const Holds& holds) {
  return std::any_of(plan.entries.begin(), plan.entries.end(), [&](const auto& entry) {
    return std::any_of(entry->steps.begin(), entry->steps.end(),
                       [&](const auto& step) { return holds(*entry, *step); });
  });
}

// What cuBLASLt could compute (runtime/exec/large_products.cpp).
bool for_library(const PlanT& plan, const EntryT& entry, const StepT& step) {
  const LinearOpT* op = step.op.AsLinearOp();
  if (op == nullptr || step.kind != StepKind::launch || entry.kind == EntryKind::decode) return false;
  const WeightT& w = *plan.weights[op->w];
  return w.format == static_cast<std::uint8_t>(Format::bf16) &&
         w.packing == static_cast<std::uint8_t>(Packing::row_major) &&
         step.activations == static_cast<std::uint8_t>(Format::bf16);
}

}  // namespace

std::vector<std::unique_ptr<ChoiceT>> permitted_choices(const PlanT& plan) {
  std::vector<std::unique_ptr<ChoiceT>> choices;
  const auto add = [&](std::string_view name, std::initializer_list<const char*> options) {
    auto choice = std::make_unique<ChoiceT>();
    choice->name = name;
    choice->options.assign(options.begin(), options.end());
    choices.push_back(std::move(choice));
  };
  if (any_step(plan, [](const EntryT&, const StepT& step) { return step.kind == StepKind::publish; }))
    add(kHandoffChoice, {"automatic", "doorbell", "hostnode"});
  add(kIsaChoice, {"best", "scalar", "avx2", "avx512", "avx512_vnni", "amx"});
  if (any_step(plan, [&](const EntryT& entry, const StepT& step) { return for_library(plan, entry, step); }))
    add(kProductsChoice, {"own", "library"});
  const bool on_device = any_step(plan, [](const EntryT&, const StepT& step) {
    return step.op.type == Op::SampleOp && step.kind == StepKind::launch && step.workspace != kNone;
  });
  if (on_device)
    add(kSamplingChoice, {"device", "host"});
  else
    add(kSamplingChoice, {"host"});
  if (!plan.moving.empty()) add(kUpdateChoice, {"auto", "on", "off"});
  return choices;
}

const ChoiceT* find_choice(const PlanT& plan, std::string_view name) {
  for (const auto& choice : plan.choices)
    if (choice->name == name) return choice.get();
  return nullptr;
}

Status check_choice(const PlanT& plan, std::string_view name, std::string_view option, std::string_view flag) {
  if (plan.choices.empty()) return {};
  const ChoiceT* choice = find_choice(plan, name);
  std::string permitted;
  for (const std::string& one : choice == nullptr ? std::vector<std::string>() : choice->options) {
    if (one == option) return {};
    permitted += (permitted.empty() ? "" : ", ") + one;
  }
  return make_error(StatusCode::invalid_argument,
                    {.place = std::string(flag),
                     .what = choice == nullptr ? "the plan leaves nothing to choose there" : "",
                     .found = std::string(option),
                     .expected = choice == nullptr ? "" : "what the plan permits: " + permitted,
                     .remedy = choice == nullptr ? "leave the flag out; ktc-plan dump lists the plan's choices" : ""});
}

}  // namespace ktc::plan

namespace ktc::plan::detail {

// What a reader does not know, of a later plan, it does not choose: names and options are free as long as they can be
// shown.
Status verify_choices(const PlanT& plan) {
  constexpr std::size_t kMost = 32, kLongest = 32;
  const auto check_name = [](const std::string& place, std::string what, const std::string& name) -> Status {
    const bool plain = !name.empty() && name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    });
    return plain ? Status() : wrong(place, std::move(what), shown(name), "1 to 32 of a-z, 0-9, _ and -");
  };
  if (plan.choices.size() > kMost) return wrong("choices", "", number(plan.choices.size()), "at most 32");
  for (std::size_t c = 0; c < plan.choices.size(); ++c) {
    const ChoiceT& choice = *plan.choices[c];
    const std::string place = item("choices", c, choice.name);
    KTC_RETURN_IF_ERROR(check_name(place, "name", choice.name));
    if (c > 0 && choice.name <= plan.choices[c - 1]->name)
      return wrong(place, "name", shown(choice.name) + " behind " + shown(plan.choices[c - 1]->name),
                   "ascending names");
    if (choice.options.empty() || choice.options.size() > kMost)
      return wrong(place, "options", number(choice.options.size()), "1 to 32");
    for (std::size_t o = 0; o < choice.options.size(); ++o) {
      KTC_RETURN_IF_ERROR(check_name(place, "options", choice.options[o]));
      if (std::find(choice.options.begin(), choice.options.begin() + static_cast<std::ptrdiff_t>(o),
                    choice.options[o]) != choice.options.begin() + static_cast<std::ptrdiff_t>(o))
        return wrong(place, "options", shown(choice.options[o]) + " twice", "every option once");
    }
  }
  return {};
}

}  // namespace ktc::plan::detail
