// Lines that differ between two dumps.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "runtime/plan/plan.h"

namespace ktc::plan {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// One side's lines as numbers, equal lines as equal numbers.
using Ids = std::vector<std::uint32_t>;

struct Differences {
  std::vector<bool> removed, added;  // by line of before, of after
};

// The shortest edit script (Myers, "An O(ND) Difference Algorithm and Its Variations", 1986), greedy, with its trace
// kept. Gives up beyond kMostEdits, where memory would grow with the square: then everything between counts as
// different.
void compare(const Ids& a, std::size_t a_begin, std::size_t a_end, const Ids& b, std::size_t b_begin, std::size_t b_end,
             Differences& out) {
  constexpr std::ptrdiff_t kMostEdits = 2000;
  const auto n = static_cast<std::ptrdiff_t>(a_end - a_begin), m = static_cast<std::ptrdiff_t>(b_end - b_begin);
  const std::ptrdiff_t limit = std::min(n + m, kMostEdits);
  std::vector<std::ptrdiff_t> furthest(static_cast<std::size_t>(2 * limit + 3), 0);
  const auto at = [limit](std::ptrdiff_t k) { return static_cast<std::size_t>(k + limit + 1); };
  std::vector<std::vector<std::ptrdiff_t>> trace;
  for (std::ptrdiff_t d = 0; d <= limit; ++d) {
    trace.emplace_back(furthest.begin() + static_cast<std::ptrdiff_t>(at(-d - 1)),
                       furthest.begin() + static_cast<std::ptrdiff_t>(at(d + 1)) + 1);
    for (std::ptrdiff_t k = -d; k <= d; k += 2) {
      const bool down = k == -d || (k != d && furthest[at(k - 1)] < furthest[at(k + 1)]);
      std::ptrdiff_t x = down ? furthest[at(k + 1)] : furthest[at(k - 1)] + 1;
      while (x < n && x - k < m && x - k >= 0 &&
             a[a_begin + static_cast<std::size_t>(x)] == b[b_begin + static_cast<std::size_t>(x - k)])
        ++x;
      furthest[at(k)] = x;
      if (x < n || x - k < m) continue;
      // found: walk back through the trace
      std::ptrdiff_t i = n, j = m;
      for (std::ptrdiff_t e = d; e > 0; --e) {
        const auto& then = trace[static_cast<std::size_t>(e)];  // the state before round e: diagonals -e-1 .. e+1
        const auto get = [&](std::ptrdiff_t diagonal) { return then[static_cast<std::size_t>(diagonal + e + 1)]; };
        const std::ptrdiff_t diagonal = i - j;
        const bool inserted = diagonal == -e || (diagonal != e && get(diagonal - 1) < get(diagonal + 1));
        const std::ptrdiff_t from = inserted ? diagonal + 1 : diagonal - 1;
        i = get(from);
        j = i - from;
        if (inserted)
          out.added[b_begin + static_cast<std::size_t>(j)] = true;
        else
          out.removed[a_begin + static_cast<std::size_t>(i)] = true;
      }
      return;
    }
  }
  std::fill(out.removed.begin() + static_cast<std::ptrdiff_t>(a_begin),
            out.removed.begin() + static_cast<std::ptrdiff_t>(a_end), true);
  std::fill(out.added.begin() + static_cast<std::ptrdiff_t>(b_begin),
            out.added.begin() + static_cast<std::ptrdiff_t>(b_end), true);
}

}  // namespace

std::string diff(const planfb::PlanT& before, const planfb::PlanT& after) {
  const std::string before_text = dump(before), after_text = dump(after);
  if (before_text == after_text) return {};
  const auto a = lines_of(before_text), b = lines_of(after_text);
  std::unordered_map<std::string_view, std::uint32_t> numbers;
  const auto number = [&numbers](const std::vector<std::string_view>& lines) {
    Ids ids;
    for (std::string_view line : lines) ids.push_back(numbers.emplace(line, numbers.size()).first->second);
    return ids;
  };
  const Ids a_ids = number(a), b_ids = number(b);
  std::size_t same = 0, tail = 0;
  while (same < std::min(a.size(), b.size()) && a_ids[same] == b_ids[same]) ++same;
  while (tail < std::min(a.size(), b.size()) - same && a_ids[a.size() - 1 - tail] == b_ids[b.size() - 1 - tail]) ++tail;
  Differences differences{std::vector<bool>(a.size()), std::vector<bool>(b.size())};
  compare(a_ids, same, a.size() - tail, b_ids, same, b.size() - tail, differences);

  // An indented line is under a heading (an entry, a cache); the first difference there names it.
  std::string text, printed_heading;
  std::string_view heading;
  const auto emit = [&](char mark, std::string_view line) {
    if (line.starts_with("  ") && !heading.empty() && heading != printed_heading) {
      text += "@ " + std::string(heading) + "\n";
      printed_heading = heading;
    }
    text += std::string(1, mark) + " " + std::string(line) + "\n";
  };
  for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (i < a.size() && differences.removed[i]) {
      emit('-', a[i]);
      if (!a[i].starts_with("  ")) printed_heading = heading = a[i];
      ++i;
    } else if (j < b.size() && differences.added[j]) {
      emit('+', b[j]);
      if (!b[j].starts_with("  ")) printed_heading = heading = b[j];
      ++j;
    } else {
      if (!a[i].starts_with("  ")) heading = a[i];
      ++i;
      ++j;
    }
  }
  return text;
}

}  // namespace ktc::plan
