#include "placement/streaming.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/formats/gpu_stream.h"

namespace ktc::placement {
namespace {

constexpr double kFewRows = 1, kManyRows = 64;  // of an expert: between them its time is taken as a line
constexpr std::uint32_t kFewTokens = 256;       // of a step, the same

std::uint32_t nanoseconds(double us) { return static_cast<std::uint32_t>(std::clamp(std::round(us * 1e3), 0.0, 4e9)); }

struct Line {
  double base = 0, slope = 0;  // at 0, per unit
};
Line through(double x0, double y0, double x1, double y1) {
  const double slope = std::max(0.0, (y1 - y0) / (x1 - x0));
  return {std::max(0.0, y0 - slope * x0), slope};
}

// The rule's rates of every layer that streams.
struct LayerShare {
  StreamedLayer layer;
  ExpertShare share;
};

Expected<std::vector<LayerShare>> layer_shares(const CostModel& cost, const std::vector<HotExperts>& hot, const Policy& policy) {
  const std::uint32_t most = std::max(policy.batch.stream_chunk, 2u), few = std::min(kFewTokens, most / 2);
  KTC_ASSIGN_OR_RETURN(const std::vector<StreamedLayer> at_few, cost.streamed_layers(hot, few));
  KTC_ASSIGN_OR_RETURN(const std::vector<StreamedLayer> at_most, cost.streamed_layers(hot, most));
  std::vector<LayerShare> shares;
  for (std::size_t i = 0; i < at_few.size(); ++i) {
    const ExpertTime one = cost.expert_time(at_few[i], kFewRows), many = cost.expert_time(at_few[i], kManyRows);
    const Line cpu = through(kFewRows, one.cpu, kManyRows, many.cpu);
    // a GPU reads an expert until its rows cost more: the line is that of the rows, its base what reading alone costs
    const Line gpu{one.gpu, through(kFewRows, one.gpu, 16 * kManyRows, cost.expert_time(at_few[i], 16 * kManyRows).gpu).slope};
    const Line values = through(few, at_few[i].values, most, at_most[i].values);
    const auto before = [&](const StreamedLayer& layer) {  // the last group of the layer before, the chain, the way to the host
      const double group = (layer.cold * gpu.base + layer.pairs * gpu.slope) / kSharedGroups;
      return group + layer.chain + layer.beside + layer.values / 2;
    };
    const Line ahead = through(few, before(at_few[i]), most, before(at_most[i]));
    ExpertShare share;
    share.ahead_ns = nanoseconds(ahead.base), share.ahead_row_ns = nanoseconds(ahead.slope);
    share.copy_ns = std::max(nanoseconds(one.copy), 1u);
    share.gpu_ns = nanoseconds(gpu.base), share.gpu_row_ns = nanoseconds(gpu.slope);
    share.cpu_ns = nanoseconds(cpu.base), share.cpu_row_ns = nanoseconds(cpu.slope);
    share.values_ns = nanoseconds(values.base), share.values_row_ns = nanoseconds(values.slope);
    shares.push_back({at_most[i], share});
  }
  return shares;
}

class Chooser {
 public:
  Chooser(const CostModel& cost, const std::vector<HotExperts>& hot, const BatchPolicy& batch, const std::vector<LayerShare>& layers, bool shares)
      : cost_(cost), hot_(hot), batch_(batch), layers_(layers), shares_(shares) {}

  Expected<StreamPoint> at(std::uint32_t tokens) {
    StreamPoint point;
    point.tokens = tokens;
    KTC_ASSIGN_OR_RETURN(const StepCost streamed, cost_.prefill(hot_, tokens, true));
    double link = 0;  // all experts pass, whoever chose them
    for (const LayerShare& one : layers_) link += one.layer.cold * one.share.copy_ns * 1e-3;
    point.unshared = std::max(streamed.us, link);
    point.streamed = std::max(0.0, point.unshared - gain(tokens));
    KTC_ASSIGN_OR_RETURN(const StepCost chunk, cost_.prefill(hot_, std::min(batch_.chunk, tokens), false));
    point.on_cpu = chunk.us * (tokens / std::min(batch_.chunk, tokens));
    if (const std::uint32_t rest = tokens % batch_.chunk; rest != 0 && tokens > batch_.chunk) {
      KTC_ASSIGN_OR_RETURN(const StepCost last, cost_.prefill(hot_, rest, false));
      point.on_cpu += last.us;
    }
    return point;
  }

  // us that the CPU's share saves, were the rows spread evenly.
  double gain(std::uint32_t tokens) const {
    double saved = 0;
    for (std::size_t i = 0; i < layers_.size() && shares_; ++i) {
      const LayerShare& one = layers_[i];
      const auto cold = static_cast<std::size_t>(one.layer.cold);
      const double pairs = one.layer.pairs / batch_.stream_chunk * tokens;
      std::vector<std::uint32_t> chosen(cold);
      for (std::size_t m = 0; m < cold; ++m)  // as many in all as there are pairs
        chosen[m] = static_cast<std::uint32_t>(pairs * (m + 1) / cold) - static_cast<std::uint32_t>(pairs * m / cold);
      std::vector<std::uint8_t> on_cpu(cold);
      const SharedExperts shared = share_experts(one.share, chosen, tokens, on_cpu);
      double gpu = one.share.ahead_ns + static_cast<double>(tokens) * one.share.ahead_row_ns;  // were all of it the GPU's
      for (const std::uint32_t n : chosen) gpu += n == 0 ? 0.0 : one.share.gpu_ns + static_cast<double>(n) * one.share.gpu_row_ns;
      const double alone = std::max(gpu, one.layer.cold * one.share.copy_ns);
      saved += 1e-3 * std::max(0.0, alone - static_cast<double>(std::max(shared.cpu_ns, shared.left_ns)));
    }
    return saved;
  }

 private:
  const CostModel& cost_;
  const std::vector<HotExperts>& hot_;
  const BatchPolicy& batch_;
  const std::vector<LayerShare>& layers_;
  const bool shares_;  // the CPU takes some
};

std::string milliseconds(double us) { return fmt::format("{:.{}f}", us * 1e-3, us < 10e3 ? 2 : us < 100e3 ? 1 : 0); }

bool pays(const StreamPoint& point) { return point.streamed < kStreamMargin * point.on_cpu; }

}  // namespace

Expected<StreamChoice> choose_streaming(const CostModel& cost, const std::vector<HotExperts>& hot, const Policy& policy) {
  StreamChoice choice;
  if (policy.batch.stream_chunk == 0) return choice;
  KTC_ASSIGN_OR_RETURN(const std::vector<LayerShare> layers, layer_shares(cost, hot, policy));
  if (layers.empty()) return choice;
  // what is late is not shared: a part in time and a late one would have to be cut alike
  const bool shares = policy.batch.stream_share && policy.defer.max_per_token == 0;
  Chooser chooser(cost, hot, policy.batch, layers, shares);

  std::vector<StreamPoint> grid;
  for (std::uint64_t n = 1; n < policy.batch.stream_chunk; n *= 2) {
    KTC_ASSIGN_OR_RETURN(const StreamPoint point, chooser.at(static_cast<std::uint32_t>(n)));
    grid.push_back(point);
  }
  KTC_ASSIGN_OR_RETURN(const StreamPoint last, chooser.at(policy.batch.stream_chunk));
  grid.push_back(last);
  std::size_t first = grid.size();  // that pays, and all behind it
  while (first > 0 && pays(grid[first - 1])) --first;
  if (policy.batch.stream_from != 0) {
    choice.from = policy.batch.stream_from;
    choice.stated = true;
  } else if (first < grid.size()) {
    choice.from = grid[first].tokens;
    for (std::uint32_t least = first == 0 ? choice.from - 1 : grid[first - 1].tokens; choice.from - least > 1;) {
      const std::uint32_t middle = least + (choice.from - least) / 2;
      KTC_ASSIGN_OR_RETURN(const StreamPoint point, chooser.at(middle));
      (pays(point) ? choice.from : least) = middle;
    }
  }
  if (choice.from != 0) {
    KTC_ASSIGN_OR_RETURN(const StreamPoint point, chooser.at(choice.from));
    choice.points.push_back(point);
  }
  for (const StreamPoint& point : grid) {
    const bool near = choice.from == 0 ? point.tokens == last.tokens : point.tokens >= choice.from / 2 && point.tokens != choice.from;
    if (near) choice.points.push_back(point);
  }
  std::sort(choice.points.begin(), choice.points.end(), [](const StreamPoint& a, const StreamPoint& b) { return a.tokens < b.tokens; });
  if (choice.from == 0) return choice;
  const bool used = shares && std::any_of(choice.points.begin(), choice.points.end(), [&](const StreamPoint& point) {
    return point.tokens >= choice.from && chooser.gain(point.tokens) > 0;
  });
  if (used)
    for (const LayerShare& one : layers) choice.shares[one.layer.module] = one.share;
  return choice;
}

std::string describe(const StreamChoice& choice) {
  std::string text = choice.from == 0 ? std::string("nothing is streamed") : fmt::format("streamed from {} tokens{}", choice.from, choice.stated ? ", as the policy says" : "");
  const char* separator = ": ";
  for (const StreamPoint& point : choice.points) {
    text += fmt::format("{}{} tokens {} ms", separator, point.tokens, milliseconds(point.streamed));
    if (point.streamed < point.unshared) text += fmt::format(" ({} without a share of the CPU)", milliseconds(point.unshared));
    text += fmt::format(", on the CPU {}", milliseconds(point.on_cpu));
    separator = "; ";
  }
  return text;
}

}  // namespace ktc::placement
