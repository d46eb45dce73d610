#include "compiler/weights/weight_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "compiler/weights/journal.h"
#include "compiler/weights/matrix_packer.h"
#include "compiler/weights/slot_reader.h"

namespace ktc::compiler {
namespace {

// Finished jobs wait for the journal until so many bytes are written, because each entry follows an fdatasync.
constexpr std::uint64_t kSyncBytes = std::uint64_t{256} << 20;
// Rows of a source block are read in pieces of about this size; transposed blocks are read whole.
constexpr std::uint64_t kReadBytes = std::uint64_t{8} << 20;

Status system_error(const std::filesystem::path& file, const char* what) {
  return make_error(StatusCode::io_error, {.place = file.string(), .what = what, .found = std::strerror(errno)});
}

Status write_exactly(int descriptor, std::span<const std::byte> data, std::uint64_t offset, const std::filesystem::path& file) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = pwrite(descriptor, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(file, "write failed");
    done += static_cast<std::size_t>(n);
  }
  return {};
}

// Blocks of a job by destination matrix, so that one matrix can be made at a time.
struct Block {
  const RecipePiece* piece;
  std::uint64_t src_batch, src_row, dst_row;
};
std::vector<std::vector<Block>> blocks_by_matrix(const WeightJob& job, const models::ModelDesc& model) {
  std::vector<std::vector<Block>> blocks(job.batch);
  for (const RecipePiece& piece : job.pieces) {
    const std::uint64_t batch = model.slots[piece.slot].batch;
    if (batch > 1) {
      const std::uint64_t taken = job.matrices.empty() ? batch : job.matrices.size();
      for (std::uint64_t i = 0; i < taken; ++i)
        blocks[piece.dst_batch + i].push_back({&piece, job.matrices.empty() ? i : job.matrices[i], piece.src_row, piece.dst_row});
    } else {
      for (std::uint64_t r = 0; r < piece.repeat; ++r)
        blocks[piece.dst_batch + r * piece.repeat_dst_batch].push_back(
            {&piece, 0, piece.src_row + r * piece.repeat_src_row, piece.dst_row + r * piece.repeat_dst_row});
    }
  }
  return blocks;
}

// A worker's memory for rows of the checkpoint.
struct Scratch {
  std::vector<std::byte> rows;
  std::vector<float> scales;  // of FP8 codes that are kept
};

Status fill_block(const Block& block, const WeightJob& job, MatrixPacker& packer, const models::ModelDesc& model,
                  const SlotReader& reader, Scratch& memory) {
  std::vector<std::byte>& scratch = memory.rows;
  const RecipePiece& piece = *block.piece;
  const models::WeightSlot& slot = model.slots[piece.slot];
  const std::uint64_t element = static_cast<std::uint64_t>(models::tensor_type_bytes(SlotReader::row_type(slot)));
  const std::uint64_t source_row = slot.columns * element;
  if (piece.transpose) {
    const std::uint64_t span = (piece.rows - 1) * piece.row_step + 1;
    scratch.resize(span * source_row);
    KTC_RETURN_IF_ERROR(reader.read_rows(piece.slot, block.src_batch, block.src_row, span, scratch));
    // destination columns walk down the source rows
    packer.add({SlotReader::row_type(slot), scratch.data(), /*row_stride=*/1, /*stride=*/piece.row_step * slot.columns}, block.dst_row,
               slot.columns);
    return {};
  }
  const bool keep = job.format == Format::fp8 && reader.has_codes(piece.slot, job.group);
  const std::uint64_t rows_at_once =
      std::clamp<std::uint64_t>(kReadBytes / std::max<std::uint64_t>(1, source_row * piece.row_step), 1, piece.rows);
  for (std::uint64_t row = 0; row < piece.rows; row += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, piece.rows - row);
    const std::uint64_t span = (rows - 1) * piece.row_step + 1;
    if (keep) {
      const std::uint64_t groups = scales_of({job.format, job.group}, slot.columns);
      scratch.resize(span * slot.columns);
      memory.scales.resize(span * groups);
      KTC_RETURN_IF_ERROR(reader.read_codes(piece.slot, block.src_batch, block.src_row + row * piece.row_step, span, job.group,
                                            scratch, memory.scales));
      for (std::uint64_t r = 1; r < rows; ++r)  // scales are taken one row after the other
        std::copy_n(memory.scales.data() + r * piece.row_step * groups, groups, memory.scales.data() + r * groups);
      packer.add({models::TensorType::f8_e4m3, scratch.data(), piece.row_step * slot.columns, 1, memory.scales.data()},
                 block.dst_row + row, rows);
      continue;
    }
    scratch.resize(span * source_row);
    KTC_RETURN_IF_ERROR(
        reader.read_rows(piece.slot, block.src_batch, block.src_row + row * piece.row_step, span, scratch));
    packer.add({SlotReader::row_type(slot), scratch.data(), piece.row_step * slot.columns, 1}, block.dst_row + row, rows);
  }
  return {};
}

// The state of one write_weights call, shared by its workers.
class Writer {
 public:
  Writer(const std::filesystem::path& file, const std::vector<WeightJob>& jobs, const models::ModelDesc& model,
         const WriteOptions& options, std::uint64_t total)
      : file_(file), jobs_(jobs), model_(model), options_(options), total_(total), records_(jobs.size()) {}
  ~Writer() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Status open(std::uint64_t file_bytes) {
    auto reader = SlotReader::open(model_);
    if (!reader.ok()) return reader.status();
    reader_ = std::move(reader).value();
    struct stat status {};
    const bool same_length = ::stat(file_.c_str(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) == file_bytes;
    if (!same_length) std::filesystem::remove(journal_path(file_));  // what a journal says of another file is void
    auto journal = Journal::open(journal_path(file_), options_.fingerprint, file_bytes);
    if (!journal.ok()) return journal.status();
    journal_ = std::move(journal).value();
    descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) return system_error(file_, "cannot create the weight file");
    KTC_RETURN_IF_ERROR(check_space(file_bytes, same_length ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0));
    if (ftruncate(descriptor_, static_cast<off_t>(file_bytes)) != 0) return system_error(file_, "cannot set the length");
    return {};
  }

  Status run() {
    std::vector<std::size_t> todo;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      auto found = journal_->done().find(i);
      if (found == journal_->done().end()) {
        todo.push_back(i);
      } else {
        records_[i] = found->second;
        const JobQuality& quality = records_[i].quality;
        if (options_.max_error && quality.worst_error > *options_.max_error)
          return too_coarse(jobs_[i], quality.worst_matrix, quality.worst_error);
        written_ += jobs_[i].bytes;
      }
    }
    // the largest first: no worker is left alone with an expert bank at the end
    std::sort(todo.begin(), todo.end(), [this](std::size_t a, std::size_t b) {
      return jobs_[a].bytes != jobs_[b].bytes ? jobs_[a].bytes > jobs_[b].bytes : a < b;
    });
    tbb::task_arena arena(options_.threads > 0 ? options_.threads : tbb::task_arena::automatic);
    std::atomic<std::size_t> next{0};
    const int workers = static_cast<int>(std::min<std::size_t>(todo.size(), static_cast<std::size_t>(arena.max_concurrency())));
    arena.execute([&] {
      tbb::parallel_for(0, workers, [&](int) {
        Scratch scratch;
        std::vector<std::byte> matrix;
        for (std::size_t i; !failed_.load(std::memory_order_relaxed) && (i = next.fetch_add(1)) < todo.size();)
          finish(todo[i], make(todo[i], scratch, matrix));
      });
    });
    Status flushed = flush();  // also after an error or an interrupt: what is finished need not be done again
    return first_error_.ok() ? flushed : first_error_;
  }

  std::vector<JobRecord> take_records() { return std::move(records_); }

 private:
  Status check_space(std::uint64_t file_bytes, std::uint64_t allocated) {
    struct statvfs space {};
    if (fstatvfs(descriptor_, &space) != 0) return {};  // unknown: the write itself will tell
    const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
    const std::uint64_t needed = file_bytes - std::min(file_bytes, allocated);
    if (needed <= free) return {};
    return make_error(StatusCode::resource_exhausted, {.place = file_.string(),
                                                       .what = "not enough disk space",
                                                       .found = fmt::format("{} bytes free", free),
                                                       .expected = fmt::format("{} bytes", needed),
                                                       .remedy = "free space or choose another output folder"});
  }

  Status make(std::size_t index, Scratch& scratch, std::vector<std::byte>& matrix) {
    const WeightJob& job = jobs_[index];
    const auto blocks = blocks_by_matrix(job, model_);
    const std::uint64_t matrix_bytes = job.bytes / job.batch;
    matrix.resize(matrix_bytes);
    std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
    XXH3_64bits_reset(hash.get());
    JobQuality quality;
    MatrixPacker packer(job, matrix);
    for (std::uint64_t b = 0; b < job.batch; ++b) {
      if (options_.cancelled && options_.cancelled()) return Status(StatusCode::cancelled, "interrupted; run again to resume");
      packer.begin();
      for (const Block& block : blocks[b]) KTC_RETURN_IF_ERROR(fill_block(block, job, packer, model_, *reader_, scratch));
      const RowQuality made = packer.quality();
      if (!made.finite) return not_finite(job, b);
      const double error = made.squared_norm > 0 ? std::sqrt(made.squared_error / made.squared_norm) : 0;
      if (options_.max_error && error > *options_.max_error) return too_coarse(job, b, error);
      quality.squared_error += made.squared_error;
      quality.squared_norm += made.squared_norm;
      if (error > quality.worst_error) quality.worst_error = error, quality.worst_matrix = b;
      XXH3_64bits_update(hash.get(), matrix.data(), matrix_bytes);
      KTC_RETURN_IF_ERROR(write_exactly(descriptor_, matrix, job.offset + b * matrix_bytes, file_));
      report(matrix_bytes);
    }
    records_[index] = {XXH3_64bits_digest(hash.get()), quality};
    return {};
  }

  static std::string matrix_name(const WeightJob& job, std::uint64_t matrix) {
    return job.batch == 1 ? "weight @" + job.name : fmt::format("weight @{}, matrix {}", job.name, matrix);
  }
  static Status not_finite(const WeightJob& job, std::uint64_t matrix) {
    return make_error(StatusCode::data_corrupt,
                      {.place = matrix_name(job, matrix),
                       .what = fmt::format("cannot be rounded to {}", to_string(job.format)),
                       .found = "a value that is infinite or no number",
                       .expected = "finite weights",
                       .remedy = "download the checkpoint again, or give this module weights: native"});
  }
  Status too_coarse(const WeightJob& job, std::uint64_t matrix, double error) const {
    return make_error(StatusCode::invalid_argument,
                      {.place = matrix_name(job, matrix),
                       .what = fmt::format("relative error of {}", to_string(job.format)),
                       .found = fmt::format("{:.5f}", error),
                       .expected = fmt::format("at most {:.5f}", *options_.max_error),
                       .remedy = "give this module a finer format or a smaller group, or raise --max-error"});
  }

  void report(std::uint64_t bytes) {
    std::lock_guard lock(mutex_);
    written_ += bytes;
    if (options_.progress) options_.progress(written_, total_);
  }

  void finish(std::size_t index, Status status) {
    std::lock_guard lock(mutex_);
    if (status.ok()) {
      pending_.push_back(index);
      pending_bytes_ += jobs_[index].bytes;
      if (pending_bytes_ >= options_.sync_bytes.value_or(kSyncBytes)) status = flush();
    }
    if (!status.ok()) {
      if (first_error_.ok()) first_error_ = std::move(status);
      failed_ = true;
    }
  }

  Status flush() {
    if (fdatasync(descriptor_) != 0) return system_error(file_, "cannot flush to disk");
    for (std::size_t job : pending_) KTC_RETURN_IF_ERROR(journal_->append(job, records_[job]));
    pending_.clear();
    pending_bytes_ = 0;
    return {};
  }

  const std::filesystem::path& file_;
  const std::vector<WeightJob>& jobs_;
  const models::ModelDesc& model_;
  const WriteOptions& options_;
  const std::uint64_t total_;
  std::vector<JobRecord> records_;
  std::unique_ptr<SlotReader> reader_;
  std::unique_ptr<Journal> journal_;
  int descriptor_ = -1;

  std::mutex mutex_;  // guards what follows
  std::uint64_t written_ = 0;
  std::vector<std::size_t> pending_;
  std::uint64_t pending_bytes_ = 0;
  Status first_error_;
  std::atomic<bool> failed_{false};
};

}  // namespace

std::filesystem::path journal_path(const std::filesystem::path& file) { return file.string() + ".journal"; }

Expected<std::vector<JobRecord>> write_weights(const std::filesystem::path& file, std::uint64_t file_bytes,
                                               const std::vector<WeightJob>& jobs, const models::ModelDesc& model,
                                               const WriteOptions& options) {
  std::uint64_t total = 0;
  for (const WeightJob& job : jobs) {
    KTC_RETURN_IF_ERROR(check_job(job, model));
    if (job.offset > file_bytes || job.bytes > file_bytes - job.offset)
      return make_error(StatusCode::internal, {.place = "weight @" + job.name,
                                               .what = "end in the file",
                                               .found = fmt::format("{}", job.offset + job.bytes),
                                               .expected = fmt::format("at most {}", file_bytes)});
    total += job.bytes;
  }
  Writer writer(file, jobs, model, options, total);
  KTC_RETURN_IF_ERROR(writer.open(file_bytes));
  KTC_RETURN_IF_ERROR(writer.run());
  return writer.take_records();
}

}  // namespace ktc::compiler
