#include "tools/ktc/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "runtime/base/units.h"

namespace ktc::tools {
namespace {

constexpr std::uint64_t kLargest = 256u << 20;

}  // namespace

Expected<std::string> read_text_file(std::string_view flag, const std::filesystem::path& path) {
  const std::string place = flag.empty() ? path.string() : fmt::format("{} {}", flag, path.string());
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    return make_error(StatusCode::invalid_argument, {.place = place, .found = "a folder", .expected = "a text file"});
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return make_error(
        errno == ENOENT ? StatusCode::not_found : StatusCode::io_error,
        {.place = place, .what = "cannot read", .found = std::strerror(errno), .expected = "a text file"});
  }
  // by blocks, because a pipe has no length
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kLargest) {
      return make_error(StatusCode::invalid_argument, {.place = place,
                                                       .what = "too large",
                                                       .found = "more than " + format_bytes(kLargest),
                                                       .expected = "at most " + format_bytes(kLargest)});
    }
  }
  return text;
}

}  // namespace ktc::tools
