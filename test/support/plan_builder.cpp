#include "test/support/plan_builder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace ktc::test {

using namespace planfb;

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "ktc-test-XXXXXX").string();
  if (mkdtemp(name.data()) != nullptr) path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

bool write_file(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return static_cast<bool>(file.flush());
}

}  // namespace

std::uint32_t EntryBuilder::buffer(const std::string& name, BufferRole role, Symbol symbol, std::uint64_t columns,
                                   Format format) {
  auto buffer = std::make_unique<BufferT>();
  buffer->name = name;
  buffer->role = role;
  buffer->symbol = symbol;
  buffer->format = static_cast<std::uint8_t>(format);
  buffer->columns = columns;
  buffer->row_bytes = format == Format::i32 && columns == 1 ? 4 : round_up(columns * 4, 64);
  buffer->offset = end_;
  buffer->bytes = buffer->row_bytes * (symbol == Symbol::rows ? entry_.max_rows : entry_.max_tokens);
  end_ += round_up(buffer->bytes, 64);
  plan_.plan_.devices[0]->arena_bytes = std::max(plan_.plan_.devices[0]->arena_bytes, end_);
  entry_.buffers.push_back(std::move(buffer));
  return static_cast<std::uint32_t>(entry_.buffers.size() - 1);
}

std::uint32_t EntryBuilder::workspace(const std::string& name, std::uint64_t bytes) {
  const std::uint32_t index = buffer(name, BufferRole::workspace, Symbol::workspace, 0);
  BufferT& buffer = *entry_.buffers[index];
  buffer.row_bytes = 0;
  buffer.bytes = bytes;
  end_ = buffer.offset + round_up(bytes, 64);
  plan_.plan_.devices[0]->arena_bytes = std::max(plan_.plan_.devices[0]->arena_bytes, end_);
  return index;
}

View EntryBuilder::view(std::uint32_t buffer) const { return View(buffer, 0, entry_.buffers[buffer]->columns); }

StepT& EntryBuilder::add_step(const std::string& name, std::initializer_list<View> inputs,
                              std::initializer_list<View> outputs, std::uint32_t workspace) {
  auto step = std::make_unique<StepT>();
  step->kind = StepKind::compute;
  step->activations = static_cast<std::uint8_t>(Format::f32);
  step->inputs = inputs;
  step->outputs = outputs;
  step->workspace = workspace;
  step->name = name;
  entry_.steps.push_back(std::move(step));
  return *entry_.steps.back();
}

PlanBuilder::PlanBuilder(std::string name) {
  plan_.producer = "ktc test";
  plan_.model = std::make_unique<ModelT>();
  plan_.model->name = std::move(name);
  plan_.model->family = "test";
  auto device = std::make_unique<DeviceT>();
  device->name = "cpu";
  device->kind = DeviceKind::cpu;
  plan_.devices.push_back(std::move(device));
  auto file = std::make_unique<WeightFileT>();
  file->path = "all.weights";
  plan_.weight_files.push_back(std::move(file));
}

WeightT& PlanBuilder::add_weight(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows,
                                 std::uint64_t columns) {
  auto weight = std::make_unique<WeightT>();
  weight->name = name;
  weight->format = static_cast<std::uint8_t>(format);
  weight->packing = static_cast<std::uint8_t>(Packing::row_major);
  weight->batch = batch;
  weight->rows = rows;
  weight->columns = columns;
  weight->bytes = packed_bytes(format, Packing::row_major, batch, rows, columns).value_or(0);
  plan_.weights.push_back(std::move(weight));
  return *plan_.weights.back();
}

std::uint32_t PlanBuilder::weight(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows,
                                  std::uint64_t columns, std::vector<float>& values) {
  WeightT& weight = add_weight(name, format, batch, rows, columns);
  weight.source = WeightSource::file;
  weight.file = 0;
  bytes_.resize(round_up(bytes_.size(), batch > 1 ? 4096 : 64));
  weight.offset = bytes_.size();
  bytes_.resize(bytes_.size() + weight.bytes);
  const std::uint64_t row_bytes = packed_row_bytes(format, Packing::row_major, columns);
  for (std::uint64_t r = 0; r < batch * rows; ++r) {
    for (std::uint64_t c = 0; c < columns; ++c) {
      float& value = values[r * columns + c];
      std::byte* to = bytes_.data() + weight.offset + r * row_bytes;
      if (format == Format::bf16) {
        const std::uint16_t bits = f32_to_bf16(value);
        value = bf16_to_f32(bits);
        std::memcpy(to + 2 * c, &bits, 2);
      } else {
        std::memcpy(to + 4 * c, &value, 4);
      }
    }
  }
  weight.digest = plan::digest64({bytes_.data() + weight.offset, weight.bytes});
  return static_cast<std::uint32_t>(plan_.weights.size() - 1);
}

std::uint32_t PlanBuilder::splat(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows,
                                 std::uint64_t columns, float value) {
  WeightT& weight = add_weight(name, format, batch, rows, columns);
  weight.source = WeightSource::splat;
  weight.splat_value = value;
  return static_cast<std::uint32_t>(plan_.weights.size() - 1);
}

std::uint32_t PlanBuilder::alias(const std::string& name, std::uint32_t target) {
  const WeightT& of = *plan_.weights[target];
  WeightT& weight = add_weight(name, static_cast<Format>(of.format), of.batch, of.rows, of.columns);
  weight.source = WeightSource::alias;
  weight.alias_of = target;
  return static_cast<std::uint32_t>(plan_.weights.size() - 1);
}

std::uint32_t PlanBuilder::rope(RopeStyle style, std::vector<float> inv_freq, float factor) {
  auto rope = std::make_unique<RopeT>();
  rope->style = style;
  rope->inv_freq = std::move(inv_freq);
  rope->factor = factor;
  plan_.ropes.push_back(std::move(rope));
  return static_cast<std::uint32_t>(plan_.ropes.size() - 1);
}

std::uint32_t PlanBuilder::cache(const std::string& name, Format format, std::uint32_t layers, std::initializer_list<Part> parts,
                                 std::uint32_t page_tokens, std::uint32_t tokens_per_sequence, std::uint32_t sequences) {
  auto cache = std::make_unique<CacheT>();
  cache->name = name;
  cache->format = static_cast<std::uint8_t>(format);
  cache->layers = layers;
  std::uint64_t page_bytes = 0;
  for (const Part& part : parts) {
    auto p = std::make_unique<CachePartT>();
    p->name = part.name;
    p->heads = part.heads;
    p->width = part.width;
    cache->parts.push_back(std::move(p));
    page_bytes += std::uint64_t{part.heads} * page_tokens * part.width * static_cast<std::uint64_t>(format_bits(format) / 8);
  }
  cache->page_tokens = page_tokens;
  cache->tokens_per_sequence = tokens_per_sequence;
  cache->sequences = sequences;
  cache->pages = sequences * ((tokens_per_sequence + page_tokens - 1) / page_tokens);
  auto line = std::make_unique<AccountLineT>();
  line->category = "kv-cache";
  line->name = name;
  line->bytes = page_bytes * cache->pages * layers;
  plan_.account.push_back(std::move(line));
  plan_.caches.push_back(std::move(cache));
  return static_cast<std::uint32_t>(plan_.caches.size() - 1);
}

EntryBuilder PlanBuilder::entry(EntryKind kind, std::uint32_t max_tokens, std::uint32_t max_rows, std::uint32_t max_sequences) {
  auto entry = std::make_unique<EntryT>();
  entry->kind = kind;
  entry->name = std::string(kind == EntryKind::decode ? "decode" : "extend") + "[" + std::to_string(max_tokens) + "]";
  entry->max_tokens = max_tokens;
  entry->max_rows = max_rows;
  entry->max_sequences = max_sequences;
  plan_.entries.push_back(std::move(entry));
  return EntryBuilder(*this, *plan_.entries.back());
}

void PlanBuilder::complete() {
  plan_.weight_files[0]->bytes = bytes_.size();
  std::uint64_t weights = 0;
  for (const auto& weight : plan_.weights)
    if (weight->source != WeightSource::alias) weights += weight->bytes;
  std::erase_if(plan_.account, [](const auto& line) { return line->category != "kv-cache"; });
  const auto add = [this](const char* category, std::uint64_t bytes) {
    auto line = std::make_unique<AccountLineT>();
    line->category = category;
    line->name = category;
    line->bytes = bytes;
    plan_.account.push_back(std::move(line));
  };
  add("weights", weights);
  add("arena", plan_.devices[0]->arena_bytes);
  plan_.required_features = plan::features_of(plan_);
}

bool PlanBuilder::write(const std::filesystem::path& folder) {
  complete();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return !error && write_file(folder / "all.weights", bytes_) && write_file(folder / "plan.ktp", plan::serialise_plan(plan_));
}

}  // namespace ktc::test
