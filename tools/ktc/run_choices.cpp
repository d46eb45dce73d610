#include "tools/ktc/run_choices.h"

#include <algorithm>
#include <string>

namespace ktc::run {
namespace {

using exec::HandoffKind, exec::ProductsKind, exec::UpdateKind;

struct Option {
  std::string_view choice, option;
  void (*set)(Options& options);
};

constexpr Option kOptions[] = {
    {plan::kHandoffChoice, "doorbell", [](Options& o) { o.handoff = HandoffKind::doorbell; }},
    {plan::kHandoffChoice, "hostnode", [](Options& o) { o.handoff = HandoffKind::hostnode; }},
    {plan::kHandoffChoice, "automatic", [](Options& o) { o.handoff = HandoffKind::automatic; }},
    {plan::kIsaChoice, "scalar", [](Options& o) { o.isa = IsaLevel::scalar; }},
    {plan::kIsaChoice, "avx2", [](Options& o) { o.isa = IsaLevel::avx2; }},
    {plan::kIsaChoice, "avx512", [](Options& o) { o.isa = IsaLevel::avx512; }},
    {plan::kIsaChoice, "avx512_vnni", [](Options& o) { o.isa = IsaLevel::avx512_vnni; }},
    {plan::kIsaChoice, "amx", [](Options& o) { o.isa = IsaLevel::amx; }},
    {plan::kIsaChoice, "best", [](Options& o) { o.isa = IsaLevel::best; }},
    {plan::kProductsChoice, "own", [](Options& o) { o.products = ProductsKind::own; }},
    {plan::kProductsChoice, "library", [](Options& o) { o.products = ProductsKind::library; }},
    {plan::kSamplingChoice, "device", [](Options& o) { o.device_sampling = true; }},
    {plan::kSamplingChoice, "host", [](Options& o) { o.device_sampling = false; }},
    {plan::kUpdateChoice, "auto", [](Options& o) { o.update = UpdateKind::automatic; }},
    {plan::kUpdateChoice, "on", [](Options& o) { o.update = UpdateKind::on; }},
    {plan::kUpdateChoice, "off", [](Options& o) { o.update = UpdateKind::off; }},
};

}  // namespace

bool set_choice(Options& options, std::string_view choice, std::string_view option) {
  for (const Option& one : kOptions) {
    if (one.choice != choice || one.option != option) continue;
    one.set(options);
    return true;
  }
  return false;
}

std::string known_options(std::string_view choice) {
  std::string text;
  for (auto one = std::begin(kOptions); one != std::end(kOptions); ++one) {
    if (one->choice != choice) continue;
    const bool last =
        std::none_of(one + 1, std::end(kOptions), [&](const Option& other) { return other.choice == choice; });
    text += (text.empty() ? "" : last ? " or " : ", ") + std::string(one->option);
  }
  return text;
}

Status apply_choices(const planfb::PlanT& plan, Options& options) {
  for (const Chosen& asked : options.chosen)
    KTC_RETURN_IF_ERROR(plan::check_choice(plan, asked.choice, asked.option, asked.flag));
  for (const auto& choice : plan.choices) {
    const bool asked = std::any_of(options.chosen.begin(), options.chosen.end(),
                                   [&](const Chosen& one) { return one.choice == choice->name; });
    // a default of a later ktc that this one does not know: its own holds
    if (!asked) (void)set_choice(options, choice->name, choice->options.front());
  }
  return {};
}

}  // namespace ktc::run
