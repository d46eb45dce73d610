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
    if (first == mover->layers_.end()) continue;
    KTC_RETURN_IF_ERROR(mover->open_site(plan, gpus[g]).with_context("device " + plan.devices[gpus[g].index]->name));
    Site& site = mover->sites_[g];
    Landing& landing = site.landings[0];
    const auto& hot = slots.at(first->w_hot);
    const auto expert = std::find_if(hot.begin(), hot.end(), [](std::int32_t slot) { return slot >= 0; });
    landing.swap.layer = static_cast<std::uint32_t>(first - mover->layers_.begin());
    landing.swap.in = static_cast<std::uint32_t>(expert - hot.begin());
    mover->stage(landing);
    KTC_RETURN_IF_ERROR(mover->start_copy(site, landing));
    KTC_RETURN_IF_ERROR(gpus[g].copies().wait());
    KTC_RETURN_IF_ERROR(mover->repack(site, landing, static_cast<std::uint32_t>(*expert)));
    KTC_RETURN_IF_ERROR(gpus[g].compute().wait());
  }
  mover->thread_ = std::thread([m = mover.get()] { m->run(); });
  return mover;
}

Status ExpertMover::open_site(const planfb::PlanT& plan, Gpu& gpu) {
  Site& site = sites_[static_cast<std::size_t>(&gpu - gpus_.data())];
  const std::uint64_t bytes = plan::spare_bytes(plan, gpu.index), each = bytes / kSpareExperts;
  KTC_ASSIGN_OR_RETURN(site.staging, gpu.device->allocate_mapped(bytes, "experts on their way"));
  site.landings.resize(kSpareExperts);
  for (std::uint64_t i = 0; i < kSpareExperts; ++i) {
    site.landings[i].staging = site.staging.host() + i * each;
    site.landings[i].spare = gpu.spare.data() + i * each;
    KTC_ASSIGN_OR_RETURN(site.landings[i].repacked, gpu.device->create_event());
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
    if (std::any_of(site.landings.begin(), site.landings.end(), [](const Landing& l) { return l.state == State::copying; }))
      (void)site.gpu->copies().wait();
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
  const Layer& layer = layers_[landing.swap.layer];
  const auto one = [&](const Side& side, std::uint64_t at) {
    std::memcpy(landing.staging + at, side.cold + landing.swap.in * side.cold_bytes, side.cold_bytes);
  };
  one(layer.gate_up, 0);
  one(layer.down, layer.spare.down_at());
}

Status ExpertMover::start_copy(Site& site, Landing& landing) {
  device::Stream& copies = site.gpu->copies();
  if (landing.used) KTC_RETURN_IF_ERROR(copies.wait_for(*landing.repacked));
  landing.state = State::copying;
  return copies.copy_to_device(landing.spare, landing.staging, layers_[landing.swap.layer].spare.bytes());
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
  KTC_RETURN_IF_ERROR(site.gpu->compute().record(*landing.repacked));
  landing.used = true;
  landing.state = State::free;
  return {};
}

// Behind all changes of these tables, which then stay as they are until the stream has taken them.
Status ExpertMover::send_tables(const Layer& layer) {
  for (Gpu& gpu : gpus_)
    for (const std::uint32_t w : {layer.w_hot, layer.w_cold}) {
      const std::vector<std::int32_t>& slots = slots_.at(w);
      KTC_RETURN_IF_ERROR(gpu.compute().copy_to_device(reinterpret_cast<std::byte*>(gpu.moving_slots.at(w)),
                                                       reinterpret_cast<const std::byte*>(slots.data()), slots.size() * sizeof(std::int32_t)));
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
  for (std::size_t r = 0; r < rows; ++r) update_.count(index, {ids.row(r), ids.columns}, decode);
}

Status ExpertMover::advance() {
  const std::uint64_t begin = trace_now();
  double staging = 0;
  {
    const std::lock_guard lock(mutex_);
    for (Landing* landing : staged_) landing->state = State::staged;
    staged_.clear();
    std::swap(staging, staging_seconds_);
  }
  flipped_.clear();
  for (Site& site : sites_) {
    const auto any = [&](State state) {
      return std::any_of(site.landings.begin(), site.landings.end(), [&](const Landing& l) { return l.state == state; });
    };
    if (any(State::copying)) {
      KTC_ASSIGN_OR_RETURN(const bool landed, site.gpu->copies().idle());
      for (Landing& landing : site.landings) {
        if (!landed || landing.state != State::copying) continue;
        const ExpertSwap& swap = landing.swap;
        const Layer& layer = layers_[swap.layer];
        std::vector<std::int32_t>&hot = slots_.at(layer.w_hot), &cold = slots_.at(layer.w_cold);
        KTC_RETURN_IF_ERROR(repack(site, landing, static_cast<std::uint32_t>(hot[swap.out])));
        hot[swap.in] = hot[swap.out];
        hot[swap.out] = -1;
        cold[swap.out] = static_cast<std::int32_t>(swap.out);
        cold[swap.in] = -1;
        update_.moved(swap);
        flipped_.push_back(swap.layer);
      }
    }
    for (Landing& landing : site.landings)
      if (landing.state == State::staged) KTC_RETURN_IF_ERROR(start_copy(site, landing));
  }
  for (const std::uint32_t layer : flipped_) KTC_RETURN_IF_ERROR(send_tables(layers_[layer]));
  while (active_ && !wanted_.empty()) {
    const ExpertSwap swap = wanted_.front();
    const auto slots = update_.slots(swap.layer);
    if (slots[swap.in] >= 0 || slots[swap.out] < 0 || moves(swap)) {  // overtaken by an earlier one
      wanted_.pop_front();
      continue;
    }
    auto& landings = sites_[layers_[swap.layer].gpu].landings;
    const auto free = std::find_if(landings.begin(), landings.end(), [](const Landing& l) { return l.state == State::free; });
    if (free == landings.end()) break;
    free->swap = swap;
    free->state = State::staging;
    wanted_.pop_front();
    {
      const std::lock_guard lock(mutex_);
      to_stage_.push_back(&*free);
    }
    changed_.notify_one();
  }
  if (active_) update_.add_cost(seconds(trace_now() - begin) + staging / std::max(options_.threads, 1));
  return {};
}

Status ExpertMover::hurry(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  const auto under_way = [this] {
    return std::any_of(sites_.begin(), sites_.end(), [](const Site& site) {
      return std::any_of(site.landings.begin(), site.landings.end(), [](const Landing& l) { return l.state != State::free; });
    });
  };
  while (active_ && (!wanted_.empty() || under_way()) && std::chrono::steady_clock::now() < end) {
    KTC_RETURN_IF_ERROR(advance());
    const std::uint64_t begin = trace_now();
    if (flipped_.empty())
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    else  // the tables may change again
      for (Gpu& gpu : gpus_) KTC_RETURN_IF_ERROR(gpu.compute().wait());
    update_.add_cost(seconds(trace_now() - begin));
  }
  return {};
}

bool ExpertMover::end_step(std::size_t tokens, bool decode) {
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
