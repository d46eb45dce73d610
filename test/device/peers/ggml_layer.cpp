// Layers of experts by ggml's CPU backend, on the shapes of ktc-bench experts: the graph that llama.cpp builds for them
// (mul_mat_id for gate, up and down, swiglu, weights, sum), with weights in the buffer type that llama.cpp would
// choose. Written against ggml's public headers; arguments, routing and protocol are those of common.py.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr double kCaseSeconds = 0.008, kLongSeconds = 0.04;
constexpr int kDistinct = 4;         // experts with weights of their own; the others hold copies
constexpr double kMostError = 0.03;  // rms over rms of the reference; a wrong layout is near 1

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "ggml_layer: %s\n", message.c_str());
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Options {
  long experts = 0, hidden = 0, intermediate = 0, top_k = 0, threads = 16, rounds = 3;
  double gib = 4;
  bool step = false;
  std::vector<long> tokens;
  std::vector<std::string> formats = {"int8", "int4", "bf16"};
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--step") {
      o.step = true;
      continue;
    }
    if (i + 1 == argc) fail(flag + " needs a value");
    const std::string value = argv[++i];
    const auto number = [&] { return std::atol(value.c_str()); };
    if (flag == "--experts")
      o.experts = number();
    else if (flag == "--hidden")
      o.hidden = number();
    else if (flag == "--intermediate")
      o.intermediate = number();
    else if (flag == "--top-k")
      o.top_k = number();
    else if (flag == "--threads")
      o.threads = number();
    else if (flag == "--rounds")
      o.rounds = number();
    else if (flag == "--gib")
      o.gib = std::atof(value.c_str());
    else if (flag == "--format")
      o.formats = split(value);
    else if (flag == "--tokens")
      for (const auto& m : split(value)) o.tokens.push_back(std::atol(m.c_str()));
    else if (flag != "--peers")
      fail("unknown flag " + flag);
  }
  if (o.experts < 1 || o.top_k < 1 || o.top_k > o.experts || o.tokens.empty() || o.threads < 1)
    fail("needs --experts --hidden --intermediate --top-k --tokens");
  if (o.hidden % 32 != 0 || o.intermediate % 32 != 0 || o.hidden < 32 || o.intermediate < 32)
    fail("ggml's blocks are 32 wide");
  return o;
}

// tools/ktc/bench_layer.h: every active expert has exactly `per_expert` tokens.
struct Routing {
  long per_expert, groups, top_k;
  Routing(long m, const Options& o) : per_expert(m), groups(1), top_k(o.top_k) {
    if (m >= 16) groups = std::max(1L, std::min(o.experts, o.hidden * o.intermediate > (4L << 20) ? 16L : 64L) / top_k);
  }
  long active() const { return groups * top_k; }
  long tokens() const { return groups * per_expert; }
  long expert(long token, long k) const { return token % groups * top_k + k; }
  static float weight(long token, long k) { return (1.0f + static_cast<float>((token + k) % 7)) / 16.0f; }
};

ggml_type type_of(const std::string& format) {
  if (format == "int8") return GGML_TYPE_Q8_0;
  if (format == "int4") return GGML_TYPE_Q4_0;
  if (format == "bf16") return GGML_TYPE_BF16;
  fail("--format: '" + format + "' is none of int8, int4, bf16");
}

void in_parallel(long threads, long count, const std::function<void(long)>& work) {
  std::atomic<long> next{0};
  std::vector<std::thread> pool;
  for (long t = 0; t < std::min(threads, count); ++t)
    pool.emplace_back([&] {
      for (long i; (i = next++) < count;) work(i);
    });
  for (auto& thread : pool) thread.join();
}

// About normal: four uniform numbers.
void fill_normal(std::vector<float>& values, std::uint64_t seed, float scale) {
  std::uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
  for (float& value : values) {
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    const auto part = [s](int i) { return static_cast<float>(s >> (16 * i) & 0xffff) / 65536.0f; };
    value = (part(0) + part(1) + part(2) + part(3) - 2.0f) * 1.732f * scale;
  }
}

struct Machine {
  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_backend_dev_t device = ggml_backend_get_device(backend);
  explicit Machine(long threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(static_cast<int>(threads));
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    long masked = 0;
    for (int c = 0; c < CPU_SETSIZE && c < GGML_MAX_N_THREADS && masked < threads; ++c)
      if (CPU_ISSET(c, &allowed)) params.cpumask[c] = true, ++masked;
    params.strict_cpu = true;
    params.poll = 100;
    ggml_backend_cpu_set_n_threads(backend, static_cast<int>(threads));
    ggml_backend_cpu_set_threadpool(backend, ggml_threadpool_new(&params));
  }
};

ggml_context* context(std::size_t tensors) {
  return ggml_init({ggml_tensor_overhead() * tensors + ggml_graph_overhead_custom(16384, false), nullptr, true});
}

struct Matrices {
  ggml_tensor *gate, *up, *down;
};

// At least `gib` GiB of layers of one format.
struct Pool {
  std::string format;
  ggml_type type;
  long experts;
  std::string buffer;
  std::vector<Matrices> layers;
  std::vector<std::vector<std::uint8_t>> distinct[3];  // gate, up, down; as quantised

  Pool(const Machine& machine, const Options& o, const std::string& name, long experts_of_layer)
      : format(name), type(type_of(name)), experts(experts_of_layer) {
    ggml_backend_buffer_type_t kind = choose(machine, o);
    buffer = ggml_backend_buft_name(kind);
    const std::size_t bytes =
        2 * ggml_row_size(type, o.hidden) * o.intermediate + ggml_row_size(type, o.intermediate) * o.hidden;
    const auto count = static_cast<long>(std::ceil(o.gib * (1u << 30) / static_cast<double>(bytes * experts)));
    ggml_context* ctx = context(3 * std::max(1L, count) + 8);
    for (long l = 0; l < std::max(1L, count); ++l)
      layers.push_back({ggml_new_tensor_3d(ctx, type, o.hidden, o.intermediate, experts),
                        ggml_new_tensor_3d(ctx, type, o.hidden, o.intermediate, experts),
                        ggml_new_tensor_3d(ctx, type, o.intermediate, o.hidden, experts)});
    ggml_backend_buffer_t memory = ggml_backend_alloc_ctx_tensors_from_buft(ctx, kind);
    if (memory == nullptr) fail("no memory for weights of " + format);
    const auto base =
        (reinterpret_cast<std::uintptr_t>(ggml_backend_buffer_get_base(memory)) + 4095) & ~std::uintptr_t{4095};
    madvise(reinterpret_cast<void*>(base), ggml_backend_buffer_get_size(memory) - 4096, MADV_HUGEPAGE);
    for (auto& matrices : distinct) matrices.resize(kDistinct);
    in_parallel(o.threads, 3 * kDistinct, [&](long i) {
      const long columns = i % 3 == 2 ? o.intermediate : o.hidden, rows = i % 3 == 2 ? o.hidden : o.intermediate;
      std::vector<float> values(static_cast<std::size_t>(columns * rows));
      fill_normal(values, static_cast<std::uint64_t>(i) + 1, 1.0f / std::sqrt(static_cast<float>(columns)));
      auto& codes = distinct[i % 3][static_cast<std::size_t>(i / 3)];
      codes.resize(ggml_row_size(type, columns) * static_cast<std::size_t>(rows));
      ggml_quantize_chunk(type, values.data(), codes.data(), 0, rows, columns, nullptr);
    });
    in_parallel(o.threads, 3 * static_cast<long>(layers.size()), [&](long i) {
      const Matrices& m = layers[static_cast<std::size_t>(i / 3)];
      ggml_tensor* tensor = i % 3 == 0 ? m.gate : i % 3 == 1 ? m.up : m.down;
      std::vector<std::uint8_t> all;  // a buffer that packs wants the whole tensor at once
      for (long e = 0; e < experts; ++e) all.insert(all.end(), matrix(i % 3, e).begin(), matrix(i % 3, e).end());
      ggml_backend_tensor_set(tensor, all.data(), 0, all.size());
    });
  }

  const std::vector<std::uint8_t>& matrix(long which, long expert) const {
    return distinct[which][static_cast<std::size_t>(expert % kDistinct)];
  }
  double bytes() const {
    return static_cast<double>(layers.size() * (ggml_nbytes(layers[0].gate) * 2 + ggml_nbytes(layers[0].down)));
  }

  // The first of the backend's own buffer types that can multiply with such weights, as llama.cpp does.
  ggml_backend_buffer_type_t choose(const Machine& machine, const Options& o) const {
    auto* list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(machine.device), "ggml_backend_dev_get_extra_bufts"));
    if (list != nullptr)
      for (ggml_backend_buffer_type_t* kind = list(machine.device); *kind != nullptr; ++kind) {
        ggml_context* ctx = context(8);
        ggml_tensor* w = ggml_new_tensor_3d(ctx, type, o.hidden, o.intermediate, experts);
        ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, o.hidden, 1, 512);
        ggml_tensor* product = ggml_mul_mat_id(ctx, w, x, ggml_new_tensor_2d(ctx, GGML_TYPE_I32, o.top_k, 512));
        w->buffer = ggml_backend_buft_alloc_buffer(*kind, 0);
        const bool takes = w->buffer != nullptr && ggml_backend_dev_supports_op(machine.device, product);
        ggml_free(ctx);
        if (takes) return *kind;
      }
    return ggml_backend_get_default_buffer_type(machine.backend);
  }
};

// Inputs, and graphs over the layers of a pool: one over all layers for few tokens, one per layer else.
class Case {
 public:
  Case(Machine& machine, const Options& o, Pool& pool, long per_expert)
      : machine_(machine), pool_(pool), routing_(per_expert, o) {
    const long tokens = routing_.tokens();
    ggml_context* inputs = context(8);
    x_ = ggml_new_tensor_3d(inputs, GGML_TYPE_F32, o.hidden, 1, tokens);
    ids_ = ggml_new_tensor_2d(inputs, GGML_TYPE_I32, o.top_k, tokens);
    weights_ = ggml_new_tensor_3d(inputs, GGML_TYPE_F32, 1, o.top_k, tokens);
    ggml_backend_alloc_ctx_tensors(inputs, machine.backend);
    x_values_.resize(static_cast<std::size_t>(o.hidden * tokens));
    fill_normal(x_values_, 99, 1.0f);
    std::vector<float> weights;
    for (long t = 0; t < tokens; ++t)
      for (long k = 0; k < o.top_k; ++k) weights.push_back(Routing::weight(t, k));
    ggml_backend_tensor_set(x_, x_values_.data(), 0, ggml_nbytes(x_));
    ggml_backend_tensor_set(weights_, weights.data(), 0, ggml_nbytes(weights_));
    const auto layers = static_cast<long>(pool.layers.size());
    graphs_.push_back(build(o, 0, 1));
    layers_of_graph_ = per_expert < 16 ? layers : 1;
    if (layers_of_graph_ > 1)
      graphs_.push_back(build(o, 0, layers));
    else
      for (long l = 1; l < layers; ++l) graphs_.push_back(build(o, l, 1));
    for (Graph& graph : graphs_) {  // equal graphs share the memory of the first
      if (&graph == &graphs_[0] || layers_of_graph_ > 1)
        memory_ = ggml_gallocr_new(ggml_backend_get_default_buffer_type(machine.backend));
      if (!ggml_gallocr_alloc_graph(memory_, graph.graph)) fail("no memory for activations");
    }
    check(o);
    if (layers_of_graph_ > 1) graphs_.erase(graphs_.begin());
  }

  // Seconds of one layer.
  double measure() {
    double start = now();
    run();
    double seconds = now() - start;
    if (seconds >= kLongSeconds) return seconds / static_cast<double>(layers_of_graph_);
    long done = 0;
    start = now();
    do {
      run();
      done += layers_of_graph_;
      seconds = now() - start;
    } while (seconds < kCaseSeconds);
    return seconds / static_cast<double>(done);
  }

  const Pool& pool() const { return pool_; }
  long per_expert() const { return routing_.per_expert; }
  double error() const { return error_; }

 private:
  struct Graph {
    ggml_cgraph* graph;
    ggml_tensor* out;
  };

  Graph build(const Options& o, long first, long count) {
    ggml_context* ctx = context(static_cast<std::size_t>(count * (8 + 2 * o.top_k) + 8));
    Graph g{ggml_new_graph_custom(ctx, 16384, false), nullptr};
    for (long l = first; l < first + count; ++l) {
      const Matrices& m = pool_.layers[static_cast<std::size_t>(l)];
      ggml_tensor* up = ggml_mul_mat_id(ctx, m.up, x_, ids_);
      ggml_tensor* gate = ggml_mul_mat_id(ctx, m.gate, x_, ids_);
      ggml_tensor* rows = ggml_mul(ctx, ggml_mul_mat_id(ctx, m.down, ggml_swiglu_split(ctx, gate, up), ids_), weights_);
      g.out = nullptr;
      for (long k = 0; k < o.top_k; ++k) {
        ggml_tensor* part = ggml_view_2d(ctx, rows, o.hidden, routing_.tokens(), rows->nb[2],
                                         static_cast<std::size_t>(k) * rows->nb[1]);
        g.out = g.out == nullptr ? part : ggml_add(ctx, g.out, part);
      }
      if (o.top_k == 1) g.out = ggml_cont(ctx, g.out);
      ggml_set_output(g.out);
      ggml_build_forward_expand(g.graph, g.out);
    }
    return g;
  }

  void set_window() {
    const long windows = pool_.experts / routing_.active();
    std::vector<std::int32_t> ids;
    for (long t = 0; t < routing_.tokens(); ++t)
      for (long k = 0; k < routing_.top_k; ++k)
        ids.push_back(static_cast<std::int32_t>(window_ % windows * routing_.active() + routing_.expert(t, k)));
    ggml_backend_tensor_set(ids_, ids.data(), 0, ggml_nbytes(ids_));
  }

  void run() {
    if (next_ == 0) set_window(), ++window_;
    if (ggml_backend_graph_compute(machine_.backend, graphs_[next_].graph) != GGML_STATUS_SUCCESS)
      fail("the graph did not run");
    next_ = (next_ + 1) % graphs_.size();
  }

  void check(const Options& o) {
    set_window();
    ggml_backend_graph_compute(machine_.backend, graphs_[0].graph);
    const auto hidden = static_cast<std::size_t>(o.hidden), wide = static_cast<std::size_t>(o.intermediate);
    const auto to_float = ggml_get_type_traits(pool_.type)->to_float;
    for (const long token : {0L, routing_.tokens() - 1}) {
      std::vector<float> found(hidden);
      std::vector<std::vector<double>> parts(static_cast<std::size_t>(o.top_k), std::vector<double>(hidden));
      ggml_backend_tensor_get(graphs_[0].out, found.data(), static_cast<std::size_t>(token) * graphs_[0].out->nb[1],
                              hidden * sizeof(float));
      const float* x = x_values_.data() + static_cast<std::size_t>(token) * hidden;
      in_parallel(o.threads, o.top_k, [&](long k) {
        std::vector<float> row(std::max(hidden, wide)), h(wide);
        const auto product = [&](long which, std::size_t r, std::size_t columns, const float* v) {
          to_float(pool_.matrix(which, routing_.expert(token, k)).data() +
                       r * ggml_row_size(pool_.type, static_cast<long>(columns)),
                   row.data(), static_cast<long>(columns));
          double sum = 0;
          for (std::size_t c = 0; c < columns; ++c) sum += static_cast<double>(row[c]) * v[c];
          return sum;
        };
        for (std::size_t r = 0; r < wide; ++r) {
          const double gate = product(0, r, hidden, x), up = product(1, r, hidden, x);
          h[r] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
        }
        for (std::size_t r = 0; r < hidden; ++r)
          parts[static_cast<std::size_t>(k)][r] = Routing::weight(token, k) * product(2, r, wide, h.data());
      });
      double wrong = 0, all = 0;
      for (std::size_t c = 0; c < hidden; ++c) {
        double expected = 0;
        for (const auto& part : parts) expected += part[c];
        wrong += std::pow(expected - found[c], 2), all += expected * expected;
      }
      error_ = std::max(error_, std::sqrt(wrong / all));
      if (!(std::sqrt(wrong / all) <= kMostError))
        fail(pool_.format + ", " + std::to_string(routing_.per_expert) + " tokens per expert: relative error " +
             std::to_string(std::sqrt(wrong / all)));
    }
  }

  Machine& machine_;
  Pool& pool_;
  Routing routing_;
  ggml_tensor *x_, *ids_, *weights_;
  std::vector<float> x_values_;
  std::vector<Graph> graphs_;
  ggml_gallocr_t memory_ = nullptr;
  long layers_of_graph_ = 1, window_ = 0;
  std::size_t next_ = 0;
  double error_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  ggml_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) std::fputs(text, stderr);
      },
      nullptr);
  Machine machine(options.threads);
  long experts = 0;
  for (const long m : options.tokens) experts = std::max(experts, Routing(m, options).active());
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<std::unique_ptr<Case>> cases;
  std::string about;
  for (const std::string& format : options.formats) {
    pools.push_back(std::make_unique<Pool>(machine, options, format, experts));
    char text[160];
    std::snprintf(text, sizeof text, "%s\"%s\": {\"gib\": %.2f, \"type\": \"%s\", \"buffer\": \"%s\"}",
                  about.empty() ? "" : ", ", format.c_str(), pools.back()->bytes() / (1u << 30),
                  ggml_type_name(pools.back()->type), pools.back()->buffer.c_str());
    about += text;
    for (const long m : options.tokens) cases.push_back(std::make_unique<Case>(machine, options, *pools.back(), m));
  }
  std::printf("{\"ready\": true, \"peer\": \"ggml\", \"weights\": {%s}}\n", about.c_str());
  std::fflush(stdout);
  std::string line;
  for (long round = 0; options.step ? static_cast<bool>(std::getline(std::cin, line)) : round < options.rounds;
       ++round) {
    for (auto& c : cases) {
      std::printf(
          "{\"peer\": \"ggml\", \"variant\": \"%s %s\", \"format\": \"%s\", \"tokens_per_expert\": %ld, \"error\": "
          "%.5f, \"round\": %ld, \"microseconds\": %.2f}\n",
          ggml_type_name(c->pool().type), c->pool().buffer.c_str(), c->pool().format.c_str(), c->per_expert(),
          c->error(), round, c->measure() * 1e6);
      std::fflush(stdout);
    }
    std::printf("{\"round\": %ld, \"done\": true}\n", round);
    std::fflush(stdout);
  }
  return 0;
}
