#include "compiler/weights/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

namespace ktc::compiler {
namespace {

std::string header_line(std::uint64_t fingerprint, std::uint64_t file_bytes) {
  return fmt::format("ktc-journal 2 {:016x} {}\n", fingerprint, file_bytes);
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

std::string record_line(std::uint64_t job, const JobRecord& record) {
  const JobQuality& q = record.quality;
  return fmt::format("{} {:016x} {:016x} {:016x} {:016x} {}\n", job, record.digest, std::bit_cast<std::uint64_t>(q.squared_error),
                     std::bit_cast<std::uint64_t>(q.squared_norm), std::bit_cast<std::uint64_t>(q.worst_error), q.worst_matrix);
}

// Six numbers, one blank between two, nothing else.
bool read_record(const std::string& line, std::uint64_t& job, JobRecord& record) {
  std::uint64_t fields[6];
  const char *at = line.data(), *end = line.data() + line.size();
  for (int i = 0; i < 6; ++i) {
    if (i > 0 && (at == end || *at++ != ' ')) return false;
    const auto [next, error] = std::from_chars(at, end, fields[i], i == 0 || i == 5 ? 10 : 16);
    if (error != std::errc()) return false;
    at = next;
  }
  job = fields[0];
  record = {fields[1], {std::bit_cast<double>(fields[2]), std::bit_cast<double>(fields[3]), std::bit_cast<double>(fields[4]),
                        fields[5]}};
  return at == end;
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
    std::uint64_t job = 0;
    JobRecord record;
    if (!read_record(line, job, record)) break;  // the rest is redone
    journal->done_[job] = record;
  }
  journal->resumed_ = !text.empty();

  // Written anew up to what was understood, so that a broken tail never precedes good lines.
  journal->descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (journal->descriptor_ < 0) return failed(journal->path_, "cannot create the journal");
  std::string clean = header;
  for (const auto& [job, record] : journal->done_) clean += record_line(job, record);
  KTC_RETURN_IF_ERROR(write_all(journal->descriptor_, clean, journal->path_));
  return journal;
}

Journal::~Journal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status Journal::append(std::uint64_t job, const JobRecord& record) {
  return write_all(descriptor_, record_line(job, record), path_);
}

}  // namespace ktc::compiler
