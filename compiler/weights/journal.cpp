#include "compiler/weights/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

namespace ktc::compiler {
namespace {

std::string header_line(std::uint64_t fingerprint, std::uint64_t file_bytes) {
  return fmt::format("ktc-journal 1 {:016x} {}\n", fingerprint, file_bytes);
}

Status failed(const std::string& path, const char* what) {
  return make_error(StatusCode::io_error, {.place = path, .what = what, .found = std::strerror(errno)});
}

Status write_all(int descriptor, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, "cannot write the journal");
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

// The complete lines behind a matching header; nullopt-like empty string when the header differs.
std::string matching_text(const std::filesystem::path& path, const std::string& header) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream buffer;
  buffer << in.rdbuf();
  std::string text = buffer.str();
  if (text.compare(0, header.size(), header) != 0) return {};
  text.resize(text.rfind('\n') + 1);
  return text;
}

}  // namespace

Expected<std::unique_ptr<Journal>> Journal::open(const std::filesystem::path& path, std::uint64_t fingerprint,
                                                 std::uint64_t file_bytes) {
  std::unique_ptr<Journal> journal(new Journal);
  journal->path_ = path.string();
  const std::string header = header_line(fingerprint, file_bytes);
  const std::string text = matching_text(path, header);
  std::istringstream lines(text.size() > header.size() ? text.substr(header.size()) : std::string());
  for (std::string line; std::getline(lines, line);) {
    std::uint64_t job = 0, digest = 0;
    const char* end = line.data() + line.size();
    auto first = std::from_chars(line.data(), end, job);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') break;  // the rest is redone
    auto second = std::from_chars(first.ptr + 1, end, digest, 16);
    if (second.ec != std::errc() || second.ptr != end) break;
    journal->done_[job] = digest;
  }
  journal->resumed_ = !text.empty();

  // Written anew up to what was understood, so that a broken tail never precedes good lines.
  journal->descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (journal->descriptor_ < 0) return failed(journal->path_, "cannot create the journal");
  std::string clean = header;
  for (const auto& [job, digest] : journal->done_) clean += fmt::format("{} {:016x}\n", job, digest);
  KTC_RETURN_IF_ERROR(write_all(journal->descriptor_, clean, journal->path_));
  return journal;
}

Journal::~Journal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status Journal::append(std::uint64_t job, std::uint64_t digest) {
  return write_all(descriptor_, fmt::format("{} {:016x}\n", job, digest), path_);
}

}  // namespace ktc::compiler
