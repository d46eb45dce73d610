#include "runtime/weights/random_weights.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "runtime/formats/formats.h"
#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/panel.h"

namespace ktc::weights {
namespace {

constexpr std::uint64_t kItemBytes = std::uint64_t{1} << 18;      // of one piece of work
constexpr std::uint64_t kAloneBytes = std::uint64_t{4} << 20;     // below it threads cost more than they bring

std::uint64_t mixed(std::uint64_t z) {  // the finaliser of splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Words of one stream by number: nothing depends on who asked before.
class Stream {
 public:
  Stream(std::uint64_t key, std::uint64_t number) : state_(mixed(key ^ mixed(number + 0x9e3779b97f4a7c15ull))) {}
  void bytes(std::byte* out, std::uint64_t count) {
    for (; count >= 8; count -= 8, out += 8) {
      const std::uint64_t word = next();
      std::memcpy(out, &word, 8);
    }
    const std::uint64_t word = next();
    std::memcpy(out, &word, count);
  }
  // Uniform in [-1, 1), 23 bits: two of a word.
  void floats(float* out, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; i += 2) {
      const std::uint64_t word = next();
      out[i] = signed_unit(static_cast<std::uint32_t>(word));
      if (i + 1 < count) out[i + 1] = signed_unit(static_cast<std::uint32_t>(word >> 32));
    }
  }

 private:
  static float signed_unit(std::uint32_t bits) { return static_cast<float>(static_cast<std::int32_t>(bits) >> 8) * 0x1p-23f; }
  std::uint64_t next() { return mixed(state_ += 0x9e3779b97f4a7c15ull); }
  std::uint64_t state_;
};

// The E4M3 code nearest to each of 256 equally spaced values from -448 to 448, and the mean square of them.
struct Fp8Codes {
  std::array<std::uint8_t, 256> code{};
  double mean_square = 0;
};
double e4m3_value(unsigned code) {
  const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
  return code & 0x80 ? -magnitude : magnitude;
}
Fp8Codes make_fp8_codes() {
  Fp8Codes made;
  for (unsigned i = 0; i < 256; ++i) {
    const double wanted = (i - 127.5) / 127.5 * 448;
    unsigned best = 0;
    for (unsigned code = 0; code < 256; ++code)
      if ((code & 0x7f) != 0x7f && std::abs(e4m3_value(code) - wanted) < std::abs(e4m3_value(best) - wanted)) best = code;
    made.code[i] = static_cast<std::uint8_t>(best);
    made.mean_square += e4m3_value(best) * e4m3_value(best) / 256;
  }
  return made;
}
const Fp8Codes& fp8_codes() {
  static const Fp8Codes made = make_fp8_codes();
  return made;
}

// Random bytes to stored codes. int8 as panels store it, w + 128: 0 would be -128. int4: nibble 0 would be -8.
void to_codes(Format format, std::byte* data, std::uint64_t count) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(data);
  if (format == Format::int8) {
    for (std::uint64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(bytes[i] == 0 ? 0x80 : bytes[i]);
  } else if (format == Format::int4) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const unsigned b = bytes[i];
      bytes[i] = static_cast<std::uint8_t>(b | ((b & 15) == 0 ? 8u : 0u) | ((b & 0xf0) == 0 ? 0x80u : 0u));
    }
  } else {
    const auto& code = fp8_codes().code;
    for (std::uint64_t i = 0; i < count; ++i) bytes[i] = code[bytes[i]];
  }
}
// Mean square of what to_codes makes of uniform bytes.
double code_variance(Format format) {
  if (format == Format::int8) return 2.0 * (127.0 * 128 * 255 / 6) / 256;
  if (format == Format::int4) return 2.0 * 140 / 16;
  return fp8_codes().mean_square;
}
std::uint8_t zero_code(Format format) { return format == Format::int8 ? 0x80 : format == Format::int4 ? 0x88 : 0; }

// What fill() needs to know of one weight.
struct Task {
  std::uint64_t key = 0;
  Format format = Format::f32;
  std::uint64_t batch = 1, rows = 1, columns = 0;
  float low = 0, high = 0;  // of elements of f32 and bf16
  float scale = 0;          // of codes
  std::uint64_t topics = 0, topic_key = 0;
};

void write_scales(std::byte* to, std::uint64_t count, std::uint64_t scale_bytes, float scale) {
  const std::uint16_t half = f32_to_bf16(scale);
  for (std::uint64_t i = 0; i < count; ++i) std::memcpy(to + i * scale_bytes, scale_bytes == 4 ? static_cast<const void*>(&scale) : &half, scale_bytes);
}

// Elements of f32 or bf16, `count` of them.
void write_values(const Task& task, Stream& stream, std::byte* to, std::uint64_t count) {
  constexpr std::uint64_t kPiece = 1024;
  float values[kPiece];
  const float middle = (task.high + task.low) / 2, reach = (task.high - task.low) / 2;
  for (std::uint64_t done = 0; done < count; done += kPiece) {
    const std::uint64_t n = std::min(kPiece, count - done);
    stream.floats(values, n);
    for (std::uint64_t i = 0; i < n; ++i) values[i] = middle + reach * values[i];
    if (task.format == Format::f32) {
      std::memcpy(to + done * 4, values, n * 4);
      continue;
    }
    std::uint16_t halves[kPiece];
    for (std::uint64_t i = 0; i < n; ++i) halves[i] = f32_to_bf16(values[i]);
    std::memcpy(to + done * 2, halves, n * 2);
  }
}

void row_of_values(const Task& task, std::uint64_t row_bytes, std::byte* out, std::uint64_t row) {
  Stream stream(task.key, row);
  std::byte* to = out + row * row_bytes;
  write_values(task, stream, to, task.columns);
  const std::uint64_t used = task.columns * static_cast<std::uint64_t>(format_bits(task.format)) / 8;
  std::memset(to + used, 0, row_bytes - used);
}

// z with P(N(0, 1) > z) = share, 0 < share < 0.5.
double upper_quantile(double share) {
  double low = 0, high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > share ? low : high) = middle;
  }
  return (low + high) / 2;
}

// By row of a router's matrix: what it is scaled by.
std::vector<float> zipf_factors(std::uint64_t key, std::uint64_t rows, std::uint32_t top_k, double exponent) {
  constexpr double kMost = 0.45;  // of all tokens; a logit of any scale is negative for half of them
  std::vector<float> factors(rows, 1.0f);
  const double wanted = std::min<double>(top_k, kMost * static_cast<double>(rows));
  const auto share = [&](double c, std::uint64_t rank) { return std::min(c * std::pow(static_cast<double>(rank + 1), -exponent), kMost); };
  double low = 0, high = std::pow(static_cast<double>(rows), exponent);  // of c: all shares are kMost at `high`
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    double sum = 0;
    for (std::uint64_t r = 0; r < rows; ++r) sum += share(middle, r);
    (sum < wanted ? low : high) = middle;
  }
  std::vector<std::uint64_t> order(rows);
  for (std::uint64_t r = 0; r < rows; ++r) order[r] = r;
  for (std::uint64_t r = rows; r > 1; --r) std::swap(order[r - 1], order[mixed(key ^ mixed(r)) % r]);
  const double beyond = upper_quantile(std::clamp(wanted / static_cast<double>(rows), 1e-9, kMost));
  for (std::uint64_t r = 0; r < rows; ++r)
    factors[order[r]] = static_cast<float>(beyond / upper_quantile(std::max(share(high, r), 1e-9)));
  return factors;
}

constexpr float kTopicShare = 0.7f;  // of the variance

// A row of an embedding or a head whose tokens have topics.
void row_of_topic(const Task& task, std::uint64_t row_bytes, std::byte* out, std::uint64_t row) {
  constexpr std::uint64_t kPiece = 1024;
  float noise[kPiece], topic[kPiece];
  Stream own(task.key, row), shared(task.topic_key, row * task.topics / task.rows);
  const float own_part = task.high * std::sqrt(1 - kTopicShare), shared_part = task.high * std::sqrt(kTopicShare);
  std::byte* to = out + row * row_bytes;
  const std::uint64_t element = static_cast<std::uint64_t>(format_bits(task.format)) / 8;
  for (std::uint64_t done = 0; done < task.columns; done += kPiece) {
    const std::uint64_t n = std::min(kPiece, task.columns - done);
    own.floats(noise, n);
    shared.floats(topic, n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const float value = own_part * noise[i] + shared_part * topic[i];
      const std::uint16_t half = f32_to_bf16(value);
      std::memcpy(to + (done + i) * element, element == 4 ? static_cast<const void*>(&value) : &half, element);
    }
  }
  std::memset(to + task.columns * element, 0, row_bytes - task.columns * element);
}

// One panel: head, codes, then padding over both.
void panel_of_codes(const Task& task, const PanelLayout& layout, std::byte* out, std::uint64_t number) {
  Stream stream(task.key, number);
  std::byte* panel = out + number * layout.panel_bytes;
  const std::uint64_t first = number % layout.panels * (layout.paired ? kBlockFeatures : kPanelFeatures);
  const std::uint64_t real_features = layout.paired ? layout.rows / 2 : layout.rows;
  const auto lanes_of = [&](std::uint64_t block) {  // features of a block that exist
    const std::uint64_t at = first + (layout.paired ? 0 : block * kBlockFeatures);
    return at >= real_features ? 0 : std::min(kBlockFeatures, real_features - at);
  };
  std::byte* blocks = panel + layout.head_bytes;
  if (task.format == Format::bf16) {
    write_values(task, stream, blocks, (layout.panel_bytes - layout.head_bytes) / 2);
  } else {
    stream.bytes(blocks, layout.panel_bytes - layout.head_bytes);
    to_codes(task.format, blocks, layout.panel_bytes - layout.head_bytes);
    std::memset(panel, 0, layout.head_bytes);
    const std::uint64_t groups = layout.group == 0 ? 1 : (layout.columns + layout.group - 1) / layout.group;
    for (std::uint64_t g = 0; g < groups; ++g)
      for (std::uint64_t b = 0; b < 2; ++b)
        write_scales(panel + layout.scale_offset(g, b), lanes_of(b), layout.scale_bytes, task.scale);
  }
  const std::uint8_t zero = zero_code(task.format);
  for (std::uint64_t b = 0; b < 2; ++b) {
    const std::uint64_t lanes = lanes_of(b);
    for (std::uint64_t kb = 0; kb < layout.k_blocks; ++kb) {
      const std::uint64_t k_end = std::min(kBlockColumns, layout.columns - kb * kBlockColumns);
      if (lanes == kBlockFeatures && k_end == kBlockColumns) continue;
      std::byte* block = panel + layout.block_offset(kb, b);
      for (std::uint64_t k = 0; k < kBlockColumns; ++k)
        for (std::uint64_t c = 0; c < kBlockFeatures; ++c) {
          if (k < k_end && c < lanes) continue;
          if (task.format == Format::bf16) {
            std::memset(block + k / 32 * 1024 + k % 32 / 2 * 64 + c * 4 + k % 2 * 2, 0, 2);
          } else if (task.format == Format::int4) {
            std::byte& both = block[k % 32 / 4 * 64 + c * 4 + k % 4];
            both = k < 32 ? (both & std::byte{0xf0}) | std::byte{8} : (both & std::byte{0x0f}) | std::byte{0x80};
          } else {
            block[k / 4 * 64 + c * 4 + k % 4] = std::byte{zero};
          }
        }
    }
  }
}

// Codes of one row in gpu_rows.
void gpu_row_of_codes(const Task& task, const GpuRowsLayout& layout, std::byte* out, std::uint64_t number) {
  Stream stream(task.key, number);
  std::byte* row = out + number / layout.rows * layout.matrix_bytes + number % layout.rows * layout.row_bytes;
  stream.bytes(row, layout.row_bytes);
  to_codes(task.format, row, layout.row_bytes);
  if (task.format == Format::int8) {  // signed here
    for (std::uint64_t i = 0; i < layout.row_bytes; ++i) row[i] ^= std::byte{0x80};
    std::memset(row + layout.columns, 0, layout.row_bytes - layout.columns);
  } else if (task.format == Format::fp8) {
    std::memset(row + layout.columns, 0, layout.row_bytes - layout.columns);
  } else {
    if (layout.columns % 2 != 0) row[layout.columns / 2] = (row[layout.columns / 2] & std::byte{0x0f}) | std::byte{0x80};
    const std::uint64_t used = (layout.columns + 1) / 2;
    std::memset(row + used, 0x88, layout.row_bytes - used);
  }
}

int usable_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(count, 1);
}

// body(i) for i in [0, count), in runs of `run`.
void in_parallel(std::uint64_t count, std::uint64_t run, int threads, const std::function<void(std::uint64_t)>& body) {
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (std::uint64_t begin; (begin = next.fetch_add(run, std::memory_order_relaxed)) < count;)
      for (std::uint64_t i = begin; i < std::min(begin + run, count); ++i) body(i);
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // the system has no more threads: those that there are do it
  }
  work();
  for (std::thread& one : others) one.join();
}

}  // namespace

RandomWeights::RandomWeights(const planfb::PlanT& plan)
    : plan_(plan), bias_(plan.weights.size(), false), top_k_(plan.weights.size(), 0) {
  const auto mark = [this](std::uint32_t index) {
    if (index < bias_.size()) bias_[index] = true;
  };
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps) {
      if (const auto* linear = step->op.AsLinearOp()) mark(linear->w_bias);
      if (const auto* route = step->op.AsRouteOp()) {
        mark(route->w_bias);
        if (route->w < top_k_.size()) top_k_[route->w] = route->top_k;
      }
    }
  for (const auto& weight : plan.weights)  // the bytes of an alias are its target's
    if (weight->source == planfb::WeightSource::alias && weight->alias_of < bias_.size()) {
      const auto index = static_cast<std::size_t>(&weight - plan.weights.data());
      if (bias_[index]) bias_[weight->alias_of] = true;
    }
}

Status RandomWeights::fill(std::uint32_t index, std::span<std::byte> out, int threads) const {
  const planfb::WeightT& weight = *plan_.weights[index];
  if (weight.source != planfb::WeightSource::random)
    return make_error(StatusCode::internal, {weight.name, "source", planfb::EnumNameWeightSource(weight.source), "random", ""});
  if (out.size() != weight.bytes)
    return make_error(StatusCode::internal,
                      {weight.name, "bytes to fill", std::to_string(out.size()), std::to_string(weight.bytes), ""});
  Task task;
  task.key = mixed(weight.seed) ^ plan::digest64(std::as_bytes(std::span(weight.name)));
  task.format = static_cast<Format>(weight.format);
  task.batch = weight.batch;
  task.rows = weight.rows;
  task.columns = weight.columns;
  const bool vector = weight.batch == 1 && weight.rows == 1 && task.format == Format::f32;
  task.high = vector ? (bias_[index] ? 0.02f : 1.1f) : std::sqrt(3.0f / static_cast<float>(weight.columns));
  task.low = vector && !bias_[index] ? 0.9f : -task.high;
  if (weight.deviation != 0) task.high = weight.deviation * std::sqrt(3.0f), task.low = -task.high;

  const auto packing = static_cast<Packing>(weight.packing);
  if (packing != Packing::row_major)
    task.scale = static_cast<float>(1 / std::sqrt(code_variance(task.format) * static_cast<double>(weight.columns)));
  if (threads <= 0) threads = usable_threads();
  if (weight.bytes < kAloneBytes) threads = 1;
  const auto run_of = [](std::uint64_t bytes) { return std::max<std::uint64_t>(1, kItemBytes / std::max<std::uint64_t>(bytes, 1)); };
  if (packing == Packing::row_major) {
    const std::uint64_t row_bytes = packed_row_bytes(task.format, packing, task.columns);
    if (weight.topics != 0) {
      task.topics = weight.topics;
      task.topic_key = mixed(weight.seed ^ 0x746f706963ull) ^ weight.columns;
      in_parallel(task.rows, run_of(row_bytes), threads, [&](std::uint64_t row) { row_of_topic(task, row_bytes, out.data(), row); });
      return {};
    }
    std::vector<float> factors;
    if (weight.zipf != 0 && top_k_[index] != 0) factors = zipf_factors(task.key, task.rows, top_k_[index], weight.zipf);
    in_parallel(task.batch * task.rows, run_of(row_bytes), threads, [&](std::uint64_t row) {
      Task of_row = task;
      if (!factors.empty()) of_row.low *= factors[row], of_row.high *= factors[row];
      row_of_values(of_row, row_bytes, out.data(), row);
    });
    return {};
  }
  if (packing == Packing::gpu_rows) {
    const auto layout = gpu_rows_layout(task.format, weight.group, task.rows, task.columns);
    if (!layout) return make_error(StatusCode::internal, {weight.name, "gpu_rows without a layout", "", "", ""});
    in_parallel(task.batch * task.rows, run_of(layout->row_bytes), threads,
                [&](std::uint64_t row) { gpu_row_of_codes(task, *layout, out.data(), row); });
    for (std::uint64_t m = 0; m < task.batch; ++m) {
      std::byte* scales = out.data() + m * layout->matrix_bytes + layout->scales_offset;
      const std::uint64_t count = layout->rows * layout->groups, used = count * layout->scale_bytes;
      write_scales(scales, count, layout->scale_bytes, task.scale);
      std::memset(scales + used, 0, layout->matrix_bytes - layout->scales_offset - used);
    }
    return {};
  }
  const auto layout = panel_layout(task.format, weight.group, packing == Packing::panel_paired, task.rows, task.columns);
  if (!layout) return make_error(StatusCode::internal, {weight.name, "panels without a layout", "", "", ""});
  in_parallel(task.batch * layout->panels, run_of(layout->panel_bytes), threads,
              [&](std::uint64_t panel) { panel_of_codes(task, *layout, out.data(), panel); });
  return {};
}

Expected<std::vector<std::byte>> random_matrices(Format format, Packing packing, std::uint32_t group, std::uint32_t batch, std::uint32_t rows,
                                                 std::uint32_t columns, std::uint64_t seed) {
  planfb::PlanT plan;
  plan.weights.push_back(std::make_unique<planfb::WeightT>());
  planfb::WeightT& weight = *plan.weights[0];
  weight.name = "matrices";
  weight.source = planfb::WeightSource::random;
  weight.seed = seed;
  weight.format = static_cast<std::uint8_t>(format);
  weight.packing = static_cast<std::uint8_t>(packing);
  weight.group = static_cast<std::uint16_t>(group);
  weight.batch = batch, weight.rows = rows, weight.columns = columns;
  const auto bytes = packed_bytes(format, packing, batch, rows, columns, group);
  if (!bytes) return make_error(StatusCode::invalid_argument, {weight.name, "no layout for the shape", "", "", ""});
  weight.bytes = *bytes;
  std::vector<std::byte> out(*bytes);
  KTC_RETURN_IF_ERROR(RandomWeights(plan).fill(0, out));
  return out;
}

}  // namespace ktc::weights
