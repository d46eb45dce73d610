// The journal of a weight file: which jobs are on disk, with their digests, so that a killed compile resumes.
// Text, append only: a header line, then "JOB DIGEST" lines; an unfinished last line is ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

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

  const std::map<std::uint64_t, std::uint64_t>& done() const { return done_; }  // job -> digest, at open
  bool resumed() const { return resumed_; }
  Status append(std::uint64_t job, std::uint64_t digest);

 private:
  Journal() = default;
  int descriptor_ = -1;
  bool resumed_ = false;
  std::string path_;
  std::map<std::uint64_t, std::uint64_t> done_;
};

}  // namespace ktc::compiler
