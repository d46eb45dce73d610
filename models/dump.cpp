#include "models/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "models/module_schema.h"

namespace ktc::models {
namespace {

std::string_view name_of(RopeStyle style) {
  return style == RopeStyle::half ? "half" : "interleaved";
}
std::string_view name_of(RouterKind kind) {
  return kind == RouterKind::softmax_topk ? "softmax_topk" : "sigmoid_group";
}

std::string describe_rope(const RopeDesc& rope) {
  return fmt::format("rope {} dim {} {} inv_freq[{}] {:g}..{:g} factor {:g} softmax_factor {:g}", name_of(rope.style),
                     rope.dim, rope.type, rope.inv_freq.size(), rope.inv_freq.empty() ? 0 : rope.inv_freq.front(),
                     rope.inv_freq.empty() ? 0 : rope.inv_freq.back(), rope.factor, rope.softmax_factor);
}

struct DescribeAttributes {
  std::string operator()(const EmbeddingDesc&) const { return ""; }
  std::string operator()(const HeadDesc&) const { return ""; }
  std::string operator()(const NormDesc& d) const { return fmt::format(" rms eps {:g}", d.eps); }
  std::string operator()(const GqaDesc& d) const {
    return fmt::format(" gqa heads {} kv_heads {} head_dim {} scale {:g} norm_eps {:g} {}", d.heads, d.kv_heads,
                       d.head_dim, d.scale, d.norm_eps, describe_rope(d.rope));
  }
  std::string operator()(const MlaDesc& d) const {
    return fmt::format(" mla heads {} q_rank {} kv_rank {} nope {} rope {} v {} scale {:g} latent_eps {:g} {}", d.heads,
                       d.q_rank, d.kv_rank, d.nope_dim, d.rope_dim, d.v_dim, d.scale, d.latent_eps,
                       describe_rope(d.rope));
  }
  std::string operator()(const RouterDesc& d) const {
    return fmt::format(" {} experts {} top_k {} groups {} topk_groups {} normalise {} scale {:g}", name_of(d.kind),
                       d.experts, d.top_k, d.groups, d.topk_groups, d.normalise, d.scale);
  }
  std::string operator()(const ExpertsDesc& d) const {
    return fmt::format(" swiglu experts {} intermediate {}", d.experts, d.intermediate);
  }
  std::string operator()(const MlpDesc& d) const { return fmt::format(" swiglu intermediate {}", d.intermediate); }
};

// The slots of a module, by their names: module name and role.
std::vector<std::uint32_t> slots_of(const ModelDesc& model, const Module& module) {
  std::vector<std::uint32_t> slots;
  for (std::uint32_t i = 0; i < model.slots.size(); ++i) {
    const std::string& name = model.slots[i].name;
    const std::size_t dot = name.rfind('.');
    if (dot != std::string::npos && std::string_view(name).substr(0, dot) == module.name) slots.push_back(i);
  }
  return slots;
}

}  // namespace

std::string describe(const SkippedTensors& skipped) {
  std::string layers;
  if (skipped.layers > 0) layers = fmt::format(" {} layer{},", skipped.layers, skipped.layers == 1 ? "" : "s");
  return fmt::format("{}:{} {} tensor{}, {} bytes", skipped.reason, layers, skipped.tensors.size(),
                     skipped.tensors.size() == 1 ? "" : "s", skipped.bytes);
}

std::string dump(const ModelDesc& model, const DumpOptions& options) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : model.tensors) bytes += tensor.bytes;
  std::string text;
  text += fmt::format("model {} family {} architecture {}\n", model.name, model.family, model.architecture);
  text += fmt::format("hidden {} vocab {} layers {} max_positions {}\n", model.hidden, model.vocab, model.layers.size(),
                      model.max_positions);
  text += fmt::format("bos {} stop [{}]\n", model.bos_token, fmt::join(model.stop_tokens, ", "));
  const SamplingDefaults& s = model.sampling;
  auto sampling = [&](std::string_view name, const auto& value) {
    if (value) text += fmt::format("sampling {} {:g}\n", name, static_cast<double>(*value));
  };
  sampling("temperature", s.temperature);
  sampling("top_k", s.top_k);
  sampling("top_p", s.top_p);
  sampling("min_p", s.min_p);
  sampling("repetition_penalty", s.repetition_penalty);
  text += fmt::format("shards {} tensors {} bytes {}\n", model.shards.size(), model.tensors.size(), bytes);
  text += fmt::format("head {}\n", model.tied_head ? "tied to the embedding" : "of its own");
  for (const SkippedTensors& skipped : model.skipped) text += "skipped " + describe(skipped) + "\n";
  for (const std::string& file : model.text_files) text += "text file " + file + "\n";
  for (const Module& module : model.modules) {
    text += fmt::format("{} {}{} @{}:{}\n", to_string(module.cls), module.name,
                        std::visit(DescribeAttributes{}, module.attributes), module.line.file, module.line.line);
    if (!options.slots) continue;
    for (std::uint32_t index : slots_of(model, module)) {
      const WeightSlot& slot = model.slots[index];
      text += fmt::format("  {} {} {} from {} tensor{}\n", slot.name,
                          to_string(SlotShape{slot.batch, slot.rows, slot.columns}), to_string(slot.type),
                          slot.pieces.size(), slot.pieces.size() == 1 ? "" : "s");
      if (!options.tensors) continue;
      for (const TensorPiece& piece : slot.pieces)
        text +=
            fmt::format("    {} at [{}, {}]\n", model.tensors[piece.tensor].name, piece.batch_begin, piece.row_begin);
    }
  }
  return text;
}

}  // namespace ktc::models
