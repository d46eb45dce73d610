#include "models/account.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "models/nearest.h"

namespace ktc::models {
namespace {

constexpr std::size_t kNamed = 10;  // problems listed by name

std::string quote(std::string_view name) {
  return "'" + std::string(name.substr(0, 160)) + (name.size() > 160 ? "...'" : "'");
}

std::string show_shape(const std::vector<std::uint64_t>& shape) {
  return shape.size() > 8 ? fmt::format("[{} dimensions]", shape.size()) : fmt::format("[{}]", fmt::join(shape, ", "));
}

bool has_element(std::string_view name, const std::string& element) {
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    if (name.substr(at, dot - at) == element) return true;
    at = dot + 1;
  }
  return false;
}

}  // namespace

LayerNumber layer_number(std::string_view name) {
  constexpr std::string_view kElement = "layers.";
  for (std::size_t at = name.find(kElement); at != std::string_view::npos; at = name.find(kElement, at + 1)) {
    if (at > 0 && name[at - 1] != '.') continue;
    const char* first = name.data() + at + kElement.size();
    const char* last = name.data() + name.size();
    std::int64_t number = 0;
    const auto [end, failure] = std::from_chars(first, last, number);
    if (failure != std::errc() || end == last || *end != '.' || number < 0) continue;
    return {number, name.substr(0, static_cast<std::size_t>(end - name.data()) + 1)};
  }
  return {};
}

Account::Account(const Checkpoint& checkpoint, const ModelConfig& config)
    : checkpoint_(checkpoint), config_(config), claimed_(checkpoint.tensors.size()) {
  index_.reserve(checkpoint.tensors.size());
  for (std::uint32_t i = 0; i < checkpoint.tensors.size(); ++i) index_.emplace(checkpoint.tensors[i].name, i);
}

std::uint32_t Account::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? kNoTensor : it->second;
}

void Account::add_problem(std::string text) {
  problems_.push_back(std::move(text));
}

void Account::fill(WeightSlot* slot, const std::vector<std::vector<WantedTensor>>& alternatives) {
  if (checkpoint_.assumed) return;  // bf16, in no tensor
  // the alternative of which the largest share exists; the first one among equals
  const std::vector<WantedTensor>* chosen = nullptr;
  double best = 0;
  for (const auto& alternative : alternatives) {
    std::size_t present = 0;
    for (const WantedTensor& wanted : alternative) present += find(wanted.name) != kNoTensor;
    const double share = static_cast<double>(present) / static_cast<double>(alternative.size());
    if (share > best) chosen = &alternative, best = share;
  }
  if (chosen) {
    for (const WantedTensor& wanted : *chosen) claim(slot, wanted);
    return;
  }
  // nothing of it is there: one problem for the slot, whatever the number of its tensors
  std::string text;
  for (const auto& alternative : alternatives) {
    const WantedTensor& first = alternative.front();
    text += text.empty() ? fmt::format("missing {} {}", quote(first.name), show_shape(first.shape))
                         : fmt::format(" or {} {}", quote(first.name), show_shape(first.shape));
    if (alternative.size() > 1) text += fmt::format(" and {} more", alternative.size() - 1);
  }
  text += fmt::format(" (slot {})", slot->name);
  for (const auto& alternative : alternatives)
    missing_.push_back({alternative.front().name, &alternative == &alternatives.front() ? text : std::string()});
}

void Account::claim(WeightSlot* slot, const WantedTensor& wanted) {
  const std::uint32_t index = find(wanted.name);
  if (index == kNoTensor) {
    missing_.push_back({wanted.name, fmt::format("missing {} {} (slot {})", quote(wanted.name),
                                                 show_shape(wanted.shape), slot->name)});
    return;
  }
  const Tensor& tensor = checkpoint_.tensors[index];
  if (claimed_[index])
    return add_problem(fmt::format("{} is asked for by two slots, the second is {}", quote(wanted.name), slot->name));
  claimed_[index] = true;
  if (tensor.shape != wanted.shape)
    return add_problem(fmt::format("misshapen {}: found {}, expected {}", quote(wanted.name), show_shape(tensor.shape),
                                   show_shape(wanted.shape)));
  if (tensor.type == TensorType::other)
    return add_problem(
        fmt::format("type of {}: found {}, expected BF16, F32, F16 or F8_E4M3", quote(wanted.name), checkpoint_.dtypes[index]));
  if (slot->pieces.empty()) slot->type = tensor.type;
  if (slot->type != tensor.type)
    return add_problem(fmt::format("type of {}: found {}, expected {} like the other tensors of slot {}",
                                   quote(wanted.name), checkpoint_.dtypes[index],
                                   checkpoint_.dtypes[slot->pieces.front().tensor], slot->name));
  TensorPiece piece;
  piece.tensor = index;
  piece.batch_begin = wanted.batch_begin;
  piece.row_begin = wanted.row_begin;
  if (tensor.type == TensorType::f8_e4m3 && !claim_scales(&piece, *slot)) return;
  slot->pieces.push_back(piece);
}

// What a tensor is stored in is said by the tensor itself, not by config.json: only those in FP8 have scales. Spellings:
// NAME_scale_inv [ceil(rows / 128), ceil(columns / 128)], which multiplies in spite of its name; NAME_scale of the same
// shape, or one per row [rows] or [rows, 1], or one for all [] or [1].
bool Account::claim_scales(TensorPiece* piece, const WeightSlot& slot) {
  constexpr std::uint64_t kBlock = 128;
  const Tensor& tensor = checkpoint_.tensors[piece->tensor];
  if (tensor.shape.size() != 2) {
    add_problem(fmt::format("shape of {} in FP8: found {}, expected a matrix", quote(tensor.name), show_shape(tensor.shape)));
    return false;
  }
  const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
  const std::vector<std::uint64_t> blocks{(rows + kBlock - 1) / kBlock, (columns + kBlock - 1) / kBlock};
  std::uint32_t scales = find(tensor.name + "_scale_inv");
  const bool inverse = scales != kNoTensor;
  if (!inverse) scales = find(tensor.name + "_scale");
  if (scales == kNoTensor) {
    missing_.push_back({tensor.name + "_scale_inv", fmt::format("missing {} {} (scales of an FP8 tensor of slot {})",
                                                                quote(tensor.name + "_scale_inv"), show_shape(blocks), slot.name)});
    return false;
  }
  const Tensor& found = checkpoint_.tensors[scales];
  if (claimed_[scales]) {
    add_problem(fmt::format("{} is asked for by two slots, the second is {}", quote(found.name), slot.name));
    return false;
  }
  claimed_[scales] = true;
  if (found.type != TensorType::f32) {
    add_problem(fmt::format("type of {}: found {}, expected F32", quote(found.name), checkpoint_.dtypes[scales]));
    return false;
  }
  piece->scales = scales;
  using Shape = std::vector<std::uint64_t>;
  if (found.shape == blocks) {
    piece->scale_rows = piece->scale_columns = kBlock;
  } else if (!inverse && (found.shape == Shape{rows} || found.shape == Shape{rows, 1})) {
    piece->scale_rows = 1;
    piece->scale_columns = columns;
  } else if (!inverse && (found.shape.empty() || found.shape == Shape{1})) {
    piece->scale_rows = rows;
    piece->scale_columns = columns;
  } else {
    add_problem(fmt::format("misshapen {}: found {}, expected {} for blocks of 128 x 128", quote(found.name),
                            show_shape(found.shape), show_shape(blocks)));
    return false;
  }
  return true;
}

void Account::skip(std::uint32_t index, const std::string& reason) {
  claimed_[index] = true;
  auto group =
      std::find_if(skipped_.begin(), skipped_.end(), [&](const SkippedTensors& s) { return s.reason == reason; });
  if (group == skipped_.end()) group = skipped_.insert(group, SkippedTensors{reason, {}, 0, 0});
  group->tensors.push_back(index);
  group->bytes += checkpoint_.tensors[index].bytes;
}

bool Account::skips(const SkipSpec& skip, const std::string& name) const {
  for (const std::string& prefix : skip.prefixes)
    if (name.starts_with(prefix)) return true;
  for (const std::string& suffix : skip.suffixes)
    if (name.ends_with(suffix)) return true;
  if (!skip.layers_beyond) return false;
  const LayerNumber layer = layer_number(name);
  const std::int64_t layers = config_.integer("layers");
  const std::int64_t announced = skip.announced.empty() ? 0 : config_.integer(skip.announced);
  if (layer.number < layers) return false;
  // A layer that the config does not announce could be a real one, beyond a wrong num_hidden_layers: it must show what
  // it is.
  return layer.number < layers + announced ||
         std::binary_search(marked_layers_.begin(), marked_layers_.end(), layer.prefix);
}

void Account::apply_skips() {
  const auto& specs = config_.family().skips;
  for (const SkipSpec& spec : specs)
    for (std::uint32_t i = 0; i < claimed_.size(); ++i) {
      if (claimed_[i]) continue;
      const std::string& name = checkpoint_.tensors[i].name;
      const bool marked = std::any_of(spec.markers.begin(), spec.markers.end(),
                                      [&](const std::string& m) { return has_element(name, m); });
      if (marked && layer_number(name).number >= 0) marked_layers_.emplace_back(layer_number(name).prefix);
    }
  std::sort(marked_layers_.begin(), marked_layers_.end());
  for (const SkipSpec& spec : specs)
    for (std::uint32_t i = 0; i < claimed_.size(); ++i)
      if (!claimed_[i] && skips(spec, checkpoint_.tensors[i].name)) skip(i, spec.reason);
  for (SkippedTensors& group : skipped_) {
    std::set<std::int64_t> layers;
    for (std::uint32_t i : group.tensors)
      if (const auto layer = layer_number(checkpoint_.tensors[i].name); layer.number >= 0) layers.insert(layer.number);
    group.layers = static_cast<std::uint32_t>(layers.size());
    std::sort(group.tensors.begin(), group.tensors.end());
  }
}

Status Account::finish(std::vector<SkippedTensors>* skipped, std::vector<std::string>* warnings) {
  apply_skips();
  KTC_RETURN_IF_ERROR(report());
  for (const SkipSpec& spec : config_.family().skips) {
    if (spec.announced.empty() || config_.integer(spec.announced) <= 0) continue;
    const bool present =
        std::any_of(skipped_.begin(), skipped_.end(), [&](const SkippedTensors& s) { return s.reason == spec.reason; });
    if (!present)
      warnings->push_back(
          fmt::format("{}: {} = {} announces layers that the checkpoint does not have; generation does not need them",
                      config_.file(), config_.key_of(spec.announced), config_.integer(spec.announced)));
  }
  *skipped = std::move(skipped_);
  return Status();
}

Status Account::report() const {
  std::vector<std::string> texts;
  std::vector<std::string> missing_names;
  for (const Missing& missing : missing_) {
    if (!missing.text.empty()) texts.push_back(missing.text);
    if (missing_names.size() < 2000) missing_names.push_back(missing.name);
  }
  const std::size_t missing_count = texts.size();
  texts.insert(texts.end(), problems_.begin(), problems_.end());
  std::size_t unknown = 0;
  for (std::uint32_t i = 0; i < claimed_.size() && !hopeless(); ++i) {
    if (claimed_[i]) continue;
    ++unknown;
    if (unknown > kNamed) {  // only counted
      texts.emplace_back();
      continue;
    }
    const Tensor& tensor = checkpoint_.tensors[i];
    std::string text = fmt::format("unknown {} {}", quote(tensor.name), show_shape(tensor.shape));
    const LayerNumber layer = layer_number(tensor.name);
    const std::int64_t layers = config_.integer("layers");
    if (const std::string nearest = nearest_name(tensor.name, missing_names); !nearest.empty())
      text += fmt::format(" (did you mean {}?)", quote(nearest));
    else if (layer.number >= layers)
      text += fmt::format(" (of layer {}, but {} = {})", layer.number, config_.key_of("layers"), layers);
    texts.push_back(std::move(text));
  }
  if (texts.empty()) return Status();
  // up to ten by name; a few of each kind tell more than ten of one
  const std::size_t wrong = problems_.size();
  const std::size_t show_missing = std::min(missing_count, kNamed - std::min(kNamed / 2, wrong + unknown));
  const std::size_t show_wrong = std::min(wrong, kNamed - show_missing - std::min<std::size_t>(unknown, 2));
  const std::size_t show_unknown = std::min(unknown, kNamed - show_missing - show_wrong);
  std::vector<std::string> shown(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(show_missing));
  const auto at = [&](std::size_t i) { return texts.begin() + static_cast<std::ptrdiff_t>(i); };
  shown.insert(shown.end(), at(missing_count), at(missing_count + show_wrong));
  shown.insert(shown.end(), at(missing_count + wrong), at(missing_count + wrong + show_unknown));
  std::string what =
      fmt::format("{}{} of the checkpoint's tensors do not fit family {}: {}", hopeless() ? "more than " : "",
                  texts.size(), config_.family().name, fmt::join(shown, "; "));
  if (texts.size() > shown.size()) what += fmt::format("; and {} more", texts.size() - shown.size());
  const bool only_missing = missing_count == texts.size();
  return make_error(StatusCode::data_corrupt, {std::filesystem::path(config_.file()).parent_path().string(),
                                               what,
                                               {},
                                               {},
                                               only_missing ? "incomplete download? fetch the checkpoint again"
                                                            : "config.json and tensors must describe the same model"});
}

}  // namespace ktc::models
