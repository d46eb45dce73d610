#include "models/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "models/json_reader.h"
#include "runtime/safetensors/safetensors.h"

namespace ktc::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = 256ull << 20;
constexpr std::size_t kShown = 5;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kIncomplete = "incomplete download? fetch the checkpoint again";

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

std::string quote(std::string_view name) {
  return "'" + std::string(name.substr(0, 160)) + (name.size() > 160 ? "...'" : "'");
}

// "'a', 'b' and 3 more"
template <typename Names>
std::string list_some(const Names& names) {
  std::string list;
  std::size_t shown = 0;
  for (const auto& name : names) {
    if (shown++ == kShown) break;
    list += (list.empty() ? "" : ", ") + quote(name);
  }
  if (names.size() > kShown) list += fmt::format(" and {} more", names.size() - kShown);
  return list;
}

Expected<WeightMap> read_index(const fs::path& path) {
  KTC_ASSIGN_OR_RETURN(Json index, read_json(path, kMaxIndexBytes));
  const Json* map = find_key(index, "weight_map");
  auto refuse = [&](std::string what, std::string found, std::string expected) {
    return make_error(StatusCode::data_corrupt, {path.string(), std::move(what), std::move(found), std::move(expected),
                                                 "download the index again"});
  };
  if (!map || !map->is_object() || map->empty())
    return refuse("weight_map", map ? show(*map) : "nothing", "an object of tensor names and file names");
  WeightMap files;
  for (const auto& [tensor, file] : map->items()) {
    const bool named = file.is_string();
    const std::string name = named ? file.get<std::string>() : std::string();
    // a file of this folder and nothing else: an index must not lead out of its checkpoint
    if (name.empty() || name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || name == "." ||
        name == "..")
      return refuse("weight_map." + tensor.substr(0, 160), show(file), "the name of a file in this folder");
    files.emplace(tensor, name);
  }
  return files;
}

// All *.safetensors names of the folder, sorted; at most a million entries are looked at.
std::vector<std::string> list_folder(const fs::path& folder, std::string_view extension) {
  std::vector<std::string> names;
  std::error_code failure;
  std::size_t seen = 0;
  for (fs::directory_iterator it(folder, failure), end; !failure && it != end && seen < 1'000'000;
       it.increment(failure), ++seen)
    if (it->path().extension() == extension) names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Status no_checkpoint(const fs::path& folder, const std::vector<std::string>& present) {
  std::string found = "no safetensors file", remedy = kIncomplete;
  if (!present.empty()) {
    found = list_some(present);
    remedy = "the index is missing: " + std::string(kIncomplete);
  } else if (auto gguf = list_folder(folder, ".gguf"); !gguf.empty()) {
    found = list_some(gguf);
    remedy = "GGUF is not read: use the original safetensors checkpoint";
  } else if (auto pickled = list_folder(folder, ".bin"); !pickled.empty()) {
    found = list_some(pickled);
    remedy = "pickled checkpoints are not read: convert it to safetensors";
  }
  return make_error(StatusCode::not_found, {folder.string(), "no checkpoint", found,
                                            std::string(kIndexName) + " or model.safetensors", remedy});
}

Status check_shards_exist(const fs::path& folder, const WeightMap& index, const std::set<std::string>& wanted) {
  std::set<std::string> missing;
  for (const std::string& name : wanted) {
    std::error_code failure;
    if (!fs::exists(folder / name, failure)) missing.insert(name);
  }
  if (missing.empty()) return Status();
  std::vector<std::string> tensors;
  for (const auto& [tensor, file] : index)
    if (missing.contains(file)) tensors.push_back(tensor);
  return make_error(StatusCode::not_found,
                    {folder.string(),
                     fmt::format("{} of {} shards missing: {} with {} tensors, the first of them {}", missing.size(),
                                 wanted.size(), list_some(missing), tensors.size(), list_some(tensors)),
                     {},
                     "every file that " + std::string(kIndexName) + " names",
                     kIncomplete});
}

TensorType to_type(std::string_view dtype) {
  if (dtype == "BF16") return TensorType::bf16;
  if (dtype == "F32") return TensorType::f32;
  if (dtype == "F16") return TensorType::f16;
  if (dtype == "F8_E4M3") return TensorType::f8_e4m3;
  return TensorType::other;
}

// Every tensor of every shard must be where the index says, and nowhere else.
Status compare_with_index(const fs::path& folder, const WeightMap& index,
                          const std::map<std::string, std::size_t>& found,
                          const std::vector<std::string>& shard_names) {
  std::vector<std::string> missing, unlisted;
  for (const auto& [tensor, file] : index) {
    const auto it = found.find(tensor);
    if (it == found.end())
      missing.push_back(tensor);
    else if (shard_names[it->second] != file)
      return make_error(StatusCode::data_corrupt,
                        {(folder / kIndexName).string(), quote(tensor), "it in " + quote(shard_names[it->second]),
                         "it in " + quote(file) + ", as the index says", "download the checkpoint again"});
  }
  for (const auto& [tensor, shard] : found)
    if (!index.contains(tensor)) unlisted.push_back(tensor);
  if (!missing.empty())
    return make_error(StatusCode::data_corrupt,
                      {(folder / index.at(missing.front())).string(),
                       fmt::format("{} tensors of the index are missing: {}", missing.size(), list_some(missing)),
                       {},
                       "every tensor that the index lists for the file",
                       kIncomplete});
  if (!unlisted.empty())
    return make_error(StatusCode::data_corrupt,
                      {(folder / shard_names[found.at(unlisted.front())]).string(),
                       "tensors that the index does not list", list_some(unlisted),
                       "every tensor of the file in " + std::string(kIndexName), "download the checkpoint again"});
  return Status();
}

}  // namespace

Expected<Checkpoint> read_checkpoint(const fs::path& folder) {
  Checkpoint checkpoint;
  std::error_code failure;
  const bool indexed = fs::exists(folder / kIndexName, failure);
  const std::vector<std::string> present = list_folder(folder, ".safetensors");
  WeightMap index;
  std::set<std::string> wanted;
  if (indexed) {
    KTC_ASSIGN_OR_RETURN(index, read_index(folder / kIndexName));
    for (const auto& [tensor, file] : index) wanted.insert(file);
    KTC_RETURN_IF_ERROR(check_shards_exist(folder, index, wanted));
  } else if (fs::exists(folder / "model.safetensors", failure)) {
    wanted.insert("model.safetensors");
  } else {
    return no_checkpoint(folder, present);
  }
  std::vector<std::string> stray;
  for (const std::string& name : present)
    if (!wanted.contains(name)) stray.push_back(name);
  if (!stray.empty())
    checkpoint.warnings.push_back(
        fmt::format("{}: {} not part of the checkpoint and ignored: {}", folder.string(),
                    stray.size() == 1 ? "1 safetensors file is" : fmt::format("{} safetensors files are", stray.size()),
                    list_some(stray)));

  const std::vector<std::string> shard_names(wanted.begin(), wanted.end());
  std::map<std::string, std::size_t> shard_of;
  for (std::size_t shard = 0; shard < shard_names.size(); ++shard) {
    const fs::path path = folder / shard_names[shard];
    checkpoint.shards.push_back(path);
    KTC_ASSIGN_OR_RETURN(safetensors::Header header, safetensors::read_header(path));
    for (auto& [name, info] : header.tensors) {
      const auto [other, first] = shard_of.emplace(name, shard);
      if (!first)
        return make_error(StatusCode::data_corrupt,
                          {folder.string(), quote(name),
                           "it in " + quote(shard_names[other->second]) + " and in " + quote(shard_names[shard]),
                           "every tensor in one file", "remove the superseded file, or download the checkpoint again"});
      checkpoint.tensors.push_back({name, to_type(info.dtype), std::move(info.shape), static_cast<std::uint32_t>(shard),
                                    info.offset, info.bytes});
      checkpoint.dtypes.push_back(std::move(info.dtype));
    }
  }
  if (indexed) KTC_RETURN_IF_ERROR(compare_with_index(folder, index, shard_of, shard_names));

  std::vector<std::size_t> order(checkpoint.tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return checkpoint.tensors[a].name < checkpoint.tensors[b].name; });
  std::vector<Tensor> tensors;
  std::vector<std::string> dtypes;
  for (std::size_t i : order) {
    tensors.push_back(std::move(checkpoint.tensors[i]));
    dtypes.push_back(std::move(checkpoint.dtypes[i]));
  }
  checkpoint.tensors = std::move(tensors);
  checkpoint.dtypes = std::move(dtypes);
  return checkpoint;
}

Expected<bool> same_bytes(const Checkpoint& checkpoint, const Tensor& a, const Tensor& b) {
  if (a.bytes != b.bytes) return false;
  constexpr std::uint64_t kPiece = 1 << 20;
  std::ifstream first(checkpoint.shards[a.shard], std::ios::binary),
      second(checkpoint.shards[b.shard], std::ios::binary);
  first.seekg(static_cast<std::streamoff>(a.offset));
  second.seekg(static_cast<std::streamoff>(b.offset));
  std::vector<char> x(kPiece), y(kPiece);
  for (std::uint64_t done = 0; done < a.bytes; done += kPiece) {
    const auto count = static_cast<std::streamsize>(std::min(kPiece, a.bytes - done));
    if (!first.read(x.data(), count) || !second.read(y.data(), count))
      return make_error(StatusCode::io_error, {checkpoint.shards[a.shard].string(), "cannot be read", {}, {}, {}});
    if (!std::equal(x.begin(), x.begin() + count, y.begin())) return false;
  }
  return true;
}

}  // namespace ktc::models
