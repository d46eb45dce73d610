// gqa_append, gqa_attend, mla_append, mla_attend: caches in pages that lie anywhere, several sequences, decode and chunks of prompts.
#include <algorithm>

#include "runtime/formats/gpu_workspace.h"
#include "test/kernels_cuda/gpu_fixture.h"

namespace ktc::gpu {
namespace {

// Who is in a step: each sequence has `cached` tokens already and adds `fresh`; padding tokens belong to a dummy behind them.
struct Sequence {
  std::uint32_t cached, fresh;
};

class Attention : public SetTest {
 protected:
  // Host copies of the batch, and the same on the device.
  struct Step {
    std::vector<std::int32_t> sequence, positions, q_first, kv_length, page_first, pages;
    std::uint32_t tokens = 0, page_count = 0;
    Batch batch;
    std::int32_t page_of(std::size_t token, std::size_t position, std::uint32_t page_tokens) const {
      return pages[static_cast<std::size_t>(page_first[static_cast<std::size_t>(sequence[token])]) + position / page_tokens];
    }
  };
  // far: added to the page ids that the device sees; cache() moves its base the other way.
  Step step(const std::vector<Sequence>& sequences, std::uint32_t padding, std::uint32_t page_tokens, std::int32_t far = 0) {
    Step s;
    std::vector<std::uint32_t> needed;
    for (const Sequence& q : sequences) needed.push_back((q.cached + q.fresh + page_tokens - 1) / page_tokens);
    needed.push_back(1);
    for (const std::uint32_t n : needed) s.page_count += n;
    s.page_count += 3;
    std::vector<std::int32_t> free(s.page_count);
    for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(i);
    std::shuffle(free.begin(), free.end(), random);
    for (std::size_t q = 0; q <= sequences.size(); ++q) {
      const Sequence who = q < sequences.size() ? sequences[q] : Sequence{0, padding};
      s.q_first.push_back(static_cast<std::int32_t>(s.tokens));
      s.page_first.push_back(static_cast<std::int32_t>(s.pages.size()));
      for (std::uint32_t i = 0; i < needed[q]; ++i) {
        s.pages.push_back(free.back());
        free.pop_back();
      }
      for (std::uint32_t i = 0; i < who.fresh; ++i) {
        s.sequence.push_back(static_cast<std::int32_t>(q));
        s.positions.push_back(q < sequences.size() ? static_cast<std::int32_t>(who.cached + i) : 0);
        ++s.tokens;
      }
      s.kv_length.push_back(q < sequences.size() ? static_cast<std::int32_t>(who.cached + who.fresh) : 1);
    }
    s.q_first.push_back(static_cast<std::int32_t>(s.tokens));
    s.page_first.push_back(static_cast<std::int32_t>(s.pages.size()));
    const std::vector<std::int32_t> live = {static_cast<std::int32_t>(s.tokens - padding), 0, static_cast<std::int32_t>(sequences.size())};
    std::vector<std::int32_t> pages = s.pages;
    for (std::int32_t& page : pages) page += far;
    s.batch = {put(live), put(s.sequence), put(s.positions), put(s.q_first), put(s.kv_length), put(s.page_first), put(pages), s.tokens,
               static_cast<std::uint32_t>(sequences.size())};
    return s;
  }

  // A cache of two parts in each page with random content.
  struct TestCache {
    Cache cache;
    std::uint64_t page_bytes = 0, offset_b = 0, bytes = 0;
    std::byte* data = nullptr;
  };
  TestCache cache(Format format, std::uint32_t page_tokens, std::uint32_t pages, std::uint32_t heads_a, std::uint32_t width_a,
                  std::uint32_t heads_b, std::uint32_t width_b, std::int32_t far = 0) {
    TestCache c;
    const std::uint64_t element = format == Format::bf16 ? 2 : 4;
    c.offset_b = std::uint64_t{heads_a} * page_tokens * width_a * element;
    c.page_bytes = c.offset_b + std::uint64_t{heads_b} * page_tokens * width_b * element;
    c.bytes = c.page_bytes * pages;
    std::vector<std::byte> content(c.bytes);
    const auto values = floats(c.bytes / element);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t bits = f32_to_bf16(values[i]);
      if (element == 2) std::memcpy(content.data() + 2 * i, &bits, 2); else std::memcpy(content.data() + 4 * i, &values[i], 4);
    }
    c.data = bytes(content.data(), content.size());
    c.cache.format = format;
    c.cache.page_tokens = page_tokens;
    std::byte* base = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(c.data) - static_cast<std::uint64_t>(far) * c.page_bytes);
    c.cache.a = {base, c.page_bytes, heads_a, width_a};
    c.cache.b = {base + c.offset_b, c.page_bytes, heads_b, width_b};
    return c;
  }
  static double element(const TestCache& c, const std::vector<std::byte>& content, bool b, std::int32_t page, std::size_t head,
                        std::size_t slot, std::size_t i) {
    const CachePart& part = b ? c.cache.b : c.cache.a;
    const std::size_t size = c.cache.format == Format::bf16 ? 2 : 4;
    const std::byte* at = content.data() + static_cast<std::size_t>(page) * c.page_bytes + (b ? c.offset_b : 0) +
                          ((head * c.cache.page_tokens + slot) * part.width + i) * size;
    if (size == 4) {
      float value;
      std::memcpy(&value, at, 4);
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at, 2);
    return bf16_to_f32(bits);
  }

  Rope rope(const Step& s, std::uint32_t dim, bool interleaved, std::vector<float>& cos, std::vector<float>& sin) {
    for (std::size_t t = 0; t < s.tokens; ++t)
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const double angle = s.positions[t] * std::pow(10000.0, -2.0 * static_cast<double>(i) / dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    return {put(cos), put(sin), dim, interleaved};
  }
  static std::vector<double> turned(std::vector<double> head, const Rope& r, const std::vector<float>& cos, const std::vector<float>& sin,
                                    std::size_t t) {
    const std::size_t half = r.dim / 2;
    for (std::size_t i = 0; i < half; ++i) {
      double& a = head[r.interleaved ? 2 * i : i];
      double& b = head[r.interleaved ? 2 * i + 1 : i + half];
      const double c = cos[t * half + i], s = sin[t * half + i], old = a;
      a = old * c - b * s;
      b = b * c + old * s;
    }
    return head;
  }
  static std::vector<double> head_of(const std::vector<float>& rows, std::size_t stride, std::size_t t, std::size_t first, std::size_t dim) {
    const float* from = rows.data() + t * stride + first;
    return {from, from + dim};
  }
  static void norm(std::vector<double>& head, const std::vector<float>& w, double eps) {
    double squares = 0;
    for (const double v : head) squares += v * v;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(head.size()) + eps);
    for (std::size_t i = 0; i < head.size(); ++i) head[i] *= factor * w[i];
  }
  // softmax(scores) . values; score(j), value(j, i)
  template <typename Score, typename Value>
  static std::vector<double> attend(std::size_t context, std::size_t width, const Score& score, const Value& value) {
    std::vector<double> s(context), out(width);
    double top = -INFINITY, sum = 0;
    for (std::size_t j = 0; j < context; ++j) top = std::max(top, s[j] = score(j));
    for (double& v : s) sum += v = std::exp(v - top);
    for (std::size_t j = 0; j < context; ++j)
      for (std::size_t i = 0; i < width; ++i) out[i] += s[j] / sum * value(j, i);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Sets, Attention, both_sets(), set_name);

struct GqaCase {
  std::uint32_t heads, kv_heads, dim, rope_dim, page_tokens;
  Format format;
  bool norm, interleaved;
  std::vector<Sequence> sequences;
  std::uint32_t padding;
  std::uint32_t gap = 4;  // between rows of the output; FlashInfer's kernels want none
  std::int32_t far = 0;
};

TEST_P(Attention, Gqa) {
  const std::vector<Sequence> decode = {{0, 1}, {1, 1}, {16, 1}, {63, 1}, {64, 1}, {500, 1}, {4000, 1}};
  const std::vector<Sequence> chunks = {{0, 40}, {37, 1}, {100, 90}, {0, 1}, {5, 33}};
  const std::vector<GqaCase> cases = {
      {8, 8, 64, 64, 16, Format::bf16, false, false, decode, 1},
      {32, 4, 128, 128, 16, Format::bf16, true, false, decode, 2},
      {14, 2, 64, 64, 5, Format::bf16, false, true, decode, 0},
      {16, 1, 256, 64, 32, Format::bf16, true, false, decode, 1},
      {40, 2, 128, 128, 16, Format::bf16, false, false, decode, 0},  // 20 heads on a key
      {4, 1, 128, 128, 1, Format::f32, true, false, decode, 1},
      {6, 2, 80, 80, 7, Format::bf16, false, false, decode, 0},      // a head size without tensor cores
      {32, 4, 128, 128, 16, Format::bf16, true, false, {{32000, 1}}, 0},
      {32, 4, 128, 128, 16, Format::bf16, true, false, chunks, 3},
      {8, 8, 64, 64, 16, Format::bf16, false, false, chunks, 0},
      {16, 2, 256, 64, 16, Format::bf16, true, false, chunks, 5},
      {12, 2, 128, 128, 16, Format::bf16, false, false, chunks, 2},  // 64 rows are not a multiple of 6 heads
      {4, 2, 64, 32, 3, Format::f32, true, true, chunks, 1},
      {24, 2, 96, 96, 16, Format::bf16, false, false, {{10, 50}}, 0},
      {32, 4, 128, 128, 16, Format::bf16, true, false, chunks, 0, 0},
      {8, 8, 64, 64, 16, Format::bf16, false, false, chunks, 4, 0},  // of these, the padding is a sequence as well
      {14, 2, 64, 64, 5, Format::bf16, false, true, {{0, 200}, {77, 3}, {300, 64}, {0, 1}}, 0, 0},  // 7 heads on a key, odd pages
      {40, 2, 128, 128, 1, Format::bf16, false, false, {{129, 30}}, 0, 0},
      {32, 4, 128, 128, 16, Format::bf16, true, false, {{900, 300}, {0, 17}}, 0, 0, 300000},  // element 2^32 lies before these pages
  };
  for (const GqaCase& c : cases) {
    SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads of " + std::to_string(c.dim) + ", pages of " +
                 std::to_string(c.page_tokens) + ", " + std::to_string(c.sequences.size()) + " sequences");
    if (!cuda() && c.sequences.size() == 1 && c.sequences[0].cached > 10000) continue;  // nothing that the others lack, but slow
    if (device_->info().emulated && c.far != 0) continue;
    const Step s = step(c.sequences, c.padding, c.page_tokens, c.far);
    const TestCache kv = cache(c.format, c.page_tokens, s.page_count, c.kv_heads, c.dim, c.kv_heads, c.dim, c.far);
    std::vector<float> cos, sin;
    const Rope turn = rope(s, c.rope_dim, c.interleaved, cos, sin);
    const std::uint32_t qc = c.heads * c.dim, kc = c.kv_heads * c.dim;
    const auto q = floats(s.tokens * qc, 2), k = floats(s.tokens * kc, 2), v = floats(s.tokens * kc), qn = floats(c.dim, 2), kn = floats(c.dim, 2);
    const Matrix query = output(s.tokens, qc);
    const Matrix out = output(s.tokens, qc, c.gap);
    const std::vector<std::byte> before = get(kv.data, kv.bytes);
    run(kernels().gqa_append, GqaAppendArgs{matrix(q, qc, 3), matrix(k, kc, 1), matrix(v, kc), c.norm ? put(qn) : nullptr,
                                            c.norm ? put(kn) : nullptr, 1e-6f, turn, kv.cache, s.batch, c.heads, c.kv_heads, c.dim, query});
    const auto turned_q = get(query, s.tokens);
    const std::vector<std::byte> after = get(kv.data, kv.bytes);
    const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
    std::vector<std::byte> expected_cache = before;
    for (std::size_t t = 0; t < s.tokens; ++t) {
      for (std::size_t h = 0; h < c.heads; ++h) {
        auto head = head_of(q, qc, t, h * c.dim, c.dim);
        if (c.norm) norm(head, qn, 1e-6);
        head = turned(head, turn, cos, sin, t);
        for (std::size_t i = 0; i < c.dim; ++i) ASSERT_NEAR(turned_q[t * qc + h * c.dim + i], head[i], 3e-5) << "token " << t;
      }
      const auto position = static_cast<std::size_t>(s.positions[t]);
      const std::int32_t page = s.page_of(t, position, c.page_tokens);
      const bool dummy = static_cast<std::size_t>(s.sequence[t]) == c.sequences.size();
      for (std::size_t h = 0; h < c.kv_heads; ++h) {
        auto head = head_of(k, kc, t, h * c.dim, c.dim);
        if (c.norm) norm(head, kn, 1e-6);
        head = turned(head, turn, cos, sin, t);
        const double tolerance = c.format == Format::bf16 ? 1.0 / 128 : 1e-5;
        for (std::size_t i = 0; i < c.dim && !dummy; ++i) {
          const std::size_t slot = position % c.page_tokens;
          ASSERT_NEAR(element(kv, after, false, page, h, slot, i), head[i], tolerance * std::max(1.0, std::fabs(head[i])));
          ASSERT_NEAR(element(kv, after, true, page, h, slot, i), v[t * kc + h * c.dim + i], tolerance);
        }
        const std::size_t size = c.format == Format::bf16 ? 2 : 4;  // what the op may write
        for (const bool b : {false, true}) {
          const std::size_t at = static_cast<std::size_t>(page) * kv.page_bytes + (b ? kv.offset_b : 0) +
                                 (h * c.page_tokens + position % c.page_tokens) * c.dim * size;
          std::copy_n(after.data() + at, c.dim * size, expected_cache.data() + at);
        }
      }
    }
    ASSERT_TRUE(after == expected_cache) << "the cache was changed elsewhere";

    run(kernels().gqa_attend, GqaAttendArgs{query, out, kv.cache, s.batch, c.heads, c.kv_heads, c.dim, static_cast<float>(scale),
                                            scratch(gpu_gqa_workspace(s.tokens, c.heads, c.kv_heads, c.dim).partial)});
    const auto got = get(out, s.tokens);
    // one token per sequence: the op that does both, on a cache without the new keys
    if (c.padding < 2 && std::all_of(c.sequences.begin(), c.sequences.end(), [](const Sequence& q) { return q.fresh == 1; })) {
      ASSERT_TRUE(device_->compute().copy_to_device(kv.data, before.data(), before.size()).ok());
      const Matrix both = output(s.tokens, qc, c.gap), other_query = output(s.tokens, qc);
      GqaDecodeArgs d = {};
      d.append = {matrix(q, qc, 3), matrix(k, kc, 1), matrix(v, kc), c.norm ? put(qn) : nullptr, c.norm ? put(kn) : nullptr, 1e-6f, turn,
                  kv.cache, s.batch, c.heads, c.kv_heads, c.dim, other_query};
      d.attend = {other_query, both, kv.cache, s.batch, c.heads, c.kv_heads, c.dim, static_cast<float>(scale),
                  scratch(gpu_gqa_workspace(s.tokens, c.heads, c.kv_heads, c.dim).partial)};
      run(kernels().gqa_decode, d);
      const auto together = get(both, s.tokens);
      for (std::size_t i = 0; i < together.size(); ++i) ASSERT_NEAR(together[i], got[i], 1e-4) << "token " << i / qc << ", element " << i % qc;
      const std::vector<std::byte> appended = get(kv.data, kv.bytes);
      const auto as_floats = [&](const std::vector<std::byte>& from, std::size_t at) {
        std::uint16_t bits;
        std::memcpy(&bits, from.data() + 2 * at, 2);
        return bf16_to_f32(bits);
      };
      for (std::size_t i = 0; i < kv.bytes / 2 && c.format == Format::bf16; ++i)
        ASSERT_NEAR(as_floats(appended, i), as_floats(after, i), 0.01 * std::fabs(as_floats(after, i))) << "cache element " << i;
    }
    const bool prompts = s.tokens > 2 * c.sequences.size() + 2;
    const double tolerance = !cuda() || c.format == Format::f32 ? 2e-5 : prompts || c.dim == 256 ? 2e-2 : 2e-3;
    for (std::size_t t = 0; t < s.tokens; ++t) {
      if (c.sequences.size() > 1 && s.positions[t] > 600 && t % 3 != 0) continue;
      if (cuda() && static_cast<std::size_t>(s.sequence[t]) == c.sequences.size()) {  // padding means nothing, but spoils nothing either
        for (std::size_t i = 0; i < qc; ++i) ASSERT_TRUE(std::isfinite(got[t * qc + i])) << "token " << t;
        continue;
      }
      for (std::size_t h = 0; h < c.heads; h += c.heads > 16 ? 5 : 1) {
        const std::size_t kv_head = h / (c.heads / c.kv_heads);
        const auto expected = attend(
            static_cast<std::size_t>(s.positions[t]) + 1, c.dim,
            [&](std::size_t j) {
              double sum = 0;
              const std::int32_t page = s.page_of(t, j, c.page_tokens);
              for (std::size_t i = 0; i < c.dim; ++i)
                sum += turned_q[t * qc + h * c.dim + i] * element(kv, after, false, page, kv_head, j % c.page_tokens, i);
              return sum * scale;
            },
            [&](std::size_t j, std::size_t i) {
              return element(kv, after, true, s.page_of(t, j, c.page_tokens), kv_head, j % c.page_tokens, i);
            });
        for (std::size_t i = 0; i < c.dim; ++i)
          ASSERT_NEAR(got[t * qc + h * c.dim + i], expected[i], tolerance) << "token " << t << " at " << s.positions[t] << ", head " << h;
      }
    }
  }
}

struct MlaCase {
  std::uint32_t heads, nope, rope, latent, v, page_tokens;
  Format format, weights, activations;
  std::vector<Sequence> sequences;
  std::int32_t far = 0;
  std::uint32_t padding = 1;
};

TEST_P(Attention, Mla) {
  const std::vector<Sequence> decode = {{0, 1}, {15, 1}, {300, 1}}, chunks = {{0, 20}, {33, 9}, {70, 1}};
  const std::vector<MlaCase> cases = {
      {16, 128, 64, 512, 128, 16, Format::bf16, Format::bf16, Format::bf16, decode},
      {128, 128, 64, 512, 128, 16, Format::bf16, Format::int8, Format::bf16, {{100, 1}}},
      {20, 128, 64, 512, 128, 16, Format::bf16, Format::fp8, Format::bf16, chunks},
      {4, 32, 16, 64, 24, 3, Format::f32, Format::f32, Format::f32, decode},
      {4, 32, 16, 64, 24, 16, Format::bf16, Format::bf16, Format::f32, chunks},
      {4, 32, 16, 64, 24, 16, Format::bf16, Format::bf16, Format::bf16, {{0, 60}, {5, 100}}},  // heads in tiles
      {4, 32, 16, 64, 24, 16, Format::bf16, Format::bf16, Format::f32, {{0, 60}, {5, 100}}},
      {2, 20, 16, 64, 70, 16, Format::f32, Format::f32, Format::f32, {{0, 33}}},
      // for FlashInfer's kernel: prompts and batches whose keys are cut, one so long that its tiles are dealt
      {128, 32, 64, 512, 16, 16, Format::bf16, Format::bf16, Format::bf16, {{150, 130}, {3, 1}, {0, 40}}},
      {16, 32, 64, 512, 16, 5, Format::bf16, Format::bf16, Format::bf16, {{0, 600}, {61, 500}}},
      {64, 32, 64, 512, 16, 16, Format::bf16, Format::bf16, Format::bf16, {{200, 260}}, 500000},
      {128, 32, 64, 512, 16, 16, Format::bf16, Format::bf16, Format::bf16, {{30, 500}, {0, 70}}},
      {128, 32, 64, 512, 16, 16, Format::bf16, Format::bf16, Format::bf16,
       {{0, 1}, {1, 1}, {62, 1}, {63, 1}, {64, 1}, {300, 1}, {20000, 1}, {4095, 1}, {4096, 1}}, 0, 3},
  };
  for (const MlaCase& c : cases) {
    SCOPED_TRACE(std::to_string(c.heads) + " heads, latent " + std::to_string(c.latent) + ", " + std::string(to_string(c.format)) + ", " +
                 std::to_string(c.sequences.size()) + " sequences");
    if (device_->info().emulated && c.latent == 512 && c.nope == 32) continue;  // nothing that the others lack, but slow
    const Step s = step(c.sequences, c.padding, c.page_tokens, c.far);
    const TestCache kv = cache(c.format, c.page_tokens, s.page_count, 1, c.latent, 1, c.rope, c.far);
    std::vector<float> cos, sin;
    const Rope turn = rope(s, c.rope, true, cos, sin);
    PackedWeight uk = random_weight(random, c.weights, 0, c.heads, c.latent, c.nope), uv = random_weight(random, c.weights, 0, c.heads, c.v, c.latent);
    uk.weight.data = bytes(uk.data.data(), uk.data.size());
    uv.weight.data = bytes(uv.data.data(), uv.data.size());
    const std::uint32_t head_in = c.nope + c.rope, head_query = c.latent + c.rope;
    const auto q = floats(s.tokens * c.heads * head_in, 0.5f), latent = floats(s.tokens * c.latent), k_rope = floats(s.tokens * c.rope);
    const Matrix query = output(s.tokens, c.heads * head_query), context = output(s.tokens, c.heads * c.latent), out = output(s.tokens, c.heads * c.v, 1);
    run(kernels().mla_append, MlaAppendArgs{matrix(q, c.heads * head_in, 2), matrix(latent, c.latent), matrix(k_rope, c.rope, 3), turn, kv.cache,
                                            s.batch, uk.weight, c.heads, c.nope, c.rope, c.latent, c.activations, query});
    const auto got_query = get(query, s.tokens);
    const auto content = get(kv.data, kv.bytes);
    for (std::size_t t = 0; t < s.tokens; ++t) {
      const auto position = static_cast<std::size_t>(s.positions[t]);
      const std::int32_t page = s.page_of(t, position, c.page_tokens);
      const double tolerance = c.format == Format::bf16 ? 1.0 / 128 : 1e-5;
      if (static_cast<std::size_t>(s.sequence[t]) < c.sequences.size()) {
        const auto key = turned(head_of(k_rope, c.rope, t, 0, c.rope), turn, cos, sin, t);
        for (std::size_t i = 0; i < c.latent; ++i)
          ASSERT_NEAR(element(kv, content, false, page, 0, position % c.page_tokens, i), latent[t * c.latent + i], tolerance);
        for (std::size_t i = 0; i < c.rope; ++i)
          ASSERT_NEAR(element(kv, content, true, page, 0, position % c.page_tokens, i), key[i], tolerance * 2);
      }
      for (std::size_t h = 0; h < c.heads; h += c.heads > 8 ? 7 : 1) {
        const auto in = head_of(q, c.heads * head_in, t, h * head_in, head_in);
        const auto rope_part = turned({in.begin() + c.nope, in.end()}, turn, cos, sin, t);
        const float* got = got_query.data() + (t * c.heads + h) * head_query;
        for (std::size_t n = 0; n < c.latent; ++n) {
          double sum = 0, size = 0;
          for (std::size_t i = 0; i < c.nope; ++i) {
            const double product = rounded(in[i], c.activations) * uk.values[(h * c.latent + n) * c.nope + i];
            sum += product;
            size += std::fabs(product);
          }
          ASSERT_NEAR(got[n], sum, 1e-6 + size * 1e-6) << "token " << t << ", head " << h;
        }
        for (std::size_t i = 0; i < c.rope; ++i) ASSERT_NEAR(got[c.latent + i], rope_part[i], 1e-6);
      }
    }

    const double scale = 0.05;
    run(kernels().mla_attend, MlaAttendArgs{query, context, out, kv.cache, s.batch, uv.weight, c.heads, c.rope, c.v, c.latent,
                                            static_cast<float>(scale), c.activations,
                                            scratch(gpu_mla_workspace(s.tokens, c.heads, c.latent, c.rope).partial)});
    const auto got_context = get(context, s.tokens), got_out = get(out, s.tokens);
    const double tolerance = !cuda() || c.format == Format::f32 ? 2e-5 : 2e-2;
    for (std::size_t t = 0; t < s.tokens; t += s.tokens > 300 ? 5 : 1)
      for (std::size_t h = 0; h < c.heads; h += c.heads > 8 ? 7 : 1) {
        const float* from = got_query.data() + (t * c.heads + h) * head_query;
        const auto expected = attend(
            static_cast<std::size_t>(s.positions[t]) + 1, c.latent,
            [&](std::size_t j) {
              const std::int32_t page = s.page_of(t, j, c.page_tokens);
              double sum = 0;
              for (std::size_t i = 0; i < c.latent; ++i) sum += from[i] * element(kv, content, false, page, 0, j % c.page_tokens, i);
              for (std::size_t i = 0; i < c.rope; ++i) sum += from[c.latent + i] * element(kv, content, true, page, 0, j % c.page_tokens, i);
              return sum * scale;
            },
            [&](std::size_t j, std::size_t i) { return element(kv, content, false, s.page_of(t, j, c.page_tokens), 0, j % c.page_tokens, i); });
        const float* own = got_context.data() + (t * c.heads + h) * c.latent;
        for (std::size_t i = 0; i < c.latent; ++i) ASSERT_NEAR(own[i], expected[i], tolerance) << "token " << t << ", head " << h;
        for (std::size_t n = 0; n < c.v; ++n) {
          double sum = 0, size = 0;
          for (std::size_t i = 0; i < c.latent; ++i) {
            const double product = rounded(own[i], c.activations) * uv.values[(h * c.v + n) * c.latent + i];
            sum += product;
            size += std::fabs(product);
          }
          ASSERT_NEAR(got_out[(t * c.heads + h) * c.v + n], sum, 1e-6 + size * 1e-6);
        }
      }
  }
}

}  // namespace
}  // namespace ktc::gpu
