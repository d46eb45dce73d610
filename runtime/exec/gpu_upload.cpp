// Weights from files to GPUs: read into one pinned buffer while the other is on its way.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/exec/gpu_memory.h"
#include "runtime/weights/random_weights.h"

namespace ktc::exec {
namespace {

using planfb::WeightSource;

constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;

Status unreadable(const std::filesystem::path& path, const char* what, std::string found) {
  return make_error(StatusCode::io_error, {.place = path.string(),
                                           .what = what,
                                           .found = std::move(found),
                                           .remedy = "restore the file, or compile the model again"});
}

class File {
 public:
  explicit File(std::filesystem::path path) : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  Status read(std::byte* to, std::uint64_t bytes, std::uint64_t offset) const {
    if (fd_ < 0) return unreadable(path_, "cannot open the weight file", "");
    while (bytes != 0) {
      const ssize_t got = pread(fd_, to, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return unreadable(path_, "cannot read the weights", std::strerror(errno));
      if (got == 0) return unreadable(path_, "the file ends before its weights", "end at byte " + std::to_string(offset));
      to += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
    return {};
  }

 private:
  std::filesystem::path path_;
  int fd_;
};

// Two buffers, each with a stream of its own: a buffer is free when its stream has nothing to do.
class Pipe {
 public:
  static Expected<std::unique_ptr<Pipe>> create(Gpu& gpu) {
    std::unique_ptr<Pipe> pipe(new Pipe(gpu));
    for (int i = 0; i < 2; ++i) {
      // pinned where the system has it; copies from ordinary memory are slower and no less right
      if (auto pinned = gpu.device->allocate_mapped(kPiece, "weights on their way"); pinned.ok()) {
        pipe->pinned_[i] = std::move(pinned).value();
        pipe->buffer_[i] = pipe->pinned_[i].host();
      } else {
        KTC_ASSIGN_OR_RETURN(pipe->plain_[i], weights::HostBlock::allocate(kPiece, "weights on their way"));
        pipe->buffer_[i] = pipe->plain_[i].data();
      }
    }
    return pipe;
  }

  ~Pipe() { (void)finish(); }  // nothing is on its way when the buffers go

  // fill(to) writes `bytes`, at most kPiece.
  template <typename Fill>
  Status send(std::byte* to, std::uint64_t bytes, const Fill& fill) {
    device::Stream& stream = next_ == 0 ? gpu_.compute() : gpu_.copies();
    KTC_RETURN_IF_ERROR(stream.wait());
    KTC_RETURN_IF_ERROR(fill(buffer_[next_]));
    KTC_RETURN_IF_ERROR(stream.copy_to_device(to, buffer_[next_], bytes));
    next_ = 1 - next_;
    return {};
  }
  Status finish() {
    KTC_RETURN_IF_ERROR(gpu_.compute().wait());
    return gpu_.copies().wait();
  }

 private:
  explicit Pipe(Gpu& gpu) : gpu_(gpu) {}
  Gpu& gpu_;
  device::MappedBlock pinned_[2];
  weights::HostBlock plain_[2];
  std::byte* buffer_[2] = {};
  int next_ = 0;
};

}  // namespace

Status upload_weights(const plan::OpenPlan& plan, const weights::WeightStore& store, std::vector<Gpu>& gpus,
                      const weights::Progress& progress) {
  const planfb::PlanT& p = plan.plan;
  std::uint64_t total = 0, done = 0;
  for (const Gpu& gpu : gpus)
    for (const auto& weight : p.weights)
      if (weight->device == gpu.index && weight->source != WeightSource::alias) total += weight->bytes;
  if (total == 0) return {};

  const weights::RandomWeights random(p);
  std::vector<std::unique_ptr<File>> files(p.weight_files.size());
  for (Gpu& gpu : gpus) {
    KTC_ASSIGN_OR_RETURN(std::unique_ptr<Pipe> pipe, Pipe::create(gpu));
    for (std::uint32_t i = 0; i < p.weights.size(); ++i) {
      const planfb::WeightT& weight = *p.weights[i];
      if (weight.device != gpu.index || weight.source == WeightSource::alias) continue;
      auto* to = const_cast<std::byte*>(gpu.weight[i].data);
      weights::HostBlock made;
      if (weight.source == WeightSource::random && weight.bytes != 0) {
        KTC_ASSIGN_OR_RETURN(made, weights::HostBlock::allocate(weight.bytes, "random weight " + weight.name));
        KTC_RETURN_IF_ERROR(random.fill(i, {made.data(), weight.bytes}));
      }
      for (std::uint64_t at = 0; at < weight.bytes; at += kPiece) {
        const std::uint64_t bytes = std::min(kPiece, weight.bytes - at);
        if (progress.report != nullptr) progress.report(progress.context, done, total);
        const Status sent = pipe->send(to + at, bytes, [&](std::byte* piece) -> Status {
          if (weight.source != WeightSource::file) {
            std::memcpy(piece, (made.data() != nullptr ? made.data() : store[i].data) + at, bytes);
            return {};
          }
          std::unique_ptr<File>& file = files[weight.file];
          if (file == nullptr) file = std::make_unique<File>(plan.folder / p.weight_files[weight.file]->path);
          return file->read(piece, bytes, weight.offset + at);
        });
        if (!sent.ok()) return sent.with_context("weight " + weight.name);
        done += bytes;
      }
    }
    KTC_RETURN_IF_ERROR(pipe->finish());
  }
  if (progress.report != nullptr) progress.report(progress.context, done, total);
  return {};
}

}  // namespace ktc::exec
