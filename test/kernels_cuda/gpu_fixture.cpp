#include "test/kernels_cuda/gpu_fixture.h"

#include <cstdio>

#include "test/support/panel_pack.h"

namespace ktc::gpu {

device::Device* open_once(Set set, std::string& why_not) {
  static auto emulated = device::open_emulated(std::uint64_t{4} << 30);
  static auto cuda = device::open_cuda(0);
  auto& chosen = set == Set::cuda ? cuda : emulated;
  if (chosen.ok()) return chosen->get();
  why_not = "no GPU here: " + chosen.status().message();
  return nullptr;
}

unsigned seed() {
  static const unsigned chosen = [] {
    const int flag = GTEST_FLAG_GET(random_seed);
    const unsigned value = flag != 0 ? static_cast<unsigned>(flag) : 1 + std::random_device{}() % 99999;
    std::printf("random values: repeat with --gtest_random_seed=%u\n", value);
    return value;
  }();
  return chosen;
}

PackedWeight random_weight(std::mt19937& random, Format format, std::uint32_t group, std::uint32_t batch, std::uint32_t rows,
                           std::uint32_t columns) {
  PackedWeight packed;
  Weight& w = packed.weight;
  w.format = format;
  w.group = group;
  w.batch = batch;
  w.rows = rows;
  w.columns = columns;
  packed.values.resize(std::size_t{batch} * rows * columns);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  if (format == Format::f32 || format == Format::bf16) {
    w.packing = Packing::row_major;
    w.row_bytes = packed_row_bytes(format, w.packing, columns);
    w.matrix_bytes = w.row_bytes * rows;
    packed.data.resize(w.matrix_bytes * batch);
    for (std::size_t r = 0; r < std::size_t{batch} * rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) {
        float value = uniform(random);
        std::byte* at = packed.data.data() + r * w.row_bytes;
        if (format == Format::bf16) {
          const std::uint16_t bits = f32_to_bf16(value);
          value = bf16_to_f32(bits);
          std::memcpy(at + 2 * c, &bits, 2);
        } else {
          std::memcpy(at + 4 * c, &value, 4);
        }
        packed.values[r * columns + c] = value;
      }
    return packed;
  }
  const auto layout = gpu_rows_layout(format, group, rows, columns);
  EXPECT_TRUE(layout.has_value());
  w.packing = Packing::gpu_rows;
  w.row_bytes = layout->row_bytes;
  w.matrix_bytes = layout->matrix_bytes;
  packed.data.resize(w.matrix_bytes * batch);
  std::uniform_int_distribution<int> any(format == Format::int4 ? -7 : -127, format == Format::int4 ? 7 : 127);
  for (std::size_t b = 0; b < batch; ++b)
    for (std::size_t r = 0; r < rows; ++r) {
      std::byte* matrix = packed.data.data() + b * w.matrix_bytes;
      std::byte* codes = matrix + r * w.row_bytes;
      if (format == Format::int4) std::memset(codes, 0x88, w.row_bytes);
      std::vector<float> scales(layout->groups);
      for (std::size_t g = 0; g < layout->groups; ++g) {
        const float largest = format == Format::fp8 ? 448.0f : format == Format::int4 ? 7.0f : 127.0f;
        scales[g] = (1.5f + 0.5f * uniform(random)) / largest;
        std::byte* at = matrix + layout->scales_offset + (r * layout->groups + g) * layout->scale_bytes;
        if (layout->scale_bytes == 2) {
          const std::uint16_t bits = f32_to_bf16(scales[g]);
          scales[g] = bf16_to_f32(bits);
          std::memcpy(at, &bits, 2);
        } else {
          std::memcpy(at, &scales[g], 4);
        }
      }
      for (std::size_t c = 0; c < columns; ++c) {
        double plain;
        if (format == Format::fp8) {
          auto code = static_cast<std::uint8_t>(random());
          if ((code & 0x7f) == 0x7f) code ^= 1;  // no NaN
          codes[c] = static_cast<std::byte>(code);
          plain = test::e4m3_value(code);
        } else {
          const int code = any(random);
          plain = code;
          if (format == Format::int8) codes[c] = static_cast<std::byte>(code);
          else codes[c / 2] = c % 2 == 0 ? (codes[c / 2] & std::byte{0xf0}) | static_cast<std::byte>(code + 8)
                                         : (codes[c / 2] & std::byte{0x0f}) | static_cast<std::byte>((code + 8) << 4);
        }
        packed.values[(b * rows + r) * columns + c] = plain * scales[group == 0 ? 0 : c / group];
      }
    }
  return packed;
}

}  // namespace ktc::gpu
