#include "test/exec/reference_forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ktc::test {
namespace {

using Vector = std::vector<double>;
using M = TinyModel;

Vector slice(const Vector& v, std::size_t begin, std::size_t count) {
  return Vector(v.begin() + static_cast<std::ptrdiff_t>(begin), v.begin() + static_cast<std::ptrdiff_t>(begin + count));
}

double dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

Vector add(const Vector& a, const Vector& b) {
  Vector sum(a);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

class Reference {
 public:
  explicit Reference(const TinyModel& model) : model_(model), keys_(M::kLayers), values_(M::kLayers), rope_keys_(M::kLayers) {}

  Vector token(std::int32_t id, std::size_t position) {
    Vector x = row("embed", static_cast<std::size_t>(id), M::kHidden);
    for (std::size_t l = 0; l < M::kLayers; ++l) {
      prefix_ = "layers." + std::to_string(l) + ".";
      const Vector normed = norm(x, at("attention_norm"));
      x = add(x, multiply(at("o"), 0, M::kHidden, model_.options.mla ? mla(normed, l, position) : gqa(normed, l, position)));
      const Vector normed2 = norm(x, at("mlp_norm"));
      if (!model_.options.mla) {
        x = add(x, experts(normed2, softmax_route(normed2)));
      } else if (l == 0) {
        x = add(x, mlp(at("mlp"), 0, M::kDense, normed2));
      } else {
        x = add(add(x, experts(normed2, group_route(normed2))), mlp(at("shared"), 0, M::kShared, normed2));
      }
    }
    return multiply("head", 0, M::kVocabulary, norm(x, "final_norm"));
  }

 private:
  std::string at(const char* suffix) const { return prefix_ + suffix; }
  Vector row(const std::string& name, std::size_t r, std::size_t columns) const {
    const std::vector<float>& v = model_.values.at(name);
    return Vector(v.begin() + static_cast<std::ptrdiff_t>(r * columns), v.begin() + static_cast<std::ptrdiff_t>((r + 1) * columns));
  }
  // Rows [first, first + count) of a weight with as many columns as x.
  Vector multiply(const std::string& name, std::size_t first, std::size_t count, const Vector& x) const {
    Vector y(count);
    for (std::size_t r = 0; r < count; ++r) y[r] = dot(row(name, first + r, x.size()), x);
    return y;
  }
  Vector norm(const Vector& x, const std::string& name) const {
    const double factor = 1.0 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + static_cast<double>(M::kEps));
    const Vector weight = row(name, 0, x.size());
    Vector y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
    return y;
  }
  void rotate(Vector& x, std::size_t position, bool interleaved, double factor) const {
    const std::size_t half = model_.inv_freq.size();
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * static_cast<double>(model_.inv_freq[i]);
      double& a = x[interleaved ? 2 * i : i];
      double& b = x[interleaved ? 2 * i + 1 : i + half];
      const double c = std::cos(angle) * factor, s = std::sin(angle) * factor, old = a;
      a = old * c - b * s;
      b = b * c + old * s;
    }
  }
  Vector cached(Vector x) const {
    if (model_.options.cache == Format::bf16)
      for (double& v : x) v = static_cast<double>(bf16_to_f32(f32_to_bf16(static_cast<float>(v))));
    return x;
  }
  static Vector softmax(Vector s) {
    const double top = *std::max_element(s.begin(), s.end());
    double sum = 0;
    for (double& v : s) sum += v = std::exp(v - top);
    for (double& v : s) v /= sum;
    return s;
  }

  Vector gqa(const Vector& x, std::size_t l, std::size_t position) {
    const std::size_t d = M::kHeadDim, kv0 = M::kHeads * d, v0 = kv0 + M::kKvHeads * d;
    const Vector qkv = add(multiply(at("qkv"), 0, v0 + M::kKvHeads * d, x), row(at("qkv_bias"), 0, v0 + M::kKvHeads * d));
    for (std::size_t h = 0; h < M::kKvHeads; ++h) {
      Vector k = norm(slice(qkv, kv0 + h * d, d), at("k_norm"));
      rotate(k, position, false, 1.0);
      keys_[l].push_back(cached(k));
      values_[l].push_back(cached(slice(qkv, v0 + h * d, d)));
    }
    Vector out;
    for (std::size_t h = 0; h < M::kHeads; ++h) {
      Vector q = norm(slice(qkv, h * d, d), at("q_norm"));
      rotate(q, position, false, 1.0);
      const std::size_t kv = h / (M::kHeads / M::kKvHeads);
      Vector scores;
      for (std::size_t j = 0; j <= position; ++j)
        scores.push_back(static_cast<double>(M::kScale) * dot(q, keys_[l][j * M::kKvHeads + kv]));
      const Vector p = softmax(scores);
      Vector o(d, 0.0);
      for (std::size_t j = 0; j <= position; ++j)
        for (std::size_t c = 0; c < d; ++c) o[c] += p[j] * values_[l][j * M::kKvHeads + kv][c];
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }

  // Keys and values of each head are expanded from the latent: the executor absorbs them into query and output instead.
  Vector mla(const Vector& x, std::size_t l, std::size_t position) {
    const double factor = static_cast<double>(M::kRopeFactor);
    const Vector q_a = norm(multiply(at("q_a"), 0, M::kQueryRank, x), at("q_a_norm"));
    const Vector q = multiply(at("q_b"), 0, M::kMlaHeads * (M::kNope + M::kRope), q_a);
    const Vector kv_a = multiply(at("kv_a"), 0, M::kLatent + M::kRope, x);
    const Vector latent = cached(norm(slice(kv_a, 0, M::kLatent), at("kv_a_norm")));
    Vector k_rope = slice(kv_a, M::kLatent, M::kRope);
    rotate(k_rope, position, true, factor);
    rope_keys_[l].push_back(cached(k_rope));
    for (std::size_t h = 0; h < M::kMlaHeads; ++h) {
      Vector key(M::kNope, 0.0);
      for (std::size_t c = 0; c < M::kLatent; ++c) {
        const Vector w = row(at("w_uk"), h * M::kLatent + c, M::kNope);
        for (std::size_t n = 0; n < M::kNope; ++n) key[n] += w[n] * latent[c];
      }
      keys_[l].push_back(key);
      values_[l].push_back(multiply(at("w_uv"), h * M::kValue, M::kValue, latent));
    }
    Vector out;
    for (std::size_t h = 0; h < M::kMlaHeads; ++h) {
      const Vector nope = slice(q, h * (M::kNope + M::kRope), M::kNope);
      Vector rope = slice(q, h * (M::kNope + M::kRope) + M::kNope, M::kRope);
      rotate(rope, position, true, factor);
      Vector scores;
      for (std::size_t j = 0; j <= position; ++j)
        scores.push_back(static_cast<double>(M::kMlaScale) *
                         (dot(nope, keys_[l][j * M::kMlaHeads + h]) + dot(rope, rope_keys_[l][j])));
      const Vector p = softmax(scores);
      Vector o(M::kValue, 0.0);
      for (std::size_t j = 0; j <= position; ++j)
        for (std::size_t c = 0; c < M::kValue; ++c) o[c] += p[j] * values_[l][j * M::kMlaHeads + h][c];
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }

  Vector mlp(const std::string& name, std::size_t expert, std::size_t intermediate, const Vector& x) const {
    const Vector gate = multiply(name + ".gate_up", expert * 2 * intermediate, intermediate, x);
    const Vector up = multiply(name + ".gate_up", expert * 2 * intermediate + intermediate, intermediate, x);
    Vector hidden(intermediate);
    for (std::size_t i = 0; i < intermediate; ++i) hidden[i] = gate[i] * sigmoid(gate[i]) * up[i];
    return multiply(name + ".down", expert * M::kHidden, M::kHidden, hidden);
  }

  using Routing = std::vector<std::pair<std::size_t, double>>;
  static std::vector<std::size_t> largest(const Vector& v, std::size_t count) {
    std::vector<std::size_t> order(v.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return v[a] != v[b] ? v[a] > v[b] : a < b; });
    order.resize(count);
    return order;
  }
  Routing softmax_route(const Vector& x) const {
    const Vector p = softmax(multiply(at("router"), 0, M::kExperts, x));
    Routing routing;
    double sum = 0;
    for (const std::size_t e : largest(p, M::kTopK)) {
      routing.emplace_back(e, p[e]);
      sum += p[e];
    }
    for (auto& [e, w] : routing) w /= sum;
    return routing;
  }
  Routing group_route(const Vector& x) const {
    const Vector logits = multiply(at("router"), 0, M::kMlaExperts, x), bias = row(at("router_bias"), 0, M::kMlaExperts);
    const std::size_t size = M::kMlaExperts / M::kGroups;
    Vector choice(M::kMlaExperts), groups;
    for (std::size_t e = 0; e < choice.size(); ++e) choice[e] = sigmoid(logits[e]) + bias[e];
    for (std::size_t g = 0; g < M::kGroups; ++g) {
      const Vector members = slice(choice, g * size, size);
      const auto best = largest(members, 2);
      groups.push_back(members[best[0]] + members[best[1]]);
    }
    const auto kept = largest(groups, M::kTopkGroups);
    for (std::size_t e = 0; e < choice.size(); ++e)
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) choice[e] = -1e30;
    Routing routing;
    double sum = 0;
    for (const std::size_t e : largest(choice, M::kMlaTopK)) {
      routing.emplace_back(e, sigmoid(logits[e]));
      sum += sigmoid(logits[e]);
    }
    for (auto& [e, w] : routing) w *= static_cast<double>(M::kRouterScale) / sum;
    return routing;
  }
  Vector experts(const Vector& x, const Routing& routing) const {
    Vector sum(M::kHidden, 0.0);
    for (const auto& [e, w] : routing) {
      const Vector y = mlp(at("experts"), e, M::kIntermediate, x);
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += w * y[c];
    }
    return sum;
  }

  const TinyModel& model_;
  std::string prefix_;
  std::vector<std::vector<Vector>> keys_, values_, rope_keys_;  // [layer][token * heads + head]
};

}  // namespace

std::vector<std::vector<double>> reference_logits(const TinyModel& model, std::span<const std::int32_t> ids) {
  Reference reference(model);
  std::vector<std::vector<double>> logits;
  for (std::size_t i = 0; i < ids.size(); ++i) logits.push_back(reference.token(ids[i], i));
  return logits;
}

}  // namespace ktc::test
