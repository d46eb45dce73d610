// What the text side of a checkpoint says about generation: begin and stop tokens, sampling defaults, files.
#pragma once

#include <filesystem>

#include "models/json_reader.h"
#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::models {

// Fills bos_token, stop_tokens, sampling, text_files and warnings of *model from config.json (parsed, `config_file` in
// messages), generation_config.json, tokenizer_config.json and the added tokens of tokenizer.json. All but config.json
// may be absent. The stop set is the union of all sources; an end token whose id cannot be found is a warning.
Status read_text_config(const std::filesystem::path& folder, const Json& config, const std::string& config_file,
                        ModelDesc* model);

}  // namespace ktc::models
