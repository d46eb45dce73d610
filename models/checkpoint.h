// The tensors of a checkpoint folder, from the index and the headers of its safetensors files. No tensor data is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::models {

struct Checkpoint {
  std::vector<std::filesystem::path> shards;  // sorted by name
  std::vector<Tensor> tensors;                // sorted by name
  std::vector<std::string> dtypes;            // parallel to tensors, as the header spells them
  std::vector<std::string> warnings;
  bool assumed = false;                       // there are no files: every tensor of the family has the shape that config.json says
};

// model.safetensors.index.json decides which files belong to the checkpoint where it exists; otherwise
// model.safetensors is the checkpoint. Other safetensors files in the folder are left alone with a warning, never
// merged. Errors: missing shards (with the first tensors they would hold), a tensor that the index places where it is
// not, a name in two shards, a tensor that the index does not list, a file that is shorter than its header says.
Expected<Checkpoint> read_checkpoint(const std::filesystem::path& folder);

// Whether two tensors have the same bytes; reads them in pieces and stops at the first difference. False for unequal
// sizes.
Expected<bool> same_bytes(const Checkpoint& checkpoint, const Tensor& a, const Tensor& b);

}  // namespace ktc::models
