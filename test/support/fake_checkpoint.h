// Small checkpoints made for tests: a config, tensors in one or several safetensors files, an index, text files.
//
// Tensors without data take no disk: the header is written and the file is extended to its length, so that checkpoints
// with the dimensions of hundreds of gigabytes can be read by whatever looks at headers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ktc::test {

// A new folder that is removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& path, const std::string& text);
std::string read_text(const std::filesystem::path& path);

struct FakeTensor {
  std::string name;
  std::string dtype = "BF16";
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> data = {};  // empty: zeros that take no disk
  std::uint64_t bytes() const;
};

struct FakeCheckpoint {
  nlohmann::json config;
  std::vector<FakeTensor> tensors;
  std::map<std::string, std::string> files;  // further text files: name -> content
  std::size_t shards = 1;  // 1: model.safetensors; more: model-0000I-of-0000N.safetensors with an index

  // Tensors are dealt to shards in contiguous ranges, in their order here. Creates the folder.
  void write(const std::filesystem::path& folder) const;

  void add(std::string name, std::vector<std::uint64_t> shape, std::string dtype = "BF16");
  FakeTensor& at(const std::string& name);  // throws std::out_of_range
  bool has(const std::string& name) const;
  void remove(const std::string& name);
  void rename(const std::string& from, const std::string& to);
  // Gives every tensor without data random values, a function of (seed, name): about N(0, 0.05), norms around 1.
  void fill(std::uint32_t seed);
  // Turns experts stored one by one into one 3-D tensor per layer and matrix, as transformers 5 stores them.
  void pack_experts();
};

std::string shard_name(std::size_t shard, std::size_t shards);  // "model-00002-of-00003.safetensors"

// Dimensions of a small (or, without data, a huge) model of each shipped family.
struct FakeQwen3 {
  std::uint64_t layers = 2, hidden = 48, heads = 4, kv_heads = 2, head_dim = 16, experts = 4, top_k = 2,
                intermediate = 24, dense_intermediate = 40, vocab = 64;
  std::vector<int> dense_layers = {};
  bool tied = false;
};
FakeCheckpoint make_qwen3_moe(const FakeQwen3& dims = {});

struct FakeDeepseek {
  std::uint64_t layers = 3, dense_layers = 1, hidden = 48, heads = 2, q_rank = 24, kv_rank = 32, nope = 16, rope = 8,
                v = 20, experts = 8, top_k = 2, groups = 4, topk_groups = 2, intermediate = 24, dense_intermediate = 40,
                shared = 1, vocab = 64;
};
FakeCheckpoint make_deepseek_v3(const FakeDeepseek& dims = {});

}  // namespace ktc::test
