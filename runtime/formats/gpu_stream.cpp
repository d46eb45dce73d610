#include "runtime/formats/gpu_stream.h"

#include <algorithm>

#include "runtime/formats/gpu_workspace.h"

namespace ktc {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 59;  // of a group: sums of a few stay in 64 bits

}  // namespace

std::uint64_t GpuStream::staging() const { return align256(group * gate_up) + align256(group * down); }
std::uint64_t GpuStream::unpacked() const { return align256(group * gate_up_rows) + align256(group * down_rows); }

std::optional<GpuStream> gpu_stream(Format format, std::uint32_t group, Packing packing, std::uint64_t matrices, std::uint64_t hidden,
                                    std::uint64_t intermediate, std::uint64_t at_once) {
  if (matrices == 0 || intermediate > UINT64_MAX / 2) return std::nullopt;
  const bool rows = packing == Packing::row_major;
  const auto bytes = [&](Packing as, std::uint64_t features, std::uint64_t columns) {
    return packed_bytes(format, as, 1, features, columns, group);
  };
  const auto gate_up = bytes(rows ? Packing::row_major : Packing::panel_paired, 2 * intermediate, hidden);
  const auto down = bytes(rows ? Packing::row_major : Packing::panel, hidden, intermediate);
  if (!gate_up || !down || *gate_up > kMostBytes / 4 || *down > kMostBytes / 4) return std::nullopt;
  GpuStream stream;
  stream.gate_up = *gate_up;
  stream.down = *down;
  if (!rows) {
    const Packing to = unpacked_packing(format);
    const auto gate_up_rows = bytes(to, 2 * intermediate, hidden), down_rows = bytes(to, hidden, intermediate);
    if (!gate_up_rows || !down_rows || *gate_up_rows > kMostBytes / 4 || *down_rows > kMostBytes / 4) return std::nullopt;
    stream.gate_up_rows = *gate_up_rows;
    stream.down_rows = *down_rows;
  }
  const std::uint64_t each = std::max({stream.gate_up + stream.down, stream.gate_up_rows + stream.down_rows, std::uint64_t{1}});
  const std::uint64_t most = std::clamp<std::uint64_t>(kGpuStreamBytes / each, 1, matrices);
  const std::uint64_t groups = (matrices + most - 1) / most;
  stream.group = at_once != 0 ? at_once : (matrices + groups - 1) / groups;  // of about one size: copies and kernels keep in step
  if (stream.group > matrices || stream.group > kMostBytes / each) return std::nullopt;
  return stream;
}

}  // namespace ktc
