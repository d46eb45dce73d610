// Reads a checkpoint folder: config.json, generation_config.json, tokenizer_config.json, the safetensors index and
// headers.
#pragma once

#include <filesystem>

#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::models {

// Reads headers only: milliseconds for a small model, under ten seconds for a 1,000-shard one. The one exception: a
// head that is there although tie_word_embeddings is true is compared with the embedding, in pieces, up to the first
// difference. `families` is the folder of family declarations (models/families of the source tree, or beside the
// installed binary). Errors name the file, tensor or config key, what was found, what was expected and what to do.
Expected<ModelDesc> read_model(const std::filesystem::path& folder, const std::filesystem::path& families);

// From config.json alone, with tokenizer files where they exist: every slot has the shape that the family declares, is bf16 and has
// no tensors. For plans whose weights are made up. A head is tied to the embedding only where the config says so.
Expected<ModelDesc> read_model_shapes(const std::filesystem::path& folder, const std::filesystem::path& families);

}  // namespace ktc::models
