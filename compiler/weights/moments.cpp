#include "compiler/weights/moments.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "runtime/safetensors/safetensors.h"

namespace ktc::compiler {
namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 30;

Status wrong(std::string place, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::invalid_argument, {.place = std::move(place),
                                                   .what = std::move(what),
                                                   .found = std::move(found),
                                                   .expected = std::move(expected),
                                                   .remedy = "record them with ktc-run --record-moments and this model"});
}

}  // namespace

Expected<Moments> Moments::read(const std::filesystem::path& file) {
  KTC_ASSIGN_OR_RETURN(const safetensors::Header header, safetensors::read_header(file));
  Moments moments;
  moments.file_ = file.string();
  if (header.tensors.empty()) return wrong(moments.file_, "second moments", "no tensor", "one per weight");
  if (header.file_bytes > kLargestFile)
    return wrong(moments.file_, "second moments", fmt::format("{} bytes", header.file_bytes), fmt::format("at most {}", kLargestFile));
  for (const auto& [name, info] : header.tensors) {
    const std::string place = fmt::format("{}: tensor '{}'", moments.file_, name);
    if (info.dtype != "F32" || info.shape.size() != 1)
      return wrong(place, "second moments", fmt::format("{} of {} dimensions", info.dtype, info.shape.size()), "F32 of 1 dimension");
    KTC_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, safetensors::read_tensor(file, info));
    std::vector<float>& values = moments.weights_[name];
    values.resize(info.shape[0]);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    for (const float value : values)
      if (!std::isfinite(value) || value < 0) return wrong(place, "second moments", fmt::format("{}", value), "finite numbers of at least 0");
  }
  return moments;
}

Status Moments::apply(WeightJob& job) const {
  if (job.format != Format::int8 && job.format != Format::int4) return {};
  auto found = weights_.find(job.name);
  if (found == weights_.end()) found = weights_.find(std::string_view(job.name).substr(0, job.name.rfind('-')));
  if (found == weights_.end()) return {};
  if (found->second.size() != job.columns)
    return wrong(fmt::format("{}: tensor '{}'", file_, found->first), "input features", fmt::format("{}", found->second.size()),
                 fmt::format("{}", job.columns));
  job.importance = found->second;
  return {};
}

}  // namespace ktc::compiler
