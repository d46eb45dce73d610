// The journal of a weight file: which jobs are on disk, with their digests and quality, so that a killed compile resumes and
// reports what an undisturbed one would. Text, append only: a header line, then "JOB DIGEST ERROR NORM WORST MATRIX" lines,
// numbers as the hexadecimal bits of their double; an unfinished last line is ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "compiler/weights/quality.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

class Journal {
 public:
  // Continues the journal at `path` when its header says the same fingerprint and length, else starts an empty one.
  static Expected<std::unique_ptr<Journal>> open(const std::filesystem::path& path, std::uint64_t fingerprint,
                                                 std::uint64_t file_bytes);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const std::map<std::uint64_t, JobRecord>& done() const { return done_; }  // by job, at open
  bool resumed() const { return resumed_; }
  Status append(std::uint64_t job, const JobRecord& record);

 private:
  Journal() = default;
  int descriptor_ = -1;
  bool resumed_ = false;
  std::string path_;
  std::map<std::uint64_t, JobRecord> done_;
};

}  // namespace ktc::compiler
