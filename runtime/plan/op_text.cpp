#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "runtime/formats/formats.h"
#include "runtime/plan/text.h"

namespace ktc::plan::detail {

using namespace planfb;

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + "\"";
}

std::string type_text(std::uint8_t format, std::uint16_t group, std::uint8_t packing) {
  std::string text(to_string(static_cast<Format>(format)));
  if (group != 0) return text + fmt::format("/{}", group);
  const bool rows = static_cast<Packing>(packing) == Packing::row_major || static_cast<Format>(format) == Format::bf16;
  return rows ? text : text + "/row";
}

std::string float_text(float value) {
  return fmt::format("{}", value);
}

bool natural_less(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto run = [&digit](std::string_view text, std::size_t from) {
        const std::size_t first = std::min(text.find_first_not_of('0', from), text.size());
        std::size_t end = first;
        while (end < text.size() && digit(text[end])) ++end;
        return std::pair(text.substr(first, end - first), end);
      };
      const auto [x, x_end] = run(a, i);
      const auto [y, y_end] = run(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      i = x_end;
      j = y_end;
    } else {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i;
      ++j;
    }
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // they differ in leading zeros, if at all: a total order
}

namespace {

// Appends ` key=value` pairs.
class Attributes {
 public:
  Attributes(const PlanT& plan, Op type) : plan_(plan), text_(EnumNameOp(type)) {}
  std::string take() { return std::move(text_); }

  Attributes& number(const char* key, std::uint64_t value) { return put(key, fmt::format("{}", value)); }
  Attributes& real(const char* key, float value) { return put(key, float_text(value)); }
  Attributes& text(const char* key, const std::string& value) { return put(key, value); }
  Attributes& flag(const char* key, bool value) { return put(key, value ? "true" : "false"); }
  Attributes& word(const char* key, const char* value, std::uint64_t raw) {
    return put(key, value[0] == '\0' ? fmt::format("invalid({})", raw) : std::string(value));
  }
  Attributes& weight(const char* key, std::uint32_t index) {
    if (index == kNone) return *this;
    return put(key,
               index < plan_.weights.size() ? quote(plan_.weights[index]->name) : fmt::format("invalid({})", index));
  }
  Attributes& cache(std::uint32_t index, std::uint32_t layer) {
    const std::string name =
        index < plan_.caches.size() ? quote(plan_.caches[index]->name) : fmt::format("invalid({})", index);
    return put("cache", fmt::format("{}[{}]", name, layer));
  }

 private:
  Attributes& put(const char* key, const std::string& value) {
    text_ += fmt::format(" {}={}", key, value);
    return *this;
  }
  const PlanT& plan_;
  std::string text_;
};

std::string gqa_text(Attributes text, const GqaOpT& op) {
  text.number("heads", op.heads)
      .number("kv_heads", op.kv_heads)
      .number("head_dim", op.head_dim)
      .real("scale", op.scale);
  text.number("rope", op.rope).weight("w_q_norm", op.w_q_norm).weight("w_k_norm", op.w_k_norm);
  return text.real("norm_eps", op.norm_eps).cache(op.cache, op.cache_layer).take();
}

std::string mla_text(Attributes text, const MlaOpT& op) {
  text.number("heads", op.heads)
      .number("nope_dim", op.nope_dim)
      .number("rope_dim", op.rope_dim)
      .number("v_dim", op.v_dim);
  text.number("latent_dim", op.latent_dim).real("scale", op.scale).number("rope", op.rope);
  return text.weight("w_uk", op.w_uk).weight("w_uv", op.w_uv).cache(op.cache, op.cache_layer).take();
}

std::string route_text(Attributes text, const RouteOpT& op) {
  text.word("kind", EnumNameRouterKind(op.kind), static_cast<std::uint64_t>(op.kind));
  text.weight("w", op.w).weight("w_bias", op.w_bias).number("experts", op.experts).number("top_k", op.top_k);
  text.flag("normalise", op.normalise).real("scale", op.scale).number("groups", op.groups);
  return text.number("topk_groups", op.topk_groups).take();
}

// Only what weights in panels have.
template <typename T>
void tile_text(Attributes& text, const T& op) {
  if (op.x_granule != 0) text.number("x_granule", op.x_granule);
  if constexpr (requires { op.h_granule; }) {
    if (op.h_granule != 0) text.number("h_granule", op.h_granule);
  }
  if (op.tile_rows != 0) text.number("tile_rows", op.tile_rows);
}

std::string experts_text(Attributes text, const ExpertsOpT& op) {
  text.weight("w_gate_up", op.w_gate_up).weight("w_down", op.w_down);
  text.word("activation", EnumNameActivation(op.activation), static_cast<std::uint64_t>(op.activation));
  text.number("layer", op.layer);
  tile_text(text, op);
  if (!op.slots.empty()) text.text("slots", slots_text(op.slots));
  if (op.part != ExpertsPart::all) text.word("part", EnumNameExpertsPart(op.part), static_cast<std::uint64_t>(op.part));
  if (op.late != 0) text.number("late", op.late);
  if (op.late_among_all) text.flag("late_among_all", true);
  if (op.stream) text.flag("stream", true).number("stream_group", op.stream_group);
  if (op.share) {
    const ExpertShareT& s = *op.share;
    text.text("share", fmt::format("ahead={}+{} copy={} gpu={}+{} cpu={}+{} values={}+{}", s.ahead_ns, s.ahead_row_ns, s.copy_ns, s.gpu_ns,
                                   s.gpu_row_ns, s.cpu_ns, s.cpu_row_ns, s.values_ns, s.values_row_ns));
  }
  return text.take();
}

std::string mlp_text(Attributes text, const MlpOpT& op) {
  text.weight("w_gate_up", op.w_gate_up).weight("w_down", op.w_down);
  text.word("activation", EnumNameActivation(op.activation), static_cast<std::uint64_t>(op.activation));
  tile_text(text, op);
  return text.take();
}

std::string norm_text(Attributes text, const NormOpT& op) {
  text.word("kind", EnumNameNormKind(op.kind), static_cast<std::uint64_t>(op.kind));
  return text.weight("w", op.w).real("eps", op.eps).take();
}

std::string publish_text(Attributes text, const PublishOpT& op) {
  text.number("record", op.record).text("format", std::string(to_string(static_cast<Format>(op.format))));
  if (!op.slots.empty()) text.text("slots", slots_text(op.slots));
  return text.take();
}

std::string await_text(Attributes text, const AwaitOpT& op) {
  text.number("record", op.record).text("format", std::string(to_string(static_cast<Format>(op.format))));
  if (op.skip_empty) text.flag("skip_empty", true);
  return text.take();
}

std::string linear_text(Attributes text, const LinearOpT& op) {
  text.weight("w", op.w).weight("w_bias", op.w_bias);
  if (op.head) text.flag("head", true);
  tile_text(text, op);
  return text.take();
}

}  // namespace

std::string op_text(const PlanT& plan, const OpUnion& op) {
  if (op.value == nullptr) return fmt::format("invalid({})", static_cast<unsigned>(op.type));
  Attributes text(plan, op.type);
  switch (op.type) {
    case Op::EmbedOp: return text.weight("w", op.AsEmbedOp()->w).take();
    case Op::NormOp: return norm_text(std::move(text), *op.AsNormOp());
    case Op::LinearOp: return linear_text(std::move(text), *op.AsLinearOp());
    case Op::GqaOp: return gqa_text(std::move(text), *op.AsGqaOp());
    case Op::MlaOp: return mla_text(std::move(text), *op.AsMlaOp());
    case Op::RouteOp: return route_text(std::move(text), *op.AsRouteOp());
    case Op::ExpertsOp: return experts_text(std::move(text), *op.AsExpertsOp());
    case Op::MlpOp: return mlp_text(std::move(text), *op.AsMlpOp());
    case Op::AddNormOp: return text.weight("w", op.AsAddNormOp()->w).real("eps", op.AsAddNormOp()->eps).take();
    case Op::PublishOp: return publish_text(std::move(text), *op.AsPublishOp());
    case Op::AwaitOp: return await_text(std::move(text), *op.AsAwaitOp());
    case Op::CopyOp:
    case Op::AddOp:
    case Op::SelectRowsOp:
    case Op::SampleOp:
    case Op::NONE: break;
  }
  return text.take();
}

// Experts and their matrices, "0-3:0, 9:4": experts 0 to 3 have matrices 0 to 3, expert 9 has 4.
std::string slots_text(const std::vector<std::int32_t>& slots) {
  std::string text;
  for (std::size_t e = 0; e < slots.size();) {
    std::size_t end = e + 1;
    if (slots[e] == -1) {
      ++e;
      continue;
    }
    while (end < slots.size() && slots[e] >= 0 && static_cast<std::int64_t>(slots[end]) - slots[e] == static_cast<std::int64_t>(end - e)) ++end;
    text += text.empty() ? "" : ", ";
    text += end == e + 1 ? fmt::format("{}:{}", e, slots[e]) : fmt::format("{}-{}:{}", e, end - 1, slots[e]);
    e = end;
  }
  return "[" + text + "]";
}

}  // namespace ktc::plan::detail
