#include "tools/ktc/explore_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace ktc::tools {
namespace {

using placement::SweepRow;

constexpr double kWidth = 860, kHeight = 480, kLeft = 70, kRight = 230, kTop = 40, kBottom = 50;
// Distinct for people who see few colours (Okabe and Ito), and lines differ by dashes after one round.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
constexpr const char* kDashes[] = {"", "6 3", "2 3"};

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

// 1, 2 or 5 times a power of ten: about six steps up to `most`.
double step_for(double most) {
  const double raw = std::max(most, 1e-9) / 6, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

double gib(const SweepRow& row) { return static_cast<double>(row.gpu_memory) / (std::uint64_t{1} << 30); }

struct Axes {
  double most_x, most_y;
  double x(double value) const { return kLeft + value / most_x * (kWidth - kLeft - kRight); }
  double y(double value) const { return kHeight - kBottom - value / most_y * (kHeight - kTop - kBottom); }
};

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escape(text));
}

}  // namespace

std::string explore_svg(const std::vector<SweepRow>& rows, std::string_view title) {
  std::set<std::string> formats;
  std::set<std::uint32_t> defers;
  double most_x = 0, most_y = 0;
  for (const SweepRow& row : rows) {
    if (row.refused) continue;
    formats.insert(row.format), defers.insert(row.defer);
    most_x = std::max(most_x, gib(row)), most_y = std::max(most_y, row.tokens_per_second());
  }
  auto suffix = [&](const SweepRow& row) {
    std::string text;
    if (formats.size() > 1) text += ", " + row.format;
    if (defers.size() > 1) text += fmt::format(", defer {}", row.defer);
    return text;
  };
  // a plan without hot experts is where every strategy begins
  std::map<std::string, std::vector<const SweepRow*>> lines;
  for (const SweepRow& row : rows)
    if (!row.refused && row.strategy != "none") lines[row.strategy + suffix(row)].push_back(&row);
  for (const SweepRow& row : rows) {
    if (row.refused || row.strategy != "none") continue;
    bool begins = false;
    for (auto& [name, points] : lines)
      if (points.front()->format == row.format && points.front()->defer == row.defer) points.push_back(&row), begins = true;
    if (!begins) lines["no hot experts" + suffix(row)].push_back(&row);
  }

  const double step_x = step_for(most_x), step_y = step_for(most_y);
  const Axes axes{std::max(std::ceil(most_x / step_x), 1.0) * step_x, std::max(std::ceil(most_y / step_y), 1.0) * step_y};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += text_at(kLeft, 22, "start", title);
  for (double value = 0; value <= axes.most_x * (1 + 1e-9); value += step_x) {
    svg += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#ddd\"/>\n", axes.x(value), axes.y(0), axes.y(axes.most_y));
    svg += text_at(axes.x(value), axes.y(0) + 18, "middle", fmt::format("{:.6g}", value));
  }
  for (double value = 0; value <= axes.most_y * (1 + 1e-9); value += step_y) {
    svg += fmt::format("<path d=\"M{0:.1f} {1:.1f}H{2:.1f}\" stroke=\"#ddd\"/>\n", axes.x(0), axes.y(value), axes.x(axes.most_x));
    svg += text_at(axes.x(0) - 8, axes.y(value) + 4, "end", fmt::format("{:.6g}", value));
  }
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", "GiB on GPUs");
  svg += fmt::format("<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">predicted tokens/s</text>\n",
                     (kTop + kHeight - kBottom) / 2);
  std::size_t index = 0;
  for (auto& [name, points] : lines) {
    std::stable_sort(points.begin(), points.end(), [](const SweepRow* a, const SweepRow* b) { return a->gpu_memory < b->gpu_memory; });
    const char* colour = kColours[index % std::size(kColours)];
    const char* dash = kDashes[index / std::size(kColours) % std::size(kDashes)];
    std::string path;
    for (const SweepRow* row : points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axes.x(gib(*row)), axes.y(row->tokens_per_second()));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" stroke-dasharray=\"{}\"/>\n", path, colour, dash);
    for (const SweepRow* row : points)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" stroke=\"{}\" fill=\"{}\"><title>{}</title></circle>\n",
                         axes.x(gib(*row)), axes.y(row->tokens_per_second()), colour, row->pareto ? colour : "white",
                         escape(fmt::format("{}, on_gpu {}, {}, defer {}: {:.1f} tokens/s, {:.2f} GiB", row->strategy, row->on_gpu,
                                            row->format, row->defer, row->tokens_per_second(), gib(*row))));
    const double y = kTop + 18.0 * static_cast<double>(index);
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}h24\" stroke=\"{}\" stroke-width=\"1.5\" stroke-dasharray=\"{}\"/>\n", kWidth - kRight + 16, y, colour, dash);
    svg += text_at(kWidth - kRight + 46, y + 4, "start", name);
    ++index;
  }
  return svg + "</svg>\n";
}

}  // namespace ktc::tools
