// Writes a weight file: decodes checkpoint tensors, applies recipes, converts, packs, streams. Memory stays bounded whatever
// the size of the model: at most `threads` matrices are in flight. Jobs run in parallel, and so do the rows of one matrix: a
// large head does not leave one worker alone at the end.
//
// Resumable: each finished job is appended to a journal beside the file; a run that finds a journal of the same jobs (same
// fingerprint of jobs and of the checkpoint's headers) skips what is done. The journal is removed by the caller when the
// plan is in place.
// Deterministic: offsets are fixed before any data is read; equal inputs give equal bytes whatever the thread count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "compiler/weights/quality.h"
#include "compiler/weights/recipe.h"
#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

struct WriteOptions {
  int threads = 0;                                                       // 0: all
  std::uint64_t fingerprint = 0;                                         // of everything that decides the bytes
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {}; // bytes written; called from one thread at a time
  std::function<bool()> cancelled = {};                                    // polled between matrices; true ends with `cancelled`
  std::optional<double> max_error = {};         // of one quantised matrix, relative: fails at the first one above it
  std::optional<std::uint64_t> sync_bytes = {};  // bytes between two flushes of file and journal; default 256 MiB
};

// Packs the job list into `file` (created or resumed at full length). Returns digest and quality of each job, in order.
// Errors besides those of files: a weight that is not finite and is to be quantised; an error above `max_error`.
Expected<std::vector<JobRecord>> write_weights(const std::filesystem::path& file, std::uint64_t file_bytes,
                                                   const std::vector<WeightJob>& jobs, const models::ModelDesc& model,
                                                   const WriteOptions& options);

// The journal's path: FILE.journal.
std::filesystem::path journal_path(const std::filesystem::path& file);

}  // namespace ktc::compiler
