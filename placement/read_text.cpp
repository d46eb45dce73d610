#include "placement/read_text.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace ktc::placement {

Expected<std::string> read_text(const std::filesystem::path& path, std::string_view what) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const std::string kind(what);
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status))
    return make_error(StatusCode::not_found,
                      {path.string(), kind + " file", "no such file", "a YAML file", "check the path"});
  if (std::filesystem::is_directory(status))
    return make_error(StatusCode::invalid_argument,
                      {path.string(), kind + " file", "a folder", "a YAML file", "name the file in it"});
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return make_error(StatusCode::io_error,
                      {path.string(), "cannot read the " + kind + " file", std::strerror(errno), {}, {}});
  std::string text(kMost + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad())
    return make_error(StatusCode::io_error,
                      {path.string(), "cannot read the " + kind + " file", std::strerror(errno), {}, {}});
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMost)
    return make_error(StatusCode::invalid_argument,
                      {path.string(), kind + " file too large", "more than 1 MiB", "at most 1 MiB", {}});
  return text;
}

}  // namespace ktc::placement
