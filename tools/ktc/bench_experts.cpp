#include "tools/ktc/bench_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "runtime/exec/cpu_count.h"
#include "runtime/exec/sampling.h"
#include "runtime/formats/tile_rows.h"
#include "tools/ktc/bench_ceilings.h"
#include "tools/ktc/bench_compare.h"

namespace ktc::bench {
namespace {

constexpr double kCaseSeconds = 0.008, kPeakSeconds = 0.008;
constexpr std::size_t kReadBytes = std::size_t{1} << 30;   // 8 ms at 130 GB/s
constexpr std::uint64_t kLeastPool = std::uint64_t{1} << 20;
constexpr double kFloatTolerance = 1e-3;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A case and what every round found.
struct Case {
  std::size_t pool = 0;
  const TileVariant* variant = nullptr;
  Routing routing;
  std::unique_ptr<Layer> layer;
  std::size_t layers = 0;  // that the last round ran, in windows one behind the other
  std::vector<double> seconds, read, of_read, of_compute;
};

class Bench {
 public:
  explicit Bench(const ExpertsOptions& options) : options_(options) {}

  Expected<ExpertsResult> run(const NextRound& next) {
    KTC_RETURN_IF_ERROR(prepare());
    for (Case& c : cases_) KTC_RETURN_IF_ERROR(check(c));
    std::vector<double> seconds;
    for (std::uint32_t round = 0; next ? next(seconds) : round < options_.rounds; ++round) {
      measure_round();
      seconds.clear();
      for (const Case& c : cases_) seconds.push_back(c.seconds.back());
    }
    if (reads_.empty()) return make_error(StatusCode::invalid_argument, {"experts", "no round was asked for", "", "one at least"});
    return result();
  }

 private:
  Status prepare();
  Status make_pools();
  Status check(Case& c);
  void measure_round();
  double read(std::size_t pool, std::size_t first, std::size_t experts);
  double time(Case& c);
  std::size_t next_window(std::size_t pool, std::size_t active);
  ExpertsResult result() const;

  std::uint32_t tile_rows(const WeightFormat& format) const {
    return options_.tile_rows >= 0 ? static_cast<std::uint32_t>(options_.tile_rows) : ktc::tile_rows(format.format, format.group);
  }
  double peak_of(std::size_t pool, double integer, double other) const { return pools_[pool].format.integer() ? integer : other; }

  const ExpertsOptions& options_;
  std::unique_ptr<exec::Workers> workers_;
  Engine engine_, scalar_;
  std::vector<Pool> pools_;
  std::vector<std::size_t> windows_;
  std::vector<float> x_;
  std::vector<Case> cases_;
  std::optional<ComputePeak> integer_peak_, float_peak_;
  std::vector<double> reads_, integer_peaks_, float_peaks_;
  double read_bytes_ = 0, read_seconds_ = 0;  // of all reads; and of this round's
  double round_bytes_ = 0, round_seconds_ = 0;
};

Status Bench::make_pools() {
  double gib = options_.gib;
  if (gib == 0) {
    gib = 4;
    if (const auto available = weights::available_memory())
      gib = std::min(gib, 0.6 * static_cast<double>(*available) / static_cast<double>(options_.formats.size()) / (1u << 30));
  }
  std::size_t most_active = 0;
  for (const Case& c : cases_) most_active = std::max(most_active, c.routing.active);
  const auto bytes = std::max(kLeastPool, static_cast<std::uint64_t>(gib * (1u << 30)));
  for (const WeightFormat& format : options_.formats) {
    KTC_ASSIGN_OR_RETURN(Pool pool, make_pool(format, options_.hidden, options_.intermediate, bytes, most_active, *workers_));
    pools_.push_back(std::move(pool));
  }
  windows_.assign(pools_.size(), 0);
  return {};
}

Status Bench::prepare() {
  const int threads = options_.threads > 0 ? options_.threads : exec::default_thread_count();
  kernels::TileShapes shapes;  // before workers, whose first loop binds this thread to a core
  if (kernels::select_kernels(host_cpu_features(), options_.level).panel_int8.many != nullptr) shapes = kernels::probe_tile_shapes(threads);
  KTC_ASSIGN_OR_RETURN(workers_, exec::Workers::create(threads));
  std::size_t most_tokens = 0;
  for (std::size_t f = 0; f < options_.formats.size(); ++f)
    for (const std::uint32_t m : options_.tokens)
      for (const TileVariant& variant : options_.variants) {
        if (&variant != &options_.variants[0] && m < tile_rows(options_.formats[f])) continue;  // no tiles, no variants
        Case c;
        c.pool = f;
        c.variant = &variant;
        c.routing = make_routing(m, options_.experts, options_.top_k, options_.hidden, options_.intermediate);
        most_tokens = std::max(most_tokens, c.routing.tokens);
        cases_.push_back(std::move(c));
      }
  const std::uint64_t activations = std::uint64_t{most_tokens} * (options_.hidden * 12 + std::uint64_t{options_.top_k} * options_.intermediate * 8);
  KTC_RETURN_IF_ERROR(weights::check_available(activations, "activations", "use fewer --tokens"));
  KTC_RETURN_IF_ERROR(make_pools());

  std::vector<PanelLayout> layouts = {*panel_layout(Format::int8, 0, false, 32, 64), *panel_layout(Format::bf16, 0, false, 32, 64)};
  bool integers = false, floats = false;
  for (const Pool& pool : pools_) {
    layouts.push_back(pool.gate_up);
    layouts.push_back(pool.down);
    (pool.format.integer() ? integers : floats) = true;
  }
  KTC_RETURN_IF_ERROR(make_engine(options_.level, *workers_, options_.experts, layouts, shapes, engine_));
  KTC_RETURN_IF_ERROR(make_engine(IsaLevel::scalar, *workers_, options_.experts, layouts, shapes, scalar_));
  const auto make_peak = [&](bool integer, std::optional<ComputePeak>& peak) -> Status {
    KTC_ASSIGN_OR_RETURN(peak, ComputePeak::create(integer, engine_));
    return {};
  };
  if (integers) KTC_RETURN_IF_ERROR(make_peak(true, integer_peak_));
  if (floats) KTC_RETURN_IF_ERROR(make_peak(false, float_peak_));

  x_.resize(most_tokens * options_.hidden);
  workers_->parallel_for(x_.size(), 4096, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i)  // about normal: four uniform numbers of variance 1/12
      x_[i] = static_cast<float>((exec::uniform(1, i) + exec::uniform(2, i) + exec::uniform(3, i) + exec::uniform(4, i) - 2) * 1.732);
  });
  for (Case& c : cases_) {
    KTC_ASSIGN_OR_RETURN(Layer layer, Layer::create(pools_[c.pool], engine_, options_, *c.variant, c.routing.tokens, tile_rows(pools_[c.pool].format)));
    c.layer = std::make_unique<Layer>(std::move(layer));
    std::vector<std::size_t> tokens(c.routing.tokens);
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = t;
    c.layer->set_inputs(c.routing, tokens, x_.data());
  }
  return {};
}

// A token's output depends neither on its neighbours nor on the kernel, so the scalar kernels run single tokens: the first and
// the last, whose experts differ where there are several groups.
Status Bench::check(Case& c) {
  const std::size_t window = next_window(c.pool, c.routing.active);
  workers_->enter([&] { c.layer->run(window); });
  KTC_ASSIGN_OR_RETURN(Layer plain, Layer::create(pools_[c.pool], scalar_, options_, {}, 1, 0));
  std::vector<std::size_t> tokens = {0};
  if (c.routing.tokens > 1) tokens.push_back(c.routing.tokens - 1);
  for (const std::size_t token : tokens) {
    plain.set_inputs(c.routing, {token}, x_.data());
    workers_->enter([&] { plain.run(window); });
    const std::string place = fmt::format("{}, {} tokens per expert, token {}", to_string(pools_[c.pool].format), c.routing.per_expert, token);
    KTC_RETURN_IF_ERROR(compare(place, {plain.output(0), options_.hidden}, {c.layer->output(token), options_.hidden},
                                pools_[c.pool].format.integer() ? 0 : kFloatTolerance));
  }
  return {};
}

std::size_t Bench::next_window(std::size_t pool, std::size_t active) {
  std::size_t& next = windows_[pool];
  if (next + active > pools_[pool].experts) next = 0;
  const std::size_t window = next;
  next += active;
  return window;
}

// Bytes per second of the experts from `first` on, behind the last one from 0 on; at most kReadBytes of them.
double Bench::read(std::size_t pool, std::size_t first, std::size_t experts) {
  const Pool& p = pools_[pool];
  experts = std::min({experts, p.experts, std::max<std::size_t>(1, kReadBytes / p.expert_bytes())});
  double bytes = 0, seconds = 0;
  const auto span = [&](const std::byte* begin, std::size_t length) {
    const ReadTime time = read_all({begin, length}, *workers_);
    bytes += time.bytes, seconds += time.seconds;
  };
  while (experts > 0) {
    if (first >= p.experts) first = 0;
    const std::size_t count = std::min(experts, p.experts - first);
    span(p.gate_up_at(first), count * p.gate_up.matrix_bytes);
    span(p.down_at(first), count * p.down.matrix_bytes);
    first += count, experts -= count;
  }
  round_bytes_ += bytes, round_seconds_ += seconds;
  return bytes / seconds;
}

double Bench::time(Case& c) {
  std::size_t layers = 0;
  double seconds = 0;
  workers_->enter([&] {
    const double start = now();
    do {
      c.layer->run(next_window(c.pool, c.routing.active));
      ++layers;
      seconds = now() - start;
    } while (seconds < kCaseSeconds);
  });
  c.layers = layers;
  return seconds / static_cast<double>(layers);
}

// Memory of one machine can differ in speed (of a virtual one: by a half), so a case is compared with reads of its own experts.
void Bench::measure_round() {
  round_bytes_ = round_seconds_ = 0;
  const double integer = integer_peak_ ? integer_peak_->measure(kPeakSeconds) : 0;
  const double other = float_peak_ ? float_peak_->measure(kPeakSeconds) : 0;
  for (Case& c : cases_) {
    const Pool& pool = pools_[c.pool];
    std::size_t& next = windows_[c.pool];
    if (next + c.routing.active > pool.experts) next = 0;
    const std::size_t first = next;
    const double before = read(c.pool, first, c.layers == 0 ? pool.experts : c.layers * c.routing.active);
    c.seconds.push_back(time(c));
    const double bandwidth = (before + read(c.pool, first, c.layers * c.routing.active)) / 2;
    const double bytes = static_cast<double>(c.routing.active * pool.expert_bytes());
    const double operations = 6.0 * static_cast<double>(c.routing.pairs()) * options_.hidden * options_.intermediate;
    c.read.push_back(bandwidth);
    c.of_read.push_back(bytes / c.seconds.back() / bandwidth);
    c.of_compute.push_back(operations / c.seconds.back() / peak_of(c.pool, integer, other));
  }
  reads_.push_back(round_bytes_ / round_seconds_);
  read_bytes_ += round_bytes_, read_seconds_ += round_seconds_;
  integer_peaks_.push_back(integer);
  float_peaks_.push_back(other);
}

ExpertsResult Bench::result() const {
  ExpertsResult result;
  result.level = engine_.kernels.level;
  result.shapes = engine_.shapes;
  result.threads = workers_->threads();
  result.rounds = reads_.size();
  result.read = spread_of(reads_);
  result.read_mean = read_bytes_ / read_seconds_;
  result.integer_peak = spread_of(integer_peaks_);
  result.float_peak = spread_of(float_peaks_);
  result.peak_tiled = integer_peak_ ? integer_peak_->tiled() : float_peak_->tiled();
  for (const Pool& pool : pools_) result.pool_bytes.push_back(pool.memory.bytes());
  for (const Case& c : cases_) {
    CaseResult r;
    r.format = pools_[c.pool].format;
    r.routing = c.routing;
    r.variant = c.variant->name;
    r.tiled = c.layer->tiled(c.routing.per_expert);
    const exec::ExpertTimes& times = c.layer->times();
    const double x = static_cast<double>(times.tokens + times.gather), up = static_cast<double>(times.gate_up),
                 h = static_cast<double>(times.h), down = static_cast<double>(times.down), waiting = static_cast<double>(times.waiting);
    if (const double all = x + up + h + down + waiting; all > 0) {
      r.gather = x / all;
      r.gate_up = up / all;
      r.h = h / all;
      r.down = down / all;
      r.waiting = waiting / all;
    }
    r.bytes = static_cast<double>(c.routing.active * pools_[c.pool].expert_bytes());
    r.operations = 6.0 * static_cast<double>(c.routing.pairs()) * options_.hidden * options_.intermediate;
    r.seconds = spread_of(c.seconds);
    const auto rate = [&r](double amount) { return Spread{amount / r.seconds.high, amount / r.seconds.median, amount / r.seconds.low}; };
    r.bytes_per_second = rate(r.bytes);
    r.operations_per_second = rate(r.operations);
    r.read = spread_of(c.read);
    r.of_read = spread_of(c.of_read);
    r.of_compute = spread_of(c.of_compute);
    result.cases.push_back(r);
  }
  return result;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    const double place = part * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

Expected<ExpertsResult> measure_experts(const ExpertsOptions& options, const NextRound& next) { return Bench(options).run(next); }

}  // namespace ktc::bench
