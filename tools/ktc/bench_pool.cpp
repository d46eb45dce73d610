#include "tools/ktc/bench_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ktc::bench {
namespace {

std::uint64_t splitmix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Eight bytes of codes that a quantiser could have written.
std::uint64_t codes(Format format, std::uint64_t x) {
  std::uint64_t any = x;
  switch (format) {
    case Format::int8:  // a byte of 0 would be -128
      any |= any >> 4 & 0x0f0f0f0f0f0f0f0fu;
      any |= any >> 2 & 0x3333333333333333u;
      any |= any >> 1 & 0x5555555555555555u;
      return x | (~any & 0x0101010101010101u);
    case Format::int4:  // a nibble of 0 would be -8
      any |= any >> 2 & 0x3333333333333333u;
      any |= any >> 1 & 0x5555555555555555u;
      return x | (~any & 0x1111111111111111u);
    case Format::fp8:  // magnitudes below 2, no NaN, none subnormal
      return (x & 0xbfbfbfbfbfbfbfbfu) | 0x0808080808080808u;
    default:  // bf16: magnitudes of 2^-6 to 2^-5
      return (x & 0x807f807f807f807fu) | 0x3c803c803c803c80u;
  }
}

float scale_base(const PanelLayout& layout) {
  const float code = layout.format == Format::int8 ? 64.0f : layout.format == Format::int4 ? 4.0f : 1.0f;
  return 1.0f / (code * std::sqrt(static_cast<float>(layout.columns)));
}

}  // namespace

void fill_panel(const PanelLayout& layout, std::uint64_t seed, std::byte* panel) {
  std::uint64_t x = splitmix(seed) | 1;
  const auto next = [&x] {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  };
  const float base = scale_base(layout);
  for (std::size_t at = 0; at < layout.head_bytes; at += layout.scale_bytes) {
    const float scale = base * (0.5f + static_cast<float>(next() >> 56) / 256.0f);
    const std::uint16_t rounded = f32_to_bf16(scale);
    std::memcpy(panel + at, layout.scale_bytes == 4 ? static_cast<const void*>(&scale) : &rounded, layout.scale_bytes);
  }
  for (std::size_t at = layout.head_bytes; at < layout.panel_bytes; at += 8) {
    const std::uint64_t word = codes(layout.format, next());
    std::memcpy(panel + at, &word, 8);
  }
}

Expected<Pool> make_pool(const WeightFormat& format, std::uint64_t hidden, std::uint64_t intermediate, std::uint64_t bytes,
                         std::size_t most_active, exec::Workers& workers) {
  Pool pool;
  pool.format = format;
  pool.gate_up = *panel_layout(format.format, format.group, true, 2 * intermediate, hidden);
  pool.down = *panel_layout(format.format, format.group, false, hidden, intermediate);
  pool.experts = std::max<std::size_t>(most_active, static_cast<std::size_t>((bytes + pool.expert_bytes() - 1) / pool.expert_bytes()));
  const std::uint64_t total = pool.experts * pool.expert_bytes();
  KTC_RETURN_IF_ERROR(weights::check_available(total, "weights of " + to_string(format), "use a smaller --gib, or fewer formats at once"));
  KTC_ASSIGN_OR_RETURN(pool.memory, weights::HostBlock::allocate(total, "weights of " + to_string(format)));
  const auto fill = [&](const PanelLayout& layout, std::byte* begin, std::uint64_t salt) {
    workers.parallel_for(pool.experts * layout.panels, 8, [&](std::size_t from, std::size_t to) {
      for (std::size_t p = from; p < to; ++p) fill_panel(layout, salt + p, begin + p * layout.panel_bytes);
    });
  };
  fill(pool.gate_up, pool.memory.data(), 0);
  fill(pool.down, pool.memory.data() + pool.experts * pool.gate_up.matrix_bytes, std::uint64_t{1} << 40);
  return pool;
}

}  // namespace ktc::bench
