#include "runtime/weights/weight_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "runtime/formats/panel.h"
#include "runtime/weights/host_memory.h"
#include "runtime/weights/node_weights.h"
#include "runtime/weights/random_weights.h"

#ifndef MADV_POPULATE_READ  // Linux 5.14; older C libraries lack the name
#define MADV_POPULATE_READ 22
#endif

namespace ktc::weights {
namespace {

using planfb::WeightSource;

constexpr const char* kCompileAgain = "restore the file, or compile the model again";
constexpr std::size_t kPopulateSlice = std::size_t{64} << 20;  // several progress reports per second on any disk

struct FileDescriptor {
  explicit FileDescriptor(int number) : fd(number) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

Status corrupt(std::string place, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::data_corrupt,
                    {std::move(place), std::move(what), std::move(found), std::move(expected), kCompileAgain});
}

// Opens the file and compares its length: it may have changed since the plan was opened, and a mapping beyond the end of a file
// kills the process at its first touch.
Expected<void*> map_file(const std::filesystem::path& path, std::uint64_t bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) {
    const int error = errno;
    return make_error(error == ENOENT ? StatusCode::not_found : StatusCode::io_error,
                      {path.string(), "cannot open the weight file", std::strerror(error), "", kCompileAgain});
  }
  struct stat status = {};
  if (fstat(file.fd, &status) != 0)
    return make_error(StatusCode::io_error, {path.string(), "cannot read the length", std::strerror(errno), "", ""});
  if (!S_ISREG(status.st_mode)) return corrupt(path.string(), "not a plain file", "", "");
  if (static_cast<std::uint64_t>(status.st_size) != bytes)
    return corrupt(path.string(), "wrong length", std::to_string(status.st_size) + " bytes", std::to_string(bytes) + " bytes");
  if (bytes == 0) return static_cast<void*>(nullptr);
  void* address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) {
    return make_error(StatusCode::io_error, {path.string(), "cannot map " + std::to_string(bytes) + " bytes",
                                             std::strerror(errno), "", "check the limit on address space (ulimit -v)"});
  }
  madvise(address, bytes, MADV_HUGEPAGE);  // honoured by tmpfs and some file systems; a hint
  return address;
}

template <typename Element>
void fill_rows(std::byte* data, const WeightView& view, Element value) {
  const std::uint64_t rows = view.batch * view.rows;
  for (std::uint64_t r = 0; r < rows; ++r) {
    std::byte* row = data + r * view.row_bytes;
    for (std::uint64_t c = 0; c < view.columns; ++c) std::memcpy(row + c * sizeof(Element), &value, sizeof(Element));
  }
}

// The padding of each row stays zero, as in a weight file.
Status fill_splat(std::byte* data, const WeightView& view, float value, const std::string& name) {
  switch (view.format) {
    case Format::f32: fill_rows(data, view, value); return {};
    case Format::bf16:
      if (view.packing != Packing::row_major) break;
      fill_rows(data, view, f32_to_bf16(value));
      return {};
    default: break;
  }
  return make_error(StatusCode::unsupported, {name, "splat weights have no such format and packing",
                                              std::string(to_string(view.format)) + " " + std::string(to_string(view.packing)),
                                              "f32 or bf16 in row_major", ""});
}

bool is_made_here(const planfb::PlanT& plan, const planfb::WeightT& weight) {
  if (weight.source != WeightSource::random) return false;
  return weight.device >= plan.devices.size() || plan.devices[weight.device]->kind == planfb::DeviceKind::cpu;
}

// A block of its own, writable, that the store unmaps.
Expected<std::byte*> allocate(const planfb::WeightT& weight) {
  void* address = mmap(nullptr, weight.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    return make_error(StatusCode::resource_exhausted, {weight.name, "the system refuses the memory", std::strerror(errno),
                                                       std::to_string(weight.bytes) + " bytes", ""});
  madvise(address, weight.bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(address);
}

// Shape, format and length agree; the sizes that later code multiplies do not overflow.
Expected<WeightView> make_view(const planfb::WeightT& weight) {
  WeightView view;
  view.format = static_cast<Format>(weight.format);
  view.packing = static_cast<Packing>(weight.packing);
  if (!is_valid(view.format) || !is_valid(view.packing))
    return corrupt(weight.name, "unknown format or packing",
                   std::to_string(weight.format) + ", " + std::to_string(weight.packing), "");
  const auto bytes = packed_bytes(view.format, view.packing, weight.batch, weight.rows, weight.columns, weight.group);
  if (!bytes || *bytes != weight.bytes)
    return corrupt(weight.name, "length and shape disagree", std::to_string(weight.bytes) + " bytes",
                   bytes ? std::to_string(*bytes) + " bytes" : "less than 2^64 bytes");
  view.batch = weight.batch;
  view.rows = weight.rows;
  view.columns = weight.columns;
  view.group = weight.group;
  if (view.packing == Packing::row_major) view.row_bytes = packed_row_bytes(view.format, view.packing, weight.columns);
  view.matrix_bytes = weight.batch == 0 ? 0 : *bytes / weight.batch;
  return view;
}

// Reads [address, address + bytes) into memory and maps it, so that no later access faults.
Status populate_slice(const std::byte* address, std::size_t bytes, const std::filesystem::path& path, std::uint64_t length) {
  void* start = const_cast<std::byte*>(address);
  while (madvise(start, bytes, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL)
      return make_error(StatusCode::io_error, {path.string(), "cannot read the weights", std::strerror(errno), "", kCompileAgain});
    // An older kernel: touch each page, after a look at the length because a page beyond the end would be fatal.
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < length)
      return corrupt(path.string(), "the file shrank while it was read", std::to_string(status.st_size) + " bytes",
                     std::to_string(length) + " bytes");
    for (std::size_t offset = 0; offset < bytes; offset += 4096) {
      [[maybe_unused]] const volatile std::byte touched = *static_cast<const volatile std::byte*>(address + offset);
    }
    return {};
  }
  return {};
}

// Bytes [offset, offset + to.size()) of a file, by a few threads: one alone is slower than a fast disk.
Status read_file(const std::filesystem::path& path, std::uint64_t offset, std::span<std::byte> to) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return make_error(StatusCode::io_error, {path.string(), "cannot open the weight file", std::strerror(errno), "", kCompileAgain});
  std::atomic<std::size_t> next{0};
  std::atomic<int> error{0};
  std::atomic<bool> ended{false};
  const auto work = [&] {
    for (std::size_t begin = 0; error == 0 && !ended && (begin = next.fetch_add(kPopulateSlice / 4)) < to.size();) {
      const std::size_t end = std::min(to.size(), begin + kPopulateSlice / 4);
      while (begin < end) {
        const ssize_t got = pread(file.fd, to.data() + begin, end - begin, static_cast<off_t>(offset + begin));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) error = errno;
        if (got == 0) ended = true;
        if (got <= 0) return;
        begin += static_cast<std::size_t>(got);
      }
    }
  };
  std::vector<std::thread> threads;
  const std::size_t count = std::min({std::size_t{8}, std::size_t{std::max(1u, std::thread::hardware_concurrency())}, to.size() / kPopulateSlice + 1});
  for (std::size_t t = 1; t < count; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error != 0) return make_error(StatusCode::io_error, {path.string(), "cannot read the weights", std::strerror(error), "", kCompileAgain});
  if (ended) return corrupt(path.string(), "the file shrank while it was read", "", "");
  return {};
}

}  // namespace

WeightStore::~WeightStore() {
  for (const Mapping& mapping : mappings_)
    if (mapping.address != nullptr) munmap(mapping.address, mapping.bytes);
}

Expected<std::unique_ptr<WeightStore>> WeightStore::open(std::shared_ptr<const plan::OpenPlan> plan, bool populate,
                                                         Progress progress) {
  std::unique_ptr<WeightStore> store(new WeightStore);
  store->plan_ = plan;
  const planfb::PlanT& p = plan->plan;

  std::uint64_t splat_bytes = 0, random_bytes = 0, made = 0;
  for (const auto& weight : p.weights) {
    KTC_ASSIGN_OR_RETURN(WeightView view, make_view(*weight));
    store->views_.push_back(view);
    if (weight->source == WeightSource::splat && __builtin_add_overflow(splat_bytes, weight->bytes, &splat_bytes))
      splat_bytes = UINT64_MAX;
    if (is_made_here(p, *weight) && __builtin_add_overflow(random_bytes, weight->bytes, &random_bytes)) random_bytes = UINT64_MAX;
  }
  if (random_bytes != 0)
    KTC_RETURN_IF_ERROR(check_available(random_bytes, "random weights",
                                        "use a machine with more memory, or let layers share weights (ktc compile --alias-layers)"));
  const RandomWeights random(p);
  if (splat_bytes != 0)
    KTC_RETURN_IF_ERROR(check_available(splat_bytes, "splat weights", "use a machine with more memory, or let layers share "
                                                                      "one weight (alias)"));

  // Files first: mappings_[i] belongs to weight_files[i] until the splat blocks follow.
  for (const auto& file : p.weight_files) {
    KTC_ASSIGN_OR_RETURN(void* address, map_file(plan->folder / file->path, file->bytes));
    store->mappings_.push_back({address, file->bytes});
    store->mapped_bytes_ += file->bytes;
  }
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    const planfb::WeightT& weight = *p.weights[i];
    WeightView& view = store->views_[i];
    if (weight.source == WeightSource::file) {
      if (weight.file >= p.weight_files.size())
        return corrupt(weight.name, "unknown weight file", std::to_string(weight.file),
                       "less than " + std::to_string(p.weight_files.size()));
      const Mapping& mapping = store->mappings_[weight.file];
      if (weight.offset > mapping.bytes || weight.bytes > mapping.bytes - weight.offset)
        return corrupt(weight.name, "the weight ends behind its file", std::to_string(weight.bytes) + " bytes at " +
                       std::to_string(weight.offset), "at most " + std::to_string(mapping.bytes) + " bytes");
      view.data = static_cast<const std::byte*>(mapping.address) + weight.offset;
    } else if (weight.source == WeightSource::splat && weight.bytes != 0) {
      KTC_ASSIGN_OR_RETURN(std::byte* address, allocate(weight));
      store->mappings_.push_back({address, weight.bytes});
      KTC_RETURN_IF_ERROR(fill_splat(address, view, weight.splat_value, weight.name));
      view.data = address;
    } else if (is_made_here(p, weight) && weight.bytes != 0) {
      if (progress.report != nullptr) progress.report(progress.context, made, random_bytes);
      KTC_ASSIGN_OR_RETURN(std::byte* address, allocate(weight));
      store->mappings_.push_back({address, weight.bytes});
      KTC_RETURN_IF_ERROR(random.fill(static_cast<std::uint32_t>(i), {address, weight.bytes}));
      view.data = address;
      made += weight.bytes;
    }
  }
  if (random_bytes != 0 && progress.report != nullptr) progress.report(progress.context, made, random_bytes);
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    const planfb::WeightT& weight = *p.weights[i];
    if (weight.source != WeightSource::alias) continue;
    const std::uint32_t target = weight.alias_of;
    if (target >= p.weights.size() || p.weights[target]->source == WeightSource::alias)
      return corrupt(weight.name, "alias of a weight that has no bytes", std::to_string(target), "a weight with bytes of its own");
    if (p.weights[target]->bytes < weight.bytes)
      return corrupt(weight.name, "alias of a smaller weight", std::to_string(p.weights[target]->bytes) + " bytes",
                     std::to_string(weight.bytes) + " bytes");
    store->views_[i].data = store->views_[target].data;
  }
  if (populate) KTC_RETURN_IF_ERROR(store->populate(progress));
  return store;
}

Status WeightStore::make_resident(const std::vector<std::uint32_t>& indices, Progress progress) {
  const planfb::PlanT& p = plan_->plan;
  const auto storage_of = [&](std::uint32_t i) { return p.weights[i]->source == WeightSource::alias ? p.weights[i]->alias_of : i; };
  std::vector<std::uint32_t> storages;
  for (const std::uint32_t index : indices) {
    const std::uint32_t storage = storage_of(index);
    const planfb::WeightT& weight = *p.weights[storage];
    if (weight.source == WeightSource::file && weight.bytes != 0) storages.push_back(storage);
  }
  std::sort(storages.begin(), storages.end());
  storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
  std::uint64_t total = 0, done = 0;
  for (const std::uint32_t storage : storages) total += p.weights[storage]->bytes;
  if (total == 0) return {};
  KTC_RETURN_IF_ERROR(check_available(total, "experts that go to a GPU while the plan runs",
                                      "use a machine with more memory, run with --update off, or compile without batch.stream_chunk"));
  for (const std::uint32_t storage : storages) {
    const planfb::WeightT& weight = *p.weights[storage];
    if (progress.report != nullptr) progress.report(progress.context, done, total);
    KTC_ASSIGN_OR_RETURN(std::byte* address, allocate(weight));
    mappings_.push_back({address, weight.bytes});
    const std::filesystem::path path = plan_->folder / p.weight_files[weight.file]->path;
    KTC_RETURN_IF_ERROR(read_file(path, weight.offset, {address, weight.bytes}));
    views_[storage].data = address;
    resident_.push_back({weight.file, weight.offset, weight.offset + weight.bytes});
    done += weight.bytes;
  }
  merge_resident();
  share_with_aliases();
  if (progress.report != nullptr) progress.report(progress.context, total, total);
  return {};
}

void WeightStore::merge_resident() {
  // what lies between two of them is padding
  std::sort(resident_.begin(), resident_.end(), [](const Range& a, const Range& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  std::vector<Range> merged;
  for (const Range& range : resident_) {
    if (!merged.empty() && merged.back().file == range.file && range.begin <= merged.back().end + 4096)
      merged.back().end = std::max(merged.back().end, range.end);
    else
      merged.push_back(range);
  }
  resident_ = std::move(merged);
}

void WeightStore::share_with_aliases() {
  const planfb::PlanT& p = plan_->plan;
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    if (p.weights[i]->source != WeightSource::alias) continue;
    views_[i].data = views_[p.weights[i]->alias_of].data;
    views_[i].split = views_[p.weights[i]->alias_of].split;
  }
}

Expected<bool> WeightStore::place_on_nodes(const std::vector<NodeShare>& nodes, const std::vector<std::uint32_t>& whole,
                                           std::uint64_t beside, std::vector<std::string>& notes) {
  const planfb::PlanT& p = plan_->plan;
  std::vector<bool> stays(p.weights.size(), false);
  const auto storage_of = [&](std::size_t i) { return p.weights[i]->source == WeightSource::alias ? p.weights[i]->alias_of : i; };
  for (const std::uint32_t index : whole) stays[storage_of(index)] = true;
  std::uint64_t from_files = 0;
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    const planfb::WeightT& weight = *p.weights[i];
    // A part of another weight, or that weight read otherwise: its bytes must stay in one piece.
    const WeightView& view = views_[i];
    const WeightView& target = views_[storage_of(i)];
    if (view.format != target.format || view.packing != target.packing || view.rows != target.rows || view.columns != target.columns ||
        view.group != target.group)
      stays[storage_of(i)] = true;
    if (weight.source == WeightSource::alias || weight.bytes == 0 || view.data == nullptr ||
        p.devices[weight.device]->kind != planfb::DeviceKind::cpu)
      stays[i] = true;
    const bool resident = std::any_of(resident_.begin(), resident_.end(), [&](const Range& range) {
      return weight.source == WeightSource::file && range.file == weight.file && range.begin <= weight.offset &&
             weight.offset + weight.bytes <= range.end;
    });
    if (resident) stays[i] = true;
    if (!stays[i] && weight.source == WeightSource::file) from_files += weight.bytes;
  }
  if (const auto available = available_memory(); available && (*available < from_files || *available - from_files < beside)) {
    notes.push_back("weights of " + std::to_string(from_files) + " bytes do not fit in memory beside the rest, and stay in their files: " +
                    "nodes read them wherever they lie");
    return false;
  }

  auto placed = std::make_unique<NodeWeights>(nodes);
  std::vector<std::pair<std::size_t, std::size_t>> pieces;  // weight, piece
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    if (stays[i]) continue;
    const planfb::WeightT& weight = *p.weights[i];
    WeightView& view = views_[i];
    const std::byte* const source_memory = view.data;
    WeightSourceBytes source;
    if (weight.source == WeightSource::file)
      source = {plan_->folder / p.weight_files[weight.file]->path, weight.offset, nullptr};
    else
      source.memory = source_memory;
    const auto layout = view.packing == Packing::panel || view.packing == Packing::panel_paired
                            ? panel_layout(view.format, view.group, view.packing == Packing::panel_paired, view.rows, view.columns)
                            : std::nullopt;
    if (layout && layout->matrix_bytes == view.matrix_bytes) {
      view.split = placed->add_panels(*layout, view.batch, std::move(source));
      view.data = nullptr;
    } else {
      pieces.emplace_back(i, placed->add_piece(weight.bytes, std::move(source)));
    }
    if (weight.source == WeightSource::file)
      resident_.push_back({weight.file, weight.offset, weight.offset + weight.bytes});
    else
      copied_.push_back(source_memory);
  }
  KTC_RETURN_IF_ERROR(placed->reserve(notes));
  for (const auto& [weight, piece] : pieces) views_[weight].data = placed->piece(piece);
  placed_ = std::move(placed);
  merge_resident();
  share_with_aliases();
  return true;
}

Status WeightStore::load(Progress progress) {
  if (placed_ == nullptr) return {};
  KTC_RETURN_IF_ERROR(placed_->load(progress));
  for (Mapping& mapping : mappings_) {
    if (std::find(copied_.begin(), copied_.end(), static_cast<const std::byte*>(mapping.address)) == copied_.end()) continue;
    munmap(mapping.address, mapping.bytes);
    mapping = {nullptr, 0};
  }
  copied_.clear();
  return {};
}

Status WeightStore::populate(Progress progress) {
  const planfb::PlanT& p = plan_->plan;
  // What is for a GPU alone is read once more when it is uploaded, and not through these mappings.
  std::vector<bool> wanted(p.weight_files.size(), false);
  for (const auto& weight : p.weights)
    if (weight->source == WeightSource::file && p.devices[weight->device]->kind == planfb::DeviceKind::cpu) wanted[weight->file] = true;
  std::uint64_t done = 0, total = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i]) total += mappings_[i].bytes;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    const Mapping& mapping = mappings_[i];
    for (std::size_t offset = 0; offset < mapping.bytes; offset += kPopulateSlice) {
      if (progress.report != nullptr) progress.report(progress.context, done, total);
      const std::size_t bytes = std::min(kPopulateSlice, mapping.bytes - offset);
      const bool elsewhere = std::any_of(resident_.begin(), resident_.end(), [&](const Range& range) {
        return range.file == i && range.begin <= offset && offset + bytes <= range.end;
      });
      if (elsewhere) {
        done += bytes;
        continue;
      }
      KTC_RETURN_IF_ERROR(populate_slice(static_cast<const std::byte*>(mapping.address) + offset, bytes,
                                         plan_->folder / p.weight_files[i]->path, mapping.bytes));
      done += bytes;
    }
  }
  if (progress.report != nullptr) progress.report(progress.context, done, total);
  return {};
}

}  // namespace ktc::weights
