// Memory of a GPU through which banks of the CPU pass in a step (ExpertsOp.stream): whole experts in groups, copied as they lie
// into one of two staging areas, unpacked into one area of rows, multiplied there. Sizes only; the executor has the order.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/formats/formats.h"

namespace ktc {

// Most bytes of a group: large enough that copies and kernels run at their full rate, small beside a card's memory. One expert is
// always taken.
constexpr std::uint64_t kGpuStreamBytes = std::uint64_t{512} << 20;

// A bank that the CPU shares passes in so many groups, so that the first are multiplied while the CPU's part is not yet decided.
constexpr std::uint32_t kSharedGroups = 4;

struct GpuStream {
  std::uint64_t group = 0;     // experts of a group; the last one may have fewer
  std::uint64_t gate_up = 0;   // bytes of one matrix as the CPU packs it
  std::uint64_t down = 0;
  std::uint64_t gate_up_rows = 0;  // bytes of one matrix as kernels read it; 0: as it lies
  std::uint64_t down_rows = 0;
  // gate_up of the group, then down, each area aligned to 256.
  std::uint64_t staging() const;
  std::uint64_t unpacked() const;
};

// What panels become on a GPU.
constexpr Packing unpacked_packing(Format format) { return format == Format::bf16 ? Packing::row_major : Packing::gpu_rows; }

// What the banks of a device share: two staging areas, then one of rows.
struct GpuStreamAreas {
  std::uint64_t staging = 0, unpacked = 0;  // bytes of one area
  void add(const GpuStream& stream) {
    if (staging < stream.staging()) staging = stream.staging();
    if (unpacked < stream.unpacked()) unpacked = stream.unpacked();
  }
  std::uint64_t total() const { return 2 * staging + unpacked; }
};

// Of a bank [matrices] of gate_up [2 * intermediate, hidden] and down [hidden, intermediate]. packing: of either matrix on the CPU;
// row_major stays as it lies, panels become rows of bf16 where the values are bf16, else gpu_rows. at_once: experts of a group, as a
// plan states it; 0: as many as kGpuStreamBytes allow. nullopt: no matrices, a format, packing and group that do not go together,
// or 64-bit overflow.
std::optional<GpuStream> gpu_stream(Format format, std::uint32_t group, Packing packing, std::uint64_t matrices, std::uint64_t hidden,
                                    std::uint64_t intermediate, std::uint64_t at_once = 0);

}  // namespace ktc
