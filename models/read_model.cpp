#include "models/read_model.h"

#include <fmt/format.h>

#include "models/build_model.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "models/family.h"
#include "models/json_reader.h"
#include "models/text_config.h"

namespace ktc::models {
namespace {

constexpr std::uint64_t kMaxConfig = 16ull << 20;

Expected<std::string> read_architecture(const Json& config, const std::string& file) {
  const Json* list = find_key(config, "architectures");
  if (list && list->is_array() && list->size() == 1 && list->front().is_string())
    return list->front().get<std::string>();
  return make_error(StatusCode::invalid_argument,
                    {file, "architectures", list ? show(*list) : "nothing", "a list with one name", {}});
}

std::string folder_name(const std::filesystem::path& folder) {
  std::error_code failure;
  const std::filesystem::path full = std::filesystem::weakly_canonical(folder, failure);
  return (failure ? folder : full).filename().string();
}

Expected<ModelDesc> read(const std::filesystem::path& folder, const std::filesystem::path& families, bool assume) {
  std::error_code failure;
  if (!std::filesystem::is_directory(folder, failure))
    return make_error(StatusCode::not_found,
                      {folder.string(), "no checkpoint folder", {},
                       assume ? "a folder with config.json" : "a folder with config.json and safetensors files", {}});
  const std::filesystem::path config_path = folder / "config.json";
  const std::string config_file = config_path.string();
  KTC_ASSIGN_OR_RETURN(const Json json, read_json(config_path, kMaxConfig));

  ModelDesc model;
  model.name = folder_name(folder);
  model.folder = folder;
  KTC_ASSIGN_OR_RETURN(model.architecture, read_architecture(json, config_file));
  KTC_ASSIGN_OR_RETURN(const Family family, find_family(families, model.architecture, config_file));
  model.family = family.name;
  KTC_ASSIGN_OR_RETURN(ModelConfig config, read_config(family, json, config_file, &model.warnings));

  Checkpoint checkpoint;
  checkpoint.assumed = assume;
  if (!assume) {
    KTC_ASSIGN_OR_RETURN(checkpoint, read_checkpoint(folder));
  }
  model.warnings.insert(model.warnings.end(), checkpoint.warnings.begin(), checkpoint.warnings.end());
  KTC_RETURN_IF_ERROR(build_model(checkpoint, &config, &model));
  model.shards = std::move(checkpoint.shards);
  model.tensors = std::move(checkpoint.tensors);
  KTC_RETURN_IF_ERROR(read_text_config(folder, json, config_file, &model));
  return model;
}

}  // namespace

Expected<ModelDesc> read_model(const std::filesystem::path& folder, const std::filesystem::path& families) {
  return read(folder, families, false);
}

Expected<ModelDesc> read_model_shapes(const std::filesystem::path& folder, const std::filesystem::path& families) {
  return read(folder, families, true);
}

}  // namespace ktc::models
