#include "tools/ktc/run_trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ktc::run {
namespace {

// Rows of the trace. GPUs follow behind these, and the copies of experts to them.
constexpr std::uint32_t kSteps = 0, kCpu = 1, kWaits = 2, kFirstDevice = 3, kFirstCopies = 1000;

std::uint32_t row_of(const exec::TraceSlice& slice) {
  switch (slice.track) {
    case exec::Track::step: return kSteps;
    case exec::Track::cpu: return kCpu;
    case exec::Track::wait: return kWaits;
    case exec::Track::gpu: return kFirstDevice + slice.device;
    case exec::Track::copy: return kFirstCopies + slice.device;
  }
  return kSteps;
}

std::string row_name(std::uint32_t row, const std::string& name) {
  return fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":{}}}}})", row, nlohmann::json(name).dump());
}

Status unwritable(const std::filesystem::path& path) {
  return make_error(StatusCode::io_error, {.place = "--trace " + path.string(), .what = "cannot write the file"});
}

}  // namespace

Expected<std::unique_ptr<TraceFile>> TraceFile::create(const std::filesystem::path& path, const planfb::PlanT& plan) {
  auto file = std::make_unique<TraceFile>();
  file->path_ = path;
  file->out_.open(path);
  file->open_ = true;
  file->start_ = exec::trace_now();
  file->out_ << "[\n" << row_name(kSteps, "steps") << ",\n" << row_name(kCpu, "cpu") << ",\n" << row_name(kWaits, "cpu waits");
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d)
    if (plan.devices[d]->kind == planfb::DeviceKind::cuda) file->out_ << ",\n" << row_name(kFirstDevice + d, plan.devices[d]->name);
  for (std::uint32_t d = 0; d < plan.devices.size(); ++d)
    if (plan::stream_areas(plan, d).total() != 0) file->out_ << ",\n" << row_name(kFirstCopies + d, "copies to " + plan.devices[d]->name);
  if (!file->out_.flush()) return unwritable(path);
  return file;
}

void TraceFile::report(void* context, const exec::TraceSlice& slice) {
  auto& file = *static_cast<TraceFile*>(context);
  if (!file.open_) return;
  // microseconds, as the format wants them
  file.out_ << fmt::format(",\n" R"({{"ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{}}})", row_of(slice),
                           static_cast<double>(slice.begin - file.start_) / 1e3, static_cast<double>(slice.end - slice.begin) / 1e3,
                           nlohmann::json(slice.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Status TraceFile::finish() {
  if (!open_) return {};
  open_ = false;
  out_ << "\n]\n";
  out_.close();
  return out_ ? Status() : unwritable(path_);
}

}  // namespace ktc::run
