// The plan's folder: reading plan.ktp, the files beside it, and their digests.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "runtime/plan/bounds.h"
#include "runtime/plan/plan.h"

namespace ktc::plan {
namespace {

using planfb::WeightSource;

constexpr const char* kCopyAgain = "copy the plan's folder again, or compile the model again";

class InputFile {
 public:
  InputFile() = default;
  InputFile(const InputFile&) = delete;
  ~InputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Status open(const std::filesystem::path& path, const char* remedy) {
    path_ = path.string();
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a fifo must not block
    struct stat status {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
      const int error = errno;
      return make_error(error == ENOENT ? StatusCode::not_found : StatusCode::io_error,
                        {path_, "cannot open", std::strerror(error), "", remedy});
    }
    if (!S_ISREG(status.st_mode))
      return make_error(StatusCode::io_error, {path_, "cannot open", "no regular file", "a file", remedy});
    bytes_ = static_cast<std::uint64_t>(status.st_size);
    return {};
  }

  std::uint64_t bytes() const { return bytes_; }

  Status read(std::uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0)
        return make_error(StatusCode::io_error, {path_, fmt::format("cannot read at byte {}", offset),
                                                 count == 0 ? "the end of the file" : std::strerror(errno), "", ""});
      offset += static_cast<std::uint64_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

 private:
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::string path_;
};

Status check_length(const std::filesystem::path& path, std::uint64_t expected) {
  InputFile file;
  KTC_RETURN_IF_ERROR(file.open(path, kCopyAgain));
  if (file.bytes() == expected) return {};
  return make_error(StatusCode::data_corrupt, {path.string(), "length", fmt::format("{} bytes", file.bytes()),
                                               fmt::format("{} bytes", expected), kCopyAgain});
}

struct Range {
  std::string_view file;
  std::string what;
  std::uint64_t offset, bytes, digest;
};

// Everything that has a digest, in the order in which disks like to read it.
std::vector<Range> ranges_of(const planfb::PlanT& plan) {
  std::vector<Range> ranges;
  for (const auto& weight : plan.weights)
    if (weight->source == WeightSource::file)
      ranges.push_back({plan.weight_files[weight->file]->path, fmt::format("weight \"{}\"", weight->name),
                        weight->offset, weight->bytes, weight->digest});
  for (const auto& file : plan.text_files) ranges.push_back({file->name, "contents", 0, file->bytes, file->digest});
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.file != b.file ? a.file < b.file : a.offset < b.offset; });
  return ranges;
}

}  // namespace

Expected<std::shared_ptr<const OpenPlan>> open_plan(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error))
    return make_error(StatusCode::not_found,
                      {folder.string(), "no such plan", "", "a folder that ktc compile wrote", ""});
  if (!std::filesystem::is_directory(folder, error))
    return make_error(StatusCode::invalid_argument,
                      {folder.string(), "not a plan's folder", "", "a folder that ktc compile wrote", ""});
  const std::filesystem::path path = folder / "plan.ktp";
  const std::string name = path.string();
  std::vector<std::byte> bytes;
  {
    InputFile file;
    KTC_RETURN_IF_ERROR(file.open(path, "the compile was not finished: run it again"));
    if (file.bytes() > kMaxPlanBytes)
      return make_error(StatusCode::data_corrupt, {name, "too long for a plan", fmt::format("{} bytes", file.bytes()),
                                                   fmt::format("at most {}", kMaxPlanBytes), kCopyAgain});
    // what is no plan is told by its first bytes, without the memory for the rest
    bytes.resize(std::min<std::uint64_t>(file.bytes(), kSmallestPlan));
    KTC_RETURN_IF_ERROR(file.read(0, bytes));
    KTC_RETURN_IF_ERROR(check_head(bytes, name));
    bytes.resize(file.bytes());
    KTC_RETURN_IF_ERROR(file.read(0, bytes));
  }
  auto open = std::make_shared<OpenPlan>();
  open->folder = folder;
  KTC_ASSIGN_OR_RETURN(open->plan, parse_plan(bytes, name));
  for (const auto& file : open->plan.weight_files) KTC_RETURN_IF_ERROR(check_length(folder / file->path, file->bytes));
  for (const auto& file : open->plan.text_files) KTC_RETURN_IF_ERROR(check_length(folder / file->name, file->bytes));
  return std::shared_ptr<const OpenPlan>(std::move(open));
}

Status verify_weights(const OpenPlan& plan, void (*progress)(void*, std::uint64_t, std::uint64_t), void* context) {
  constexpr std::size_t kBlock = std::size_t{4} << 20;
  const std::vector<Range> ranges = ranges_of(plan.plan);
  std::uint64_t total = 0, done = 0;
  for (const Range& range : ranges) total += range.bytes;
  std::vector<std::byte> block(std::min<std::uint64_t>(kBlock, std::max<std::uint64_t>(total, 1)));
  XXH3_state_t state;
  for (const Range& range : ranges) {
    // opened again for each range: cheap beside the reading, and no descriptor is held
    InputFile file;
    KTC_RETURN_IF_ERROR(file.open(plan.folder / range.file, kCopyAgain));
    XXH3_64bits_reset(&state);
    for (std::uint64_t at = 0; at < range.bytes;) {
      const std::span<std::byte> part = std::span(block).first(std::min<std::uint64_t>(block.size(), range.bytes - at));
      KTC_RETURN_IF_ERROR(file.read(range.offset + at, part));
      XXH3_64bits_update(&state, part.data(), part.size());
      at += part.size();
      done += part.size();
      if (progress != nullptr) progress(context, done, total);
    }
    const std::uint64_t found = XXH3_64bits_digest(&state);
    if (found != range.digest)
      return make_error(StatusCode::data_corrupt,
                        {(plan.folder / range.file).string(), range.what + ": digest", fmt::format("{:016x}", found),
                         fmt::format("{:016x}", range.digest), kCopyAgain});
  }
  return {};
}

}  // namespace ktc::plan
