// The account of a checkpoint's tensors: each is claimed by one slot or by one skip; whatever remains is a problem.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/checkpoint.h"
#include "models/config.h"
#include "models/family.h"
#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::models {

constexpr std::uint32_t kNoTensor = UINT32_MAX;

// One tensor that a slot asks for, with its place in the slot.
struct WantedTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint64_t batch_begin = 0, row_begin = 0;
};

class Account {
 public:
  // Both outlive the account.
  Account(const Checkpoint& checkpoint, const ModelConfig& config);

  std::uint32_t find(std::string_view name) const;  // kNoTensor when the checkpoint has no such tensor

  // Claims the tensors of the alternative that the checkpoint uses and fills slot->pieces and slot->type; a tensor in FP8 brings
  // the one with its scales. Problems are collected; the slot is then incomplete and finish() fails. Of an assumed checkpoint the
  // slot stays bf16 without pieces.
  void fill(WeightSlot* slot, const std::vector<std::vector<WantedTensor>>& alternatives);
  // Leaves a tensor out on purpose.
  void skip(std::uint32_t tensor, const std::string& reason);
  void add_problem(std::string text);

  // True when so much is missing that going on tells nothing more.
  bool hopeless() const { return missing_.size() > 1000; }

  // Applies the family's skips to what is left, adds the warnings about announced layers that are absent, and reports
  // all problems in one message: the first ten by name, then a count.
  Status finish(std::vector<SkippedTensors>* skipped, std::vector<std::string>* warnings);

 private:
  void claim(WeightSlot* slot, const WantedTensor& wanted);
  bool claim_scales(TensorPiece* piece, const WeightSlot& slot);
  void apply_skips();
  bool skips(const SkipSpec& skip, const std::string& name) const;
  Status report() const;

  struct Missing {
    std::string name;
    std::string text;
  };
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::unordered_map<std::string_view, std::uint32_t> index_;
  std::vector<bool> claimed_;
  std::vector<std::string> problems_;
  std::vector<Missing> missing_;
  std::vector<SkippedTensors> skipped_;
  std::vector<std::string> marked_layers_;  // "model.layers.61.": unclaimed layers with an MTP marker, sorted
};

// The number N of the first path elements `layers.N`, and the prefix up to and including it; -1 where there is none.
struct LayerNumber {
  std::int64_t number = -1;
  std::string_view prefix;  // "model.layers.61."
};
LayerNumber layer_number(std::string_view name);

}  // namespace ktc::models
