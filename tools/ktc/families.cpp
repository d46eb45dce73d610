#include "tools/ktc/families.h"

namespace ktc::tools {

namespace fs = std::filesystem;

// build/PRESET/share/ktc/families beside build/PRESET/bin
Expected<fs::path> families_folder(const std::optional<fs::path>& flag) {
  if (flag) return *flag;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path().parent_path() / "share" / "ktc" / "families";
  if (!error && fs::is_directory(folder, error)) return folder;
  return make_error(StatusCode::not_found, {.place = folder.string(),
                                            .what = "no folder of model families beside the program",
                                            .remedy = "pass --families FOLDER (models/families of the source tree)"});
}

}  // namespace ktc::tools
