#include "compiler/emit/Emit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "compiler/weights/weight_writer.h"

namespace ktc::compiler {
namespace {

namespace fs = std::filesystem;

Status ioError(const fs::path& path, const char* what) {
  return make_error(StatusCode::io_error, {.place = path.string(), .what = what, .found = std::strerror(errno)});
}

// Writes and flushes; the caller renames.
Status writeFile(const fs::path& path, const void* data, std::size_t size) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return ioError(path, "cannot create");
  const char* at = static_cast<const char*>(data);
  Status status;
  for (std::size_t done = 0; status.ok() && done < size;) {
    const ssize_t n = ::write(descriptor, at + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = ioError(path, "cannot write");
    else done += static_cast<std::size_t>(n);
  }
  if (status.ok() && fsync(descriptor) != 0) status = ioError(path, "cannot flush");
  ::close(descriptor);
  return status;
}

Expected<std::string> readFile(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return ioError(path, "cannot open");
  std::string text;
  char block[1 << 16];
  for (;;) {
    const ssize_t n = ::read(descriptor, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const bool failed = n < 0;
      Status status = failed ? ioError(path, "cannot read") : Status();
      ::close(descriptor);
      if (failed) return status;
      return text;
    }
    text.append(block, static_cast<std::size_t>(n));
  }
}

// The folder may be new, empty, a plan, or a compile that did not finish; anything else is the user's.
Status prepareFolder(const fs::path& folder, const std::set<std::string>& ours) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    return make_error(StatusCode::invalid_argument, {.place = folder.string(),
                                                     .what = "the output is a plan folder",
                                                     .found = "a file of that name",
                                                     .expected = "a new name or an older plan",
                                                     .remedy = "choose another -o"});
  fs::create_directories(folder, error);
  if (error)
    return make_error(StatusCode::io_error,
                      {.place = folder.string(), .what = "cannot create the folder", .found = error.message()});
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool known = ours.count(name) || entry.path().extension() == ".weights" || entry.path().extension() == ".journal" ||
                       name == "plan.ktp" || name == "plan.ktp.tmp" || name == "report.json";
    if (!known && !fs::exists(folder / "plan.ktp"))
      return make_error(StatusCode::invalid_argument, {.place = folder.string(),
                                                       .what = "the output folder holds other files",
                                                       .found = name,
                                                       .expected = "a new folder or an older plan",
                                                       .remedy = "choose another -o"});
  }
  fs::remove(folder / "plan.ktp", error);  // from here on the folder is no complete plan
  return {};
}

// What an older plan left in the folder and this one does not have.
void removeWeightFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".weights" || entry.path().extension() == ".journal") files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file, ignored);
}

// Everything that decides the bytes of the weight files: jobs, recipes, and which checkpoint they are read from.
std::uint64_t fingerprint(const FileJobs& file, const models::ModelDesc& model) {
  std::string text;
  for (const WeightJob& job : file.jobs) {
    text += fmt::format("{} {} {} {} {} {} {} {} {} {:016x}\n", job.name, job.batch, job.rows, job.columns,
                        static_cast<int>(job.format), job.group, static_cast<int>(job.packing), job.offset, job.clip_search,
                        XXH3_64bits(job.importance.data(), job.importance.size() * sizeof(float)));
    if (!job.matrices.empty()) text += fmt::format("{}\n", fmt::join(job.matrices, " "));
    for (const RecipePiece& p : job.pieces)
      text += fmt::format("{} {} {} {} {} {} {} {} {} {} {}\n", model.slots[p.slot].name, p.src_row, p.row_step, p.rows,
                          p.transpose, p.dst_batch, p.dst_row, p.repeat, p.repeat_src_row, p.repeat_dst_batch,
                          p.repeat_dst_row);
  }
  for (const models::Tensor& t : model.tensors) text += fmt::format("{} {} {} {}\n", t.name, t.shard, t.offset, t.bytes);
  for (const fs::path& shard : model.shards) {
    struct stat status {};
    ::stat(shard.c_str(), &status);
    text += fmt::format("{} {} {}.{}\n", shard.filename().string(), status.st_size, status.st_mtim.tv_sec,
                        status.st_mtim.tv_nsec);
  }
  return XXH3_64bits(text.data(), text.size());
}

WeightQuality qualityOf(const WeightJob& job, const JobQuality& quality) {
  const double weights = static_cast<double>(job.batch) * static_cast<double>(job.rows) * static_cast<double>(job.columns);
  return {job.name,
          fmt::format("{}/{}", to_string(job.format), job.group == 0 ? "row" : std::to_string(job.group)),
          static_cast<double>(job.bytes) * 8 / weights,
          quality.error(),
          quality.worst_error,
          quality.worst_matrix,
          job.batch};
}

}  // namespace

Status emitPlan(mlir::ModuleOp module, const models::ModelDesc& model, const EmitOptions& options) {
  KTC_ASSIGN_OR_RETURN(PlanAndJobs built, buildPlan(module, model));
  if (options.random) KTC_RETURN_IF_ERROR(makeRandom(built, *options.random));
  KTC_RETURN_IF_ERROR(plan::verify_plan(built.plan).with_context("the compiler made a plan that does not verify"));

  std::set<std::string> ours(model.text_files.begin(), model.text_files.end());
  KTC_RETURN_IF_ERROR(prepareFolder(options.folder, ours));
  if (options.random) removeWeightFiles(options.folder);

  std::uint64_t total = 0, before = 0;
  for (FileJobs& file : built.files)
    for (WeightJob& job : file.jobs) {
      total += job.bytes;
      job.clip_search = options.clip_search;
      if (options.moments) KTC_RETURN_IF_ERROR(options.moments->apply(job));
    }
  std::vector<WeightQuality> quality;
  for (const FileJobs& file : built.files) {
    WriteOptions write;
    write.threads = options.threads;
    write.fingerprint = fingerprint(file, model);
    write.cancelled = options.cancelled;
    if (options.progress)
      write.progress = [&options, before, total](std::uint64_t done, std::uint64_t) { options.progress(before + done, total); };
    write.max_error = options.max_error;
    KTC_ASSIGN_OR_RETURN(std::vector<JobRecord> records,
                         write_weights(options.folder / file.path, file.bytes, file.jobs, model, write));
    for (std::size_t i = 0; i < records.size(); ++i) {
      built.plan.weights[file.weights[i]]->digest = records[i].digest;
      if (records[i].quality.squared_norm > 0) quality.push_back(qualityOf(file.jobs[i], records[i].quality));
      before += file.jobs[i].bytes;
    }
  }

  for (const std::string& name : model.text_files) {
    KTC_ASSIGN_OR_RETURN(std::string text, readFile(model.folder / name));
    KTC_RETURN_IF_ERROR(writeFile(options.folder / name, text.data(), text.size()));
    auto out = std::make_unique<planfb::TextFileT>();
    out->name = name;
    out->bytes = text.size();
    out->digest = XXH3_64bits(text.data(), text.size());
    built.plan.text_files.push_back(std::move(out));
  }
  const std::string report = options.report ? options.report(quality) : std::string();
  KTC_RETURN_IF_ERROR(writeFile(options.folder / "report.json", report.data(), report.size()));

  const std::vector<std::byte> bytes = plan::serialise_plan(built.plan);
  const fs::path temporary = options.folder / "plan.ktp.tmp";
  KTC_RETURN_IF_ERROR(writeFile(temporary, bytes.data(), bytes.size()));
  if (::rename(temporary.c_str(), (options.folder / "plan.ktp").c_str()) != 0) return ioError(temporary, "cannot rename");
  std::error_code ignored;  // a journal left behind is harmless
  for (const FileJobs& file : built.files) fs::remove(journal_path(options.folder / file.path), ignored);
  return {};
}

}  // namespace ktc::compiler
