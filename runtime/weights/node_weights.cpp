#include "runtime/weights/node_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/weights/numa_memory.h"
#include "runtime/weights/weight_store.h"

namespace ktc::weights {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kJobBytes = std::uint64_t{8} << 20;
constexpr std::size_t kMostReaders = 8;  // of a node: enough for any disk

std::uint64_t rounded(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

// What a thread has open; each has its own, so that nobody waits for another.
class Files {
 public:
  ~Files() {
    for (const auto& [path, fd] : open_) close(fd);
  }
  int of(const std::filesystem::path& path) {
    const auto [at, fresh] = open_.try_emplace(path, -1);
    if (fresh) at->second = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const int fd = at->second;
    if (fd < 0) open_.erase(at);
    return fd;
  }

 private:
  std::map<std::filesystem::path, int> open_;
};

Status read_error(const std::filesystem::path& path, StatusCode code, std::string what, std::string found) {
  return make_error(code, {path.string(), std::move(what), std::move(found), "", "restore the file, or compile the model again"});
}

// `forget`: the system need not keep what was read, there is no room for it twice.
Status read_job(Files& files, const std::filesystem::path& path, std::uint64_t offset, std::byte* to, std::uint64_t bytes, bool forget) {
  const int fd = files.of(path);
  if (fd < 0) return read_error(path, StatusCode::io_error, "cannot open the weight file", std::strerror(errno));
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return read_error(path, StatusCode::io_error, "cannot read the weights", std::strerror(errno));
    if (got == 0) return read_error(path, StatusCode::data_corrupt, "the file shrank while it was read", "");
    done += static_cast<std::uint64_t>(got);
  }
  if (forget) posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  return {};
}

}  // namespace

std::uint64_t NodeWeights::before(std::size_t node) const {
  std::uint64_t workers = 0;
  for (std::size_t n = 0; n < node; ++n) workers += nodes_[n].workers;
  return workers;
}

const PanelSplit* NodeWeights::add_panels(const PanelLayout& layout, std::uint64_t batch, WeightSourceBytes source) {
  // Products of gate and up are quantised 64 at a time, which is four panels of a pair.
  const std::uint64_t unit = layout.paired && layout.panels >= 4 * nodes_.size() ? 4 : 1;
  Panels& added = panels_.emplace_back(Panels{layout, batch, std::move(source), {}, {}});
  added.split.nodes = nodes_.size();
  const std::uint64_t workers = before(nodes_.size());
  for (std::size_t n = 0; n <= nodes_.size(); ++n) added.split.first[n] = share_begin(layout.panels, before(n), workers, unit);
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    added.split.stride[n] = (added.split.first[n + 1] - added.split.first[n]) * layout.panel_bytes;
    added.at[n] = part_bytes_[n];
    part_bytes_[n] += batch * added.split.stride[n];  // whole panels, each whole cache lines
  }
  total_ += batch * layout.matrix_bytes;
  return &added.split;
}

std::size_t NodeWeights::add_piece(std::uint64_t bytes, WeightSourceBytes source) {
  pieces_.push_back({piece_bytes_, bytes, std::move(source)});
  piece_bytes_ += rounded(bytes, kPage);
  total_ += bytes;
  return pieces_.size() - 1;
}

void NodeWeights::bind(const std::byte* begin, std::uint64_t bytes, std::size_t node, bool strict, std::vector<std::string>& notes) const {
  if (nodes_[node].memory < 0 || bytes == 0) return;
  const Status bound = bind_memory(begin, bytes, nodes_[node].memory, strict);
  if (!bound.ok() && std::find(notes.begin(), notes.end(), bound.message()) == notes.end()) notes.push_back(bound.message());
}

Status NodeWeights::reserve(std::vector<std::string>& notes) {
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    KTC_ASSIGN_OR_RETURN(HostBlock block, HostBlock::allocate(part_bytes_[n], "weights of node " + std::to_string(n)));
    parts_.push_back(std::move(block));
    const auto room = nodes_[n].memory < 0 ? std::nullopt : node_room(nodes_[n].memory);
    bind(parts_[n].data(), rounded(parts_[n].bytes(), kPage), n, room && *room > part_bytes_[n] + part_bytes_[n] / 16, notes);
  }
  for (Panels& panels : panels_)
    for (std::size_t n = 0; n < nodes_.size(); ++n) panels.split.data[n] = parts_[n].data() + panels.at[n];
  KTC_ASSIGN_OR_RETURN(block_, HostBlock::allocate(piece_bytes_, "weights in rows"));
  for (const Piece& piece : pieces_) {
    const std::uint64_t pages = rounded(piece.bytes, kPage) / kPage;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const std::uint64_t begin = share_begin(pages, before(n), before(nodes_.size()), 1);
      const std::uint64_t end = share_begin(pages, before(n + 1), before(nodes_.size()), 1);
      // Small ones are in everybody's caches, and each range that is bound costs the system an entry.
      if (pages >= 16 * nodes_.size()) bind(block_.data() + piece.at + begin * kPage, (end - begin) * kPage, n, false, notes);
    }
  }
  return {};
}

std::vector<std::vector<NodeWeights::Job>> NodeWeights::jobs() const {
  std::vector<std::vector<Job>> all(nodes_.size());
  const auto add = [&](std::size_t node, const WeightSourceBytes& source, std::uint64_t from, std::uint64_t bytes, const std::byte* to) {
    for (std::uint64_t at = 0; at < bytes; at += kJobBytes)
      all[node].push_back({&source, from + at, std::min(kJobBytes, bytes - at), const_cast<std::byte*>(to) + at});
  };
  for (const Panels& panels : panels_)
    for (std::size_t n = 0; n < nodes_.size(); ++n)
      for (std::uint64_t b = 0; b < panels.batch; ++b)
        add(n, panels.source, b * panels.layout.matrix_bytes + panels.split.first[n] * panels.layout.panel_bytes, panels.split.stride[n],
            panels.split.data[n] + b * panels.split.stride[n]);
  for (const Piece& piece : pieces_) {
    const std::uint64_t pages = rounded(piece.bytes, kPage) / kPage;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const std::uint64_t begin = share_begin(pages, before(n), before(nodes_.size()), 1) * kPage;
      const std::uint64_t end = std::min(piece.bytes, share_begin(pages, before(n + 1), before(nodes_.size()), 1) * kPage);
      if (begin < end) add(n, piece.source, begin, end - begin, block_.data() + piece.at + begin);
    }
  }
  return all;
}

Status NodeWeights::load(const Progress& progress) {
  const std::vector<std::vector<Job>> all = jobs();
  const std::optional<std::uint64_t> available = available_memory();
  const bool forget = available && *available / 2 < total_;
  std::vector<std::atomic<std::size_t>> next(nodes_.size());
  std::atomic<std::uint64_t> done{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t running = 0;  // guarded by mutex, as is:
  Status first_error;
  const auto work = [&](std::size_t node) {
    stay_on(nodes_[node].cpus);
    Files files;
    Status status;
    for (std::size_t i; status.ok() && !failed && (i = next[node].fetch_add(1)) < all[node].size();) {
      const Job& job = all[node][i];
      if (job.source->file.empty())
        std::memcpy(job.to, job.source->memory + job.from, job.bytes);
      else
        status = read_job(files, job.source->file, job.source->offset + job.from, job.to, job.bytes, forget);
      done += job.bytes;
    }
    const std::lock_guard lock(mutex);
    if (!status.ok() && !failed.exchange(true)) first_error = std::move(status);
    if (--running == 0) ended.notify_all();
  };
  std::vector<std::thread> threads;
  Status started;
  for (std::size_t n = 0; n < nodes_.size() && started.ok(); ++n) {
    const std::size_t count = std::min({kMostReaders, std::size_t{nodes_[n].workers}, all[n].size()});
    for (std::size_t t = 0; t < count && started.ok(); ++t) {
      const std::lock_guard lock(mutex);
      try {
        threads.emplace_back(work, n);
        ++running;
      } catch (const std::system_error& error) {
        // A node with one reader is as good, only slower.
        if (t == 0)
          started = make_error(StatusCode::resource_exhausted, {"loading weights", "the system refuses a thread", error.what(), "", ""});
        break;
      }
    }
  }
  if (!started.ok()) failed = true;
  for (std::unique_lock lock(mutex); running != 0;) {
    if (progress.report != nullptr) progress.report(progress.context, done, total_);
    ended.wait_for(lock, std::chrono::milliseconds(100));
  }
  for (std::thread& thread : threads) thread.join();
  KTC_RETURN_IF_ERROR(started);
  KTC_RETURN_IF_ERROR(first_error);
  if (progress.report != nullptr) progress.report(progress.context, total_, total_);
  return {};
}

}  // namespace ktc::weights
