// Shared by the tests of models/: reads a fake checkpoint and compares messages without the temporary folder's name.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "models/read_model.h"
#include "test/support/fake_checkpoint.h"

namespace ktc::models {

inline const std::filesystem::path kFamilies = std::string(KTC_SOURCE_DIR) + "/models/families";

// Replaces the folder's path by "M" wherever it occurs.
inline std::string shorten(std::string text, const std::filesystem::path& folder) {
  const std::string path = folder.string();
  for (std::size_t at = text.find(path); at != std::string::npos; at = text.find(path, at + 1))
    text.replace(at, path.size(), "M");
  return text;
}

struct ReadOutcome {
  std::optional<ModelDesc> model;
  std::string error;
  std::vector<std::string> warnings;
};

inline ReadOutcome read_folder(const std::filesystem::path& folder) {
  ReadOutcome outcome;
  auto model = read_model(folder, kFamilies);
  if (!model.ok()) {
    outcome.error = shorten(model.status().message(), folder);
    return outcome;
  }
  outcome.model = *std::move(model);
  for (const std::string& warning : outcome.model->warnings) outcome.warnings.push_back(shorten(warning, folder));
  return outcome;
}

inline ReadOutcome read(const ktc::test::FakeCheckpoint& checkpoint) {
  ktc::test::TemporaryFolder folder;
  checkpoint.write(folder.path());
  return read_folder(folder.path());
}

// Processor seconds since construction: limits on them hold on a busy machine, too. Sanitizers are allowed four times
// as much.
class Stopwatch {
 public:
  double seconds() const {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr double kSlowdown = 4;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    constexpr double kSlowdown = 4;
#else
    constexpr double kSlowdown = 1;
#endif
#else
    constexpr double kSlowdown = 1;
#endif
    return static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC / kSlowdown;
  }

 private:
  std::clock_t start_ = std::clock();
};

inline const WeightSlot* find_slot(const ModelDesc& model, std::string_view name) {
  for (const WeightSlot& slot : model.slots)
    if (slot.name == name) return &slot;
  return nullptr;
}

// Every element of every slot is covered by exactly one piece, and every tensor is in one slot or one skip.
inline void expect_exact_cover(const ModelDesc& model) {
  std::vector<int> uses(model.tensors.size());
  for (const WeightSlot& slot : model.slots) {
    SCOPED_TRACE(slot.name);
    std::vector<bool> covered(slot.batch * slot.rows);
    for (const TensorPiece& piece : slot.pieces) {
      const Tensor& tensor = model.tensors.at(piece.tensor);
      ++uses[piece.tensor];
      EXPECT_EQ(tensor.type, slot.type);
      const auto& shape = tensor.shape;
      EXPECT_EQ(shape.back(), slot.columns);
      const std::uint64_t batch = shape.size() == 3 ? shape[0] : 1;
      const std::uint64_t rows = shape.size() >= 2 ? shape[shape.size() - 2] : 1;
      for (std::uint64_t b = 0; b < batch; ++b)
        for (std::uint64_t r = 0; r < rows; ++r) {
          const std::uint64_t at = (piece.batch_begin + b) * slot.rows + piece.row_begin + r;
          ASSERT_LT(at, covered.size());
          EXPECT_FALSE(covered[at]);
          covered[at] = true;
        }
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), false), 0);
  }
  for (const SkippedTensors& skipped : model.skipped)
    for (std::uint32_t tensor : skipped.tensors) ++uses[tensor];
  for (std::size_t i = 0; i < uses.size(); ++i) EXPECT_EQ(uses[i], 1) << model.tensors[i].name;
}

}  // namespace ktc::models
