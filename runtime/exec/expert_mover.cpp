#include "runtime/exec/expert_mover.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/exec/trace.h"

namespace ktc::exec {
namespace {

std::uint64_t matrix_bytes(const planfb::WeightT& weight) { return weight.bytes / weight.batch; }

gpu::Weight as_packed(const planfb::WeightT& weight) {
  gpu::Weight w;
  w.format = static_cast<Format>(weight.format);
  w.packing = static_cast<Packing>(weight.packing);
  w.group = weight.group;
  w.rows = static_cast<std::uint32_t>(weight.rows);
  w.columns = static_cast<std::uint32_t>(weight.columns);
  w.matrix_bytes = matrix_bytes(weight);
  return w;
}

double seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

ExpertMover::Layer ExpertMover::layer_of(const planfb::PlanT& plan, const planfb::MovingExpertsT& moving,
                                         const weights::WeightStore& weights, const std::vector<Gpu>& gpus) {
  Layer layer;
  layer.w_cold = moving.w_cold_gate_up;
  layer.w_hot = moving.w_hot_gate_up;
  for (std::uint32_t g = 0; g < gpus.size(); ++g)
    if (gpus[g].index == plan.weights[moving.w_hot_gate_up]->device) layer.gpu = g;
  const auto side = [&](std::uint32_t cold, std::uint32_t hot) {
    Side s;
    s.cold = weights[cold].data;
    s.cold_bytes = matrix_bytes(*plan.weights[cold]);
    s.from = as_packed(*plan.weights[cold]);
    s.to = gpus[layer.gpu].weight[hot];
    return s;
  };
  layer.gate_up = side(moving.w_cold_gate_up, moving.w_hot_gate_up);
  layer.down = side(moving.w_cold_down, moving.w_hot_down);
  layer.spare = {layer.gate_up.cold_bytes, layer.down.cold_bytes};
  return layer;
}

Expected<std::unique_ptr<ExpertMover>> ExpertMover::open(const planfb::PlanT& plan, std::vector<Gpu>& gpus,
                                                         const weights::WeightStore& weights, MovingSlots& slots,
                                                         const MoverOptions& options) {
  std::vector<std::vector<std::int32_t>> initial;
  for (const auto& moving : plan.moving) initial.push_back(moving->slots);
  std::unique_ptr<ExpertMover> mover(new ExpertMover(gpus, slots, options, std::move(initial)));
  for (const auto& moving : plan.moving) mover->layers_.push_back(layer_of(plan, *moving, weights, gpus));
  mover->sites_.resize(gpus.size());
  for (std::size_t g = 0; g < gpus.size(); ++g) {
    mover->sites_[g].gpu = &gpus[g];
    const auto first = std::find_if(mover->layers_.begin(), mover->layers_.end(), [&](const Layer& layer) { return layer.gpu == g; });
    KTC_RETURN_IF_ERROR(mover->open_site(plan, gpus[g]).with_context("device " + plan.devices[gpus[g].index]->name));
    if (first == mover->layers_.end()) continue;
    Site& site = mover->sites_[g];
    Landing& landing = site.landings[0];
    const auto& hot = slots.at(first->w_hot);
    const auto expert = std::find_if(hot.begin(), hot.end(), [](std::int32_t slot) { return slot >= 0; });
    landing.swap.layer = static_cast<std::uint32_t>(first - mover->layers_.begin());
    landing.swap.in = static_cast<std::uint32_t>(expert - hot.begin());
    mover->stage(landing);
    KTC_RETURN_IF_ERROR(mover->start_copy(site, landing));
    KTC_RETURN_IF_ERROR(gpus[g].copies().wait());
    site.copying.clear();
    KTC_RETURN_IF_ERROR(mover->repack(site, landing, static_cast<std::uint32_t>(*expert)));
    KTC_RETURN_IF_ERROR(gpus[g].compute().wait());
  }
  mover->beside_ = mover->most_beside_;
  if (!options.pinned) mover->thread_ = std::thread([m = mover.get()] { m->run(); });
  return mover;
}

Expected<ExpertMover::HostArea> ExpertMover::host_area(device::Device& device, std::uint64_t bytes, const char* name) {
  HostArea area;
  if (auto mapped = device.allocate_mapped(bytes, name); mapped.ok()) {
    area.mapped = std::move(mapped).value();
    return area;
  }
  KTC_ASSIGN_OR_RETURN(area.ordinary, weights::HostBlock::allocate(bytes, name));
  return area;
}

Status ExpertMover::open_site(const planfb::PlanT& plan, Gpu& gpu) {
  Site& site = sites_[static_cast<std::size_t>(&gpu - gpus_.data())];
  KTC_ASSIGN_OR_RETURN(site.repacked, gpu.device->create_event());
  // tables of all layers are on every GPU, one behind the other in this order
  site.tables_on_device = reinterpret_cast<std::byte*>(gpu.moving_slots.begin()->second);
  for (const auto& [weight, slots] : gpu.moving_slots) {
    const auto* end = reinterpret_cast<std::byte*>(slots + slots_.at(weight).size());
    site.tables_bytes = std::max(site.tables_bytes, static_cast<std::uint64_t>(end - site.tables_on_device));
  }
  for (HostArea& tables : site.tables) {
    KTC_ASSIGN_OR_RETURN(tables, host_area(*gpu.device, site.tables_bytes, "where experts are"));
    std::memset(tables.data(), 0, site.tables_bytes);
  }
  std::uint64_t each = 0;
  for (const Layer& layer : layers_)
    if (&gpus_[layer.gpu] == &gpu) each = std::max(each, layer.spare.bytes());
  if (each == 0) return {};
  const std::uint64_t count = options_.pinned ? plan::spare_bytes(plan, gpu.index) / each : kStagedExperts;
  if (!options_.pinned) {
    KTC_ASSIGN_OR_RETURN(site.staging, host_area(*gpu.device, count * each, "experts on their way"));
  }
  site.landings.resize(count);
  most_beside_ += static_cast<double>(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!options_.pinned) site.landings[i].staging = site.staging.data() + i * each;
    site.landings[i].spare = gpu.spare.data() + i * each;
    KTC_ASSIGN_OR_RETURN(site.landings[i].landed, gpu.device->create_event());
  }
  return {};
}

void ExpertMover::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

ExpertMover::~ExpertMover() {
  stop();
  for (Site& site : sites_)
    if (!site.copying.empty()) (void)site.gpu->copies().wait();
}

void ExpertMover::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !to_stage_.empty(); });
    if (stop_) return;
    Landing* landing = to_stage_.front();
    to_stage_.pop_front();
    lock.unlock();
    const std::uint64_t begin = trace_now();
    stage(*landing);
    const double took = seconds(trace_now() - begin);
    lock.lock();
    staging_seconds_ += took;
    staged_.push_back(landing);
  }
}

void ExpertMover::stage(const Landing& landing) const {
  if (landing.staging == nullptr) return;
  const Layer& layer = layers_[landing.swap.layer];
  const auto one = [&](const Side& side, std::uint64_t at) {
    std::memcpy(landing.staging + at, side.cold + landing.swap.in * side.cold_bytes, side.cold_bytes);
  };
  one(layer.gate_up, 0);
  one(layer.down, layer.spare.down_at());
}

Status ExpertMover::start_copy(Site& site, Landing& landing) {
  const Layer& layer = layers_[landing.swap.layer];
  device::Stream& copies = site.gpu->copies();
  if (site.behind_repacking) KTC_RETURN_IF_ERROR(copies.wait_for(*site.repacked));
  site.behind_repacking = false;
  const auto one = [&](const Side& side, std::uint64_t at) {
    const std::byte* from = landing.staging != nullptr ? landing.staging + at : side.cold + landing.swap.in * side.cold_bytes;
    return copies.copy_to_device(landing.spare + at, from, side.cold_bytes);
  };
  KTC_RETURN_IF_ERROR(one(layer.gate_up, 0));
  KTC_RETURN_IF_ERROR(one(layer.down, layer.spare.down_at()));
  KTC_RETURN_IF_ERROR(copies.record(*landing.landed));
  landing.state = State::copying;
  site.copying.push_back(&landing);
  return {};
}

// Of each GPU.
Status ExpertMover::start_copies(std::size_t most) {
  for (Site& site : sites_) {
    std::size_t started = 0;
    for (auto landing = site.landings.begin(); landing != site.landings.end() && started < most; ++landing) {
      if (landing->state != State::ready) continue;
      KTC_RETURN_IF_ERROR(start_copy(site, *landing));
      ++started;
    }
  }
  return {};
}

Status ExpertMover::repack(Gpu& gpu, const Side& side, const std::byte* landed, std::uint32_t matrix) const {
  gpu::Weight to = side.to;
  to.data += matrix * to.matrix_bytes;
  to.batch = 1;
  if (side.from.packing == Packing::row_major)
    return gpu.compute().copy_on_device(const_cast<std::byte*>(to.data), landed, to.matrix_bytes);
  if (gpu.kernels.unpack == nullptr)
    return make_error(StatusCode::unsupported, {.place = "moving experts",
                                                .what = "this build has no kernel that repacks them on a GPU",
                                                .found = std::string(to_string(side.from.format)),
                                                .remedy = "run with --update off"});
  gpu::UnpackArgs args = {};
  args.from = side.from;
  args.from.data = landed;
  args.to = to;
  args.count = 1;
  return gpu.compute().launch(gpu.kernels.unpack, args);
}

Status ExpertMover::repack(Site& site, Landing& landing, std::uint32_t matrix) {
  const Layer& layer = layers_[landing.swap.layer];
  KTC_RETURN_IF_ERROR(repack(*site.gpu, layer.gate_up, landing.spare, matrix));
  KTC_RETURN_IF_ERROR(repack(*site.gpu, layer.down, landing.spare + layer.spare.down_at(), matrix));
  landing.state = State::free;
  return {};
}

// All tables at once, a few hundred kilobytes at most, behind all changes of them. They stay as they are until the stream has taken
// them: the next ones go from other memory, and the step before this one is over.
Status ExpertMover::send_tables() {
  parity_ ^= 1;
  for (Site& site : sites_) {
    std::byte* const tables = site.tables[parity_].data();
    for (const auto& [weight, on_device] : site.gpu->moving_slots) {
      const std::vector<std::int32_t>& slots = slots_.at(weight);
      std::memcpy(tables + (reinterpret_cast<std::byte*>(on_device) - site.tables_on_device), slots.data(), slots.size() * sizeof(std::int32_t));
    }
    KTC_RETURN_IF_ERROR(site.gpu->compute().copy_to_device(site.tables_on_device, tables, site.tables_bytes));
  }
  return {};
}

bool ExpertMover::moves(const ExpertSwap& swap) const {
  for (const Site& site : sites_)
    for (const Landing& landing : site.landings) {
      const ExpertSwap& other = landing.swap;
      if (landing.state != State::free && other.layer == swap.layer &&
          (other.in == swap.in || other.out == swap.out || other.in == swap.out || other.out == swap.in))
        return true;
    }
  return false;
}

void ExpertMover::count(std::uint32_t index, const Ids& ids, std::size_t rows, bool decode) {
  if (!active_) return;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t cold = update_.count(index, {ids.row(r), ids.columns}, decode);
    if (decode) cold_ += cold;
  }
}

void ExpertMover::collect_staged() {
  if (options_.pinned) return;
  const std::lock_guard lock(mutex_);
  for (Landing* landing : staged_) landing->state = State::ready;
  staged_.clear();
  if (active_) update_.add_cost(staging_seconds_ / std::max(options_.threads, 1));
  staging_seconds_ = 0;
}

Status ExpertMover::take_over() {
  collect_staged();
  taken_over_ = 0;
  for (Site& site : sites_) {
    const std::size_t before = taken_over_;
    while (!site.copying.empty()) {
      Landing& landing = *site.copying.front();
      KTC_ASSIGN_OR_RETURN(const bool landed, site.gpu->copies().reached(*landing.landed));
      if (!landed) break;
      site.copying.pop_front();
      const ExpertSwap& swap = landing.swap;
      const Layer& layer = layers_[swap.layer];
      std::vector<std::int32_t>&hot = slots_.at(layer.w_hot), &cold = slots_.at(layer.w_cold);
      KTC_RETURN_IF_ERROR(repack(site, landing, static_cast<std::uint32_t>(hot[swap.out])));
      hot[swap.in] = hot[swap.out];
      hot[swap.out] = -1;
      cold[swap.out] = static_cast<std::int32_t>(swap.out);
      cold[swap.in] = -1;
      update_.moved(swap);
      ++taken_over_;
    }
    if (taken_over_ == before) continue;
    KTC_RETURN_IF_ERROR(site.gpu->compute().record(*site.repacked));
    site.behind_repacking = true;
  }
  return taken_over_ == 0 ? Status() : send_tables();
}

// In the next every_tokens tokens: then counts are compared again. Before anything was measured, everything is.
bool ExpertMover::worth(const ExpertSwap& swap) const {
  const double pair = update_.pair_seconds();
  return pair == 0 || copy_seconds_ == 0 || swap.gain * options_.rules.every_tokens * pair > copy_seconds_;
}

// What is wanted most gets the free areas.
void ExpertMover::fill_landings(bool hurries) {
  while (active_ && !wanted_.empty()) {
    const ExpertSwap swap = wanted_.front();
    const auto slots = update_.slots(swap.layer);
    if (slots[swap.in] >= 0 || slots[swap.out] < 0 || moves(swap)) {  // overtaken by an earlier one
      wanted_.pop_front();
      continue;
    }
    if (hurries ? !worth(swap) : beside_ < 1) break;
    auto& landings = sites_[layers_[swap.layer].gpu].landings;
    const auto free = std::find_if(landings.begin(), landings.end(), [](const Landing& l) { return l.state == State::free; });
    if (free == landings.end()) break;
    wanted_.pop_front();
    free->swap = swap;
    if (!hurries) {
      beside_ -= 1;
      update_.add_cost(update_.pair_seconds());  // what the copy takes from the CPU's memory bandwidth
    }
    if (options_.pinned) {
      free->state = State::ready;
      continue;
    }
    free->state = State::staging;
    {
      const std::lock_guard lock(mutex_);
      to_stage_.push_back(&*free);
    }
    changed_.notify_one();
  }
}

Status ExpertMover::advance() {
  const std::uint64_t begin = trace_now();
  KTC_RETURN_IF_ERROR(take_over());
  fill_landings(false);
  if (active_) update_.add_cost(seconds(trace_now() - begin));
  return send();
}

Status ExpertMover::send() {
  constexpr std::size_t kAtOnce = 2;  // per GPU: some microseconds, as long as the GPU works on its part of a layer
  return start_copies(kAtOnce);
}

Status ExpertMover::hurry(std::chrono::nanoseconds most) {
  if (!active_ || wanted_.empty()) return {};
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::size_t all = 0;
  for (bool more = true; more;) {
    KTC_RETURN_IF_ERROR(take_over());
    const std::size_t taken = taken_over_;
    more = Clock::now() < begin + most;
    if (more) fill_landings(true);
    KTC_RETURN_IF_ERROR(start_copies(SIZE_MAX));
    if (taken != 0)  // the tables may change again
      for (Gpu& gpu : gpus_) KTC_RETURN_IF_ERROR(gpu.compute().wait());
    else if (more)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    all += taken;
    more = more && active_ && !wanted_.empty() && worth(wanted_.front());
  }
  if (all >= 8) copy_seconds_ = since() / static_cast<double>(all);
  update_.add_cost(since());
  return {};
}

bool ExpertMover::end_step(std::size_t tokens, bool decode) {
  beside_ = std::min(beside_ + static_cast<double>(cold_) / 4, std::max(most_beside_, 1.0));
  cold_ = 0;
  if (!active_) return false;
  update_.tokens(tokens, decode);
  if (!update_.due()) return false;
  const std::uint64_t begin = trace_now();
  const std::vector<ExpertSwap> swaps = update_.decide();
  wanted_.assign(swaps.begin(), swaps.end());  // what the last round wanted is out of date
  const UpdateTrial* trial = update_.ended_trial();
  if (trial != nullptr && !trial->pays(options_.rules.margin) && !options_.always) {
    active_ = false;
    wanted_.clear();
    return true;
  }
  update_.add_cost(seconds(trace_now() - begin));
  return false;
}

}  // namespace ktc::exec
