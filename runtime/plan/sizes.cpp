// Where the bytes are: per device the account by category, and the weights by format and by name pattern.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "runtime/base/units.h"
#include "runtime/formats/formats.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/text.h"

namespace ktc::plan {
namespace {

struct Group {
  std::uint64_t count = 0, bytes = 0;
  void add(std::uint64_t more) { ++count, bytes += more; }
};
struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return detail::natural_less(a, b); }
};
using Groups = std::map<std::string, Group, NaturalLess>;

// "model.layers.12.mlp.down" -> "model.layers.*.mlp.down"
std::string pattern_of(std::string_view name) {
  std::string out;
  while (true) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, dot);
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    out += digits ? "*" : part;
    if (dot == name.size()) return out;
    out += '.';
    name.remove_prefix(dot + 1);
  }
}

void print(std::string& text, const std::string& title, const Groups& groups) {
  std::uint64_t total = 0;
  for (const auto& [name, group] : groups) total += group.bytes;
  fmt::format_to(std::back_inserter(text), "{}: {} ({} bytes)\n", title, format_bytes(total), total);
  std::vector<Groups::const_pointer> rows;
  for (const auto& group : groups) rows.push_back(&group);
  std::sort(rows.begin(), rows.end(), [](auto* a, auto* b) {
    return a->second.bytes != b->second.bytes ? a->second.bytes > b->second.bytes : NaturalLess()(a->first, b->first);
  });
  for (const auto* row : rows)
    fmt::format_to(std::back_inserter(text), "  {:>12}  {:>5.1f}%  {:>6} x  {}\n", format_bytes(row->second.bytes),
                   total == 0 ? 0.0 : 100.0 * static_cast<double>(row->second.bytes) / static_cast<double>(total),
                   row->second.count, row->first);
}

}  // namespace

std::string sizes(const planfb::PlanT& plan) {
  std::string text;
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d) {
    const std::string device = detail::quote(plan.devices[d]->name);
    Groups categories, formats, names;
    for (const auto& line : plan.account)
      if (line->device == d) categories[line->category].add(line->bytes);
    std::uint64_t aliases = 0, made = 0;
    for (const auto& weight : plan.weights) {
      if (weight->device != d) continue;
      if (weight->source == planfb::WeightSource::alias) {
        ++aliases;
        continue;
      }
      if (weight->source == planfb::WeightSource::random) ++made;
      formats[detail::type_text(weight->format, weight->group, weight->packing)].add(weight->bytes);
      names[pattern_of(weight->name)].add(weight->bytes);
    }
    print(text, device + " by category", categories);
    if (names.empty()) continue;
    print(text, device + " weights by format", formats);
    print(text, device + " weights by name", names);
    if (made != 0) fmt::format_to(std::back_inserter(text), "  {} of them are random and in no file\n", made);
    if (aliases != 0) fmt::format_to(std::back_inserter(text), "  {} more are aliases and take no bytes\n", aliases);
  }
  return text;
}

}  // namespace ktc::plan
