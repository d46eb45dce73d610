// The whole plan as text, one thing a line. What has a name is referred to by name and, where order means nothing,
// sorted by it: two plans that mean the same give the same text.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "runtime/formats/formats.h"
#include "runtime/plan/text.h"

namespace ktc::plan {

using namespace planfb;

namespace {

using detail::float_text;
using detail::quote;

std::string enum_text(const char* name, std::uint64_t raw) {
  return name[0] == '\0' ? fmt::format("invalid({})", raw) : std::string(name);
}
std::string format_text(std::uint8_t format) {
  return std::string(to_string(static_cast<Format>(format)));
}

class Dump {
 public:
  explicit Dump(const PlanT& plan) : plan_(plan) {}

  std::string run() {
    line("plan KTP1");
    line("  producer {}", quote(plan_.producer));
    line("  required_features {:#x}", plan_.required_features);
    line("  target {}", quote(plan_.target));
    if (plan_.defer_prefill) line("  defer_prefill true");
    if (!plan_.defer_decode) line("  defer_decode false");
    if (plan_.update_every_tokens != 0) line("  update_every_tokens {}", plan_.update_every_tokens);
    for (const auto& choice : plan_.choices) line("choice {} {}", quote(choice->name), fmt::join(choice->options, ", "));
    model(*plan_.model);
    for (const auto& device : plan_.devices)
      line("device {} {} arena_bytes={}", quote(device->name),
           enum_text(EnumNameDeviceKind(device->kind), static_cast<unsigned>(device->kind)), device->arena_bytes);
    account();
    files();
    weights();
    for (std::size_t i = 0; i < plan_.ropes.size(); ++i) rope(i, *plan_.ropes[i]);
    for (const auto& cache : plan_.caches) this->cache(*cache);
    for (const auto& moving : plan_.moving)
      line("moving layer={} cold={}, {} hot={}, {} slots={}", moving->layer, weight(moving->w_cold_gate_up), weight(moving->w_cold_down),
           weight(moving->w_hot_gate_up), weight(moving->w_hot_down), detail::slots_text(moving->slots));
    for (const auto& entry : plan_.entries) this->entry(*entry);
    policy();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  template <typename T>
  static std::vector<const T*> sorted(const std::vector<std::unique_ptr<T>>& items, std::string T::*key) {
    std::vector<const T*> out;
    for (const auto& one : items) out.push_back(one.get());
    std::sort(out.begin(), out.end(), [key](const T* a, const T* b) { return detail::natural_less(a->*key, b->*key); });
    return out;
  }

  std::string device(std::uint32_t index) const {
    return index < plan_.devices.size() ? quote(plan_.devices[index]->name) : fmt::format("invalid({})", index);
  }

  std::string weight(std::uint32_t index) const {
    return index < plan_.weights.size() ? quote(plan_.weights[index]->name) : fmt::format("invalid({})", index);
  }

  void model(const ModelT& model) {
    line("model {} family={} vocab_size={} hidden_size={} layers={} experts={} max_positions={}", quote(model.name),
         quote(model.family), model.vocab_size, model.hidden_size, model.layers, model.experts, model.max_positions);
    line("  bos_token {}", model.bos_token);
    line("  stop_tokens [{}]", fmt::join(model.stop_tokens, ", "));
    if (const SamplingDefaultsT* s = model.sampling.get())
      line("  sampling temperature={} top_k={} top_p={} min_p={} repetition_penalty={}", float_text(s->temperature),
           s->top_k, float_text(s->top_p), float_text(s->min_p), float_text(s->repetition_penalty));
  }

  void account() {
    std::vector<const AccountLineT*> lines;
    for (const auto& one : plan_.account) lines.push_back(one.get());
    std::sort(lines.begin(), lines.end(), [](const AccountLineT* a, const AccountLineT* b) {
      if (a->device != b->device) return a->device < b->device;
      if (a->category != b->category) return a->category < b->category;
      return a->name != b->name ? detail::natural_less(a->name, b->name) : a->bytes < b->bytes;
    });
    for (const AccountLineT* one : lines)
      line("account {} {} {} bytes={}", device(one->device), quote(one->category), quote(one->name), one->bytes);
  }

  void files() {
    for (const WeightFileT* file : sorted(plan_.weight_files, &WeightFileT::path))
      line("weight_file {} bytes={}", quote(file->path), file->bytes);
    for (const TextFileT* file : sorted(plan_.text_files, &TextFileT::name))
      line("text_file {} bytes={} digest={:016x}", quote(file->name), file->bytes, file->digest);
  }

  std::string source(const WeightT& weight) const {
    switch (weight.source) {
      case WeightSource::file: {
        const std::string file = weight.file < plan_.weight_files.size() ? quote(plan_.weight_files[weight.file]->path)
                                                                         : fmt::format("invalid({})", weight.file);
        return fmt::format("file={} offset={} bytes={} digest={:016x}", file, weight.offset, weight.bytes,
                           weight.digest);
      }
      case WeightSource::splat: return fmt::format("splat={} bytes={}", float_text(weight.splat_value), weight.bytes);
      case WeightSource::random:
        return fmt::format("random={}{}{}{} bytes={}", weight.seed, weight.zipf != 0 ? fmt::format(" zipf={}", weight.zipf) : "",
                           weight.deviation != 0 ? fmt::format(" deviation={}", weight.deviation) : "",
                           weight.topics != 0 ? fmt::format(" topics={}", weight.topics) : "", weight.bytes);
      case WeightSource::alias:
        return "alias=" + (weight.alias_of < plan_.weights.size() ? quote(plan_.weights[weight.alias_of]->name)
                                                                  : fmt::format("invalid({})", weight.alias_of));
    }
    return fmt::format("invalid({})", static_cast<unsigned>(weight.source));
  }

  void weights() {
    for (const WeightT* weight : sorted(plan_.weights, &WeightT::name))
      line("weight {} {} {} [{}, {}, {}] on {} {}", quote(weight->name),
           detail::type_text(weight->format, weight->group, weight->packing), to_string(static_cast<Packing>(weight->packing)), weight->batch, weight->rows, weight->columns,
           device(weight->device), source(*weight));
  }

  void rope(std::size_t index, const RopeT& rope) {
    std::string values;
    for (const float value : rope.inv_freq) values += (values.empty() ? "" : ", ") + float_text(value);
    line("rope {} {} factor={} inv_freq=[{}]", index,
         enum_text(EnumNameRopeStyle(rope.style), static_cast<unsigned>(rope.style)), float_text(rope.factor), values);
  }

  void cache(const CacheT& cache) {
    line("cache {} {} on {} layers={} page_tokens={} pages={} tokens_per_sequence={} sequences={}", quote(cache.name),
         format_text(cache.format), device(cache.device), cache.layers, cache.page_tokens, cache.pages,
         cache.tokens_per_sequence, cache.sequences);
    for (const auto& part : cache.parts)
      line("  part {} heads={} width={}", quote(part->name), part->heads, part->width);
  }

  void entry(const EntryT& entry) {
    line("entry {} {} max_tokens={} max_rows={} max_sequences={}{}", quote(entry.name),
         enum_text(EnumNameEntryKind(entry.kind), static_cast<unsigned>(entry.kind)), entry.max_tokens, entry.max_rows,
         entry.max_sequences, entry.from_tokens == 0 ? std::string() : fmt::format(" from_tokens={}", entry.from_tokens));
    for (const auto& b : entry.buffers) {
      const std::string symbol = enum_text(EnumNameSymbol(b->symbol), static_cast<unsigned>(b->symbol));
      const std::string type =
          b->symbol == Symbol::workspace
              ? std::string()
              : fmt::format(" {} [{}, {}] row_bytes={}", format_text(b->format), symbol, b->columns, b->row_bytes);
      line("  buffer {} {}{} on {} offset={} bytes={}", quote(b->name),
           enum_text(EnumNameBufferRole(b->role), static_cast<unsigned>(b->role)), type, device(b->device), b->offset,
           b->bytes);
    }
    for (const auto& graph : entry.graphs) line("  graph {} on {}", quote(graph->name), device(graph->device));
    for (const auto& one : entry.steps) step(entry, *one);
  }

  static std::string views(const EntryT& entry, const std::vector<View>& views) {
    std::string text;
    for (const View& view : views) {
      text += text.empty() ? "" : ", ";
      if (view.buffer() >= entry.buffers.size()) {
        text += fmt::format("invalid({})", view.buffer());
        continue;
      }
      const BufferT& buffer = *entry.buffers[view.buffer()];
      text += quote(buffer.name);
      if (view.column() != 0 || view.columns() != buffer.columns)
        text += fmt::format("[{}+{}]", view.column(), view.columns());
    }
    return text;
  }

  void step(const EntryT& entry, const StepT& step) {
    std::string rest;
    if (step.workspace != kNone)
      rest += " workspace=" + (step.workspace < entry.buffers.size() ? quote(entry.buffers[step.workspace]->name)
                                                                     : fmt::format("invalid({})", step.workspace));
    if (step.graph != kNone)
      rest += " graph=" + (step.graph < entry.graphs.size() ? quote(entry.graphs[step.graph]->name)
                                                            : fmt::format("invalid({})", step.graph));
    if (step.launch_group != kNone) rest += fmt::format(" launch_group={}", step.launch_group);
    if (!step.location.empty()) rest += " from=" + quote(step.location);
    line("  step {} on {} {} {} activations={} ({}) -> ({}){}",
         enum_text(EnumNameStepKind(step.kind), static_cast<unsigned>(step.kind)), device(step.device),
         quote(step.name), detail::op_text(plan_, step.op), format_text(step.activations), views(entry, step.inputs),
         views(entry, step.outputs), rest);
  }

  void policy() {
    line("policy");
    for (std::size_t begin = 0; begin < plan_.policy.size();) {
      const std::size_t end = std::min(plan_.policy.find('\n', begin), plan_.policy.size());
      line("  | {}", std::string_view(plan_.policy).substr(begin, end - begin));
      begin = end + 1;
    }
  }

  const PlanT& plan_;
  std::string text_;
};

}  // namespace

std::string dump(const PlanT& plan) {
  return Dump(plan).run();
}

}  // namespace ktc::plan
