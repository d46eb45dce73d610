// Attention steps of the executor at long contexts against one pass per token and head group, which is what they replaced.
// Medians of interleaved rounds. Usage: cpu_attention_bench [THREADS] [ROUNDS] [CONTEXT]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "runtime/exec/attend_memory.h"
#include "runtime/exec/attend_phase.h"

namespace ktc::exec {
namespace {

constexpr std::size_t kPageTokens = 16;

struct Shape {
  const char* name;
  std::size_t kv_heads, group, width1, width2;  // per key head; the value is the first part of the key where width2 is set
};

double seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const Shape& shape, std::size_t context, std::size_t tokens, int threads, int rounds) {
  const kernels::KernelSet kernels = kernels::select_kernels(host_cpu_features());
  auto workers = Workers::create(threads).value();
  const std::size_t width = shape.width1 + shape.width2, heads = shape.kv_heads * shape.group;
  const std::size_t value_at = shape.width2 != 0 ? 0 : shape.kv_heads * kPageTokens * shape.width1;
  const std::size_t page_elements = shape.kv_heads * kPageTokens * (shape.width2 != 0 ? width : 2 * width);
  const std::size_t pages = blocks(context, kPageTokens);
  std::vector<std::uint16_t> cache(pages * page_elements);
  std::mt19937 random(1);
  for (std::uint16_t& value : cache) value = static_cast<std::uint16_t>(0x3c00 | (random() & 0x80ff));
  std::vector<std::uint32_t> ids(pages);
  for (std::size_t i = 0; i < pages; ++i) ids[i] = static_cast<std::uint32_t>(i);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<float> q(tokens * heads * width, 0.01f), out(tokens * heads * shape.width1);
  std::vector<Token> token(tokens);
  for (std::size_t t = 0; t < tokens; ++t) token[t] = {ids.data(), static_cast<std::uint32_t>(context - tokens + t)};

  planfb::PlanT plan;
  plan.caches.push_back(std::make_unique<planfb::CacheT>());
  plan.caches[0]->tokens_per_sequence = static_cast<std::uint32_t>(context);
  MlaStep sizes = {};
  sizes.heads = heads;
  sizes.latent_dim = shape.width1;
  const std::vector<Step> steps{Step(sizes)};
  AttendMemory memory;
  if (!memory.allocate(plan, {&steps}, threads).ok()) return;
  StepState state;
  state.workers = workers.get();
  state.tokens = tokens;
  state.token = token.data();
  state.prefill = tokens > 1;
  memory.fill(state);

  const auto args_of = [&](std::size_t t, std::size_t kv) {
    kernels::AttendArgs args = {};
    args.q = q.data() + (t * heads + kv * shape.group) * width;
    args.q_stride = width;
    args.heads = shape.group;
    args.width1 = shape.width1;
    args.width2 = shape.width2;
    args.value_width = shape.width1;
    args.cache = reinterpret_cast<const std::byte*>(cache.data());
    args.pages = ids.data();
    args.page_bytes = page_elements * 2;
    args.page_tokens = kPageTokens;
    args.k1_offset = kv * kPageTokens * shape.width1 * 2;
    args.k2_offset = kPageTokens * shape.width1 * 2;
    args.v_offset = value_at * 2 + (shape.width2 != 0 ? 0 : args.k1_offset);
    args.context = token[t].position + std::size_t{1};
    args.scale = 0.1f;
    args.out = out.data() + (t * heads + kv * shape.group) * shape.width1;
    args.out_stride = shape.width1;
    args.q_row_stride = heads * width;
    args.out_row_stride = heads * shape.width1;
    return args;
  };
  const AttendShape attend{shape.kv_heads, shape.group, heads, shape.width1, kernels.attend_bf16, kernels.attend_join};
  // the former cut: a token and key head each; latent attention of few tokens in groups of at least four heads
  const std::size_t cuts = shape.kv_heads > 1 ? 1 : std::clamp<std::size_t>(blocks(2 * threads, tokens), 1, shape.group / 4);
  const auto former = [&] {
    workers->parallel_for(tokens * shape.kv_heads * cuts, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t item = begin; item < end; ++item) {
        kernels::AttendArgs args = args_of(item / cuts % tokens, item / cuts / tokens);
        const std::size_t step = shape.group / cuts, cut = item % cuts;
        args.q += cut * step * args.q_stride;
        args.out += cut * step * args.out_stride;
        args.heads = step;
        kernels.attend_bf16(args);
      }
    });
  };
  const auto now = [&] { attend_phase(attend, state, args_of); };
  std::vector<double> before, after;
  workers->enter([&] {
    former();
    now();
    for (int round = 0; round < rounds; ++round) {
      before.push_back(seconds(former));
      after.push_back(seconds(now));
    }
  });
  const double a = median(before), b = median(after);
  fmt::print("{:4} context {:6} tokens {:3}: {:9.3f} ms before, {:9.3f} ms, {:.2f}x\n", shape.name, context, tokens, a * 1e3, b * 1e3, a / b);
}

}  // namespace
}  // namespace ktc::exec

int main(int argc, char** argv) {
  using namespace ktc::exec;
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2, rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 9;
  const std::size_t only = argc > 3 ? static_cast<std::size_t>(std::max(64, std::atoi(argv[3]))) : 0;
  const Shape shapes[] = {{"GQA", 4, 8, 128, 0}, {"MLA", 1, 128, 512, 64}};
  for (const Shape& shape : shapes)
    for (const std::size_t context : {std::size_t{4096}, std::size_t{32768}})
      for (const std::size_t tokens : {1, 64}) {
        if (shape.width2 != 0 && tokens > 1 && context > 4096) continue;  // minutes
        if (only == 0 || context == 4096) measure(shape, only == 0 ? context : only, tokens, threads, rounds);
      }
  return 0;
}
