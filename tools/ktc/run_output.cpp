#include "tools/ktc/run_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace ktc::run {
namespace {

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

Status write_out(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return {};
  if (errno == EPIPE) return Status(StatusCode::cancelled, "standard output was closed by its reader");
  return make_error(StatusCode::io_error,
                    {.place = "standard output", .what = "cannot write", .found = std::strerror(errno)});
}

void note(std::string_view line) {
  write_all(STDERR_FILENO, std::string(line) + "\n");
}

int report(const Status& status) {
  if (status.ok() || status.code() == StatusCode::cancelled) return 0;
  std::string line = "ktc-run: " + status.message();
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';  // names of files and tensors may hold anything
  }
  note(line);
  return status.code() == StatusCode::internal ? 2 : 1;
}

}  // namespace ktc::run
